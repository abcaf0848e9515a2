"""Multi-turn chats through a router, and what two servers' caches made of them, by their own metrics.

    sudo python3 tests/e2e/measure_routers.py          # the table of docs/fleet.md
"""

import argparse
import concurrent.futures
import contextlib
import json
import random
import statistics
import time

from cluster import Cluster
from hosts import Host, missing
from routers import Through

CHATS, TURNS, AT_ONCE = 24, 6, 4
POOL_MIB = 32
# A cache-aware router leaves the cache's server for the other one where their open requests differ by more than this.
AWARE = {"balance_abs_threshold": 8, "cache_threshold": 0.3}
POLICIES = [("vllm", "round_robin", {}), ("vllm", "cache_aware", AWARE), ("vllm", "consistent_hash", {}),
            ("sglang", "round_robin", {}), ("sglang", "cache_aware", AWARE), ("sglang", "manual", {})]
WORDS = ("baton worker block queue prompt reply stream token pool cache step plan router server answer question time "
         "memory front scheduler key value head layer").split()


@contextlib.contextmanager
def batons(count=2, **options):
    """So many Batons, each on a host of its own."""
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(Host()) for _ in range(count)]
        yield [stack.enter_context(Cluster(host=host, **options)) for host in hosts]


def url(cluster):
    return f"http://{cluster.address}:{next(iter(cluster.frontends.values()))}"


def counters(clusters):
    """(prompt tokens that were looked up, those of them that a cache had), of all servers."""
    asked = cached = 0
    for cluster in clusters:
        for line in cluster.get("/metrics")[1].splitlines():
            if line.startswith("baton_prompt_tokens_total"):
                asked += float(line.split()[-1])
            elif line.startswith("baton_cached_prompt_tokens_total"):
                cached += float(line.split()[-1])
    return asked, cached


class Chat:
    """One user's chat: each turn sends all that was said before. Its beginning is its own."""

    def __init__(self, number):
        self.number = number
        self.random = random.Random(number)
        self.messages = [{"role": "system", "content": f"Chat {number}. " + self.say(60)}]

    def say(self, count):
        return " ".join(self.random.choices(WORDS, k=count))

    def turn(self, router):
        """Seconds that it took."""
        self.messages.append({"role": "user", "content": self.say(40)})
        body = {"model": "demo", "messages": self.messages, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        # Two routers know a chat by a header: vllm-router's consistent_hash, sglang-router's manual.
        headers = {"X-Session-ID": f"chat-{self.number}", "X-SMG-Routing-Key": f"chat-{self.number}"}
        began = time.monotonic()
        status, text = router.ask("/v1/chat/completions", body, headers)
        assert status == 200, f"{status}: {text}"
        self.messages.append({"role": "assistant", "content": json.loads(text)["choices"][0]["message"]["content"]})
        return time.monotonic() - began


def hit_rate(clusters, kind, policy, options, chats=CHATS, turns=TURNS, first=0):
    """(share of prompt tokens that a cache had, median seconds of a request, requests that each server took)"""
    with Through(kind, [url(cluster) for cluster in clusters], policy=policy, **options) as router:
        router.wait_ready()
        talks = [Chat(first + number) for number in range(chats)]
        before, served_before, seconds = counters(clusters), [served(cluster) for cluster in clusters], []
        order = random.Random(first)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            # Everybody's turn comes before anybody's next one: a cache has to keep all the chats that it wants to know.
            for _ in range(turns):
                order.shuffle(talks)
                seconds += pool.map(lambda talk: talk.turn(router), talks)
        asked, cached = (now - then for now, then in zip(counters(clusters), before, strict=True))
        requests = [served(cluster) - count for cluster, count in zip(clusters, served_before, strict=True)]
    return cached / asked, statistics.median(seconds), requests


def served(cluster):
    lines = cluster.get("/metrics")[1].splitlines()
    return sum(int(line.split()[-1]) for line in lines if line.startswith("baton_http_replies_total")
               and "completions" in line and "render" not in line and 'code="200"' in line)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool-mib", type=int, default=POOL_MIB)
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    reason = missing()
    if reason:
        raise SystemExit(reason)
    with batons(workers=[("mixed0", "mixed")], worker={"pool_mib": arguments.pool_mib}) as clusters:
        pool = clusters[0].show("kv")[0]
        print(f"{CHATS} chats of {TURNS} turns, {AT_ONCE} at once; a pool holds {pool['total']} blocks")
        first = 0
        for kind, policy, options in POLICIES:
            rates, medians, shares = [], [], []
            for _ in range(arguments.times):
                rate, median, requests = hit_rate(clusters, kind, policy, options, first=first)
                first += CHATS
                rates.append(rate)
                medians.append(median)
                shares.append("/".join(map(str, requests)))
            print(f"{kind}-router {policy:16} {100 * statistics.median(rates):5.1f} % cached "
                  f"({100 * min(rates):.1f} to {100 * max(rates):.1f})  {1000 * statistics.median(medians):4.0f} ms  "
                  f"requests {' '.join(shares)}", flush=True)


if __name__ == "__main__":
    main()
