"""The deployment tutorial's load_test.py against its gateway or one of its servers.

    tools/load_test.py --port 8000 --model_id demo --qps 4 --num_emit 30 --server_type cb
    tools/load_test.py --throughput_oriented --num_beams 8 --num_emit 10 --server_type sb

--throughput_oriented: num_emit batches of num_beams requests, one batch after the other; else qps requests
at every full second, for num_emit seconds. Writes the report with the original's keys. Exit code 1 if no
request succeeded.
"""

import argparse
import json
import pathlib
import random
import threading
import time

from loadgen import quantiles, texts
from loadgen.arrivals import response_lengths
from loadgen.http_json import FAILURES, Server
from loadgen.threads import Fleet

_PATHS = {"cb": "/completion/v2", "sb": "/completion/v1"}


def build_prompts(options, count, rng):
    """`count` prompts of about prompt_len tokens."""
    counter = texts.TokenCounter(options.tokenizer_url)
    if pathlib.Path(options.data_path).exists():
        prompts = texts.read_json(options.data_path)
        if not isinstance(prompts, list) or not all(isinstance(p, str) for p in prompts):
            raise ValueError(f"{options.data_path}: not a list of texts")
        if len(prompts) < count:
            raise ValueError(f"{options.data_path}: {len(prompts)} prompts for {count} requests")
        prompts = rng.sample(prompts, count)
        print(f"prompts of {options.data_path}")
    else:
        prompts = [texts.synthetic_words(rng, options.prompt_len) for _ in range(count)]
        print(f"{options.data_path} is not here: synthetic prompts with seed {options.seed}")
    print(f"prompts have {options.prompt_len} tokens by {counter.how} (the tokenizer "
          f"{options.tokenizer_name_or_path!r} is not loaded)")
    return [counter.cut(prompt, options.prompt_len) for prompt in prompts]


def payload(options, prompt, tokens):
    return {"model": options.model_id, "prompt": prompt,
            "generation_config": {"max_new_tokens": tokens, "min_new_tokens": tokens,
                                  "num_beams": options.num_beams, "num_return_sequences": 1}}


class Run:
    def __init__(self, options, payloads):
        self.payloads = payloads
        self.server = Server(f"{options.host}:{options.port}", options.timeout)
        self.path = _PATHS[options.server_type]
        self.outcomes = [None] * len(payloads)  # (generated tokens, seconds, status)
        self.print_lock = threading.Lock()

    def request(self, i):
        began, tokens, problem = time.monotonic(), 0, ""
        try:
            status, text = self.server.post(self.path, self.payloads[i])
            if status == 200:
                tokens = int(json.loads(text)["usage"]["completion_tokens"])
            else:
                problem = f", {text[:200]}"
        except (*FAILURES, KeyError, TypeError) as failure:
            status, problem = 0, f", {failure!r}"
        taken = time.monotonic() - began
        self.outcomes[i] = (tokens, taken, status)
        with self.print_lock:
            print(f"  - request_id={i} :: {status=}, wall_time={taken: .4f}s, num_gen_tokens={tokens}"
                  f"{problem}", flush=True)

    def throughput(self, batch_size):
        """(tokens a second, share of batches in which a request failed)."""
        seconds = failed = 0
        starts = range(0, len(self.payloads), batch_size)
        for start in starts:
            began = time.monotonic()
            Fleet(lambda i, first=start: self.request(first + i)).open_loop([0.0] * batch_size)
            seconds += time.monotonic() - began
            failed += any(o[2] != 200 for o in self.outcomes[start:start + batch_size])
        tokens = sum(o[0] for o in self.outcomes if o[2] == 200)
        return tokens / seconds, failed / len(starts)

    def latencies(self, qps):
        """(describe() of the good requests' seconds, share of those that failed)."""
        Fleet(self.request).open_loop([1.0 + i // qps for i in range(len(self.payloads))])
        good = [o[1] for o in self.outcomes if o[2] == 200]
        return quantiles.describe(good), 1 - len(good) / len(self.outcomes)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="load_test", description="the tutorial's load test")
    add = parser.add_argument
    add("--host", default="http://127.0.0.1")
    add("--port", type=int, default=8000)
    add("--model_id", default="", help="none: what the server has")
    add("--data_path", default="load_test_data.json", help="JSON list of prompts")
    add("--save_path", default="load_test_report.json")
    add("--tokenizer_name_or_path", default="gpt2", help="accepted; see --tokenizer_url")
    add("--use_fast_tokenizer", action="store_true", help="accepted")
    add("--throughput_oriented", action="store_true")
    add("--num_beams", type=int, default=1, help="with --throughput_oriented: requests of a batch")
    add("--prompt_len", type=int, default=512)
    add("--response_len_mean", type=int, default=512)
    add("--response_len_range", type=int, default=0)
    add("--distribution", choices=("uniform", "exponential", "capped_exponential"), default="uniform")
    add("--num_emit", type=int, default=60, help="batches, or seconds")
    add("--qps", type=int, default=1, help="without --throughput_oriented")
    add("--server_type", choices=("cb", "sb"), default="cb")
    own = parser.add_argument_group("not in the original")
    own.add_argument("--tokenizer_url", help="server whose POST /tokenize and /detokenize cut the prompts")
    own.add_argument("--seed", type=int, default=0)
    own.add_argument("--timeout", type=float, default=3600)
    options = parser.parse_args(arguments)
    if min(options.num_beams, options.prompt_len, options.response_len_mean, options.num_emit,
           options.qps) < 1 or options.response_len_range < 0:
        parser.error("counts and lengths must be at least 1")
    mean, spread = options.response_len_mean, options.response_len_range
    if options.distribution == "uniform" and mean <= spread:
        parser.error("--response_len_mean must be above --response_len_range")
    if options.distribution != "uniform" and mean > spread:
        parser.error("--response_len_range is the longest reply: not below --response_len_mean")
    return options


def measure(options):
    rng = random.Random(options.seed)
    at_once = options.num_beams if options.throughput_oriented else options.qps
    count = at_once * options.num_emit
    if options.throughput_oriented:
        lengths, options.num_beams = [options.response_len_mean] * count, 1
    else:
        lengths = response_lengths(rng, options.distribution, options.response_len_mean,
                                   options.response_len_range, count)
    prompts = build_prompts(options, count, rng)
    print(f"Load Test :: {options.throughput_oriented=}, num_requests={count}, batch_size={at_once}, "
          f"{options.response_len_mean=}, {options.response_len_range=}, {options.distribution=}")
    run = Run(options, [payload(options, p, n) for p, n in zip(prompts, lengths, strict=True)])
    latency = throughput = -1
    if options.throughput_oriented:
        throughput, failed = run.throughput(at_once)
    else:
        latency, failed = run.latencies(at_once)
    report = {"throughput_oriented": options.throughput_oriented, "batch_size": at_once,
              "latency(s)": latency, "throughput(generated_tokens/s)": throughput,
              "fail_rate": f"{100 * failed: .4f}%", "response_len_mean": options.response_len_mean,
              "response_len_range": options.response_len_range, "distribution": options.distribution}
    return report, any(o[2] == 200 for o in run.outcomes)


def main(arguments=None):
    options = parse(arguments)
    try:
        report, some_good = measure(options)
    except (*FAILURES, KeyError) as error:
        print(f"load_test: {error}")
        return 2
    print("REPORT ::")
    for key, value in report.items():
        print(f"  - {key}: {value}")
    pathlib.Path(options.save_path).write_text(json.dumps(report), encoding="utf-8")
    return 0 if some_good else 1
