"""The precision check over an OpenAI API: greedy replies with the log probabilities of the most probable
tokens at every place, prompt and reply alike.

    tools/loadgen precision --url http://127.0.0.1:8000 --at_once 1  --out file_npy_base
    tools/loadgen precision --url http://127.0.0.1:8000 --at_once 50 --out file_npy
    tools/acc_allclose.py --base_path file_npy_base --new_path file_npy

NUMBER.npy has a row for each place: the token's own log probability, then the --top largest ones, sorted.
(Sorted values move no farther apart than the values themselves, so two tokens that change places at a tie
are no difference; another token drawn is one, since the text goes on differently from there.)
"""

import argparse
import pathlib
import random
import threading

from loadgen import npy, texts
from loadgen.http_json import FAILURES, Server
from loadgen.threads import Fleet


def rows_of(reply, top):
    """One list of 1 + top numbers a place, from a /v1/completions reply with echo and logprobs."""
    told = reply["choices"][0]["logprobs"]
    rows = []
    # The first token of a prompt has no probability.
    for own, others in list(zip(told["token_logprobs"], told["top_logprobs"], strict=True))[1:]:
        best = sorted(others.values(), reverse=True)[:top]
        if len(best) < top:
            raise ValueError(f"the server tells {len(best)} log probabilities a token, not {top}")
        rows.append([own, *best])
    return rows


class Run:
    def __init__(self, options):
        self.options = options
        self.server = Server(options.url, options.timeout)
        if options.data:
            self.prompts = [prompt for prompt, _ in texts.alpaca_cases(options.data)]
            print(f"prompts of {options.data}")
        else:
            rng = random.Random(options.seed)
            self.prompts = [texts.synthetic_prompt(rng) for _ in range(options.count)]
            print(f"no data set given: synthetic prompts with seed {options.seed}")
        self.prompts = self.prompts[:options.count]
        self.failures = 0
        self.lock = threading.Lock()

    def request(self, index):
        # The lengths differ, so that the batches' make-up changes all the time.
        tokens = self.options.tokens - index * 7 % max(1, self.options.tokens // 2)
        body = {"prompt": self.prompts[index], "max_tokens": tokens, "temperature": 0, "echo": True,
                "logprobs": self.options.top, **({"model": self.options.model} if self.options.model else {})}
        try:
            rows = rows_of(self.server.post_json("/v1/completions", body), self.options.top)
            npy.write(self.options.out / f"{index}.npy", [x for row in rows for x in row],
                      (len(rows), self.options.top + 1))
        except (*FAILURES, KeyError, IndexError, TypeError) as failure:
            with self.lock:
                self.failures += 1
            print(f"request {index} failed: {failure!r}")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="loadgen precision", description="keeps log probabilities")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("file_npy"))
    parser.add_argument("--at_once", type=int, default=1, help="requests at a time: 1 and 50 are compared")
    parser.add_argument("--count", type=int, default=500, help="prompts (500)")
    parser.add_argument("--tokens", type=int, default=32, help="longest reply (32)")
    parser.add_argument("--top", type=int, default=20, help="log probabilities a token (20)")
    parser.add_argument("--data", help="alpaca file (alpaca_521.json)")
    parser.add_argument("--model", help="model name to send (none)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600)
    options = parser.parse_args(arguments)
    if min(options.at_once, options.count, options.tokens, options.top) < 1:
        parser.error("--at_once, --count, --tokens and --top must be at least 1")
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        run = Run(options)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    Fleet(run.request).closed_loop(len(run.prompts), options.at_once)
    print(f"{len(run.prompts) - run.failures} of {len(run.prompts)} prompts in {options.out}")
    return 1 if run.failures else 0
