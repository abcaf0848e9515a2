"""What each path does."""

import ipaddress

from gateway.config import CONTINUOUS, STATIC, server_url
from gateway.forward import Answer, refusal
from gateway.http_server import parse_object


class App:
    def __init__(self, directory, forwarder, jumper, watch, registration):
        self._directory = directory
        self._forwarder = forwarder
        self._jumper = jumper
        self._watch = watch
        self._registration = registration
        self._routes = {
            ("POST", "/completion/v1"): lambda body, _: self._complete(STATIC, body),
            ("POST", "/completion/v2"): lambda body, _: self._complete(CONTINUOUS, body),
            ("POST", "/chat_completion/v1"): lambda body, _: self._jumper.complete(parse_object(body)),
            ("POST", "/event/server_startup"): self._startup,
            ("POST", "/event/server_shutdown"): self._shutdown,
            ("GET", "/sb_server/available_models"):
                lambda *_: Answer(200, self._directory.models(STATIC)),
            ("GET", "/cb_server/available_models"):
                lambda *_: Answer(200, self._directory.models(CONTINUOUS)),
            ("GET", "/openai_jumper/is_available"):
                lambda *_: Answer(200, "1" if self._jumper.is_available() else "0"),
            ("GET", "/servers"): lambda *_: Answer(200, {"servers": self._directory.view(),
                                                         "openai_jumpers": self._jumper.view()}),
            ("GET", "/health"): lambda *_: Answer(200, {"status": "ok"}),
        }

    def __call__(self, method, path, body, peer):
        route = self._routes.get((method, path))
        if route:
            return route(body, peer)
        methods = [known for known, other in self._routes if other == path]
        if methods:
            answer = refusal(405, f"{path} takes {methods[0]}")
            answer.headers = [("Allow", methods[0])]
            return answer
        paths = ", ".join(sorted({known for _, known in self._routes}))
        return refusal(404, f"no such path; there are {paths}")

    def _complete(self, kind, raw):
        return self._forwarder.complete(kind, parse_object(raw), raw)

    def _event(self, raw, peer):
        """(kind or None, URL, error)."""
        body = parse_object(raw)
        kind = {"cb": CONTINUOUS, "continuous_batching_server": CONTINUOUS, "sb": STATIC,
                "static_batching_server": STATIC, None: None}.get(body.get("server_type"), "?")
        if kind == "?":
            return None, None, refusal(422, "server_type: may be cb or sb")
        try:
            url = server_url(body.get("url"), "url")
        except ValueError as error:
            return None, None, refusal(422, str(error))
        if not self._directory.find(url):
            if not self._registration:
                return None, None, refusal(403, f"{url} is not in the configuration; --allow_registration takes others")
            if not ipaddress.ip_address(peer).is_loopback:
                return None, None, refusal(403, f"{url} is not in the configuration; servers of other hosts must be")
        return kind, url, None

    def _startup(self, raw, peer):
        """A server has come up. One of the configuration is asked at once; another one is added."""
        kind, url, error = self._event(raw, peer)
        if error:
            return error
        servers = [s for s in self._directory.find(url) if kind in (None, s.kind)]
        if not servers:
            if kind is None:
                return refusal(422, f"server_type: is missing, and {url} is not in the configuration")
            servers = [self._directory.announce(kind, url)]
            if servers == [None]:
                return refusal(503, "too many servers are known already")
        answers = [self._watch.probe_one(server) for server in servers]
        if not all(answers):
            for server in servers:
                self._directory.forget(server)
            return refusal(502, f"{url} does not answer GET /model_id")
        return Answer(200, {"model_id": servers[0].model_id})

    def _shutdown(self, raw, peer):
        """A server is about to go: nothing more is sent to it."""
        kind, url, error = self._event(raw, peer)
        if error:
            return error
        servers = [s for s in self._directory.find(url) if kind in (None, s.kind)]
        for server in servers:
            self._directory.down(server, "it said that it shuts down")
            self._directory.forget(server)
        return Answer(200, {"servers": len(servers)})
