"""A long prompt through the pair: all its blocks are handed off, and the answer is the one of a single
worker, token for token and bit for bit in its log probabilities.

    test_long_context.py [TOKENS]        8,000 in the suite; by hand 32,000, which prints times and memory
"""

import pathlib
import sys
import time
import unittest

from cluster import MIXED, Cluster

TOKENS = 8_000

def peak_mib(process):
    """Resident memory at its highest, in MiB."""
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise AssertionError("no VmHWM")


def ask(cluster, prompt):
    """(reply of 16 tokens with log probabilities, seconds)"""
    began = time.monotonic()
    status, reply = cluster.post("/v1/completions", {
        "prompt": prompt, "max_tokens": 16, "min_tokens": 16, "temperature": 0, "logprobs": 3,
        "timeout_s": 500}, timeout=600)
    if status != 200:
        raise AssertionError(reply)
    return reply, time.monotonic() - began


class LongContext(unittest.TestCase):
    def test_the_pair_answers_as_one_worker(self):
        # Pseudo-random ids: no two stretches of the prompt are alike.
        prompt = [5 + (i * i * 7 + i * 131) % 4000 for i in range(TOKENS)]
        # The chosen pool holds two whole contexts.
        with Cluster(workers=MIXED, worker={"pool_mib": 0}) as cluster:
            alone, seconds = ask(cluster, prompt)
            print(f"{TOKENS} tokens, one worker: {seconds:.1f} s, "
                  f"{peak_mib(cluster.processes['mixed0'])} MiB at most")
        with Cluster(worker={"pool_mib": 0}) as cluster:
            reply, seconds = ask(cluster, prompt)
            memory = {name: peak_mib(cluster.processes[name]) for name in cluster.workers}
            print(f"{TOKENS} tokens, the pair: {seconds:.1f} s, {memory} MiB at most")
            self.assertEqual(reply["choices"], alone["choices"])
            self.assertEqual(reply["usage"]["prompt_tokens"], TOKENS)
            self.assertEqual(cluster.show("info")["counters"]["handoffs"], 1)
            cluster.assert_at_rest()


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        TOKENS = int(sys.argv.pop(1))
    unittest.main()
