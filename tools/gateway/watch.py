"""What the gateway does by itself: heartbeats, probes of servers that are down, hot reload."""

import concurrent.futures
import json
import logging
import threading
import time

from gateway import config as configs
from gateway.http_client import FAILURES, reason

_PROBE_TIMEOUT_S = 1.0
_PROBE_RETRIES = 3

log = logging.getLogger("gateway")


def ask_model(server):
    """(model id, None), or (None, why not): GET /model_id."""
    try:
        status, data = server.http.request("GET", "/model_id", timeout_s=_PROBE_TIMEOUT_S)
    except FAILURES as error:
        return None, reason(error)
    if status != 200:
        return None, f"GET /model_id answered {status}"
    try:
        model = json.loads(data)
    except ValueError:
        model = None
    if not isinstance(model, str) or not 1 <= len(model) <= 256:
        return None, f"GET /model_id answered no text: {data[:60]!r}"
    return model, None


class Watch:
    def __init__(self, directory, jumper, path, reload_s, down_s):
        self._directory = directory
        self._jumper = jumper
        self._path = path
        self._reload_s = reload_s
        self._down_s = down_s
        self._config = None
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._reload_now = False
        self._threads = [threading.Thread(target=self._beat_loop, daemon=True, name="heartbeat"),
                         threading.Thread(target=self._reload_loop, daemon=True, name="reload")]
        # An address that swallows packets holds a probe up, but not those of the others.
        self._probers = concurrent.futures.ThreadPoolExecutor(16, thread_name_prefix="probe")

    def begin(self):
        """Reads the configuration (OSError, ValueError), asks every server once, starts the loops."""
        self._apply(configs.load(self._path))
        self.probe(self._directory.servers(), retries=0)
        for thread in self._threads:
            thread.start()

    def end(self):
        self._stop.set()
        self._wake.set()
        self._probers.shutdown(wait=False, cancel_futures=True)

    def reload_soon(self):
        self._reload_now = True
        self._wake.set()

    def probe(self, servers, retries=_PROBE_RETRIES):
        list(self._probers.map(lambda server: self.probe_one(server, retries), servers))

    def probe_one(self, server, retries=0):
        """Asks until there is an answer or no retry is left; True if there is one."""
        for attempt in range(retries + 1):
            model, why = ask_model(server)
            if model is not None:
                if self._directory.up(server, model):
                    log.info("%s serves %s", server.url, model)
                return True
            if attempt < retries and self._stop.wait(0.3):
                break
        if self._directory.down(server, why):
            log.error("%s is down: %s", server.url, why)
        return False

    def _beat_loop(self):
        next_beat = time.monotonic() + self._config.heart_beat_interval_s
        while not self._stop.wait(min(self._down_s, self._config.heart_beat_interval_s)):
            due = time.monotonic() >= next_beat
            servers = self._directory.servers()
            self.probe([s for s in servers if not s.available], retries=0)
            if due:
                self.probe([s for s in servers if s.available])
                next_beat = time.monotonic() + self._config.heart_beat_interval_s

    def _reload_loop(self):
        while not self._stop.is_set():
            self._wake.wait(self._reload_s)
            self._wake.clear()
            if not self._stop.is_set():
                self._reload()

    def _reload(self):
        forced, self._reload_now = self._reload_now, False
        try:
            config = configs.load(self._path)
        except (OSError, ValueError) as error:
            log.error("the configuration stays as it was: %s", error)
            return
        if config == self._config and not forced:
            return
        fresh = self._apply(config)
        log.info("the configuration was read again: %d servers, %d of them new, %d accounts",
                 len(config.servers), len(fresh), len(config.keys))
        self.probe(fresh, retries=0)

    def _apply(self, config):
        self._config = config
        self._jumper.update(config.keys)
        return self._directory.update(config.servers)
