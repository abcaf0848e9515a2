"""Routers in front of Batons on two hosts (network namespaces): what their caches gain by a router that knows prefixes, and
what clients see when one host dies whole, when it falls silent, and when it comes back.

Needs root and `ip` (iproute2); without them, and without the routers' packages, it is skipped.
"""

import collections
import hashlib
import http.client
import json
import sys
import threading
import time
import unittest

import client_packages
from hosts import missing

if REASON := missing():
    print(f"SKIPPED: {REASON}")
    sys.exit(client_packages.SKIPPED)

from cluster import PATIENCE, wait_until
from measure_routers import AWARE, batons, hit_rate, served, url
from routers import KINDS, Through

TOKENS = 200
# What docs/fleet.md recommends. By default a router asks after health once a minute, and gives a server whose circuit it has
# opened nothing for a minute.
HEALTH = {"health_check_interval_secs": 1, "health_check_timeout_secs": 1, "health_failure_threshold": 1,
          "health_success_threshold": 1, "cb_timeout_duration_secs": 2, "cb_success_threshold": 1}
Outcome = collections.namedtuple("Outcome", "streamed began_at head_at first_at ended_at status tokens finished error")


class Client(threading.Thread):
    """Sends one request after another, streams and whole ones by turns, and writes down what became of each."""

    def __init__(self, port, number, streamed):
        # Names without a common beginning: a router that knows prefixes would send all of them to one server.
        super().__init__(daemon=True, name=hashlib.sha256(str(number).encode()).hexdigest())
        self.port, self.streamed = port, streamed
        self.over = threading.Event()
        self.outcomes = []
        self.open = None  # what is known of the one that is open

    def run(self):
        while not self.over.is_set():
            self.outcomes.append(self.one(len(self.outcomes)))

    def one(self, count):
        body = {"model": "demo", "prompt": f"{self.name} asks for the {count}th time: what is Baton?",
                "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "stream": self.streamed}
        seen = {"began_at": time.monotonic(), "head_at": None, "first_at": None, "status": 0, "tokens": 0, "finished": False,
                "error": None}
        self.open = seen
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * PATIENCE)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            seen["status"], seen["head_at"] = response.status, time.monotonic()
            self.read(response, seen)
        except (OSError, http.client.HTTPException) as error:
            seen["error"] = repr(error)
        finally:
            connection.close()
        return Outcome(self.streamed, ended_at=time.monotonic(), **seen)

    def read(self, response, seen):
        # Not by lines: http.client takes a chunked body that breaks off between two for one that has ended.
        text = b""
        while piece := response.read1(65536):
            seen["first_at"] = seen["first_at"] or time.monotonic()
            text += piece
        if not self.streamed:
            answer = json.loads(text) if seen["status"] == 200 else {}
            seen["error"] = None if answer else text.decode()[:300]
            seen["finished"] = bool(answer) and answer["usage"]["completion_tokens"] == TOKENS
            return
        events = [line[6:] for line in text.decode().splitlines() if line.startswith("data: ")]
        for event in events:
            if event != "[DONE]":
                event = json.loads(event)
                seen["error"] = seen["error"] or (json.dumps(event["error"]) if "error" in event else None)
                seen["tokens"] += sum(bool(choice["text"]) for choice in event.get("choices", []))
        seen["finished"] = bool(events) and events[-1] == "[DONE]" and not seen["error"]
        if seen["status"] != 200:
            seen["error"] = text.decode()[:300]


class Hosts(unittest.TestCase):
    """Each test has Batons of its own: it ends one of them."""

    def clients(self, router, count=12, first=0):
        clients = [Client(router.port, first + number, number % 2 == 0) for number in range(count)]
        for client in clients:
            client.start()
        return clients

    def end(self, clients):
        for client in clients:
            client.over.set()
        for client in clients:
            client.join(90 * PATIENCE)
            self.assertFalse(client.is_alive(), f"{client.open} is still open")
        return [outcome for client in clients for outcome in client.outcomes]

    def end_one_host(self, kind, policy, options):
        """What became of all requests, and when the host was dead."""
        with batons(workers=[("mixed0", "mixed")], fake=True) as clusters, \
                Through(kind, [url(cluster) for cluster in clusters], policy=policy, **HEALTH, **options) as router:
            router.wait_ready()
            clients = self.clients(router)
            wait_until(lambda: all(served(cluster) > 20 for cluster in clusters), 30, "both hosts serve")
            wait_until(lambda: len(clusters[0].show("requests")) > 1, 10, "the first is at work")
            clusters[0].kill_host()
            died = time.monotonic()
            time.sleep(2)
            clusters[0].start_all()
            clusters[0].wait_ready()
            # A router that knows prefixes leaves the old clients where they are by now.
            clients += self.clients(router, first=len(clients))
            wait_until(lambda: served(clusters[0]) > 5, 30, "the first host, which is back, gets work again")
            outcomes = self.end(clients)
            for cluster in clusters:
                cluster.assert_at_rest()
        return outcomes, died

    def judge(self, what, outcomes, ended, seconds):
        """`ended`: when the host was gone. `seconds`: within which everybody is told, or served elsewhere."""
        broken = [outcome for outcome in outcomes if not outcome.finished]
        for outcome in broken:
            self.assertTrue(outcome.streamed and outcome.status == 200, f"only a stream that had begun may break off: {outcome}")
            self.assertIn("IncompleteRead", outcome.error, "a stream that breaks off never ends as if it were whole")
            self.assertLess(outcome.began_at, ended, "nobody who comes later loses anything")
        crossing = [outcome for outcome in outcomes if outcome.began_at < ended < outcome.ended_at or outcome in broken]
        after = [outcome for outcome in outcomes if outcome.began_at > ended]
        self.assertGreater(len(after), 20)
        slowest = max(outcome.ended_at - outcome.began_at for outcome in crossing + after)
        print(f"{what}: {len(crossing)} requests were open when the host was gone, {len(broken)} of them broke off, all of them "
              f"streams that had begun; {len(after)} came later, all were served; the slowest took {slowest:.2f} s", flush=True)
        self.assertLess(slowest, seconds * PATIENCE)

    def test_a_host_dies_whole(self):
        for kind in KINDS:
            for policy, options in (("round_robin", {}), ("cache_aware", AWARE)):
                with self.subTest(kind=kind, policy=policy):
                    outcomes, died = self.end_one_host(kind, policy, options)
                    self.judge(f"{kind}-router {policy}", outcomes, died, 10)

    def test_a_host_falls_silent(self):
        for kind in KINDS:
            with self.subTest(kind=kind), batons(workers=[("mixed0", "mixed")], fake=True) as clusters, \
                    Through(kind, [url(cluster) for cluster in clusters], **HEALTH, request_timeout_secs=5) as router:
                router.wait_ready()
                clients = self.clients(router)
                wait_until(lambda: len(clusters[0].show("requests")) > 1, 10, "the first is at work")
                clusters[0].host.unplug()
                silent = time.monotonic()
                time.sleep(7)
                outcomes = self.end(clients)
                self.judge(f"{kind}-router, a silent host", outcomes, silent, 20)
                clusters[0].host.plug()


class Prefixes(unittest.TestCase):
    def test_a_router_that_knows_prefixes_finds_them_in_caches(self):
        # A pool holds half of what all chats come to.
        with batons(workers=[("mixed0", "mixed")], worker={"pool_mib": 16}) as clusters:
            first = 0
            for kind in KINDS:
                rates = {}
                for policy, options in (("round_robin", {}), ("cache_aware", AWARE)):
                    rates[policy], _, requests = hit_rate(clusters, kind, policy, options, chats=12, turns=5, first=first)
                    first += 12
                    self.assertGreater(min(requests), sum(requests) // 5, f"both serve: {requests}")
                print(f"{kind}-router:", {policy: f"{100 * rate:.0f} % cached" for policy, rate in rates.items()}, flush=True)
                self.assertGreater(rates["cache_aware"], rates["round_robin"] + 0.1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
