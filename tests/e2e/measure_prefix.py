"""Milliseconds to the first token of a chat's second turn on a pair, with and without prefixes pulled from the
decode worker's pool: as it comes, and after the prefill worker has lost its own cache.

    python3 tests/e2e/measure_prefix.py
"""

import statistics
import time

from cluster import Cluster, wait_until

CHATS = 6
PROMPT = "What is Baton? What does the scheduler own? " * 8


def measure(pull_tokens, restart):
    """(median milliseconds, median prompt tokens, median cached tokens) of the second turns."""
    found = []
    with Cluster(scheduler={"prefix_pull_tokens": pull_tokens}) as cluster:
        for chat in range(CHATS):
            prompt = f"Chat {chat}. {PROMPT}"
            answer = cluster.stream(prompt, max_tokens=400, min_tokens=400, temperature=0.7,
                                    seed=chat).finish()[0]
            wait_until(lambda: cluster.show("requests") == [], 10, "the first turn is over")
            if restart:
                cluster.restart("prefill0")
                cluster.wait_ready()
            began = time.monotonic()
            second = cluster.stream(prompt + answer + " And why is that?", max_tokens=2, min_tokens=2,
                                    temperature=0)
            second.finish()
            usage = second.usage
            found.append((1000 * (second.arrivals[0] - began), usage["prompt_tokens"],
                          usage["prompt_tokens_details"]["cached_tokens"]))
    return [statistics.median(column) for column in zip(*found, strict=True)]


def main():
    for restart in (False, True):
        for pull_tokens in (64, 0, 64, 0):
            ms, prompt, cached = measure(pull_tokens, restart)
            print(f"prefix_pull_tokens {pull_tokens:2}, prefill worker {'is new' if restart else 'knows its prompt'}: "
                  f"{ms:.1f} ms, {cached:.0f} of {prompt:.0f} tokens cached")


if __name__ == "__main__":
    main()
