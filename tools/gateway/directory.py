"""Which servers there are, what they serve, and how loaded each is. No input or output; thread-safe."""

import dataclasses
import threading
import urllib.parse

from gateway.config import MAX_SERVERS
from gateway.http_client import HttpClient


def cost(prompt, num_beams, max_new_tokens):
    """The tutorial's estimate of a request's work, in decoded tokens: a word is about 1.35 tokens, and
    decoding one token takes as long as prefilling 20."""
    return num_beams * max_new_tokens + int(len(prompt.split()) * 1.35) // 20


def canonical(url):
    """One way to write this host, so that a server that announces itself is found under its other name."""
    parts = urllib.parse.urlsplit(url)
    if parts.hostname not in ("localhost", "0.0.0.0", "::1", "::"):
        return url
    return parts._replace(netloc="127.0.0.1" + (f":{parts.port}" if parts.port else "")).geturl()


@dataclasses.dataclass
class Server:
    """One completion server. All but `kind`, `url` and `http` change under the directory's lock."""

    kind: str
    url: str
    http: HttpClient
    fixed: bool = True            # of the configuration; else it announced itself
    model_id: str | None = None   # None: it has never said
    available: bool = False
    why: str = "not asked yet"    # when it is not available
    load: int = 0
    running: int = 0
    served: int = 0
    turn: int = 0                 # when it was last chosen


class Directory:
    def __init__(self):
        self._lock = threading.Lock()
        self._servers = {}  # (kind, URL) -> Server
        self._turn = 0

    def update(self, wanted):
        """Makes the configuration's servers `wanted`, (kind, URL) pairs. Those that stay keep their load
        and state; requests on those that go are let finish. Returns the new ones."""
        with self._lock:
            before = self._servers
            kept = {key: s for key, s in before.items() if key in wanted or not s.fixed}
            fresh = [Server(kind, url, HttpClient(url)) for kind, url in wanted
                     if (kind, url) not in before]
            self._servers = {**kept, **{(s.kind, s.url): s for s in fresh}}
            for key in wanted:
                self._servers[key].fixed = True
            gone = [s for key, s in before.items() if key not in self._servers]
        for server in gone:
            server.http.close()
        return fresh

    def announce(self, kind, url):
        """The server at that address, added if it is new; None if there are too many."""
        url = canonical(url)
        with self._lock:
            if (kind, url) not in self._servers and len(self._servers) >= 2 * MAX_SERVERS:
                return None
            return self._servers.setdefault((kind, url), Server(kind, url, HttpClient(url), fixed=False))

    def find(self, url):
        with self._lock:
            return [s for s in self._servers.values() if canonical(s.url) == canonical(url)]

    def servers(self):
        with self._lock:
            return list(self._servers.values())

    def view(self):
        """For GET /servers."""
        with self._lock:
            return [{"server_type": s.kind, "url": s.url, "model_id": s.model_id,
                     "available": s.available, **({} if s.available else {"reason": s.why}),
                     "load": s.load, "running": s.running, "served": s.served}
                    for s in self._servers.values()]

    def up(self, server, model_id):
        """True if that is news."""
        with self._lock:
            news = not server.available or server.model_id != model_id
            server.available, server.model_id, server.why = True, model_id, ""
            return news

    def down(self, server, why):
        """True if that is news."""
        with self._lock:
            news = server.available
            server.available, server.why = False, why
            return news

    def forget(self, server):
        """Drops a server that only announced itself; the configuration's stay."""
        with self._lock:
            if not server.fixed:
                self._servers.pop((server.kind, server.url), None)

    def models(self, kind):
        """Models of which at least one server is available, sorted."""
        with self._lock:
            return sorted({s.model_id for s in self._servers.values()
                           if s.kind == kind and s.available and s.model_id is not None})

    def known(self, kind, model):
        """Every server that last served the model, available or not."""
        with self._lock:
            return [s for s in self._servers.values() if s.kind == kind and s.model_id == model]

    def silent(self, kind):
        """(URL, why) of the servers of that kind that are not available."""
        with self._lock:
            return [(s.url, s.why) for s in self._servers.values() if s.kind == kind and not s.available]

    def take(self, kind, model, work, tried):
        """The server with the least load, and `work` added to it; None if there is none at all. First
        those that are available and not among `tried`, then the available ones, then the rest (they may
        be back). Of equals, the one that was chosen longest ago."""
        with self._lock:
            servers = [s for s in self._servers.values() if s.kind == kind and s.model_id == model]
            if not servers:
                return None
            server = min(servers, key=lambda s: (not s.available, s.url in tried, s.load, s.turn))
            self._turn += 1
            server.turn = self._turn
            server.load += work
            server.running += 1
            return server

    def release(self, server, work, good):
        with self._lock:
            server.load -= work
            server.running -= 1
            server.served += good
