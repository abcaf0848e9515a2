"""The console's page and events over HTTP, and `baton-ctl top` in a terminal."""

import contextlib
import fcntl
import http.client
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from cluster import Cluster, wait_until

KEY = "a-key-of-sixteen-letters"
FAKE = {"fake": True, "worker": {"step_delay_ms": 5, "pool_mib": 64}}


def ask(port, method, path, headers=None, timeout=20):
    """The reply with its body unread, and the connection that it comes on."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    connection.request(method, path, headers=headers or {})
    return connection.getresponse(), connection


class Events:
    """Somebody who watches."""

    def __init__(self, port, headers=None):
        self.reply, self.connection = ask(port, "GET", "/console/events", headers)
        self.status = self.reply.status

    def next(self):
        """What the next event says; None: the stream has ended."""
        for line in self.reply:
            if line.startswith(b"data: "):
                return json.loads(line[6:])
        return None

    def until(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            said = self.next()
            if said is None or condition(said):
                return said
        raise AssertionError("it was not told")

    def close(self):
        self.reply.close()
        self.connection.close()


class Console(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(**FAKE).__enter__()
        cls.port = next(iter(cls.cluster.frontends.values()))

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)

    def test_the_page_needs_nothing_from_outside(self):
        seen = set()
        for _ in range(2):
            reply, connection = ask(self.port, "GET", "/console")
            body = reply.read().decode()
            connection.close()
            self.assertEqual((reply.status, reply.headers["Content-Type"]), (200, "text/html; charset=utf-8"))
            policy = reply.headers["Content-Security-Policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertIn("frame-ancestors 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(reply.headers["X-Content-Type-Options"], "nosniff")
            self.assertEqual(reply.headers["Referrer-Policy"], "no-referrer")
            nonce = re.search(r"script-src 'nonce-([0-9a-f]{32})'", policy)[1]
            self.assertEqual(body.count(f'nonce="{nonce}"'), 2)
            self.assertNotIn("@NONCE@", body)
            urls = set(re.findall(r"""https?://[^\s'"]+""", body))
            self.assertEqual(urls, {"http://www.w3.org/2000/svg"})
            self.assertNotIn("innerHTML", body)
            seen.add(nonce)
        self.assertEqual(len(seen), 2)

    def test_nothing_but_get_works(self):
        for path in ("/console", "/console/events", "/console/requests/any"):
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                reply, connection = ask(self.port, method, path)
                self.assertEqual((reply.status, reply.headers["Allow"]), (405, "GET, HEAD, OPTIONS"), (method, path))
                connection.close()
            reply, connection = ask(self.port, "HEAD", path)
            self.assertEqual((reply.status, reply.read()), (404 if "any" in path else 200, b""), path)
            connection.close()
        for path in ("/console/cancel", "/console/events/1"):
            reply, connection = ask(self.port, "GET", path)
            self.assertEqual(reply.status, 404)
            connection.close()

    def test_pages_of_other_sites_read_nothing(self):
        for headers in ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, {"Host": "evil.example"}):
            reply, connection = ask(self.port, "GET", "/console/events", headers)
            self.assertEqual(reply.status, 403, headers)
            connection.close()

    def test_events_tell_what_happens(self):
        events = Events(self.port)
        self.assertEqual((events.status, events.reply.headers["Content-Type"]), (200, "text/event-stream; charset=utf-8"))
        still = events.next()
        self.assertEqual({worker["name"] for worker in still["workers"]}, {"prefill0", "decode0"})
        before = {pool["worker"]: pool["map"] for pool in still["pools"]}
        streams = [self.cluster.stream("Hello " * 200, max_tokens=200, ignore_eos=True) for _ in range(4)]
        moved = events.until(lambda said: said["pulls"])
        pull = moved["pulls"][0]
        self.assertEqual((pull["from"], pull["to"]), ("prefill0", "decode0"))
        self.assertRegex(pull["target"], r"^\d[\d,-]*$")
        busy = events.until(lambda said: said["running"] == 4 and any(r["phase"] == "decode" for r in said["requests"]))
        self.assertNotEqual(before, {pool["worker"]: pool["map"] for pool in busy["pools"]})
        for pool in busy["pools"]:
            cells = re.sub(r"(\d+)([a-z])", lambda run: run[2] * int(run[1]), pool["map"])
            self.assertEqual(len(cells), -(-pool["total"] // pool["per_cell"]))
            if pool["per_cell"] == 1:
                self.assertEqual(cells.count("o"), pool["owned"])
        one = next(r for r in busy["requests"] if r["phase"] == "decode")
        self.assertEqual((one["worker"], one["max_tokens"]), ("decode0", 200))
        self.assertTrue(one["blocks"]["decode0"])
        for stream in streams:
            stream.finish()
        events.until(lambda said: said["running"] == 0 and said["counters"]["finished"] >= 4)
        events.close()

    def test_a_request_that_has_ended_is_told_with_its_moves(self):
        reply, connection = ask(self.port, "GET", "/console/requests/never")
        self.assertEqual((reply.status, json.loads(reply.read())["error"]["code"]), (404, "request_not_found"))
        connection.close()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hello " * 50, "max_tokens": 30, "ignore_eos": True}),
                           {"Content-Type": "application/json", "X-Request-Id": "told"})
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()

        def told(name):
            status, body = self.cluster.get(f"/console/requests/{name}")
            return status == 200 and json.loads(body)
        one = wait_until(lambda: told("told"), 10, "it is told")
        self.assertEqual((one["id"], one["tokens"], one["all_moves"]), ("told", 30, 1))
        move = one["moves"][0]
        self.assertEqual((move["from"], move["to"], move["why"], move["no_place_ms"]), ("prefill0", "decode0", "handoff", 0))
        self.assertGreater(move["at_ms"], 0)
        self.assertLess(move["at_ms"], one["total_ms"])
        self.assertNotIn("Hello", json.dumps(one))

    def test_the_name_of_the_scheduler_finds_it_too(self):
        events = Events(self.port)
        stream = self.cluster.stream("Hello " * 50, max_tokens=100, ignore_eos=True)
        name = events.until(lambda said: said["requests"])["requests"][0]["id"]
        stream.finish()
        events.close()
        status, body = wait_until(
            lambda: (answer := self.cluster.get(f"/console/requests/{name}"))[0] == 200 and answer, 10, "it is told")
        self.assertEqual(json.loads(body)["tokens"], 100)

    def test_watchers_are_bounded(self):
        watching = [Events(self.port) for _ in range(16)]
        for events in watching:
            self.assertIn("workers", events.next())
        refused = Events(self.port)
        self.assertEqual(refused.status, 429)
        self.assertIn("16", json.loads(refused.reply.read())["error"]["message"])
        refused.close()
        watching.pop().close()

        def room():
            events = Events(self.port)
            events.close()
            return events.status == 200
        wait_until(room, 10, "room for one more")
        for events in watching:
            events.close()


class Deaths(unittest.TestCase):
    def test_the_scheduler_leaves_and_comes_back(self):
        with Cluster(**FAKE) as cluster:
            events = Events(next(iter(cluster.frontends.values())))
            epoch = events.next()["epoch"]
            cluster.kill("scheduler")
            self.assertTrue(events.until(lambda said: "away" in said)["away"])
            cluster.start("scheduler")
            self.assertNotEqual(events.until(lambda said: "epoch" in said)["epoch"], epoch)
            events.close()

    def test_the_front_end_leaves(self):
        """Drained: the stream ends as it should. Killed: nothing of a successor's comes into the stream."""
        with Cluster(**FAKE) as cluster:
            port = cluster.frontends["frontend0"]
            events = Events(port)
            events.next()
            cluster.kill("frontend0")
            cluster.start("frontend0")
            with contextlib.suppress(OSError, http.client.HTTPException):
                while (said := events.next()) is not None:
                    self.assertIn("workers", said)
            wait_until(lambda: cluster.get("/health")[0] == 200, 20, "the successor")
            events = Events(port)
            self.assertIn("workers", events.next())
            cluster.signal("frontend0", signal.SIGTERM)
            while events.next() is not None:
                pass
            self.assertEqual(cluster.processes["frontend0"].wait(20), 0)


class OpenToTheNetwork(unittest.TestCase):
    def test_without_keys_there_is_no_console(self):
        with Cluster(frontend={"host": "0.0.0.0"}, **FAKE) as cluster:
            for path in ("/console", "/console/events", "/console/requests/any"):
                status, body = cluster.get(path)
                self.assertEqual(status, 403)
                self.assertIn("frontend.api_keys", json.loads(body)["error"]["message"])

    def test_with_keys_the_events_want_one(self):
        with Cluster(**FAKE) as cluster:  # its folder holds the keys of the next one
            keys = cluster.folder / "keys"
            keys.write_text(KEY + "\n")
            with Cluster(frontend={"host": "0.0.0.0", "api_keys": str(keys)}, **FAKE) as guarded:
                port = next(iter(guarded.frontends.values()))
                self.assertEqual(guarded.get("/console")[0], 200)
                self.assertEqual(guarded.get("/console/events")[0], 401)
                self.assertEqual(guarded.get("/console/requests/any")[0], 401)
                self.assertEqual(Events(port, {"Authorization": "Bearer wrong"}).status, 401)
                events = Events(port, {"Authorization": f"Bearer {KEY}"})
                self.assertIn("workers", events.next())
                events.close()


class Terminal:
    """baton-ctl in a terminal of its own."""

    def __init__(self, cluster, columns, rows, *words):
        self.ours, theirs = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        command = [cluster.bin / "baton-ctl", "--socket", cluster.folder / "run" / "admin.sock", *words]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                                        env={**os.environ, "LC_ALL": "C.UTF-8"})
        self.data = b""

    def resize(self, columns, rows):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and select.select([self.ours], [], [], left)[0]:
            try:
                self.data += os.read(self.ours, 65536)
            except OSError:
                break
        return self.data.decode(errors="replace")

    def pictures(self):
        """What was drawn so far, each picture as lines without sequences."""
        return [[re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", line) for line in picture.split("\n")]
                for picture in self.read(0.01).split("\x1b[H")[1:]]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


class Top(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(**FAKE).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)

    def leave(self, how):
        terminal = Terminal(self.cluster, 80, 24, "top", "--interval", "0.2")
        wait_until(lambda: terminal.read(0.05) and "prefill0" in terminal.data.decode(errors="replace"), 10, "a picture")
        how(terminal)
        self.assertEqual(terminal.process.wait(5), 0)
        self.assertIn("\x1b[?1049l", terminal.read(0.2))  # the screen is given back,
        self.assertIn("\x1b[?25h", terminal.data.decode(errors="replace"))  # with its cursor
        self.assertEqual(termios.tcgetattr(terminal.theirs), terminal.before)
        terminal.close()

    def test_q_leaves(self):
        self.leave(lambda terminal: os.write(terminal.ours, b"q"))

    def test_signals_give_the_terminal_back(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.leave(lambda terminal, number=number: terminal.process.send_signal(number))

    def test_fits_the_window_and_follows_its_size(self):
        streams = [self.cluster.stream("Hello " * 50, max_tokens=400, ignore_eos=True) for _ in range(30)]
        terminal = Terminal(self.cluster, 80, 24, "top", "--interval", "0.2")
        terminal.read(1.2)
        last = terminal.pictures()[-1]
        self.assertLessEqual(len(last), 24)
        self.assertTrue(all(len(line) <= 80 for line in last), last)
        self.assertTrue(any("more" in line for line in last), last)
        terminal.data = b""
        terminal.resize(140, 50)
        terminal.process.send_signal(signal.SIGWINCH)
        until = time.monotonic() + 10

        def fills(picture):
            return 24 < len(picture) <= 50 and any(len(line) > 80 for line in picture)

        while not any(map(fills, terminal.pictures())) and time.monotonic() < until:
            terminal.read(0.2)
        self.assertTrue(any(map(fills, terminal.pictures())), terminal.pictures()[-1])
        terminal.close()
        for stream in streams:
            stream.leave()

    def test_prints_once_where_there_is_no_terminal(self):
        code, text, complaint = self.cluster.baton_ctl("top")
        self.assertEqual((code, complaint), (0, ""))
        self.assertIn("prefill0", text)
        self.assertNotIn("\x1b", text)
        done = subprocess.run([self.cluster.bin / "baton-ctl", "--socket", "/nowhere/admin.sock", "top"],
                              capture_output=True, text=True, timeout=20)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("is baton-scheduler running?", done.stderr)


if __name__ == "__main__":
    unittest.main()
