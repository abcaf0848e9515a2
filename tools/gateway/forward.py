"""A completion on the least loaded server of its model, tried again elsewhere when a server fails."""

import json
import logging
import time

from gateway.directory import cost
from gateway.http_client import FAILURES, is_timeout, reason

PATHS = {"sb": "/completion/v1", "cb": "/completion/v2"}
MAX_RETRIES = 3
TIMEOUT_S = 100.0
_PAUSE_S = 0.2  # before a server is asked again; doubles

# What is the request's own fault, whoever is asked.
_FINAL = {400, 403, 413, 422}

log = logging.getLogger("gateway")


class Answer:
    """Status and body (bytes, JSON) of a reply, and who gave it."""

    def __init__(self, status, body, server="-", attempts=0, headers=()):
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        self.server, self.attempts, self.headers = server, attempts, headers


def refusal(status, detail, **more):
    headers = [("Retry-After", "1")] if status in (429, 503) else []
    return Answer(status, {"detail": detail}, headers=headers, **more)


def _count(config, name, default):
    value = config.get(name, default) if isinstance(config, dict) else default
    # Nonsense gets its 422 from the server; here it only must not break the sums.
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 20:
        return default
    return value


def work_of(body):
    config = body.get("generation_config")
    prompt = body.get("prompt")
    return cost(prompt if isinstance(prompt, str) else "", _count(config, "num_beams", 1),
                _count(config, "max_new_tokens", 32))


class Forwarder:
    def __init__(self, directory, sleep=time.sleep, max_retries=MAX_RETRIES, timeout_s=TIMEOUT_S):
        self._directory = directory
        self._sleep = sleep
        self._max_retries = max_retries
        self._timeout_s = timeout_s

    def complete(self, kind, body, raw):
        """`raw` is what the client sent, `body` what it says; the reply is the server's own. No model, or
        an empty name, means the only one that there is."""
        model = body.get("model") or ""
        if not isinstance(model, str):
            return refusal(422, "model: expected a text")
        models = self._directory.models(kind)
        if not model and len(models) == 1:
            model = models[0]
            raw = json.dumps({**body, "model": model}).encode()
        if not self._directory.known(kind, model):
            return self._unknown(kind, model, models)
        return self._try(kind, model, work_of(body), raw)

    def _unknown(self, kind, model, models):
        if models:
            return refusal(404, f"the model {model!r} is not served; available models: "
                                f"{', '.join(models)}")
        silent = self._directory.silent(kind)
        if not silent:
            return refusal(404, f"the model {model!r} is not served: the configuration has no server "
                                f"for {PATHS[kind]}")
        told = "; ".join(f"{url}: {why}" for url, why in silent[:8])
        return refusal(503, f"no server of {PATHS[kind]} answers ({told})")

    def _try(self, kind, model, work, raw):
        tried, problem = [], None
        for attempt in range(1, self._max_retries + 2):
            server = self._directory.take(kind, model, work, tried)
            if server is None:
                break
            answer = None
            try:
                if server.url in tried:
                    self._sleep(_PAUSE_S * 2 ** (tried.count(server.url) - 1))
                answer = self._ask(server, PATHS[kind], raw, attempt)
            finally:
                self._directory.release(server, work, good=answer is not None and answer.status == 200)
            if answer.status == 200 or answer.status in _FINAL:
                return answer
            tried.append(server.url)
            problem = answer
            log.warning("%s on %s, attempt %d: %s", PATHS[kind], server.url, attempt,
                        answer.body.decode("utf-8", "replace")[:300])
        return problem or refusal(503, f"no server of the model {model!r} is left")

    def _ask(self, server, path, raw, attempt):
        """The server's answer if it is one for the client; a 502, 503 or 504 with the reason otherwise."""
        about = {"server": server.url, "attempts": attempt}
        try:
            status, data = server.http.request("POST", path, raw, timeout_s=self._timeout_s)
        except FAILURES as error:
            why = reason(error)
            # A silent one, too: the next probe tells whether it only has too much to do.
            if self._directory.down(server, why):
                log.error("%s is down: %s", server.url, why)
            if is_timeout(error):
                return refusal(504, f"{server.url}: {why} ({self._timeout_s:g} s)", **about)
            return refusal(502, f"{server.url}: {why}", **about)
        if status == 200 or status in _FINAL:
            self._directory.up(server, server.model_id)
            return Answer(status, data, **about)
        text = data.decode("utf-8", "replace")[:500]
        if status == 404:
            # It serves another model by now, or was never such a server: the next probe will tell.
            self._directory.down(server, "404 for its own model")
        return refusal(503 if status in (429, 503) else 502, f"{server.url} answered {status}: {text}",
                       **about)
