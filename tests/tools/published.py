"""A tiny HTTP server that speaks the published wire shapes, for tests of clients: every route is a function
(request body) -> reply, and every request is kept."""

import contextlib
import http.server
import json
import socket
import threading
import time


class Reply:
    """Status and JSON body; or lines, each written by itself after `gap_s`. `hang_s`: silence first."""

    def __init__(self, body=None, status=200, lines=None, gap_s=0.0, hang_s=0.0):
        self.body, self.status, self.lines, self.gap_s = body, status, lines, gap_s
        self.hang_s = hang_s


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes

    def log_message(self, *_):
        pass

    def _handle(self):
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        with self.server.lock:
            self.server.seen.append((self.path, body, dict(self.headers), time.monotonic(),
                                     self.client_address[1]))
        route = self.server.routes.get(self.path)
        reply = route(body) if route else Reply({"detail": "Not Found"}, 404)
        if reply.hang_s:
            time.sleep(reply.hang_s)
        with contextlib.suppress(OSError):
            self._send(reply)

    def _send(self, reply):
        self.send_response(reply.status)
        if reply.lines is None:
            data = json.dumps(reply.body).encode()
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in reply.lines:
            time.sleep(reply.gap_s)
            data = line.encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = _handle


class Published(http.server.ThreadingHTTPServer):
    """with Published({"/path": function}) as server: server.url, server.seen"""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, routes, port=0):
        super().__init__(("127.0.0.1", port), _Handler)
        self.routes = routes
        self.seen = []
        self.open = set()
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self._thread.join()
        self.server_close()
        with self.lock, contextlib.suppress(OSError):
            for connection in self.open:  # those that clients keep for later end with the server
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request, client_address):
        with self.lock:
            self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        with self.lock:
            self.open.discard(request)
        super().shutdown_request(request)

    def asked(self, path):
        with self.lock:
            return [entry for entry in self.seen if entry[0] == path]

    def handle_error(self, *_):
        pass  # clients that leave


def generate_stream(body):
    """llm-serving's raw JSON lines; a token a word, at most max_new_tokens of them."""
    words = [f"w{i} " for i in range(body["parameters"]["max_new_tokens"])]
    lines = []
    for i, word in enumerate(words):
        token = {"id": i, "logprob": -0.25 * i, "special": False, "text": word}
        lines.append({"details": None, "generated_text": word, "tokens": token, "top_tokens": [token]})
    lines.append({"details": None, "generated_text": body["inputs"] + "".join(words),
                  "finish_reason": "length", "generated_tokens": len(words), "prefill": [], "seed": 0,
                  "tokens": [], "top_tokens": []})
    return Reply(lines=[json.dumps({"event": "message", "retry": 30000, "data": [line]})
                        for line in lines])


def completion(body):
    """The tutorial's reply of a server: max_new_tokens words."""
    tokens = body["generation_config"]["max_new_tokens"]
    return Reply({"choices": [{"text": "word " * tokens, "index": 0, "finish_reason": "length"}],
                  "usage": {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": tokens,
                            "total_tokens": len(body["prompt"].split()) + tokens}})
