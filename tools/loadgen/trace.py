"""Writes a trace in the shape of Mooncake's conversation trace: bursts of arrivals, long prompts that share
beginnings in blocks of 512 tokens, conversations that grow turn by turn, short replies. It is generated, not
recorded, and scaled down so that one host with two GPUs can serve it.

    ./baton loadgen trace --out conversation.jsonl

One line a request: {"timestamp": ms, "input_length", "output_length", "hash_ids"}. Equal hash ids stand for
equal blocks; the last block of a prompt is partly used and has an id of its own.
"""

import argparse
import random
import sys

from loadgen import loads, quantiles

BLOCK = 512


def burst_arrivals(rng, rate, burst_factor, seconds, calm_s=9.0, burst_s=3.0):
    """Poisson arrivals whose rate jumps between two levels (a Markov-modulated process): `burst_factor` times
    as high in bursts as between them, `rate` on average. Mean lengths: calm_s and burst_s."""
    calm_rate = rate * (calm_s + burst_s) / (calm_s + burst_factor * burst_s)
    times, at, bursting = [], 0.0, False
    while at < seconds:
        end = at + rng.expovariate(1 / (burst_s if bursting else calm_s))
        level = calm_rate * (burst_factor if bursting else 1)
        at += rng.expovariate(level)
        while at < min(end, seconds):
            times.append(at)
            at += rng.expovariate(level)
        at, bursting = end, not bursting
    return times


class Conversation:
    """The blocks that its prompts share, and how long the next prompt is."""

    def __init__(self, system_ids, length, new_id):
        self.ids = list(system_ids)  # of full blocks
        self.length = length
        self._new_id = new_id

    def prompt(self):
        full = self.length // BLOCK
        while len(self.ids) < full:
            self.ids.append(self._new_id())
        return self.ids[:full] + ([self._new_id()] if self.length % BLOCK else [])


def generate(options):
    """The trace's requests in order of time."""
    rng = random.Random(options.seed)
    last_id = 0

    def new_id():
        nonlocal last_id
        last_id += 1
        return last_id

    system = [[new_id() for _ in range(options.system_tokens // BLOCK)]
              for _ in range(options.system_prompts)]
    # The first of them is the commonest (Zipf).
    weights = [1 / (i + 1) for i in range(options.system_prompts)]
    trace = []
    for start in burst_arrivals(rng, options.sessions_per_s, options.burst_factor, options.seconds):
        first = options.system_tokens + loads.lognormal(rng, options.first_median, options.first_sigma, 32,
                                                        options.max_input - options.system_tokens)
        conversation = Conversation(rng.choices(system, weights)[0], first, new_id)
        at = start
        while at < options.seconds and conversation.length <= options.max_input:
            reply = loads.lognormal(rng, options.output_median, options.output_sigma, 8, options.max_output)
            trace.append({"timestamp": round(1000 * at), "input_length": conversation.length,
                          "output_length": reply, "hash_ids": conversation.prompt()})
            if rng.random() < 1 / options.turns:
                break
            conversation.length += reply + loads.lognormal(rng, options.turn_median, 1.0, 8, 4096)
            at += rng.expovariate(1 / options.think_s)
    trace.sort(key=lambda request: request["timestamp"])
    return trace


def reuse(trace):
    """Share of all prompt tokens in full leading blocks that an earlier prompt had: what a cache without
    limit, which knows each prompt at once, could spare."""
    seen, spared, total = set(), 0, 0
    for request in trace:
        total += request["input_length"]
        full = request["hash_ids"][:request["input_length"] // BLOCK]
        known = next((i for i, block in enumerate(full) if block not in seen), len(full))
        spared += BLOCK * known
        seen.update(full)
    return spared / total if total else 0.0


def describe(trace):
    if not trace:
        return "no request"
    inputs = sorted(r["input_length"] for r in trace)
    outputs = sorted(r["output_length"] for r in trace)
    seconds = loads.arrival_seconds(trace)
    return (f"{len(trace)} requests in {seconds:.0f} s; input mean {sum(inputs) / len(inputs):.0f}, median "
            f"{quantiles.quantile(inputs, .5):.0f}, largest {inputs[-1]}; output mean "
            f"{sum(outputs) / len(outputs):.0f}; {sum(inputs) / seconds:.0f} prompt tokens/s, "
            f"{sum(outputs) / seconds:.0f} output tokens/s; {100 * reuse(trace):.0f} % of the prompt tokens "
            "were in a prompt before")


def parse(arguments):
    parser = argparse.ArgumentParser(prog="loadgen trace", description="a trace of conversations")
    add = parser.add_argument
    add("--out", required=True, help="file to write; - is stdout")
    add("--seconds", type=float, default=60)
    add("--sessions_per_s", type=float, default=1.5, help="conversations that begin, on average (1.5)")
    add("--burst_factor", type=float, default=4, help="arrivals in a burst against those between (4)")
    add("--turns", type=float, default=3, help="mean turns of a conversation, geometric (3)")
    add("--think_s", type=float, default=8, help="mean seconds to the next turn, exponential (8)")
    add("--system_prompts", type=int, default=8, help="beginnings that conversations share (8)")
    add("--system_tokens", type=int, default=1024, help="length of each; a multiple of 512 (1024)")
    add("--first_median", type=float, default=2000, help="first prompt behind it, lognormal (2000)")
    add("--first_sigma", type=float, default=0.9)
    add("--turn_median", type=float, default=120, help="what a turn adds besides the reply (120)")
    add("--output_median", type=float, default=180, help="replies, lognormal (180)")
    add("--output_sigma", type=float, default=0.8)
    add("--max_input", type=int, default=16000, help="a conversation ends before a longer prompt (16000)")
    add("--max_output", type=int, default=1000)
    add("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if min(options.seconds, options.sessions_per_s, options.think_s, options.first_median, options.turn_median,
           options.output_median, options.burst_factor) <= 0 or options.turns < 1:
        parser.error("times, rates and lengths must be above 0, and turns at least 1")
    if options.seconds * options.sessions_per_s * options.turns > loads.MAX_REQUESTS:
        parser.error(f"more than {loads.MAX_REQUESTS} requests")
    if options.system_prompts < 1 or options.system_tokens < 0 or options.system_tokens % BLOCK:
        parser.error(f"--system_prompts must be at least 1, --system_tokens a multiple of {BLOCK}")
    if not options.system_tokens + 32 <= options.max_input <= loads.MAX_TOKENS or options.max_output < 8:
        parser.error("--max_input must be above --system_tokens + 32, --max_output at least 8")
    return options


def main(arguments=None):
    options = parse(arguments)
    trace = generate(options)
    loads.write("/dev/stdout" if options.out == "-" else options.out, trace)
    print(describe(trace), file=sys.stderr)
    return 0 if trace else 1
