"""HTTP/1.1 to one address, connections kept for the next request. Thread-safe."""

import http.client
import socket
import ssl
import threading
import time
import urllib.parse

MAX_REPLY_BYTES = 64 << 20
_MAX_IDLE = 64
_IDLE_S = 30.0  # front ends keep idle connections 75 s

# A kept connection that the server has closed meanwhile shows as one of these, before any reply.
_GONE = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError,
         ConnectionAbortedError, http.client.CannotSendRequest)

FAILURES = (OSError, http.client.HTTPException)


def is_timeout(error):
    return isinstance(error, TimeoutError)


def reason(error):
    """Why there was no reply, for people."""
    if is_timeout(error):
        return "no reply in time"
    if isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection without a reply"
    if isinstance(error, http.client.HTTPException):
        return f"its reply is no HTTP ({type(error).__name__})"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class HttpClient:
    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self._secure = parts.scheme == "https"
        self._where = (parts.hostname, parts.port)
        self._prefix = parts.path.rstrip("/")
        self._lock = threading.Lock()
        self._idle = []  # (connection, since); the newest last

    def request(self, method, path, body=None, headers=None, timeout_s=100.0):
        """(status, body). Raises one of FAILURES; TimeoutError if the server stayed silent."""
        headers = {"Content-Type": "application/json", **(headers or {})}
        deadline = time.monotonic() + timeout_s
        connection = self._take()
        if connection is not None:
            try:
                return self._exchange(connection, method, path, body, headers, deadline)
            except _GONE:
                pass  # it had been idle: a fresh one tells whether the server is there
        return self._exchange(self._connect(timeout_s), method, path, body, headers, deadline)

    def close(self):
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _connect(self, timeout_s):
        if self._secure:
            return http.client.HTTPSConnection(*self._where, timeout=timeout_s,
                                               context=ssl.create_default_context())
        return http.client.HTTPConnection(*self._where, timeout=timeout_s)

    def _take(self):
        with self._lock:
            while self._idle:
                connection, since = self._idle.pop()
                if time.monotonic() - since < _IDLE_S:
                    return connection
                connection.close()
        return None

    def _keep(self, connection):
        with self._lock:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()

    def _exchange(self, connection, method, path, body, headers, deadline):
        kept = False
        try:
            self._limit(connection, deadline)
            connection.request(method, self._prefix + path, body, headers)
            self._limit(connection, deadline)
            response = connection.getresponse()
            data = response.read(MAX_REPLY_BYTES + 1)
            if len(data) > MAX_REPLY_BYTES:
                raise http.client.HTTPException(f"more than {MAX_REPLY_BYTES} bytes")
            if not response.will_close:
                response.close()
                self._keep(connection)
                kept = True
            return response.status, data
        finally:
            if not kept:
                connection.close()

    @staticmethod
    def _limit(connection, deadline):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time left")
        connection.timeout = left
        if isinstance(connection.sock, socket.socket):
            connection.sock.settimeout(left)
