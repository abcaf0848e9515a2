"""How much of a trace's prompts the prefix cache finds, offline and in a running server.

    ./baton loadgen trace --out conversation.jsonl
    ./baton loadgen prefix_replay --trace conversation.jsonl --capacity 400
    ./baton loadgen prefix_replay --trace conversation.jsonl --capacity 400 --url http://127.0.0.1:8000

A trace has one JSON object a line: {"timestamp": ms, "input_length", "output_length", "hash_ids"}, the prompt
in blocks of 512 tokens; equal ids stand for equal blocks. Without --url only the offline simulation runs: the
longest unused of N blocks gives way (loadgen/block_cache.py). With --url the trace is sent, one request at a
time and without its pauses, and the tokens that each reply says were cached are compared with the simulation's:
with one worker of `tokens_per_block: 512` and `pool_blocks: N` they are the same, request by request.
--at_once or --speed replay it under concurrency; then the difference is printed and is no error.

Exit code 1 if a request failed, or if one at a time differs.
"""

import argparse
import json
import pathlib
import random
import threading
import time

from loadgen.block_cache import Misfit, simulate
from loadgen.http_json import FAILURES, Server
from loadgen.threads import Fleet

BLOCK = 512
MAX_REQUESTS = 1_000_000
MAX_TOKENS = 16_777_216


class BadTrace(ValueError):
    pass


def read_trace(path, count=None, max_output=None, block=BLOCK):
    """The requests in order of time, answers cut to `max_output` tokens."""
    trace = []
    for number, line in enumerate(pathlib.Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            request = {"timestamp": float(entry["timestamp"]), "hash_ids": list(entry["hash_ids"]),
                       "input_length": int(entry["input_length"]),
                       "output_length": max(1, int(entry["output_length"]))}
        except (ValueError, KeyError, TypeError) as error:
            raise BadTrace(f"{path}:{number}: no request of a trace: {error!r}") from None
        length, ids = request["input_length"], request["hash_ids"]
        if not 1 <= length <= MAX_TOKENS or request["output_length"] > MAX_TOKENS:
            raise BadTrace(f"{path}:{number}: lengths must be 1 to {MAX_TOKENS}")
        if len(ids) == length // block and length % block:
            ids.append(f"the rest of line {number}")
        if len(ids) != -(-length // block) or not all(isinstance(i, (int, str)) for i in ids):
            raise BadTrace(f"{path}:{number}: {length} tokens are not in {len(ids)} blocks of {block}")
        if max_output:
            request["output_length"] = min(request["output_length"], max_output)
        trace.append(request)
        if len(trace) > MAX_REQUESTS:
            raise BadTrace(f"{path}: more than {MAX_REQUESTS} requests")
    trace.sort(key=lambda request: request["timestamp"])
    return trace[:count]


class Prompts:
    """Token ids for blocks: equal for equal ids, different for different ones."""

    def __init__(self, ids, block=BLOCK):
        self._first, self._below = ids
        self._block = block
        self._numbers = {}

    def _tokens(self, name):
        span = self._below - self._first
        number = self._numbers.setdefault(name, len(self._numbers))
        rng = random.Random(number)
        tokens = [self._first + rng.randrange(span) for _ in range(self._block)]
        for place in range(4):  # the number itself: two blocks can never be alike
            tokens[place] = self._first + number % span
            number //= span
        return tokens

    def of(self, request):
        tokens = [token for name in request["hash_ids"] for token in self._tokens(name)]
        return tokens[:request["input_length"]]


class Replay:
    def __init__(self, options, trace):
        self._options = options
        self._trace = trace
        self._server = Server(options.url, options.timeout)
        self._prompts = Prompts(options.ids)
        self._salt = f"{options.seed}-{time.time_ns()}"  # what is cached from before is not found
        self._lock = threading.Lock()
        self.cached = [None] * len(trace)
        self.texts = [None] * len(trace)
        self.failures = []

    def _ask(self, index):
        request = self._trace[index]
        with self._lock:
            prompt = self._prompts.of(request)
        body = {"prompt": prompt, "max_tokens": request["output_length"],
                "min_tokens": request["output_length"], "ignore_eos": True, "temperature": 1,
                "seed": self._options.seed + index, "cache_salt": self._salt}
        if self._options.model:
            body["model"] = self._options.model
        try:
            reply = self._server.post_json("/v1/completions", body)
            usage = reply["usage"]
            if usage["prompt_tokens"] != request["input_length"]:
                raise ValueError(f"the server counts {usage['prompt_tokens']} prompt tokens")
            self.cached[index] = int(usage["prompt_tokens_details"]["cached_tokens"])
            self.texts[index] = reply["choices"][0]["text"]
        except (*FAILURES, KeyError, IndexError, TypeError) as failure:
            with self._lock:
                self.failures.append(f"request {index + 1}: {failure!r}")

    def run(self):
        fleet = Fleet(self._ask)
        if self._options.speed:
            start = self._trace[0]["timestamp"]
            fleet.open_loop([(r["timestamp"] - start) / 1000 / self._options.speed for r in self._trace])
        else:
            fleet.closed_loop(len(self._trace), self._options.at_once)


def rate(found, trace):
    return sum(found) / sum(request["input_length"] for request in trace)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="loadgen prefix_replay",
                                     description="hit rate of the prefix cache, offline and measured")
    add = parser.add_argument
    add("--trace", required=True, help="JSON lines: timestamp, input_length, output_length, hash_ids")
    add("--capacity", type=int, default=0, help="blocks of the cache; 0: without limit")
    add("--url", help="server to replay it through (none: only the simulation)")
    add("--at_once", type=int, default=1, help="requests that run at a time (1)")
    add("--speed", type=float, default=0, help="arrivals as in the trace, this many times as fast (none)")
    add("--requests", type=int, help="only so many of the trace")
    add("--max_output", type=int, help="most tokens of an answer (as in the trace)")
    add("--ids", type=int, nargs=2, default=(10, 4000), metavar=("FROM", "BELOW"),
        help="token ids of the prompts (10 4000)")
    add("--model", help="model name to send (none)")
    add("--seed", type=int, default=1)
    add("--timeout", type=float, default=600, help="seconds for one request")
    add("--outputs", help="write the answers to this file, a JSON string a line")
    options = parser.parse_args(arguments)
    if options.capacity < 0 or options.at_once < 1 or options.speed < 0:
        parser.error("--capacity and --speed must not be negative, --at_once at least 1")
    if not 0 <= options.ids[0] < options.ids[1] - 100:
        parser.error("--ids must be a range of more than 100")
    return options


def compare(simulated, measured, trace):
    """Prints both rates; returns how many requests differ."""
    different = [i for i, (a, b) in enumerate(zip(simulated, measured, strict=True)) if a != b]
    print(f"server: {sum(measured)} tokens found, hit rate {rate(measured, trace):.4f}; difference "
          f"{rate(measured, trace) - rate(simulated, trace):+.4f}, {len(different)} requests differ")
    for i in different[:5]:
        print(f"  request {i + 1}: {measured[i]} of {trace[i]['input_length']} tokens were cached, "
              f"{simulated[i]} in the simulation")
    return len(different)


def main(arguments=None):
    options = parse(arguments)
    try:
        trace = read_trace(options.trace, options.requests, options.max_output)
        if not trace:
            raise BadTrace(f"{options.trace}: no request")
        simulated = simulate(trace, options.capacity)
    except (OSError, BadTrace, Misfit) as error:
        print(f"prefix_replay: {error}")
        return 2
    total = sum(request["input_length"] for request in trace)
    print(f"simulation: {len(trace)} requests, {total} prompt tokens, "
          f"{options.capacity or 'endless'} blocks of {BLOCK}: {sum(simulated)} tokens found, hit rate "
          f"{rate(simulated, trace):.4f}")
    if not options.url:
        return 0
    replay = Replay(options, trace)
    replay.run()
    for line in replay.failures[:5]:
        print(line)
    if replay.failures:
        print(f"{len(replay.failures)} requests failed")
        return 1
    if options.outputs:
        lines = "".join(json.dumps(text) + "\n" for text in replay.texts)
        pathlib.Path(options.outputs).write_text(lines, encoding="utf-8")
    different = compare(simulated, replay.cached, trace)
    return 1 if different and options.at_once == 1 and not options.speed else 0
