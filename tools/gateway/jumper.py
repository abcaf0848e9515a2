"""The OpenAI jumper: chats through several accounts, the one with the fewest tokens so far first."""

import dataclasses
import json
import logging
import threading

from gateway.forward import Answer, refusal
from gateway.http_client import FAILURES, HttpClient, is_timeout, reason

MAX_RETRIES = 3
TIMEOUT_S = 100.0

# The published request: name -> (type, default). What is None is left out.
_FIELDS = {"model": (str, None), "messages": (list, None), "n": (int, 1), "max_tokens": (int, 32),
           "temperature": ((int, float), 1), "top_p": ((int, float), 1), "stream": (bool, False),
           "stop": ((str, list), None), "presence_penalty": ((int, float), 0),
           "frequency_penalty": ((int, float), 0)}

log = logging.getLogger("gateway")


@dataclasses.dataclass
class Account:
    config: object
    http: HttpClient
    tokens: int = 0       # used so far
    reserved: int = 0     # what the requests under way may still use
    turn: int = 0
    why: str | None = None  # not available, and why

    @property
    def name(self):
        """For logs and errors: never the whole key."""
        return "key ..." + self.config.api_key[-4:]


class BadRequest(ValueError):
    pass


def build_request(body):
    """What is sent on; BadRequest names the field at fault."""
    request = {}
    for name, (kind, default) in _FIELDS.items():
        value = body.get(name)
        if value is None:
            value = default
        elif not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise BadRequest(f"{name}: {json.dumps(value)[:80]} has the wrong type")
        if value is not None:
            request[name] = value
    for name in ("model", "messages"):
        if not request.get(name):
            raise BadRequest(f"{name}: is missing")
    if request["stream"]:
        raise BadRequest("stream: this route answers whole; ask a server's /v1/chat/completions for streams")
    return request


def build_reply(data):
    """The published reply out of the API's; ValueError if that is none."""
    try:
        reply = json.loads(data)
        choices = [{"message": {"role": c["message"]["role"], "content": c["message"]["content"]},
                    "index": c["index"], "finish_reason": c["finish_reason"]} for c in reply["choices"]]
        usage = {name: int(reply["usage"][name])
                 for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a chat completion ({error!r})") from None
    return {"choices": choices, "usage": usage}


class Jumper:
    def __init__(self, base_url, max_retries=MAX_RETRIES, timeout_s=TIMEOUT_S):
        self._base_url = base_url
        self._max_retries = max_retries
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._accounts = []
        self._turn = 0

    def update(self, keys):
        """Accounts that stay keep their count; one that was refused gets another chance."""
        with self._lock:
            old = {account.config: account for account in self._accounts}
            self._accounts = [old.get(key) or Account(key, HttpClient(key.base_url or self._base_url))
                              for key in keys]
            for account in self._accounts:
                account.why = None

    def close(self):
        """Closes the connections that are kept."""
        with self._lock:
            for account in self._accounts:
                account.http.close()

    def is_available(self):
        with self._lock:
            return any(account.why is None for account in self._accounts)

    def view(self):
        with self._lock:
            return [{"account": a.name, "tokens": a.tokens, "available": a.why is None,
                     **({"reason": a.why} if a.why else {})} for a in self._accounts]

    def _take(self, work, tried):
        with self._lock:
            open_ones = [a for a in self._accounts if a.why is None]
            if not open_ones:
                return None
            account = min(open_ones, key=lambda a: (a in tried, a.tokens + a.reserved, a.turn))
            self._turn += 1
            account.turn = self._turn
            account.reserved += work
            return account

    def _release(self, account, work, used):
        with self._lock:
            account.reserved -= work
            account.tokens += used

    def complete(self, body):
        try:
            request = build_request(body)
        except BadRequest as error:
            return refusal(422, str(error))
        work = max(1, request["n"] * request["max_tokens"])
        tried, problem = [], None
        for attempt in range(1, self._max_retries + 2):
            account = self._take(work, tried)
            if account is None:
                break
            answer, used = None, 0
            try:
                answer, used = self._ask(account, request, attempt)
            finally:
                self._release(account, work, used)
            if answer.status not in (401, 429, 502, 503, 504):
                return answer
            tried.append(account)
            problem = answer
            log.warning("chat with %s, attempt %d: %s", account.name, attempt,
                        answer.body.decode("utf-8", "replace")[:300])
        return problem or refusal(404, "no OpenAI account is available")

    def _ask(self, account, request, attempt):
        """(answer, tokens used)."""
        headers = {"Authorization": f"Bearer {account.config.api_key}"}
        if account.config.org_id:
            headers["OpenAI-Organization"] = account.config.org_id
        about = {"server": account.name, "attempts": attempt}
        try:
            status, data = account.http.request("POST", "/chat/completions", json.dumps(request).encode(),
                                                headers, self._timeout_s)
        except FAILURES as error:
            return refusal(504 if is_timeout(error) else 502,
                           f"{account.name}: {reason(error)}", **about), 0
        if status != 200:
            return self._failed(account, status, data, about), 0
        try:
            reply = build_reply(data)
        except ValueError as error:
            return refusal(502, f"{account.name}: {error}", **about), 0
        return Answer(200, reply, **about), reply["usage"]["total_tokens"]

    def _failed(self, account, status, data, about):
        text = f"{account.name}: {status} {data.decode('utf-8', 'replace')[:300]}"
        if status in (401, 403):
            with self._lock:
                account.why = f"refused with {status}"
            log.error("%s is not used any more: %s", account.name, text)
            return refusal(401, text, **about)
        if status == 429 or status >= 500:
            return refusal(429 if status == 429 else 502, text, **about)
        return refusal(status, text, **about)
