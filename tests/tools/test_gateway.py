"""baton-gateway before servers that speak the published shapes: balance, retries, errors, reload, stop."""

import collections
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import select
import signal
import socket
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(ROOT / "tools"))

from gateway import config, directory, relaxed_json  # noqa: E402
from gateways import Gateway, wait_until  # noqa: E402
from published import Published, Reply, completion  # noqa: E402

PUBLISHED = """{
  "continuous_batching_server_urls": ["http://127.0.0.1:8001"],  # where "requests" go
  "static_batching_server_urls": ["http://127.0.0.1:8002"], // the same
  "openai_jumper_configs": [
    {
      "api_key": "YOUR_OPENAI_KEY # not a comment",
      "org_id": null
    }
  ],
  "heart_beat_interval_seconds": 600,  # seconds
}
"""


def server_routes(model, answer=completion):
    return {"/model_id": lambda _: Reply(model), "/completion/v1": answer, "/completion/v2": answer}


def request(model="demo", tokens=4, prompt="Hello"):
    return {"model": model, "prompt": prompt, "generation_config": {"max_new_tokens": tokens}}


class Configuration(unittest.TestCase):
    def test_the_published_file(self):
        read = config.parse(relaxed_json.parse(PUBLISHED))
        self.assertEqual((("cb", "http://127.0.0.1:8001"), ("sb", "http://127.0.0.1:8002")),
                         read.servers)
        self.assertEqual("YOUR_OPENAI_KEY # not a comment", read.keys[0].api_key)
        self.assertEqual(600, read.heart_beat_interval_s)

    def test_errors_name_the_key_or_the_line(self):
        for text, words in (('{"heart_beat_interval_seconds": "x"}', "heart_beat_interval_seconds"),
                            ('{"static_batching_server_urls": ["ftp://a"]}', "static_batching_server_urls"),
                            ('{"static_batching_server_urls": ["http://a:x"]}', "static_batching"),
                            ('{"openai_jumper_configs": [{"key": 1}]}', r"openai_jumper_configs\[0\].key"),
                            ('{"nonsense": 1}', "nonsense: no such key"),
                            ('{\n# comment\n"a" 1}', "line 3"),
                            ('{"a": 1, "a": 2}', "twice")):
            with self.assertRaisesRegex(ValueError, words):
                config.parse(relaxed_json.parse(text))

    def test_the_published_cost(self):
        self.assertEqual(4 * 100 + 6, directory.cost("word " * 100, 4, 100))  # int(135) // 20
        self.assertEqual(32, directory.cost("", 1, 32))


class Directories(unittest.TestCase):
    def test_the_least_load_first_and_it_is_given_back(self):
        servers = directory.Directory()
        for server in servers.update((("cb", "http://a"), ("cb", "http://b"), ("sb", "http://c"))):
            servers.up(server, "m")
        first = servers.take("cb", "m", 10, [])
        second = servers.take("cb", "m", 4, [])
        third = servers.take("cb", "m", 3, [])
        self.assertEqual(["http://a", "http://b", "http://b"], [first.url, second.url, third.url])
        self.assertEqual("http://a", servers.take("cb", "m", 1, ["http://b"]).url)
        for server, work in ((first, 10), (second, 4), (third, 3), (first, 1)):
            servers.release(server, work, True)
        self.assertEqual([0, 0, 0], [s["load"] for s in servers.view()])

    def test_a_reload_keeps_the_load_of_those_that_stay(self):
        servers = directory.Directory()
        for server in servers.update((("cb", "http://a"), ("cb", "http://b"))):
            servers.up(server, "m")
        taken = servers.take("cb", "m", 10, ["http://b"])
        fresh = servers.update((("cb", "http://a"), ("cb", "http://d")))
        self.assertEqual(["http://d"], [s.url for s in fresh])
        self.assertEqual([10, 0], [s["load"] for s in servers.view()])
        servers.release(taken, 10, True)
        self.assertEqual(["m"], servers.models("cb"))
        self.assertEqual([], servers.models("sb"))


class GatewayCase(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def serve(self, routes, port=0):
        return self.enterContext(Published(routes, port))

    def start(self, cb=(), sb=(), *arguments, **more):
        return self.enterContext(Gateway(self.folder, {
            "continuous_batching_server_urls": list(cb), "static_batching_server_urls": list(sb),
            **more}, *arguments))


class Completions(GatewayCase):
    def test_routes_models_and_replies(self):
        cb, sb = self.serve(server_routes("one")), self.serve(server_routes("two"))
        gateway = self.start([cb.url], [sb.url])
        self.assertEqual(["one"], gateway.get("/cb_server/available_models"))
        self.assertEqual(["two"], gateway.get("/sb_server/available_models"))
        self.assertEqual("0", gateway.get("/openai_jumper/is_available"))
        for path, model, server in (("/completion/v2", "one", cb), ("/completion/v1", "two", sb)):
            status, reply = gateway.post(path, request(model))
            self.assertEqual(200, status)
            self.assertEqual({"choices", "usage"}, set(reply))
            self.assertEqual(request(model), server.asked(path)[0][1])
            self.assertEqual(200, gateway.post(path, request(""))[0])  # the only one
            self.assertEqual(model, server.asked(path)[1][1]["model"])
        status, reply = gateway.post("/completion/v2", request("three"))
        self.assertEqual(404, status)
        self.assertIn("available models: one", reply["detail"])
        self.assertEqual(0, gateway.server(cb.url)["load"])
        # A line is written behind its reply: the next request's may come first.
        line = re.compile(r'"POST /completion/v2 HTTP/1.1" 200 \d+ bytes http://\S+ attempts=1 duration=\d+\.\d+s')
        log = self.folder / "access.log"
        wait_until(lambda: line.search(log.read_text()), 5, f"a line of the request: {log.read_text()}")

    def test_a_422_is_passed_on_and_not_tried_again(self):
        detail = {"detail": "num_return_sequences > num_beams"}
        cb = self.serve(server_routes("m", lambda _: Reply(detail, 422)))
        gateway = self.start([cb.url])
        self.assertEqual((422, detail), gateway.post("/completion/v2", request("m")))
        self.assertEqual(1, len(cb.asked("/completion/v2")))

    def test_load_is_spread_and_connections_are_kept(self):
        def slow(body):
            return Reply(completion(body).body, hang_s=0.1)
        servers = [self.serve(server_routes("m", slow)) for _ in range(2)]
        gateway = self.start([s.url for s in servers])
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda _: gateway.post("/completion/v2", request("m")), range(64)))
        self.assertEqual({200}, {status for status, _ in replies})
        for server in servers:
            asked = server.asked("/completion/v2")
            self.assertGreater(len(asked), 20)
            self.assertLess(len({entry[4] for entry in asked}), 10)  # client ports
            self.assertEqual((0, 0), (gateway.server(server.url)["load"],
                                      gateway.server(server.url)["running"]))

    def test_a_failing_server_costs_retries_elsewhere_only(self):
        bad = self.serve(server_routes("m", lambda _: Reply({"detail": "broken"}, 500)))
        good = self.serve(server_routes("m"))
        gateway = self.start([bad.url, good.url])
        for _ in range(6):
            self.assertEqual(200, gateway.post("/completion/v2", request("m"))[0])
        self.assertGreater(len(bad.asked("/completion/v2")), 0)

    def test_three_retries_then_the_reason(self):
        for status, wanted in ((500, 502), (429, 503)):
            bad = self.serve(server_routes("m", lambda _, s=status: Reply({"detail": "why not"}, s)))
            gateway = self.start([bad.url])
            got, reply = gateway.post("/completion/v2", request("m"))
            self.assertEqual(wanted, got)
            self.assertIn("why not", reply["detail"])
            self.assertEqual(4, len(bad.asked("/completion/v2")))

    def test_a_server_that_is_gone_and_back(self):
        first = Published(server_routes("m"))
        port = first.server_address[1]
        with first:
            gateway = self.start([first.url], [], "--probe_seconds", "0.3")
            self.assertEqual(200, gateway.post("/completion/v2", request("m"))[0])
        status, reply = gateway.post("/completion/v2", request("m"))
        self.assertEqual(502, status)
        self.assertIn("refused", reply["detail"])
        self.assertEqual([], gateway.get("/cb_server/available_models"))
        self.serve(server_routes("m"), port)
        wait_until(lambda: gateway.get("/cb_server/available_models") == ["m"], 10, "found again")
        self.assertEqual(200, gateway.post("/completion/v2", request("m"))[0])

    def test_a_silent_server_costs_its_time_and_the_other_answers(self):
        silent = self.serve(server_routes("m", lambda _: Reply({}, hang_s=1.5)))
        good = self.serve(server_routes("m"))
        gateway = self.start([silent.url, good.url], [], "--timeout_seconds", "0.4")
        began = time.monotonic()
        for _ in range(4):
            self.assertEqual(200, gateway.post("/completion/v2", request("m"))[0])
        self.assertLess(len(silent.asked("/completion/v2")), 4)  # passed over until a probe has asked
        self.assertGreater(time.monotonic() - began, 0.35)
        gateway = self.start([silent.url], [], "--timeout_seconds", "0.05")
        status, reply = gateway.post("/completion/v2", request("m"))
        self.assertEqual(504, status)
        self.assertIn("no reply in time (0.05 s)", reply["detail"])

    def test_no_server_at_all(self):
        gateway = self.start(["http://127.0.0.1:9"])
        status, reply = gateway.post("/completion/v2", request("m"))
        self.assertEqual(503, status)
        self.assertIn("http://127.0.0.1:9: Connection refused", reply["detail"])
        self.assertEqual(404, gateway.post("/completion/v1", request("m"))[0])


class Requests(GatewayCase):
    def test_bodies_out_of_bounds(self):
        gateway = self.start()
        for body, status in ((b"{", 422), (b"[]", 422), (b"[" * 100_000, 422), (b'{"model": 5}', 422)):
            self.assertEqual(status, gateway.post("/completion/v2", body)[0])
        self.assertEqual(404, gateway.ask("GET", "/nowhere")[0])
        self.assertEqual(405, gateway.ask("GET", "/completion/v2")[0])
        self.assertEqual(b"HTTP/1.1 413", self.raw(gateway, b"Content-Length: 99999999")[:12])
        self.assertEqual(b"HTTP/1.1 400", self.raw(gateway, b"Content-Length: 5abc")[:12])
        for two in (b"Content-Length: 2\r\nContent-Length: 3", b"Content-Length: 2\r\nContent-Length: 2",
                    b"Content-Length: 2, 2", b"Content-Length: 2\r\nTransfer-Encoding: chunked"):
            self.assertEqual(b"HTTP/1.1 400", self.raw(gateway, two)[:12], two)
        chunks = b"2\r\n{}\r\n0\r\n\r\n"
        self.assertEqual(b"HTTP/1.1 404", self.raw(gateway, b"Transfer-Encoding: chunked", body=chunks)[:12])
        self.assertEqual(b"HTTP/1.1 501", self.raw(gateway, b"Transfer-Encoding: gzip")[:12])
        self.assertEqual(b"431", self.raw(gateway, b"X: " + b"y" * 70_000)[9:12])
        self.assertEqual(b"HTTP/1.1 411", self.raw(gateway, b"X: y")[:12])
        self.assertIn(self.raw(gateway, b"Content-Length: 0", b"/\x1b[2J")[:12], (b"HTTP/1.1 400", b"HTTP/1.1 404"))
        self.assertNotIn("\x1b", self.folder.joinpath("access.log").read_text())

    @staticmethod
    def raw(gateway, header, path=b"/completion/v2", host=b"localhost", body=b"", method=b"POST"):
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as client:
            client.sendall(method + b" " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\n" + header + b"\r\n\r\n" + body)
            return client.recv(4096)

    def test_slow_clients_hold_no_threads(self):
        gateway = self.start([], [], "--threads", "4", "--request_seconds", "1.5")
        with contextlib.ExitStack() as slow:
            heads = []
            for i in range(300):
                client = slow.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=10))
                client.sendall(b"POST /completion/v2 HTTP/1.1\r\nHost: localhost\r\n"
                               + (b"Content-Length: 100\r\n\r\n{" if i % 2 else b"X: "))
                heads.append(client)
            began = time.monotonic()
            self.assertEqual({"status": "ok"}, gateway.get("/health"))
            self.assertLess(time.monotonic() - began, 1)
            # A byte now and then does not keep them: a request has a time to arrive as a whole.
            end = time.monotonic() + 8
            while heads and time.monotonic() < end:
                for client in heads[:]:
                    try:
                        client.send(b"y")
                        if select.select([client], [], [], 0)[0] and not client.recv(1):
                            heads.remove(client)
                    except OSError:
                        heads.remove(client)
                time.sleep(0.2)
            self.assertEqual([], heads)

    def test_a_page_of_another_site_is_refused(self):
        server = self.serve(server_routes("new"))
        event = json.dumps({"url": server.url, "server_type": "cb"}).encode()
        length = b"Content-Length: %d" % len(event)
        gateway = self.start([], [], "--allow_registration")

        def register(header=b"X: y", host=b"localhost"):
            return self.raw(gateway, length + b"\r\n" + header, b"/event/server_startup", host, event)[9:12]
        for header in (b"Origin: http://evil.example", b"Origin: null", b"Origin: http://localhost:1",
                       b"Sec-Fetch-Site: cross-site", b"Sec-Fetch-Site: same-site"):
            self.assertEqual(b"403", register(header), header)
        for host in (b"evil.example", b"evil.example:8000", b"localhost.evil.example", b"localhost\r\nHost: evil.example",
                     b"", b"[::1", b"127.0.0.1:x"):
            self.assertIn(register(host=host), (b"403", b"400"), host)
        self.assertEqual([], gateway.get("/servers")["servers"])
        for host in (b"localhost", b"127.0.0.1:%d" % gateway.port, b"[::1]:80", b"a.localhost"):
            self.assertEqual(b"200", register(host=host), host)
        named = self.start([], [], "--allowed_hosts", "gateway.example, other")
        self.assertEqual(b"200", self.raw(named, b"X: y", b"/health", b"gateway.example:80", method=b"GET")[9:12])
        self.assertEqual(b"403", self.raw(named, b"X: y", b"/health", b"evil.example", method=b"GET")[9:12])

    def test_only_configured_servers_unless_asked(self):
        known, stranger = self.serve(server_routes("known")), self.serve(server_routes("new"))
        gateway = self.start([known.url])
        event = {"url": stranger.url, "server_type": "cb"}
        for path in ("/event/server_startup", "/event/server_shutdown"):
            status, reply = gateway.post(path, event)
            self.assertEqual(403, status)
            self.assertIn("--allow_registration", reply["detail"])
        self.assertEqual(200, gateway.post("/event/server_startup", {"url": known.url})[0])
        self.assertEqual(["known"], gateway.get("/cb_server/available_models"))

    def test_more_clients_than_threads_all_get_served(self):
        cb = self.serve(server_routes("m"))
        gateway = self.start([cb.url], [], "--threads", "2")
        clients = [http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30) for _ in range(8)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for _ in range(2):  # each asks again on the same connection if it may
                self.assertEqual([200] * 8, list(pool.map(self.ask_health, clients)))
        for client in clients:
            client.close()
        tasks = pathlib.Path(f"/proc/{gateway.process.pid}/task")
        self.assertLess(len(list(tasks.iterdir())), 25)

    @staticmethod
    def ask_health(client):
        for _ in range(2):
            try:
                client.request("GET", "/health")
                response = client.getresponse()
                response.read()
                return response.status
            except (http.client.RemoteDisconnected, ConnectionError):
                client.close()  # an idle connection may be closed at any time
        return 0

    def test_a_stop_lets_requests_end_and_takes_no_new_ones(self):
        def slow(body):
            return Reply(completion(body).body, hang_s=1)
        cb = self.serve(server_routes("m", slow))
        gateway = self.start([cb.url])
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            reply = pool.submit(gateway.post, "/completion/v2", request("m"))
            wait_until(lambda: cb.asked("/completion/v2"), 5, "the request is at work")
            gateway.process.send_signal(signal.SIGTERM)

            def refuses():
                with socket.socket() as client:
                    return client.connect_ex(("127.0.0.1", gateway.port)) != 0
            wait_until(refuses, 0.8, "it listens no more")
            self.assertFalse(reply.done())
            self.assertEqual(200, reply.result()[0])
        self.assertEqual(0, gateway.process.wait(5))


class Changes(GatewayCase):
    def test_hot_reload_and_what_is_wrong_changes_nothing(self):
        one, two = self.serve(server_routes("one")), self.serve(server_routes("two"))
        gateway = self.start([one.url], [], "--client_config_hot_update_interval_minutes", "0.005")
        gateway.write('{"continuous_batching_server_urls": ["nonsense"]}')
        wait_until(lambda: "the configuration stays as it was" in gateway.log(), 5, "refused")
        self.assertEqual(200, gateway.post("/completion/v2", request("one"))[0])
        gateway.write({"continuous_batching_server_urls": [two.url]})
        wait_until(lambda: gateway.get("/cb_server/available_models") == ["two"], 5, "reloaded")
        self.assertEqual(404, gateway.post("/completion/v2", request("one"))[0])

    def test_heartbeats_learn_a_new_model(self):
        name = ["old"]
        cb = self.serve({**server_routes("x"), "/model_id": lambda _: Reply(name[0])})
        gateway = self.start([cb.url], heart_beat_interval_seconds=0.3)
        self.assertEqual(["old"], gateway.get("/cb_server/available_models"))
        name[0] = "new"
        wait_until(lambda: gateway.get("/cb_server/available_models") == ["new"], 5, "learnt")

    def test_startup_and_shutdown_events(self):
        known, stranger = self.serve(server_routes("known")), self.serve(server_routes("new"))
        gateway = self.start([known.url], [], "--allow_registration")
        self.assertEqual(200, gateway.post("/event/server_shutdown", {"url": known.url})[0])
        self.assertEqual([], gateway.get("/cb_server/available_models"))
        self.assertEqual((200, {"model_id": "known"}),
                         gateway.post("/event/server_startup", {"url": known.url}))
        alias = known.url.replace("127.0.0.1", "localhost")
        self.assertEqual(200, gateway.post("/event/server_startup", {"url": alias})[0])
        self.assertEqual(422, gateway.post("/event/server_startup", {"url": stranger.url})[0])
        event = {"url": stranger.url, "server_type": "cb"}
        self.assertEqual(200, gateway.post("/event/server_startup", event)[0])
        self.assertEqual(["known", "new"], gateway.get("/cb_server/available_models"))
        self.assertEqual(502, gateway.post("/event/server_startup",
                                           {"url": "http://127.0.0.1:9", "server_type": "sb"})[0])
        self.assertEqual(422, gateway.post("/event/server_startup", {"url": "x"})[0])
        self.assertEqual(2, len(gateway.get("/servers")["servers"]))
        self.assertEqual((200, {"servers": 1}), gateway.post("/event/server_shutdown", event))
        self.assertIsNone(gateway.server(stranger.url))

    def test_a_server_that_announced_itself_is_found_again(self):
        gateway = self.start([], [], "--probe_seconds", "0.3", "--allow_registration")
        with Published(server_routes("new")) as first:
            port = first.server_address[1]
            event = {"url": first.url, "server_type": "cb"}
            self.assertEqual(200, gateway.post("/event/server_startup", event)[0])
        self.assertEqual(502, gateway.post("/completion/v2", request("new"))[0])
        self.serve(server_routes("new"), port)
        wait_until(lambda: gateway.get("/cb_server/available_models") == ["new"], 10, "found again")

    def test_a_broken_configuration_at_the_start(self):
        with self.assertRaisesRegex(AssertionError, "heart_beat_interval_seconds: is 0"):
            self.start(heart_beat_interval_seconds=0)


class Jumper(GatewayCase):
    """The OpenAI jumper against a local mock of the API."""

    CHAT = {"model": "gpt", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 10}

    def mock(self, behave=lambda key: None):
        """A mock API; `behave(key)` may give another Reply."""
        def chat(body):
            key = server.seen[-1][2].get("Authorization", "")
            reply = {"role": "assistant", "content": "Hello", "refusal": None}
            return behave(key) or Reply({
                "id": "x", "object": "chat.completion", "model": body["model"],
                "choices": [{"index": 0, "message": reply, "finish_reason": "stop", "logprobs": None}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10,
                          "prompt_tokens_details": {}}})
        server = self.serve({"/v1/chat/completions": chat})
        return server

    def begin(self, mock, keys=("k-1111", "k-2222")):
        return self.start([], [], "--openai_base_url", mock.url + "/v1", openai_jumper_configs=[
            {"api_key": key, "org_id": "org-1" if key.endswith("1") else None} for key in keys])

    def test_two_keys_balance(self):
        mock = self.mock()
        gateway = self.begin(mock)
        self.assertEqual("1", gateway.get("/openai_jumper/is_available"))
        for _ in range(10):
            status, reply = gateway.post("/chat_completion/v1", self.CHAT)
            self.assertEqual(200, status, reply)
        self.assertEqual({"choices": [{"message": {"role": "assistant", "content": "Hello"}, "index": 0,
                                       "finish_reason": "stop"}],
                          "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}},
                         reply)
        asked = mock.asked("/v1/chat/completions")
        keys = collections.Counter(entry[2]["Authorization"] for entry in asked)
        self.assertEqual({"Bearer k-1111": 5, "Bearer k-2222": 5}, keys)
        self.assertEqual({"org-1", None}, {entry[2].get("OpenAI-Organization") for entry in asked})
        self.assertEqual({**self.CHAT, "n": 1, "temperature": 1, "top_p": 1, "stream": False,
                          "presence_penalty": 0, "frequency_penalty": 0}, asked[0][1])
        self.assertNotIn("k-1111", str(gateway.get("/servers")) + gateway.log())

    def test_a_busy_key_is_left_for_the_other_and_a_refused_one_for_good(self):
        def behave(key):
            return Reply({"error": "quota"}, 429) if key.endswith("1") else None
        gateway = self.begin(self.mock(behave))
        for _ in range(4):
            self.assertEqual(200, gateway.post("/chat_completion/v1", self.CHAT)[0])
        mock = self.mock(lambda key: Reply({"error": "no such key"}, 401))
        gateway = self.begin(mock)
        self.assertEqual(401, gateway.post("/chat_completion/v1", self.CHAT)[0])
        self.assertEqual(2, len(mock.asked("/v1/chat/completions")))  # each key once
        self.assertEqual("0", gateway.get("/openai_jumper/is_available"))
        self.assertEqual(404, gateway.post("/chat_completion/v1", self.CHAT)[0])

    def test_bad_requests_are_named(self):
        gateway = self.begin(self.mock())
        for body, word in (({}, "model"), ({**self.CHAT, "stream": True}, "stream"),
                           ({**self.CHAT, "n": "x"}, "n: "), ({**self.CHAT, "max_tokens": True}, "max_tokens")):
            status, reply = gateway.post("/chat_completion/v1", body)
            self.assertEqual(422, status)
            self.assertIn(word, reply["detail"])

    def test_timeouts_are_tried_again(self):
        from gateway import jumper
        waits = [1.0]

        def behave(_):
            return Reply({}, hang_s=waits.pop()) if waits else None
        mock = self.mock(behave)
        accounts = jumper.Jumper(mock.url + "/v1", timeout_s=0.3)
        accounts.update((config.KeyConfig("k-1111"),))
        self.addCleanup(accounts.close)
        self.enterContext(self.assertLogs("gateway", "WARNING"))
        began = time.monotonic()
        self.assertEqual(200, accounts.complete(self.CHAT).status)
        self.assertGreater(time.monotonic() - began, 0.25)
        self.assertEqual(2, len(mock.asked("/v1/chat/completions")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
