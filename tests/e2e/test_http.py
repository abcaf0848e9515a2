"""The front end's HTTP against real processes: bad inputs, slow and vanishing clients, two front ends.

The workers run a fake model (any token, at once), so that the sockets are what is tested.
"""

import concurrent.futures
import contextlib
import email.utils
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

import folders
from cluster import PATIENCE, Cluster, wait_until

LIMIT = 1_000_000  # max_body_bytes of these tests
GENERATE = "/generate"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


class Reply:
    def __init__(self, status, headers, body, closed):
        self.status, self.headers, self.body, self.closed = status, headers, body, closed

    def json(self):
        return json.loads(self.body)


def connect(port):
    client = socket.create_connection(("127.0.0.1", port), timeout=30 * PATIENCE)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def read_until(client, data, mark):
    while mark not in data:
        piece = client.recv(65536)
        if not piece:
            break
        data += piece
    return data


def read_reply(client, data=b""):
    """One reply with a Content-Length, and whatever follows it."""
    data = read_until(client, data, b"\r\n\r\n")
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
    size = int(headers.get("content-length", 0))
    while len(body) < size:
        piece = client.recv(65536)
        if not piece:
            break
        body += piece
    return Reply(int(lines[0].split()[1]), headers, body[:size].decode(), None), body[size:]


def raw(port, data, half_close=False):
    """Sends bytes, reads one reply, and says whether the server then closed."""
    with connect(port) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(data)
            if half_close:
                client.shutdown(socket.SHUT_WR)
        reply, rest = read_reply(client)
        client.settimeout(0.3 * PATIENCE)
        try:
            rest += client.recv(65536)
            reply.closed = True
        except TimeoutError:
            reply.closed = False
        except ConnectionError:
            reply.closed = True
        reply.rest = rest
        return reply


def post(path, body, headers=""):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode()
            + body)


def streamed(path, **body):
    return post(path, {"stream": True, "temperature": 0, **body})


def completion(tokens, **more):
    return streamed(COMPLETIONS, prompt="Hello", max_tokens=tokens, ignore_eos=True, **more)


def events_of(data):
    """Events of a whole chunked reply."""
    _, _, body = data.partition(b"\r\n\r\n")
    text = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            break
        text, body = text + body[:n], body[n + 2:]
    return [line[6:] for line in text.decode().split("\n") if line.startswith("data: ")]


class ClusterTest(unittest.TestCase):
    options = {}

    @classmethod
    def setUpClass(cls):
        options = {"fake": True, **cls.options}
        options["frontend"] = {"max_body_bytes": LIMIT, **options.get("frontend", {})}
        cls.cluster = cls.enterClassContext(Cluster(**options))
        cls.port = next(iter(cls.cluster.frontends.values()))

    def setUp(self):
        self.still_serves()

    def tearDown(self):
        self.still_serves()
        self.cluster.assert_at_rest()

    def still_serves(self, frontend=None):
        status, reply = self.cluster.post(
            COMPLETIONS, {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}, frontend)
        self.assertEqual((status, reply["usage"]["completion_tokens"]), (200, 3), reply)

    def metric(self, name, frontend=None):
        _, text = self.cluster.get("/metrics", frontend)
        values = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.M)
        self.assertTrue(values, name)
        return sum(map(float, values))

    def request(self, *arguments, **options):
        return raw(self.port, *arguments, **options)

    def assert_error(self, reply, status, *words):
        self.assertEqual(reply.status, status, reply.body)
        self.assertEqual(reply.headers["content-type"], "application/json")
        error = reply.json()["error"]
        for key in ("message", "type", "param", "code"):
            self.assertIn(key, error)
        for word in words:
            self.assertIn(word, error["message"])
        self.assertTrue(reply.closed, "the connection stays open after an error")
        self.assertIn("x-request-id", reply.headers)


class Routes(ClusterTest):
    def test_every_get(self):
        for path in ("/", "/health", "/metrics", "/v1/models", "/v1/models/demo",
                     "/v1/models/d%65mo", "/health?x=1", "/health/", "/healthz", "/ping", "/server_info",
                     "/get_server_info", "/model_info", "/get_model_info", "/get_load"):
            reply = self.request(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            self.assertEqual(reply.status, 200, path)
            self.assertFalse(reply.closed, path)
            head = self.request(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            self.assertEqual((head.status, head.body), (200, ""))
            self.assertGreater(int(head.headers["content-length"]), 0)
        health = self.request(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").json()
        self.assertEqual((health["status"], health["workers_ready"]), ("ok", 2))
        page = self.request(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n")
        self.assertIn("text/html", page.headers["content-type"])

    def test_unknown_routes_and_methods(self):
        for path in ("/nope", "/v1", "/v1/", "/v1/completion", "/generate/x", "/%2e%2e/etc/passwd",
                     "/v1/models/a/b/c"):
            self.assert_error(self.request(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()), 404, path)
        for name, shown in (("other", "other"), ("demo/x", "demo/x"), ("demo%2Fx", "demo/x"),
                            ("demo%2fx/", "demo/x")):
            self.assert_error(self.request(f"GET /v1/models/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()), 404,
                              f"'{shown}' does not exist here")
        for method, path, allowed in (("GET", GENERATE, "POST, OPTIONS"),
                                      ("PUT", CHAT, "POST, OPTIONS"),
                                      ("DELETE", "/health", "GET, HEAD, OPTIONS"),
                                      ("POST", "/v1/models/demo", "GET, HEAD, OPTIONS"),
                                      ("POST", "/v1/models/a/b", "GET, HEAD, OPTIONS")):
            reply = self.request(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            self.assert_error(reply, 405, method, allowed)
            self.assertEqual(reply.headers["allow"], allowed)
        self.assert_error(self.request(b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n"), 501)

    def test_request_ids(self):
        for path in ("/health", "/nope", GENERATE):
            given = self.request(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: abc-1.2:3\r\n\r\n".encode())
            self.assertEqual(given.headers["x-request-id"], "abc-1.2:3")
        made = {self.request(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").headers["x-request-id"]
                for _ in range(20)}
        self.assertEqual(len(made), 20)
        for bad in ("a b", "x" * 129, "\"", ""):
            reply = self.request(f"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {bad}\r\n\r\n".encode())
            self.assert_error(reply, 400, "X-Request-Id")
        self.request(post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 1},
                          "X-Request-Id: seen-in-the-log\r\n"))
        log = (self.cluster.folder / "frontend0.log").read_text()
        self.assertIn("seen-in-the-log", log)

    def test_whom_a_request_is_for(self):
        def status(line, *headers):
            return self.request("\r\n".join([line, *headers, "", ""]).encode()).status

        for host in ("localhost", "LOCALHOST:8000", "a.localhost", "127.0.0.1", "[::1]:1"):
            self.assertEqual(status("GET /health HTTP/1.1", f"Host: {host}"), 200, host)
        for headers in ((), ("Host: a", "Host: a"), ("Host:",), ("Host: a b",), ("Host: a/b",)):
            self.assertEqual(status("GET /health HTTP/1.1", *headers), 400, headers)
        # Without keys, on the loopback: a page cannot lend this server a name of its own.
        for host in ("evil.example", "127.0.0.1.evil.example:8000", "10.0.0.1"):
            reply = self.request(f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            self.assert_error(reply, 403, "frontend.allowed_hosts")
        self.assertEqual(status("GET http://evil.example/health HTTP/1.1", "Host: localhost"), 403)
        self.assertEqual(status("GET HTTP://localhost/health HTTP/1.1", "Host: localhost"), 200)
        self.assertEqual(status("GET http:///health HTTP/1.1", "Host: localhost"), 400)
        models = self.request(b"GET http://localhost?/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertIn("Spoken here", models.body)  # it is the page at /
        # A page of another site may not make the model work either, even if it cannot read the reply.
        cross = ("Host: localhost", "Sec-Fetch-Site: cross-site")
        self.assertEqual(status("GET /v1/models HTTP/1.1", *cross, "Sec-Fetch-Mode: no-cors"), 403)
        self.assertEqual(status("GET / HTTP/1.1", *cross, "Sec-Fetch-Mode: navigate"), 200)
        reply = self.request(post(COMPLETIONS, {"prompt": "a"}, "Sec-Fetch-Site: cross-site\r\n"))
        self.assert_error(reply, 403, "another site")

    def test_every_reply_has_a_date(self):
        stream = raw(self.port, completion(1))
        for reply in (self.request(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"), stream,
                      self.request(b"GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                      self.request(b"nonsense\r\n\r\n"), self.request(post(GENERATE, b"{"))):
            sent = email.utils.parsedate_to_datetime(reply.headers["date"])
            self.assertLess(abs(sent.timestamp() - time.time()), 60 * PATIENCE)

    def test_what_the_log_says_of_refusals(self):
        name = f"marked-{time.monotonic_ns()}"
        self.request(post(COMPLETIONS, {"prompt": "a", "model": "other\nmodel"}, f"X-Request-Id: {name}\r\n"))
        self.request(f"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {name}-probe\r\n\r\n".encode())
        log = (self.cluster.folder / "frontend0.log").read_text()
        lines = [line for line in log.splitlines() if name in line]
        self.assertEqual(len(lines), 1, "a probe has a line, or a refusal has none")
        self.assertRegex(lines[0], r"^\S+T\S+ info frontend0 " + name + r" POST /v1/completions 404 "
                         r'client=127\.0\.0\.1:\d+ reason="model_not_found: model"')
        form = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} [a-z]+ (\S+) ")
        for process in ("scheduler", "frontend0", *self.cluster.workers):
            lines = (self.cluster.folder / f"{process}.log").read_text().splitlines()
            named = [form.match(line) for line in lines]
            self.assertTrue(all(named), [line for line in lines if not form.match(line)][:3])
            self.assertEqual({line[1] for line in named}, {process})

    def test_whole_replies_and_streams(self):
        whole = self.request(post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 7, "seed": 5,
                                                "ignore_eos": True})).json()
        self.assertEqual(whole["usage"]["completion_tokens"], 7)
        for headers, version in (("", "1.1"), ("", "1.0")):
            with connect(self.port) as client:
                data = streamed(COMPLETIONS, prompt="Hello", max_tokens=7, seed=5, temperature=1,
                                ignore_eos=True).replace(b"HTTP/1.1", b"HTTP/" + version.encode())
                client.sendall(data)
                answer = read_until(client, b"", b"data: [DONE]\n\n")
            pieces = [json.loads(line[6:]) for line in answer.decode().split("\n")
                      if line.startswith("data: {")]
            text = "".join(p["choices"][0]["text"] for p in pieces if p["choices"])
            self.assertEqual(text, whole["choices"][0]["text"])
        chat = self.request(post(CHAT, {"messages": [{"role": "user", "content": "Hi"}],
                                        "max_completion_tokens": 4, "ignore_eos": True}))
        self.assertEqual(chat.status, 200, chat.body)
        lab = self.request(post(GENERATE, {"prompt": "你是谁", "temperature": 0, "max_length": 50,
                                           "min_length": 10}))
        self.assertTrue(lab.json()["generated_text"].startswith("你是谁"))

    def test_curl_s_form_type_is_read_as_json(self):
        reply = self.request(post(GENERATE, {"prompt": "a", "max_length": 20},
                                  "Content-Type: application/x-www-form-urlencoded\r\n"))
        self.assertEqual(reply.status, 200)

    def test_generate_clamps_and_says_so(self):
        reply = self.request(post(GENERATE, {"prompt": "Hi", "max_length": 10**9, "stop": ["e", "a", "t", "o"]}))
        self.assertEqual(reply.status, 200)
        self.assertIn("clamped", reply.headers["x-baton-max-length"])

    def test_metrics_count(self):
        before = self.metric("vllm:generation_tokens_total")
        self.request(post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 9, "ignore_eos": True}))
        self.assertEqual(self.metric("vllm:generation_tokens_total"), before + 9)
        self.assertEqual(self.metric("baton_generation_tokens_total"), before + 9)
        self.assertEqual(self.metric("baton_open_streams"), 0)
        self.assertEqual(self.metric("baton_scheduler_connected"), 1)

    def test_metrics_pass_prometheus_own_check(self):
        self.request(post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 2, "ignore_eos": True}))
        text = self.cluster.get("/metrics")[1]
        check = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        # Colons are for recording rules, says the linter; these are the names that boards know.
        found = [line for line in (check.stdout + check.stderr).splitlines()
                 if not re.fullmatch(r"vllm:\S+ metric names should not contain ':'", line)]
        self.assertEqual([], found)
        self.assertIn(check.returncode, (0, 3), "3: the linter said something")

    def test_metrics_tell_of_pools_and_phases(self):
        for name in ("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"):
            before = self.metric(f"vllm:{name}_count")
            self.request(post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 2, "ignore_eos": True}))
            self.assertEqual(self.metric(f"vllm:{name}_count"), before + 1, name)
            self.assertLess(self.metric(f"vllm:{name}_sum"), 60, name)
        text = self.cluster.get("/metrics")[1]
        for name in ("kv_cache_usage_perc", "prefix_cache_queries_total", "prefix_cache_hits_total",
                     "num_preemptions_total"):
            self.assertRegex(text, rf"(?m)^vllm:{name}{{.*}} [0-9.e+-]+$")
        states = re.findall(r'^baton_kv_blocks\{.*worker="(\w+)",role="(\w+)",state="(\w+)"\} (\d+)$', text, re.M)
        blocks = int(re.search(r'^vllm:cache_config_info\{.*num_gpu_blocks="(\d+)"\} 1$', text, re.M)[1])
        self.assertGreater(blocks, 0)
        self.assertEqual(blocks, sum(int(count) for *_, count in states))
        self.assertEqual({"owned", "fenced", "cached", "free"}, {state for _, _, state, _ in states})
        self.assertGreater(self.metric("process_resident_memory_bytes"), 1 << 20)


class UnknownFields(ClusterTest):
    def test_they_are_ignored_and_told_in_the_header_and_once_in_the_log(self):
        fields = {"max_tokens": 2, "ignore_eos": True, "seed": 1, "zebra": {"a": 1}, "unheard\nof": 2}
        chat = {"messages": [{"role": "user", "content": "a", "colour": 3}]}
        plain = self.request(post(COMPLETIONS, {"prompt": "a", "max_tokens": 2, "ignore_eos": True, "seed": 1}))
        self.assertNotIn("x-ignored-fields", plain.headers)
        for _ in range(2):
            for path, body, names in ((COMPLETIONS, {"prompt": "a"}, "unheard?of, zebra"),
                                      (CHAT, chat, "messages[].colour, unheard?of, zebra")):
                reply = self.request(post(path, {**body, **fields}))
                self.assertEqual((reply.status, reply.headers.get("x-ignored-fields")), (200, names), reply.body)
        with connect(self.port) as client:
            client.sendall(completion(2, zebra=1))
            head = client.recv(65536).partition(b"\r\n\r\n")[0]
            self.assertIn(b"X-Ignored-Fields: zebra", head)
        log = (self.cluster.folder / "frontend0.log").read_text()
        for name in ("zebra", "unheard?of", "messages[].colour"):
            lines = [line for line in log.splitlines() if f"'{name}'" in line]
            self.assertEqual(len(lines), 1, lines)
            self.assertIn("warning", lines[0])

    def test_what_cannot_be_served_stays_an_error(self):
        self.check(COMPLETIONS, {"prompt": "a", "zebra": 1, "regex": "a+"}, 400, "regex")
        self.check(CHAT, {"messages": [{"role": "user", "content": "a"}], "functions": [{"name": "f"}]}, 400, "functions")

    def check(self, path, body, status, *words):
        self.assert_error(self.request(post(path, body)), status, *words)


class StrictFields(ClusterTest):
    options = {"frontend": {"strict_fields": True}}

    def test_unknown_fields_are_errors(self):
        for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": [{"role": "user", "content": "a"}]}),
                           ("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": []})):
            self.assert_error(self.request(post(path, {**body, "zebra": 1})), 400, "zebra")


class BadInputs(ClusterTest):
    def check(self, path, body, status, *words):
        self.assert_error(self.request(post(path, body)), status, *words)

    def test_on_every_route(self):
        deep = b'{"prompt":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
        for path, good in ((GENERATE, {"prompt": "a"}), (COMPLETIONS, {"prompt": "a"}),
                           (CHAT, {"messages": [{"role": "user", "content": "a"}]})):
            with self.subTest(path=path):
                first = next(iter(good))
                self.check(path, b"", 400)
                self.check(path, b"hello", 400)
                self.check(path, b"{", 400)
                self.check(path, b"[]", 400, "object")
                self.check(path, b"null", 400)
                self.check(path, b'"text"', 400)
                self.check(path, b'{"a":1}{"b":2}', 400)
                self.check(path, deep, 400, "deep")
                self.check(path, json.dumps(good).encode().replace(b'"a"', b'"\xff\xfe"'), 400, "UTF-8")
                self.check(path, json.dumps(good).encode().replace(b'"a"', b'"\xed\xa0\x80"'), 400)
                self.check(path, {}, 400, first)
                self.check(path, {**good, first: 5}, 400, first)
                self.check(path, {**good, "temperature": "hot"}, 400, "temperature")
                self.check(path, {**good, "temperature": -1}, 400, "temperature")
                self.check(path, {**good, "top_p": 1.5}, 400, "top_p")
                self.check(path, {**good, "seed": 1.5}, 400, "seed")
                self.check(path, {**good, "seed": 10**30}, 400, "seed")
                self.check(path, {**good, "stop": [1]}, 400, "stop")
                self.check(path, {**good, "stop": [""]}, 400, "stop")
                self.check(path, {**good, "stop": ["x"] * 1000}, 400, "stop")
                self.check(path, {**good, "stream": "yes"}, 400, "stream")
                self.check(path, {**good, "timeout_s": 0}, 400, "timeout_s")
                self.check(path, {**good, "timeout_s": 1e9}, 400, "timeout_s")
                self.check(path, b"{" + b" " * LIMIT + b"}", 413, str(LIMIT))
        self.check(GENERATE, {"prompt": "a", "no_such_field": 1}, 400, "no_such_field")
        for path in (COMPLETIONS, CHAT):
            good = ({"prompt": "a"} if path == COMPLETIONS
                    else {"messages": [{"role": "user", "content": "a"}]})
            self.check(path, {**good, "max_tokens": -1}, 400, "max_tokens")
            self.check(path, {**good, "max_tokens": "many"}, 400, "max_tokens")
            self.check(path, {**good, "model": "other"}, 404, "other")
            reply = self.request(post(path, {**good, "max_tokens": 1, "user": "u", "metadata": {}}))
            self.assertEqual(reply.status, 200, reply.body)
        self.check(GENERATE, {"prompt": "a", "max_length": -5}, 400, "max_length")
        self.check(GENERATE, {"prompt": "a", "min_length": -5}, 400, "min_length")

    def test_prompts_too_long(self):
        words = "word " * 190_000
        self.check(COMPLETIONS, {"prompt": words}, 400, "context")
        self.check(CHAT, {"messages": [{"role": "user", "content": words}]}, 400, "context")
        self.check(GENERATE, {"prompt": words}, 400, "context")

    def test_framing(self):
        head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\n"
        cases = [
            (head + b"Content-Length: 5abc\r\n\r\nhello", 400),
            (head + b"Content-Length: -1\r\n\r\n", 400),
            (head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
            (head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
            (head + b"Transfer-Encoding: gzip\r\n\r\n", 501),
            (head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
            (head + b"Content-Length: 999999999999\r\n\r\n", 413),
            (head + b"Content-Length: 99999999999999999999999999\r\n\r\n", 413),
            (head + b"Transfer-Encoding: chunked\r\n\r\nfffffff0\r\n", 413),
            (head + b"Expect: tea\r\nContent-Length: 1\r\n\r\n", 417),
            (b"GET / HTTP/3.0\r\n\r\n", 505),
            (b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
            (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 40_000, 431),
            (b"GET / HTTP/1.1\nHost: localhost\n\n", 400),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
            (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        ]
        for data, status in cases:
            with self.subTest(data=data[:80]):
                self.assert_error(self.request(data), status)

    def test_what_follows_an_error_is_never_a_request(self):
        before = self.metric("baton_http_replies_total")
        hidden = post(GENERATE, {"prompt": "hidden", "max_length": 20})
        reply = self.request(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5abc\r\n\r\n" + hidden * 50)
        self.assert_error(reply, 400)
        self.assertEqual(reply.rest, b"")
        # Only that one reply, and the look at the counters before it.
        self.assertEqual(self.metric("baton_http_replies_total"), before + 2)

    def test_chunked_bodies_and_expectations(self):
        body = json.dumps({"prompt": "Hello", "max_tokens": 2, "ignore_eos": True}).encode()
        chunks = b"".join(b"%x\r\n%s\r\n" % (1, body[i:i + 1]) for i in range(len(body)))
        reply = self.request(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                             + chunks + b"0\r\n\r\n")
        self.assertEqual(reply.status, 200, reply.body)
        with connect(self.port) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                           + b"Content-Length: %d\r\n\r\n" % len(body))
            self.assertIn(b"100 Continue", client.recv(1000))
            client.sendall(body)
            self.assertEqual(read_reply(client)[0].status, 200)

    def test_compressed_bodies(self):
        body = json.dumps({"prompt": "Hello", "max_tokens": 2, "ignore_eos": True}).encode()
        plain = self.request(post(COMPLETIONS, body)).json()["choices"]
        zstd = subprocess.run(["zstd", "-q", "-c"], input=body, stdout=subprocess.PIPE, check=True).stdout
        for coding, data in (("gzip", gzip.compress(body)), ("zstd", zstd), ("identity", body)):
            reply = self.request(post(COMPLETIONS, data, f"Content-Encoding: {coding}\r\n"))
            self.assertEqual(reply.status, 200, reply.body)
            self.assertEqual(len(reply.json()["choices"]), len(plain))
        self.assert_error(self.request(post(COMPLETIONS, body, "Content-Encoding: br\r\n")), 415, "gzip, zstd")
        self.assert_error(self.request(post(COMPLETIONS, body, "Content-Encoding: gzip\r\n")), 400, "no gzip data")
        bomb = gzip.compress(b"{" + b" " * (300 * LIMIT))
        self.assertLess(len(bomb), LIMIT)
        self.assert_error(self.request(post(COMPLETIONS, bomb, "Content-Encoding: gzip\r\n")), 413, "decompressed")

    def test_a_large_body_is_refused_before_it_is_sent(self):
        reply = self.request(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
                             b"Expect: 100-continue\r\n\r\n" % (LIMIT + 1))
        self.assert_error(reply, 413)
        reply = self.request(post(GENERATE, b"x" * 20 * LIMIT))  # sends on regardless
        self.assert_error(reply, 413)

    def test_keep_alive_and_pipelining(self):
        one = post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 2, "ignore_eos": True})
        with connect(self.port) as client:
            for data in (one, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", one):
                client.sendall(data)
                reply, rest = read_reply(client)
                self.assertEqual((reply.status, rest), (200, b""))
            client.sendall(completion(5))
            answer = read_until(client, b"", b"0\r\n\r\n")
            self.assertEqual(len(events_of(answer)), 7)
            client.sendall(one)  # after a stream, on the same connection
            self.assertEqual(read_reply(client)[0].status, 200)
        self.assertEqual(self.request(one).status, 200)

    def test_pipelined_requests_are_answered_in_order(self):
        names = [f"in-order-{i}" for i in range(12)]
        requests = [post(COMPLETIONS, {"prompt": "Hello " * (1 + 5000 * (i == 4)), "max_tokens": 1 + i % 3,
                                       "ignore_eos": True}, f"X-Request-Id: {name}\r\n")
                    if i % 2 == 0 else
                    f"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {name}\r\n\r\n".encode()
                    for i, name in enumerate(names)]
        with connect(self.port) as client:
            client.sendall(b"".join(requests))
            rest = b""
            for name in names:
                reply, rest = read_reply(client, rest)
                self.assertEqual((reply.status, reply.headers["x-request-id"]), (200, name))
            client.sendall(requests[0])
            self.assertEqual(read_reply(client, rest)[0].status, 200)

    def test_who_says_all_at_once_and_half_closes_is_answered(self):
        """As `nc -N` does."""
        one = post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 200, "ignore_eos": True})
        for data, replies in ((one, 1), (one + one, 2), (one.replace(b"1.1", b"1.0", 1), 1)):
            with connect(self.port) as client:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                answer = read_until(client, b"", b"\x00 never")
                self.assertEqual(answer.count(b'"completion_tokens":200'), replies, answer)
        with connect(self.port) as client:
            client.sendall(completion(200))
            client.shutdown(socket.SHUT_WR)
            answer = read_until(client, b"", b"\x00 never")
            self.assertEqual(answer.count(b"data: {"), 201)
            self.assertTrue(answer.endswith(b"0\r\n\r\n"))


class Memory(ClusterTest):
    options = {"frontend": {"max_body_bytes": 4_194_304}}

    def test_large_requests_leave_no_heap_behind(self):
        """Eight bodies of 4 MB at once, as text and as JSON of many values; the second round shows a steady state."""
        def memory():
            return self.metric("process_resident_memory_bytes")

        bodies = [json.dumps({"prompt": "Tell me a tale. " * 260_000}), json.dumps({"prompt": [7] * 1_390_000}),
                  json.dumps({"messages": [{"role": "user", "content": "x"}] * 100_000})]

        def ask(i):
            path = CHAT if i % 3 == 2 else COMPLETIONS
            return self.request(post(path, bodies[i % 3].encode())).status

        before = memory()
        for _ in range(2):
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                self.assertEqual(set(pool.map(ask, range(8))), {400})
            peak = memory()
            wait_until(lambda: memory() < before + 48e6, 15,
                       f"no more than 48 MB above {before / 1e6:.0f}; {peak / 1e6:.0f} right after")
        self.assertEqual(self.metric("baton_held_request_bytes"), 0)


class Clients(ClusterTest):
    options = {"worker": {"fake": True, "step_delay_ms": 2, "pool_mib": 256},
               "frontend": {"write_buffer_bytes": 65_536, "stall_timeout_s": 3, "max_streams": 600}}

    def open_stream(self, tokens, wait=True):
        client = connect(self.port)
        client.sendall(completion(tokens))
        if wait:
            client.recv(1, socket.MSG_PEEK)
        return client

    def test_500_streams_at_once_come_out_whole(self):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connect(self.port)) for _ in range(500)]
            for client in clients:
                client.sendall(completion(20, stream_options={"include_usage": True}))
            for client in clients:
                events = events_of(read_until(client, b"", b"0\r\n\r\n"))
                self.assertEqual(events[-1], "[DONE]")
                self.assertEqual(json.loads(events[-2])["usage"]["completion_tokens"], 20)
                self.assertEqual(len(events), 20 + 3)

    def test_beyond_max_streams_is_429(self):
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connect(self.port)) for _ in range(640)]
            for client in clients:
                client.sendall(completion(4000))
            wait_until(lambda: self.metric("baton_open_streams") == 600, 20, "600 streams")
            reply = self.request(completion(1))
            self.assert_error(reply, 429)
            self.assertIn("retry-after", reply.headers)
        wait_until(lambda: self.metric("baton_open_streams") == 0, 20, "all gone")

    def test_clients_that_leave_take_nobody_with_them(self):
        with contextlib.ExitStack() as stack:
            stay = [stack.enter_context(self.open_stream(300)) for _ in range(5)]
            leave = [self.open_stream(5000) for _ in range(100)]
            waiting = [self.open_stream(5000, wait=False) for _ in range(100)]
            for number, client in enumerate(leave + waiting):
                if number % 2:  # a reset instead of an orderly end
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.close()
            for client in stay:
                answer = read_until(client, b"", b"0\r\n\r\n")
                self.assertEqual(answer.count(b"data: {"), 301)
        wait_until(lambda: self.metric("baton_open_streams") == 0, 10, "the rest is cancelled")
        self.assertGreaterEqual(self.metric("baton_clients_dropped_total"), 200)

    def test_a_client_that_leaves_before_its_first_token(self):
        held = [self.open_stream(2000) for _ in range(10)]
        before = self.metric("baton_clients_dropped_total")
        client = connect(self.port)
        client.sendall(post(COMPLETIONS, {"prompt": "x " * 5000, "max_tokens": 5000}))
        client.close()
        wait_until(lambda: self.metric("baton_clients_dropped_total") > before, 10, "noticed")
        for other in held:
            other.close()

    def test_clients_that_never_read_are_dropped(self):
        before = self.metric("baton_clients_dropped_total")
        with contextlib.ExitStack() as stack:
            silent = []
            for _ in range(10):
                client = stack.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", self.port))
                client.sendall(completion(12_000))
                silent.append(client)
            reader = stack.enter_context(self.open_stream(1000))
            answer = read_until(reader, b"", b"0\r\n\r\n")
            self.assertEqual(answer.count(b"data: {"), 1001, (answer[:300], answer[-300:]))
            wait_until(lambda: self.metric("baton_clients_dropped_total") >= before + 10, 60, "dropped")
            self.assertLess(self.metric("baton_write_queue_bytes"), 1e6)

    def test_idle_and_slow_clients_block_nobody(self):
        with contextlib.ExitStack() as stack:
            for number in range(600):
                client = stack.enter_context(connect(self.port))
                if number % 3 == 1:
                    client.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nA: ")
                if number % 3 == 2:
                    client.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
            for _ in range(20):
                begin = time.monotonic()
                self.still_serves()
                self.assertLess(time.monotonic() - begin, 2 * PATIENCE)

    def test_a_firehose_is_cut_off(self):
        with connect(self.port) as client:
            client.sendall(completion(4000))
            with self.assertRaises(OSError):
                for _ in range(10_000):
                    client.sendall(b"x" * 65_536)

    def test_a_deadline_ends_a_stream(self):
        reply = self.request(post(COMPLETIONS, {"prompt": "a", "max_tokens": 12_000, "ignore_eos": True,
                                                "timeout_s": 0.5}))
        self.assert_error(reply, 504)
        with connect(self.port) as client:
            client.sendall(completion(12_000, timeout_s=0.5))
            events = events_of(read_until(client, b"", b"0\r\n\r\n"))
        self.assertTrue(any("deadline" in event for event in events[-3:]), events[-3:])

    def test_stop_strings_end_at_once(self):
        free = self.request(post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 60, "seed": 3,
                                               "ignore_eos": True})).json()
        text = free["choices"][0]["text"]
        stop = text[len(text) // 2:len(text) // 2 + 3]
        reply = self.request(post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 60, "seed": 3,
                                                "ignore_eos": True, "stop": stop})).json()
        self.assertEqual(reply["choices"][0]["text"], text[:text.index(stop)])
        self.assertEqual(reply["choices"][0]["finish_reason"], "stop")
        self.assertLess(reply["usage"]["completion_tokens"], 60)


class TwoFrontEnds(ClusterTest):
    options = {"frontends": ("left", "right"),
               "worker": {"fake": True, "step_delay_ms": 2, "pool_mib": 256}}

    def test_side_by_side(self):
        body = {"prompt": "Hello", "max_tokens": 30, "seed": 11, "ignore_eos": True}
        replies = [self.cluster.post(COMPLETIONS, body, name)[1]["choices"][0]["text"]
                   for name in ("left", "right", "left")]
        self.assertEqual(len(set(replies)), 1)
        streams = [self.cluster.stream("Hello", name, max_tokens=200, ignore_eos=True)
                   for name in ("left", "right") * 20]
        for stream in streams:
            self.assertEqual(stream.finish()[1], 200)

    def test_one_dies_and_its_streams_go_on_with_the_next(self):
        streams = [self.cluster.stream("Hello", name, max_tokens=1500, ignore_eos=True)
                   for name in ("left", "right") * 10]
        for stream in streams:
            stream.wait_pieces(3)
        self.cluster.kill("left")
        seen = [stream.pieces for stream in streams[1::2]]
        for stream, before in zip(streams[1::2], seen):
            stream.wait_pieces(before + 3)
        self.cluster.start("left")
        for stream in streams:
            self.assertEqual(stream.finish()[1], 1500)

    def test_sigterm_lets_streams_end(self):
        short = [self.cluster.stream("Hello", "left", max_tokens=300, ignore_eos=True)
                 for _ in range(5)]
        for stream in short:
            stream.wait_pieces(3)
        idle = connect(self.cluster.frontends["left"])
        begin = time.monotonic()
        self.cluster.signal("left", signal.SIGTERM)
        for stream in short:
            self.assertEqual(stream.finish()[1], 300)
        self.assertEqual(self.cluster.processes["left"].wait(10 * PATIENCE), 0)
        self.assertLess(time.monotonic() - begin, 6 * PATIENCE)
        with self.assertRaises(OSError):
            connect(self.cluster.frontends["left"])
        idle.close()
        self.cluster.start("left")
        wait_until(lambda: self.cluster.get("/health", "left")[0] == 200, 20, "left is back")

    def test_sigterm_does_not_wait_for_ever(self):
        long = self.cluster.stream("Hello", "left", max_tokens=12_000, ignore_eos=True)
        long.wait_pieces(3)
        begin = time.monotonic()
        self.cluster.signal("left", signal.SIGTERM)
        self.assertEqual(self.cluster.processes["left"].wait(20 * PATIENCE), 0)
        self.assertLess(time.monotonic() - begin, 10 * PATIENCE)
        long.done.wait(5)
        self.assertIn("shutting down", long.error or "")
        self.cluster.start("left")
        wait_until(lambda: self.cluster.get("/health", "left")[0] == 200, 20, "left is back")

    def test_a_frozen_front_end_goes_on(self):
        for seconds in (1, 8):
            streams = [self.cluster.stream("Hello", "left", max_tokens=2000, seed=i, ignore_eos=True)
                       for i in range(8)]
            for stream in streams:
                stream.wait_pieces(3)
            self.cluster.freeze("left", seconds)
            for stream in streams:
                self.assertEqual(stream.finish()[1], 2000)


TEMPLATE = """
{%- if messages[0].content == 'forever' %}
    {%- for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}
{%- elif messages[0].content == 'refuse' %}
    {{- raise_exception('not this one') }}
{%- endif %}
{{- bos_token }}
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + message.content + '<|end|>' }}
{%- endfor %}
{{- '<|assistant|>' if add_generation_prompt }}"""


class Templates(ClusterTest):
    @classmethod
    def setUpClass(cls):
        model = folders.templated_model(TEMPLATE)
        cls.addClassCleanup(shutil.rmtree, model)
        cls.options = {"model": model}
        super().setUpClass()

    def chat(self, content, **more):
        return self.request(post(CHAT, {"messages": [{"role": "user", "content": content}],
                                        "max_tokens": 4, "ignore_eos": True, **more}))

    def renderers(self):
        frontend = self.cluster.processes["frontend0"].pid
        children = pathlib.Path(f"/proc/{frontend}/task/").glob("*/children")
        pids = {int(pid) for file in children for pid in file.read_text().split()}

        def tries_grammars(pid):  # the other helper of a front end
            with contextlib.suppress(OSError):
                return b"baton-grammar" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            return False
        twin = self.cluster.twin_pid("frontend0")
        return {pid for pid in pids if pid != twin and not tries_grammars(pid)}

    def test_chats_are_rendered(self):
        reply = self.chat("Hello")
        self.assertEqual(reply.status, 200, reply.body)
        self.assertEqual(reply.json()["usage"]["completion_tokens"], 4)
        plain = self.chat("Hello <|end|>").json()["usage"]["prompt_tokens"]
        self.assertGreater(plain, reply.json()["usage"]["prompt_tokens"] + 3)  # letters, not one token
        self.assert_error(self.chat("refuse"), 400, "refuses these messages: not this one")
        self.assert_error(self.chat("Hello", chat_template="x"), 400, "chat_template")

    def test_one_that_never_ends_takes_nobody_with_it(self):
        def killers():
            return [self.chat("forever") for _ in range(4)]

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(killers) for _ in range(2)]
            while not all(task.done() for task in asked):
                reply = self.chat("Hello")
                self.assertEqual(reply.status, 200, reply.body)
            for reply in (reply for task in asked for reply in task.result()):
                self.assert_error(reply, 400, "took longer than 200 ms")

    def test_killed_renderers_are_replaced(self):
        for _ in range(3):
            for pid in self.renderers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda: self.chat("Hello").status == 200, 15, "a chat is rendered")
        wait_until(lambda: len(self.renderers()) == 3, 15, "three renderers")

    def test_renderers_die_with_their_front_end(self):
        pids = self.renderers()
        self.assertTrue(pids)
        self.cluster.kill("frontend0")
        wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids), 5, "all gone")
        self.cluster.start("frontend0")
        self.cluster.wait_ready()


class Health(ClusterTest):
    def test_tells_what_is_missing(self):
        def health():
            status, body = self.cluster.get("/health")
            return status, json.loads(body)["status"] if body else ""
        self.assertEqual(health(), (200, "ok"))
        for worker in self.cluster.workers:
            self.cluster.kill(worker)
        wait_until(lambda: health() == (503, "loading"), 15, "no worker")
        for worker in self.cluster.workers:
            self.cluster.start(worker)
        wait_until(lambda: health() == (200, "ok"), 15, "workers are back")
        self.cluster.kill("scheduler")
        wait_until(lambda: health() == (503, "no_scheduler"), 15, "no scheduler")
        # A request waits for the scheduler instead of failing.
        waiting = self.cluster.stream("Hello", max_tokens=5, ignore_eos=True)
        time.sleep(1)
        self.assertFalse(waiting.done.is_set())
        self.cluster.start("scheduler")
        wait_until(lambda: health() == (200, "ok"), 15, "the scheduler is back")
        self.assertEqual(waiting.finish()[1], 5)
        self.cluster.wait_ready()


if __name__ == "__main__":
    unittest.main(verbosity=2)
