"""A fixed mix of requests whose tokens are compared between runs: sampled and greedy rows, short and
long, with limits of every kind. Temperatures are high on purpose: one wrong bit shows at once."""

import unittest

from cluster import MIXED, Cluster

PROMPTS = [
    "你是谁",
    "What is Baton?",
    "How does a computer work?",
    "Explain the rules of chess in detail.",
    "What does the scheduler own?",
    "Tell me about the history of the Internet.",
]


def mix(count, tokens=120):
    """`count` parameter sets; number i is the same in every run and in every batch."""
    requests = []
    for i in range(count):
        parameters = {
            "prompt": PROMPTS[i % len(PROMPTS)] + " " * (i % 3) + f" ({i})" * (i % 5),
            "max_tokens": tokens - (i * 7) % 40,
            "min_tokens": (tokens - (i * 7) % 40) if i % 4 else 10,
            "temperature": [0.0, 0.7, 1.0, 1.5][i % 4],
            "top_p": [1.0, 0.9, 0.95][i % 3],
            "top_k": [0, 50, 200][(i // 2) % 3],
            "seed": 1000 + i,
        }
        requests.append(parameters)
    return requests


def run(cluster, requests, frontend=None):
    """All at once; the outcomes in order."""
    streams = [cluster.stream(frontend=frontend, **r) for r in requests]
    return [stream.finish() for stream in streams]


class AgainstSolo(unittest.TestCase):
    """`requests` of the class, together on any cluster, bring what each brings alone on one worker."""

    requests = []
    everywhere = {}  # options of all clusters

    @classmethod
    def setUpClass(cls):
        with Cluster(workers=MIXED, **cls.everywhere) as cluster:
            cls.solo = [run(cluster, [request])[0] for request in cls.requests]

    def check(self, **options):
        with Cluster(**self.everywhere, **options) as cluster:
            self.assertEqual(run(cluster, self.requests), self.solo)
            cluster.assert_at_rest()
            return cluster.show("info")["counters"]
