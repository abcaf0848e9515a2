"""The gateway's HTTP server: waitress (cmake/pypi-requirements-gateway.txt), whose one thread reads requests, so
that a slow client holds no worker thread. Here: bounds in time, growing threads, and the drain of a stop."""

import http.client
import json
import logging
import resource
import socket
import threading
import time

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher

MAX_BODY_BYTES = 4 << 20
_MAX_HEAD_BYTES = 64 << 10
_MAX_CONNECTIONS = 4096
_OTHER_FILES = 512   # descriptors that are no client's: servers, logs
_SILENCE_S = 15      # an idle connection, or one that takes no reply
_TICK_S = 0.2

access = logging.getLogger("access")
log = logging.getLogger("gateway")


class Refused(Exception):
    """The request cannot be read."""

    def __init__(self, status, detail):
        super().__init__(detail)
        self.status, self.detail = status, detail


def _quoted(line):
    return ascii(line[:300])[1:-1].replace('"', "'")


class _Parser(HTTPRequestParser):
    def parse_header(self, header_plus):
        super().parse_header(header_plus)
        if self.chunked and "CONTENT_LENGTH" in self.headers:
            raise ParsingError("Content-Length beside Transfer-Encoding")


class _ErrorTask(ErrorTask):
    """What waitress refuses before any route is asked."""

    def execute(self):
        access.info('%s - "%s" %d -', self.channel.addr[0], _quoted(getattr(self.request, "first_line", b"").decode("latin-1")),
                    self.request.error.code)
        super().execute()


class _Channel(HTTPChannel):
    parser_class = _Parser
    error_task_class = _ErrorTask
    began = None  # when the first byte of an unfinished request came

    def received(self, data):
        result = super().received(data)
        if self.request is None:
            self.began = None
        elif self.began is None:
            self.began = time.time()
        return result


class _Threads(ThreadedTaskDispatcher):
    """As many threads as requests were ever at work at a time, up to `most`."""

    def __init__(self, most):
        super().__init__()
        self._most = most
        self.queue_logger.setLevel(logging.ERROR)

    def add_task(self, task):
        with self.lock:
            count = len(self.threads)
            short = len(self.queue) >= count - self.stop_count - self.active_count
        if short and count < self._most:
            self.set_thread_count(count + 1)
        super().add_task(task)


class _Listener(TcpWSGIServer):
    channel_class = _Channel
    request_s = None

    def maintenance(self, now):
        super().maintenance(now)
        for channel in list(self.active_channels.values()):
            late = channel.began is not None and now - channel.began > self.request_s
            if late or (channel.total_outbufs_len and now - channel.last_activity > _SILENCE_S):
                channel.will_close = True

    def stop_listening(self):
        self.accepting = False
        wasyncore.dispatcher.close(self)


class HttpServer:
    """`app(method, path, body, peer)` gives an Answer, on any thread; `refusal(status, detail)` too. `guard(environ)` says
    why a request is refused whatever it asks for, or None. A request must arrive within `request_s`."""

    def __init__(self, address, app, refusal, guard, threads, request_s):
        self._app, self._refusal, self._guard = app, refusal, guard
        self._stopping, self._over = threading.Event(), threading.Event()
        family, kind, protocol, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM,
                                                              flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
        except OSError:
            listener.close()
            raise
        self.server_address = listener.getsockname()
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        settings = Adjustments(
            sockets=[listener], ident=None, backlog=1024, asyncore_use_poll=True, cleanup_interval=1,
            channel_timeout=_SILENCE_S, connection_limit=max(16, min(_MAX_CONNECTIONS, descriptors - _OTHER_FILES)),
            max_request_header_size=_MAX_HEAD_BYTES, max_request_body_size=MAX_BODY_BYTES + 1,
            clear_untrusted_proxy_headers=True, log_socket_errors=False)
        self._map = {}
        self._listener = _Listener(self._serve, map=self._map, _sock=listener, dispatcher=_Threads(threads), adj=settings,
                                   sockinfo=(family, kind, protocol, self.server_address), bind_socket=False)
        self._listener.request_s = request_s

    def serve_forever(self):
        while not self._over.is_set():
            if self._stopping.is_set() and self._listener.accepting:
                self._listener.stop_listening()
            wasyncore.loop(timeout=_TICK_S, use_poll=True, map=self._map, count=1)
            if self._stopping.is_set():
                self._listener.maintenance(time.time())  # it listens no more, and so does not do it itself

    def stop(self, drain_s):
        """No new connections, and 503 for new requests; those at work get `drain_s` seconds. True if all have ended."""
        self._stopping.set()
        self._listener.pull_trigger()
        end = time.monotonic() + drain_s
        time.sleep(0.1)  # what was read just now gets to its request
        while (busy := self._busy()) and time.monotonic() < end:
            time.sleep(0.02)
        self._over.set()
        self._listener.pull_trigger()
        return not busy

    def _busy(self):
        return any(channel.requests or channel.total_outbufs_len
                   for channel in list(self._listener.active_channels.values()))

    def _serve(self, environ, start_response):
        began = time.monotonic()
        method, path, peer = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["REMOTE_ADDR"]
        answer = self._answer(environ, method, path, peer)
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(answer.body))), *answer.headers]
        start_response(f"{answer.status} {http.client.responses.get(answer.status, '-')}", headers)
        access.info('%s - "%s" %d %d bytes %s attempts=%d duration=%.3fs', peer,
                    _quoted(f"{method} {path} {environ['SERVER_PROTOCOL']}"), answer.status, len(answer.body), answer.server,
                    answer.attempts, time.monotonic() - began)
        return [answer.body]

    def _answer(self, environ, method, path, peer):
        try:
            if self._stopping.is_set():
                raise Refused(503, "the gateway stops")
            why = self._guard(environ)
            if why:
                raise Refused(403, why)
            if method == "POST" and "CONTENT_LENGTH" not in environ:
                raise Refused(411, "Content-Length is missing")
            return self._app(method, path, environ["wsgi.input"].read(), peer)
        except Refused as refused:
            return self._refusal(refused.status, refused.detail)
        except Exception:  # a fault of ours must not end the connection without a word
            log.exception("%s %s", method, path)
            return self._refusal(500, "an error in the gateway; its log has the details")


def parse_object(body):
    """The JSON object of a body; Refused(422) otherwise."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"the body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused(422, "the body is no JSON object")
    return value
