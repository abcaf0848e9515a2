"""An HTTP/1.1 server with a bounded number of threads, one for each connection. When all are taken, new
connections wait in the kernel's queue, and replies ask to close, so that nobody keeps a thread for nothing."""

import http.server
import json
import logging
import select
import socket
import threading
import time

MAX_BODY_BYTES = 4 << 20
_SILENCE_S = 15.0  # between two requests, and between two pieces of one
_TICK_MS = 200     # how often an idle connection looks whether its thread is wanted

access = logging.getLogger("access")
log = logging.getLogger("gateway")


class Refused(Exception):
    """The request cannot be read; the connection ends."""

    def __init__(self, status, detail):
        super().__init__(detail)
        self.status, self.detail = status, detail


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_S

    def log_message(self, *_):
        pass  # send_error and friends; the access log is written below

    def handle(self):
        self.close_connection = True
        self.handle_one_request()
        while not self.close_connection and self._next_comes():
            self.handle_one_request()

    def _next_comes(self):
        """Waits for the client's next request; False if its time, or somebody else's patience, is over."""
        self.connection.settimeout(0)
        try:
            if self.rfile.peek(1):  # it came together with the last one
                return True
        finally:
            self.connection.settimeout(_SILENCE_S)
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        end = time.monotonic() + _SILENCE_S
        while not self.server.crowded() and time.monotonic() < end:
            if poll.poll(_TICK_MS):
                return True
        return False

    def do_GET(self):
        self._serve()

    def do_POST(self):
        self._serve()

    def _serve(self):
        began = time.monotonic()
        with self.server.working():
            try:
                answer = self.server.app(self.command, self.path.split("?", 1)[0], self._body(),
                                         self.client_address[0])
            except Refused as refused:
                self.close_connection = True
                answer = self.server.refusal(refused.status, refused.detail)
            except Exception:  # a fault of ours must not end the connection without a word
                log.exception("%s %s", self.command, self.path)
                answer = self.server.refusal(500, "an error in the gateway; its log has the details")
            self._send(answer)
        access.info('%s - "%s" %d %d bytes %s attempts=%d duration=%.3fs', self.client_address[0],
                    ascii(self.requestline[:300])[1:-1].replace('"', "'"), answer.status, len(answer.body), answer.server,
                    answer.attempts, time.monotonic() - began)

    def _body(self):
        if self.headers.get("Transfer-Encoding"):
            raise Refused(411, "chunked bodies are not taken; send Content-Length")
        text = self.headers.get("Content-Length")
        if text is None:
            if self.command == "POST":
                raise Refused(411, "Content-Length is missing")
            return b""
        if not text.isascii() or not text.isdigit():
            raise Refused(400, "Content-Length is no number")
        if len(text) > 12 or int(text) > MAX_BODY_BYTES:
            raise Refused(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        try:
            body = self.rfile.read(int(text))
        except TimeoutError:
            raise Refused(408, "the body does not come") from None
        if len(body) < int(text):
            raise Refused(400, "the body ended too early")
        return body

    def _send(self, answer):
        close = self.close_connection or self.server.crowded()
        self.close_connection = close
        self.send_response_only(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers:
            self.send_header(name, value)
        if close:
            self.send_header("Connection", "close")
        self._headers_buffer.append(b"\r\n")
        data = b"".join(self._headers_buffer) + answer.body
        self._headers_buffer = []
        try:
            self.connection.sendall(data)
        except OSError as error:  # the client has left
            self.close_connection = True
            log.debug("%s left: %s", self.client_address[0], error)


class HttpServer(http.server.HTTPServer):
    """`app(method, path, body, peer)` gives an Answer, on any thread; `refusal(status, detail)` too."""

    request_queue_size = 1024
    allow_reuse_address = True

    def __init__(self, address, app, refusal, threads):
        self.app, self.refusal = app, refusal
        self._free = threading.Semaphore(threads)
        self._waiting = False
        self._stopping = threading.Event()
        self._busy = 0
        self._idle = threading.Condition()
        super().__init__(address, Handler)

    def crowded(self):
        return self._waiting or self._stopping.is_set()

    def process_request(self, request, client_address):
        if not self._free.acquire(blocking=False):
            self._waiting = True  # idle connections see it and give up their threads
            while not self._free.acquire(timeout=0.2):
                if self._stopping.is_set():
                    self.shutdown_request(request)
                    return
            self._waiting = False
        threading.Thread(target=self._run, args=(request, client_address), daemon=True).start()

    def _run(self, request, client_address):
        try:
            request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.finish_request(request, client_address)
        except OSError as error:
            log.debug("%s: %s", client_address[0], error)
        finally:
            self.shutdown_request(request)
            self._free.release()

    def working(self):
        return _Working(self)

    def stop(self, drain_s):
        """No new requests; those at work get `drain_s` seconds. True if all have ended."""
        self._stopping.set()
        self.shutdown()
        self.server_close()
        time.sleep(0.1)  # connections that were accepted just now get to their request
        with self._idle:
            return self._idle.wait_for(lambda: self._busy == 0, drain_s)

    def count(self, by):
        with self._idle:
            self._busy += by
            self._idle.notify_all()


class _Working:
    def __init__(self, server):
        self._server = server

    def __enter__(self):
        self._server.count(1)

    def __exit__(self, *_):
        self._server.count(-1)


def parse_object(body):
    """The JSON object of a body; Refused(422) otherwise."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"the body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(422, "the body is no JSON object")
    return value
