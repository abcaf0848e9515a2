"""What a browser asks on behalf of a page of another origin, and what it lets the page read (CORS)."""

import contextlib
import socket
import tempfile
import unittest

from cluster import Cluster, wait_until
from test_http import (CHAT, COMPLETIONS, GENERATE, LIMIT, ClusterTest, completion, connect, events_of, post,
                       raw, read_reply, read_until, streamed)

PAGE = "http://localhost:5173"
STRANGERS = ("https://evil.example", "null", "*", PAGE + "0", PAGE + "/", "http://localhost")
POST, GET = "POST, OPTIONS", "GET, HEAD, OPTIONS"
ROUTES = ((COMPLETIONS, POST), (CHAT, POST), (GENERATE, POST), ("/v1/models", GET), ("/v1/models/demo", GET),
          ("/health", GET), ("/", GET))
REPLY = ("access-control-allow-origin", "access-control-expose-headers", "vary")
PREFLIGHT = (*REPLY, "access-control-allow-methods", "access-control-allow-headers",
             "access-control-max-age")
HEADERS = "Authorization, Content-Type, X-Request-Id, *"


def get(path):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def preflight(path, origin=PAGE):
    return (f"OPTIONS {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n"
            "Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n\r\n").encode()


def said(reply):
    """The reply's CORS headers, and that it has no others."""
    found = [name for name in reply.headers if name == "vary" or name.startswith("access-control-")]
    assert set(found) <= set(PREFLIGHT), found
    return [reply.headers.get(name) for name in PREFLIGHT if name in found or name in REPLY]


class Browsers(ClusterTest):
    options = {"worker": {"fake": True, "step_delay_ms": 2, "pool_mib": 256},
               "frontend": {"allowed_origins": [PAGE, "https://chat.example"], "max_streams": 2}}

    def ask(self, data, origin=None):
        headers = b"Connection: close\r\n" + (f"Origin: {origin}\r\n".encode() if origin else b"")
        return self.request(data.replace(b"\r\n", b"\r\n" + headers, 1))

    def test_preflights(self):
        for path, methods in ROUTES:
            reply = self.request(preflight(path))
            self.assertEqual((reply.status, said(reply)),
                             (204, [PAGE, "*", "Origin", methods, HEADERS, "7200"]))
            self.assertEqual((reply.headers["allow"], reply.rest, reply.closed), (methods, b"", False))
            self.assertFalse({"content-length", "content-type"} & reply.headers.keys())
            for origin in STRANGERS:
                reply = self.ask(preflight(path, origin))
                self.assertEqual((reply.status, said(reply)), (204, [None, None, "Origin"]), origin)
            plain = self.ask(f"OPTIONS {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            self.assertEqual((plain.status, plain.headers["allow"]), (204, methods))
        reply = self.request(preflight("/nope"))
        self.assert_error(reply, 404, "/nope")
        self.assertEqual(said(reply), [PAGE, "*", "Origin"])

    def test_the_request_follows_on_the_same_connection(self):
        with connect(self.port) as client:
            client.sendall(preflight(COMPLETIONS))
            data = read_until(client, b"", b"\r\n\r\n")
            self.assertTrue(data.startswith(b"HTTP/1.1 204 No Content\r\n"), data)
            client.sendall(post(COMPLETIONS, {"prompt": "Hello", "max_tokens": 2, "ignore_eos": True}))
            self.assertEqual(read_reply(client)[0].status, 200)

    def test_replies_and_errors(self):
        body = {"prompt": "Hello", "max_tokens": 2, "ignore_eos": True}
        late = {**body, "max_tokens": 12_000, "timeout_s": 0.5}
        for data, status in (
                (post(COMPLETIONS, body), 200), (post(GENERATE, {"prompt": "a", "max_length": 20}), 200),
                (get("/"), 200), (get("/v1/models"), 200), (get("/health").replace(b"GET", b"HEAD"), 200),
                (post(COMPLETIONS, {}), 400), (get("/v1/models/x"), 404), (get("/nope"), 404),
                (get(GENERATE), 405), (post(COMPLETIONS, b"x" * (LIMIT + 1)), 413),
                (post(COMPLETIONS, body, "X-Request-Id: a b\r\n"), 400),
                (post(COMPLETIONS, b"", "Transfer-Encoding: chunked\r\n"), 400),
                (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", 501), (post(COMPLETIONS, late), 504)):
            with self.subTest(data=data[:60]):
                reply = self.ask(data, PAGE)
                self.assertEqual((reply.status, said(reply)), (status, [PAGE, "*", "Origin"]))
                # What others get a cache must not give to the page.
                self.assertEqual(said(self.ask(data)), [None, None, "Origin"])
        for origin in (*STRANGERS, "x" * 30_000):
            reply = self.ask(post(COMPLETIONS, body), origin)
            self.assertEqual((reply.status, said(reply)), (200, [None, None, "Origin"]), origin[:60])

    def test_streams(self):
        for path, body in ((COMPLETIONS, {"prompt": "Hello", "max_tokens": 5}),
                           (CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}),
                           (GENERATE, {"prompt": "Hello", "max_length": 20})):
            origin = f"\r\nOrigin: {PAGE}\r\n".encode()
            with connect(self.port) as client:
                client.sendall(streamed(path, **body).replace(b"\r\n", origin, 1))
                answer = read_until(client, b"", b"0\r\n\r\n")
            head = answer.partition(b"\r\n\r\n")[0].decode() + "\r\n"
            self.assertIn("\r\nContent-Type: text/event-stream", head)
            self.assertIn(f"\r\nAccess-Control-Allow-Origin: {PAGE}\r\n", head)
            self.assertIn("\r\nVary: Origin\r\n", head)
            self.assertTrue(events_of(answer))

    def test_a_full_server(self):
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                client = stack.enter_context(connect(self.port))
                client.sendall(completion(4000))
                client.recv(1, socket.MSG_PEEK)
            reply = self.ask(completion(1), PAGE)
            self.assertEqual((reply.status, said(reply)), (429, [PAGE, "*", "Origin"]))
            self.assertIn("retry-after", reply.headers)
        wait_until(lambda: self.metric("baton_open_streams") == 0, 10, "all gone")


class Default(ClusterTest):
    def test_pages_are_told_nothing(self):
        for data, status in ((preflight(COMPLETIONS), 204), (preflight("/nope"), 404),
                             (get("/health").replace(b"\r\n", f"\r\nOrigin: {PAGE}\r\n".encode(), 1), 200)):
            reply = self.request(data)
            self.assertEqual((reply.status, said(reply)), (status, [None] * 3))


WARNING = "there are no frontend.api_keys"


class EveryPage(unittest.TestCase):
    def log_of(self, cluster):
        return (cluster.folder / f"{next(iter(cluster.frontends))}.log").read_text()

    def test_without_keys_the_log_warns(self):
        for origins, warned in (("*", 1), ([PAGE], 0)):
            with Cluster(fake=True, frontend={"allowed_origins": origins}) as cluster:
                self.assertEqual(self.log_of(cluster).count(WARNING), warned)

    def test_with_a_key(self):
        key = "sk-0123456789abcdef"
        keys = self.enterContext(tempfile.NamedTemporaryFile("w"))
        keys.write(key + "\n")
        keys.flush()
        cluster = self.enterContext(
            Cluster(fake=True, frontend={"api_keys": keys.name, "allowed_origins": "*"}))
        port = next(iter(cluster.frontends.values()))
        for path, status, expected in (("/v1/models", 204, ["*", "*", None, GET, HEADERS, "7200"]),
                                       ("/nope", 404, ["*", "*", None])):
            reply = raw(port, preflight(path, "null"))  # browsers send no key with it
            self.assertEqual((reply.status, said(reply)), (status, expected))
        self.assertNotIn(WARNING, self.log_of(cluster))
        for header, status in (("", 401), (f"Authorization: Bearer {key}\r\n", 200)):
            for origin in ("", f"Origin: {PAGE}\r\n"):
                reply = raw(port, f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{origin}{header}\r\n".encode())
                self.assertEqual((reply.status, said(reply)), (status, ["*", "*", None]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
