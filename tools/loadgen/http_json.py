"""JSON over HTTP/1.1 to one server: whole replies, or line by line with the time of each."""

import http.client
import json
import time
import urllib.parse

HEADERS = {"Content-Type": "application/json", "Connection": "close"}


class HttpFailure(Exception):
    """The server answered with something else than 200."""

    def __init__(self, status, body):
        super().__init__(f"{status}: {body[:300]}")
        self.status = status


class Server:
    """`url` is http://HOST:PORT, with or without a path before all others. Thread-safe: each call has a
    connection of its own, as the original programs do it."""

    def __init__(self, url, timeout_s=3600.0):
        if "//" not in url:
            url = "http://" + url
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http:// address")
        self._kind = (http.client.HTTPSConnection if parts.scheme == "https"
                      else http.client.HTTPConnection)
        self._where = (parts.hostname, parts.port)
        self._prefix = parts.path.rstrip("/")
        self._timeout_s = timeout_s

    def _begin(self, path, body):
        connection = self._kind(*self._where, timeout=self._timeout_s)
        try:
            connection.request("POST", self._prefix + path, json.dumps(body), HEADERS)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def post(self, path, body):
        """(status, text). OSError or http.client.HTTPException: there was no reply."""
        connection, response = self._begin(path, body)
        try:
            return response.status, response.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def post_json(self, path, body):
        """The parsed reply; HttpFailure unless the status is 200."""
        status, text = self.post(path, body)
        if status != 200:
            raise HttpFailure(status, text)
        return json.loads(text)

    def lines(self, path, body):
        """(seconds since the request was sent, line) for each line that is not empty."""
        sent = time.monotonic()
        connection, response = self._begin(path, body)
        try:
            if response.status != 200:
                raise HttpFailure(response.status, response.read().decode("utf-8", "replace"))
            for line in response:
                text = line.decode("utf-8", "replace").strip()
                if text:
                    yield time.monotonic() - sent, text
        finally:
            connection.close()


# What a request can fail with, besides a wrong reply.
FAILURES = (OSError, http.client.HTTPException, HttpFailure, ValueError)
