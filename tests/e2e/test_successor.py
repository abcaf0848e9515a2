"""A front end is killed under its clients, and the next process of its name goes on: no client sees an error, a gap
or a byte twice. What clients get is compared with what an undisturbed front end says."""

import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import tempfile
import threading
import time
import unittest

from cluster import MIXED, Cluster, free_port, wait_until

SLOW = {"pool_mib": 128, "step_delay_ms": 8}
LONG = {"max_tokens": 120, "min_tokens": 120, "temperature": 0}


def prompts(count):
    return [f"Tell me about number {i}." for i in range(count)]


class Raw:
    """A client that says exactly these bytes, and keeps all that it gets."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.bytes = bytearray()

    def send(self, data):
        self.socket.sendall(data.encode() if isinstance(data, str) else data)

    def read_reply(self):
        """One whole reply with a length: (status, body)."""
        head = self._until(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status == 100:
            return 100, b""
        lines = {k.lower(): v for k, v in (line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])}
        if b"content-length" in lines:
            return status, self._take(int(lines[b"content-length"]))
        body = b""
        while True:
            size = int(self._until(b"\r\n"), 16)
            body += self._take(size)
            assert self._take(2) == b"\r\n"
            if size == 0:
                return status, body

    def read_to_end(self):
        while True:
            data = self.socket.recv(65536)
            if not data:
                return bytes(self.bytes)
            self.bytes += data

    def _more(self):
        data = self.socket.recv(65536)
        if not data:
            raise AssertionError(f"the connection ended behind {bytes(self.bytes[-300:])!r}")
        self.bytes += data

    def _until(self, mark):
        while mark not in self.bytes:
            self._more()
        end = self.bytes.index(mark) + len(mark)
        return self._cut(end)

    def _cut(self, size):
        taken = bytes(self.bytes[:size])
        del self.bytes[:size]  # moves nothing
        return taken

    def _take(self, size):
        while len(self.bytes) < size:
            self._more()
        return self._cut(size)


def post(path, body, more=""):
    text = body if isinstance(body, str) else json.dumps(body)
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {len(text)}\r\n\r\n", text)


def text_of(reply):
    return json.loads(reply)["choices"][0]["text"]


class Kills(unittest.TestCase):
    def test_64_clients_of_all_kinds_notice_nothing(self):
        """Streams, whole replies, connections that ask again and again, and pages; a kill every half second."""
        with Cluster(worker=SLOW) as cluster:
            port = cluster.frontends["frontend0"]
            truth = [cluster.post("/v1/completions", {"prompt": p, **LONG})[1]["choices"][0]["text"]
                     for p in prompts(8)]
            stop, wrong, done = threading.Event(), [], [0] * 4

            def ask(kind, i):
                body = {"prompt": prompts(8)[i % 8], **LONG}
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                while not stop.is_set():
                    if kind == 0:
                        said = cluster.stream(body["prompt"], **LONG).finish()[0]
                    elif kind == 1:  # on one connection for ever
                        connection.request("POST", "/v1/completions", json.dumps(body))
                        said = text_of(connection.getresponse().read())
                    elif kind == 2:
                        said = cluster.post("/v1/completions", {**body, "n": 2})[1]["choices"][1]["text"]
                    else:
                        connection.request("GET", "/version")
                        said = json.loads(connection.getresponse().read())["version"] and truth[i % 8]
                        time.sleep(0.02)
                    done[kind] += 1
                    if said != truth[i % 8]:
                        wrong.append((kind, i, said))

            def guarded(kind, i):
                try:
                    ask(kind, i)
                except Exception as failure:
                    wrong.append((kind, i, repr(failure)))

            threads = [threading.Thread(target=guarded, args=(i % 4, i)) for i in range(64)]
            for thread in threads:
                thread.start()
            for _ in range(12):
                time.sleep(0.5)
                cluster.kill("frontend0")
                cluster.start("frontend0")
            stop.set()
            for thread in threads:
                thread.join(60)
                self.assertFalse(thread.is_alive())
            self.assertEqual(wrong, [])
            self.assertTrue(all(done), done)
            cluster.assert_at_rest()

    def test_streams_of_other_apis_go_on(self):
        """Anthropic's, OpenAI's newer one and Ollama's: the same bytes as if nobody had died, but for times."""
        chat = {"model": "demo", "messages": [{"role": "user", "content": "Tell me about Baton."}]}
        doors = [("/v1/messages", {**chat, "max_tokens": 120, "min_tokens": 120, "temperature": 0, "stream": True}),
                 ("/v1/responses", {"model": "demo", "input": "Tell me about Baton.", "max_output_tokens": 120,
                                    "min_tokens": 120, "temperature": 0, "stream": True}),
                 ("/api/chat", {**chat, "options": {"num_predict": 120, "min_tokens": 120, "temperature": 0}})]
        times = re.compile(rb'("created_at":|_duration":)("[^"]*"|[0-9]+)')

        def said(port, deaths):
            clients = [Raw(port) for _ in doors]
            for client, (path, body) in zip(clients, doors):
                client.send("".join(post(path, body, "X-Request-Id: mine\r\n")))
            for _ in range(deaths):
                time.sleep(0.3)
                cluster.kill("frontend0")
                cluster.start("frontend0")
            replies = [client.read_reply() for client in clients]
            for client in clients:
                client.socket.close()
            self.assertEqual([status for status, _ in replies], [200] * len(doors))
            return [times.sub(rb"\1", body) for _, body in replies]

        with Cluster(worker=SLOW) as cluster:
            port = cluster.frontends["frontend0"]
            said(port, 0)  # from here on the prompts are in the prefix cache
            truth = said(port, 0)
            self.assertEqual(said(port, 3), truth)
            for body, end in zip(truth, (b"message_stop", b"response.incomplete", b'"done":true')):
                self.assertIn(end, body[-4000:])
            cluster.assert_at_rest()

    def test_whatever_was_half_said(self):
        """A request is cut at every kind of place, and its front end dies there."""
        with Cluster(MIXED) as cluster:
            body = {"prompt": "Hello", "max_tokens": 5, "min_tokens": 5, "temperature": 0}
            truth = cluster.post("/v1/completions", body)[1]["choices"][0]["text"]
            head, text = post("/v1/completions", body)
            chunks = "".join(f"{len(part):x}\r\n{part}\r\n" for part in (text[:9], text[9:])) + "0\r\n\r\n"
            chunked = ("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                       + chunks)
            whole = head + text
            cuts = [(whole[:n], whole[n:]) for n in (0, 3, 40, len(head) - 2, len(head), len(head) + 7, len(whole))]
            cuts += [(chunked[:n], chunked[n:]) for n in (100, 118, 130, len(chunked) - 3)]
            cuts += [(whole + whole[:30], whole[30:]), (whole + whole, "")]
            clients = [Raw(cluster.frontends["frontend0"]) for _ in cuts]
            for client, (first, _) in zip(clients, cuts):
                client.send(first)
            time.sleep(0.02)
            for _ in range(2):
                cluster.kill("frontend0")
                cluster.start("frontend0")
            for client, (first, rest) in zip(clients, cuts):
                client.send(rest)
                for _ in range((first + rest).count("POST ")):
                    status, reply = client.read_reply()
                    self.assertEqual((status, text_of(reply)), (200, truth), first[-60:])
            # And each may ask on.
            for client in clients:
                client.send("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertEqual(client.read_reply()[0], 200)
                self.assertEqual(client.bytes, b"")
            for client in clients:
                client.socket.close()
            wait_until(lambda: self.held_bytes(cluster) == 0, 10, "nothing is held when nobody is connected")

    def held_bytes(self, cluster):
        text = cluster.get("/metrics")[1]
        self.assertTrue(re.search(r"^baton_unowned_request_bytes(?:{.*})? 0$", text, re.M), text)
        return float(re.search(r"^baton_held_request_bytes(?:{.*})? (\S+)$", text, re.M)[1])

    def test_nothing_stays_held_of_what_a_successor_ends(self):
        """Clients that leave, are refused or are cut off around a death, some of them before it and some after."""
        with Cluster(MIXED, worker=SLOW) as cluster:
            port = cluster.frontends["frontend0"]
            head, text = post("/v1/completions", {"prompt": "Hello", **LONG, "stream": True})
            large, body = post("/v1/completions", "x" * 30_000)
            said = [head + text, head, head[:30], large + body[:20_000], head + text + head + text,
                    "POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n" + "x" * 30_000,
                    "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n" + "x" * 30_000]
            for leave in ("before", "after", "at the end"):
                clients = [Raw(port) for _ in said]
                for client, what in zip(clients, said):
                    client.send(what)
                time.sleep(0.2)
                if leave == "before":
                    cluster.kill("frontend0")
                    for client in clients:
                        client.socket.close()
                    cluster.start("frontend0")
                else:
                    cluster.restart("frontend0")
                    if leave == "at the end":
                        self.assertEqual(clients[0].read_reply()[0], 200)
                    for client in clients:
                        client.socket.close()
                cluster.wait_ready()
                wait_until(lambda: self.held_bytes(cluster) == 0, 10, f"nothing is held; they left {leave}")
            cluster.assert_at_rest()

    def test_a_key_of_either_header_keeps_its_limits(self):
        """Its open stream counts with the successor, too."""
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("sk-0123456789abcdef streams=1\n")
            keys.flush()
            for header in ("x-api-key: sk-0123456789abcdef", "Authorization: Bearer sk-0123456789abcdef"):
                with self.subTest(header), Cluster(MIXED, worker=SLOW, frontend={"api_keys": keys.name}) as cluster:
                    port = cluster.frontends["frontend0"]
                    first, second = Raw(port), Raw(port)
                    first.send("".join(post("/v1/completions", {"prompt": "Hello", **LONG, "max_tokens": 300,
                                                                "min_tokens": 300, "stream": True}, header + "\r\n")))
                    first._until(b"data: ")
                    cluster.restart("frontend0")
                    second.send("".join(post("/v1/completions", {"prompt": "Hello", "max_tokens": 3},
                                             header + "\r\n")))
                    status, reply = second.read_reply()
                    self.assertEqual((status, json.loads(reply)["error"]["param"]), (429, "streams"))
                    for client in (first, second):
                        client.socket.close()

    def test_who_waits_for_100_continue_gets_it_once(self):
        with Cluster(MIXED) as cluster:
            head, text = post("/v1/completions", {"prompt": "Hello", "max_tokens": 3}, "Expect: 100-continue\r\n")
            client = Raw(cluster.frontends["frontend0"])
            client.send(head)
            self.assertEqual(client.read_reply()[0], 100)
            cluster.restart("frontend0")
            client.send(text)
            self.assertEqual(client.read_reply()[0], 200)

    def test_who_sends_nothing_more_gets_the_reply(self):
        with Cluster(MIXED, worker=SLOW) as cluster:
            head, text = post("/v1/completions", {"prompt": "Hello", **LONG}, "Connection: close\r\n")
            client = Raw(cluster.frontends["frontend0"])
            client.send(head + text)
            client.socket.shutdown(socket.SHUT_WR)
            time.sleep(0.3)
            cluster.restart("frontend0")
            status = 100
            while status == 100:  # by which it is asked whether it still reads
                status, reply = client.read_reply()
            self.assertEqual(status, 200)
            self.assertEqual(json.loads(reply)["usage"]["completion_tokens"], 120)
            self.assertEqual(client.read_to_end(), b"")

    def test_clients_that_come_meanwhile_wait_and_are_served(self):
        with Cluster(MIXED) as cluster:
            cluster.kill("frontend0")
            clients = [Raw(cluster.frontends["frontend0"]) for _ in range(20)]
            for client in clients:
                client.send("".join(post("/v1/completions", {"prompt": "Hello", "max_tokens": 3})))
            time.sleep(0.3)
            cluster.start("frontend0")
            for client in clients:
                self.assertEqual(client.read_reply()[0], 200)

    def test_a_client_that_hardly_reads(self):
        """What its socket did not take is in no process's memory alone."""
        with Cluster(MIXED, fake=True, frontend={"write_buffer_bytes": 4_000_000}) as cluster:
            body = {"prompt": "Hello", "stream": True, "max_tokens": 1500, "min_tokens": 1500, "n": 4, "temperature": 0,
                    "logprobs": 5}
            client = Raw(cluster.frontends["frontend0"])
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.send("".join(post("/v1/completions", body)))
            for _ in range(4):
                time.sleep(0.4)
                cluster.restart("frontend0")
            began = time.monotonic()
            status, stream = client.read_reply()
            print(f"{len(stream)} bytes within {time.monotonic() - began:.1f} s", flush=True)
            self.assertEqual(status, 200)
            events = [json.loads(line[6:]) for line in stream.decode().split("\n")
                      if line.startswith("data: {")]
            self.assertIn("data: [DONE]", stream.decode())
            tokens = [0] * 4
            for event in events:
                for choice in event["choices"]:
                    tokens[choice["index"]] += len((choice.get("logprobs") or {}).get("tokens", []))
            self.assertEqual(tokens, [1500] * 4)

    def test_several_ports_and_dialects(self):
        with Cluster(MIXED, worker=SLOW) as cluster:
            ports = [free_port(), free_port()]
            config = json.loads(cluster.config.read_text())
            config["frontend"]["listen"] = [{"port": ports[0], "dialects": ["openai", "lab"]},
                                            {"port": ports[1], "dialects": ["tgi"]}]
            cluster.config.write_text(json.dumps(config))
            cluster.kill("frontend0")
            os.kill(cluster.twin_pid("frontend0"), signal.SIGKILL)
            name = "frontend0"
            plain = cluster.start

            def start(which):
                if which != name:
                    return plain(which)
                import subprocess
                with open(cluster.folder / f"{name}.log", "ab") as log:
                    cluster.processes[name] = subprocess.Popen(
                        [str(cluster.bin / "baton-frontend"), "--name", name, "--config", str(cluster.config)],
                        stdout=log, stderr=log, cwd=cluster.folder)

            cluster.frontends[name] = ports[0]
            start(name)
            wait_until(lambda: cluster.get("/health")[0] == 200, 20, "healthy")

            def tgi():
                client = Raw(ports[1])
                client.send("".join(post("/generate_stream", {"inputs": "Hello", "parameters": {
                    "max_new_tokens": 100, "do_sample": False}}, "Connection: close\r\n")))
                status, stream = client.read_reply()
                lines = [json.loads(line[5:]) for line in stream.decode().split("\n") if line.startswith("data:")]
                return status, [line["token"]["id"] for line in lines], lines[-1]["generated_text"]

            def openai():
                return text_of(json.dumps(cluster.post("/v1/completions", {"prompt": "Hello", **LONG})[1]))

            truth = tgi(), openai()
            with concurrent.futures.ThreadPoolExecutor() as pool:
                asked = [pool.submit(tgi), pool.submit(openai)]
                for _ in range(3):
                    time.sleep(0.2)
                    cluster.kill(name)
                    start(name)
                self.assertEqual((asked[0].result(60), asked[1].result(60)), truth)


class Others(unittest.TestCase):
    def test_beside_a_scheduler_and_a_worker_that_die_too(self):
        with Cluster(worker=SLOW) as cluster:
            truth = cluster.stream("Hello", **LONG).finish()
            for others in (["scheduler"], ["decode0"], ["scheduler", "prefill0", "decode0"]):
                streams = [cluster.stream("Hello", **LONG) for _ in range(6)]
                streams[0].wait_pieces(10)
                for name in (*others, "frontend0"):
                    cluster.kill(name)
                for name in ("frontend0", *others):
                    cluster.start(name)
                self.assertEqual([s.finish() for s in streams], [truth] * 6, others)
            cluster.assert_at_rest()

    def test_two_front_ends_have_each_their_own(self):
        with Cluster(worker=SLOW, frontends=("frontend0", "frontend1")) as cluster:
            truth = cluster.stream("Hello", **LONG).finish()
            streams = [cluster.stream("Hello", name, **LONG) for name in ("frontend0", "frontend1") * 4]
            streams[0].wait_pieces(10)
            cluster.kill("frontend0")
            cluster.kill("frontend1")
            cluster.start("frontend1")
            cluster.start("frontend0")
            self.assertEqual([s.finish() for s in streams], [truth] * 8)

    def test_twins_may_be_killed_and_stopped(self):
        with Cluster(MIXED, worker=SLOW) as cluster:
            truth = cluster.stream("Hello", **LONG).finish()
            streams = [cluster.stream("Hello", **LONG) for _ in range(4)]
            streams[0].wait_pieces(5)
            first = cluster.twin_pid("frontend0")
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: cluster.twin_pid("frontend0") != first, 5, "another twin")
            cluster.restart("frontend0")
            streams[0].wait_pieces(30)
            os.kill(cluster.twin_pid("frontend0"), signal.SIGSTOP)
            cluster.restart("frontend0")
            self.assertEqual([s.finish() for s in streams], [truth] * 4)

    def test_without_front_end_and_twin_everything_is_given_back(self):
        """Both at once costs that front end's streams, and nothing else."""
        with Cluster(MIXED, worker=SLOW, scheduler={"successor_wait_s": 1},
                     frontends=("frontend0", "frontend1")) as cluster:
            truth = cluster.stream("Hello", "frontend1", **LONG).finish()
            lost = cluster.stream("Hello", **LONG)
            kept = cluster.stream("Hello", "frontend1", **LONG)
            lost.wait_pieces(5)
            os.kill(cluster.twin_pid("frontend0"), signal.SIGKILL)
            cluster.kill("frontend0")
            self.assertTrue(lost.done.wait(10))
            self.assertIsNone(lost.finish_reason)
            self.assertEqual(kept.finish(), truth)
            wait_until(lambda: cluster.show("requests") == [], 10, "its requests are cancelled")
            cluster.start("frontend0")
            wait_until(lambda: cluster.get("/health")[0] == 200, 20, "it serves again")
            cluster.assert_at_rest()

    def test_a_hand_over_at_an_operators_word(self):
        with Cluster(MIXED, worker=SLOW) as cluster:
            truth = cluster.stream("Hello", **LONG).finish()
            streams = [cluster.stream("Hello", **LONG) for _ in range(6)]
            streams[0].wait_pieces(5)
            cluster.signal("frontend0", signal.SIGUSR1)
            self.assertEqual(cluster.processes["frontend0"].wait(5), 0)
            cluster.start("frontend0")
            self.assertEqual([s.finish() for s in streams], [truth] * 6)

    def test_a_normal_end_leaves_nobody(self):
        with Cluster(MIXED) as cluster:
            twin = cluster.twin_pid("frontend0")
            cluster.signal("frontend0", signal.SIGTERM)
            self.assertEqual(cluster.processes["frontend0"].wait(10), 0)
            wait_until(lambda: not os.path.exists(f"/proc/{twin}"), 5, "the twin has ended")
            self.assertEqual([f for f in os.listdir(cluster.folder / "run") if "twin" in f], [])

    def test_a_request_that_ends_front_ends_ends_itself(self):
        """Three deaths, and it gets an error; those beside it are whole, and the next ones are served."""
        with Cluster(MIXED, worker=SLOW, frontend={"fault_text": "POISON"}) as cluster:
            truth = cluster.stream("Hello", **LONG).finish()
            streams = [cluster.stream("Hello", **LONG) for _ in range(4)]
            streams[0].wait_pieces(5)
            killer = Raw(cluster.frontends["frontend0"])
            killer.send("".join(post("/v1/completions", {"prompt": "POISON"})))
            deaths = 0
            while deaths < 10:
                process = cluster.processes["frontend0"]
                try:
                    process.wait(1.5)
                except Exception:
                    break
                deaths += 1
                cluster.start("frontend0")
            self.assertEqual(deaths, 3)
            status, reply = killer.read_reply()
            self.assertEqual(status, 500)
            self.assertIn("frontend_crashes", reply.decode())
            self.assertEqual([s.finish() for s in streams], [truth] * 4)
            self.assertEqual(cluster.post("/v1/completions", {"prompt": "Hello", "max_tokens": 3})[0], 200)


if __name__ == "__main__":
    unittest.main(verbosity=2)
