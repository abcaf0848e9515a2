"""Policies of the scheduler with real processes: whichever is set, the tokens are those of each request
alone. One mix has all that can differ between rows of a batch: greedy, sampled, penalties, beams."""

import unittest

from cluster import MIXED, PAIR, Cluster
import requests_mix


def heterogeneous():
    """Rows that decode in one batch, each by its own rules."""
    search = {"use_beam_search": True, "temperature": 0, "ignore_eos": True}
    return requests_mix.mix(12, tokens=60) + [
        {"prompt": "What is Baton?", "max_tokens": 40, "best_of": 4, **search},
        {"prompt": "How does a computer work?", "max_tokens": 25, "best_of": 3, "length_penalty": 0.5, **search},
        {"prompt": "What does the scheduler own?", "max_tokens": 50, "temperature": 0, "repetition_penalty": 1.3},
        {"prompt": "你是谁", "max_tokens": 50, "temperature": 0.9, "seed": 5, "presence_penalty": 0.8,
         "frequency_penalty": 0.4},
        {"prompt": "Tell me about the history of the Internet.", "max_tokens": 50, "temperature": 1.2, "seed": 6,
         "min_p": 0.05, "logit_bias": {"40": 3, "41": -100}},
    ]


class SameTokens(requests_mix.AgainstSolo):
    requests = heterogeneous()

    def test_beams_greedy_and_sampled_rows_in_one_batch(self):
        for workers in (MIXED, PAIR):
            self.check(workers=workers)

    def test_one_token_a_block(self):
        """LightLLM's TokenAttention: a table of tokens instead of blocks."""
        counters = self.check(worker={"tokens_per_block": 1})
        self.assertGreater(counters["handoffs"], 0)

    def test_split_fuse(self):
        self.check(workers=MIXED, scheduler={"token_budget": 24, "prompt_chunk": 24})

    def test_batch_sizes_by_phase_and_prompts_that_pause_decoding(self):
        self.check(workers=MIXED, scheduler={"prefill_batch_size": [1, 2], "decode_batch_size": [4, 8],
                                             "prompts_pause_decode": True})

    def test_delay_and_shortest_first(self):
        self.check(scheduler={"delay_factor": 0.5, "queue_order": "shortest", "input_age_ms": 1})

    def test_victims(self):
        for victim, place in (("shortest", "front"), ("tail", "first")):
            counters = self.check(workers=MIXED, worker={"pool_blocks": 36},
                                  scheduler={"victim": victim, "preempted": place})
            self.assertGreater(counters["preemptions"], 0, victim)

    def test_admission_by_future_length_preempts_nobody(self):
        for per_block, blocks in ((16, 36), (1, 36 * 16)):
            counters = self.check(workers=MIXED, scheduler={"admission": "future"},
                                  worker={"pool_blocks": blocks, "tokens_per_block": per_block})
            self.assertEqual(counters["preemptions"], 0)

    def test_limits_of_each_side(self):
        counters = self.check(scheduler={"token_budget": {"prefill": 32, "decode": 16},
                                         "pull_watermark": 0.3, "prefill_batch_size": 2},
                              per_worker={"decode0": {"pool_blocks": 60}})
        self.assertGreater(counters["handoffs"], 0)

    def test_a_cached_prompt_stays_on_the_decode_worker(self):
        prompt = "The same long question again and again. " * 12
        with Cluster(scheduler={"local_prefill": {"cached": 0.6}}) as cluster:
            first = cluster.stream(prompt, max_tokens=8, temperature=0).finish()
            self.assertEqual(cluster.show("info")["counters"]["remote_prefills"], 1)
            self.assertEqual(cluster.stream(prompt, max_tokens=8, temperature=0).finish(), first)
            counters = cluster.show("info")["counters"]
            self.assertEqual((counters["local_prefills"], counters["remote_prefills"]), (1, 1))
            cluster.assert_at_rest()


if __name__ == "__main__":
    unittest.main()
