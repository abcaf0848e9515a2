"""The contest's test_serving_performance.py: an open loop of about constant gaps against POST
/models/llama2/generate_stream.

    tools/test_serving_performance.py -X 2 -P 8835 -O ./ -T 750

N = int(T * X) requests; it logs to testLog/ and writes result_{X}_x.json. --task 2 is the precision run:
it also keeps the log probability of every streamed token as OUT_DIR/file_npy/NUMBER.npy, to be compared
by tools/acc_allclose.py. Exit code 1 if a request failed.
"""

import argparse
import itertools
import json
import logging
import math
import pathlib
import random
import threading
import time

from loadgen import npy, quantiles, texts
from loadgen.arrivals import contest_gap_s
from loadgen.http_json import FAILURES, Server
from loadgen.threads import Fleet

_DATA = {1: "alpaca_5010.json", 2: "alpaca_521.json"}


def open_log(folder):
    """The logger of one run: to the console and to testLog/test_performance_<minute>.log."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / time.strftime("test_performance_%Y-%m-%d-%H_%M.log")
    logger = logging.Logger("test_llama")
    form = logging.Formatter("%(asctime)s - %(name)s - %(levelname)s - %(message)s")
    for handler in (logging.StreamHandler(), logging.FileHandler(file, encoding="utf-8")):
        handler.setFormatter(form)
        logger.addHandler(handler)
    return logger


class StreamFailure(ValueError):
    """A line that is not of the published shape, or an error of the server."""


class StreamReader:
    """The raw JSON lines of generate_stream. The last line has the whole text when it was asked for."""

    def __init__(self):
        self.text = ""
        self.logprobs = []
        self._finish = None

    def take(self, line):
        try:
            data = json.loads(line)["data"][0]
            self.text = data["generated_text"]
            tokens = data.get("tokens")
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise StreamFailure(f"not a line of a stream ({error!r}): {line[:200]}") from None
        self._finish = data.get("finish_reason")
        if isinstance(tokens, dict):  # the last line has the list of all of them
            self.logprobs.append(tokens.get("logprob"))

    def end(self):
        """The reply's text; the original's events for failures are errors here."""
        if self._finish not in (None, "eos", "length", "stop"):
            raise StreamFailure(f"{self._finish}: {self.text[:200]}")
        return self.text


class Run:
    def __init__(self, options, cases, logger):
        self.options = options
        self.cases = cases
        self.logger = logger
        self.total = int(options.test_time * options.qps)
        self.server = Server(f"{options.host}:{options.port}", options.timeout)
        self.path = f"/models/{options.model}/generate_stream"
        self.results = []
        self.failures = 0
        self.progress = 0
        self.lock = threading.Lock()

    def body(self, index):
        prompt, tokens = self.cases[index % len(self.cases)]
        return {"inputs": prompt, "parameters": {"max_new_tokens": tokens, "do_sample": "False",
                                                 "return_full_text": "True"}}

    def request(self, index):
        body = self.body(index)
        try:
            result = self._ask(index, body)
        except FAILURES as failure:
            result = None
            self.logger.error(f"request {index} failed: {failure}")
        with self.lock:
            self.progress += 1
            self.failures += result is None
            if result is not None:
                self.results.append(result)
            self.logger.info(f"{result}\nTest Progress --> {self.progress}/{self.total}")

    def _ask(self, index, body):
        began = time.monotonic()
        reader, first = StreamReader(), None
        for at, line in self.server.lines(self.path, body):
            if first is None:
                first = at
                self.logger.info(f"first_token_time is {first}")
            reader.take(line)
        if first is None:
            raise StreamFailure("the stream had no line")
        text = reader.end()
        if self.options.task == 2:
            self._keep(index, reader.logprobs)
        return {"input": body["inputs"], "resp_text": text,
                "res_time": time.monotonic() - began, "first_token_time": first}

    def _keep(self, index, logprobs):
        if not all(isinstance(value, (int, float)) for value in logprobs):
            raise StreamFailure("a token has no log probability; this server cannot run task 2")
        npy.write(self.options.npy_dir / f"{index}.npy", logprobs, (len(logprobs),))

    def go(self):
        rng = random.Random(self.options.seed)
        interval = round(1 / self.options.qps, 2)
        gaps = [contest_gap_s(rng, self.options.qps) for _ in range(self.total)]
        self.logger.info(f"Start send request, avg interval is {interval}")
        began = time.monotonic()
        Fleet(self.request).open_loop([0.0, *itertools.accumulate(gaps[:-1])])
        self.logger.info(f"All Tasks Done; Exec Time is {time.monotonic() - began}")
        self._write()

    def _write(self):
        path = pathlib.Path(self.options.out_dir) / f"result_{self.options.qps}_x.json"
        path.write_text(json.dumps(self.results), encoding="utf-8")
        for key in ("first_token_time", "res_time"):
            self.logger.info(f"{key}: {quantiles.line([r[key] for r in self.results])}")
        self.logger.info(f"{len(self.results)} requests done, {self.failures} failed; {path}")


def load_cases(options, logger):
    """[(prompt, max_new_tokens)]: no more of them than the run needs."""
    need = int(options.test_time * options.qps)
    data = options.data or _DATA[options.task]
    if options.data is None and not pathlib.Path(data).exists():
        logger.info(f"{data} is not here: a synthetic stand-in with seed {options.seed} takes its place; "
                    "its figures are not those of the contest's data set")
        cases = texts.synthetic_cases(random.Random(options.seed), min(need, 5010))
    else:
        counter = texts.TokenCounter(options.tokenize_url)
        logger.info(f"reference outputs of {data} are counted by {counter.how}")
        cases = [(prompt, counter.count(output))
                 for prompt, output in texts.alpaca_cases(data)[:need]]
    if options.max_new_tokens:
        cases = [(prompt, min(tokens, options.max_new_tokens)) for prompt, tokens in cases]
    logger.info(f"testcases length is {len(cases)}")
    return cases


def parse(arguments):
    parser = argparse.ArgumentParser(prog="test_serving_performance",
                                     description="the contest's speed and precision runs")
    parser.add_argument("-X", "--qps", type=float, required=True, help="requests a second")
    parser.add_argument("-P", "--port", type=int, required=True)
    parser.add_argument("-O", "--out_dir", default="./", help="folder of the results (./)")
    parser.add_argument("-T", "--test_time", type=int, default=3600, help="seconds of arrivals (3600)")
    parser.add_argument("--task", type=int, choices=(1, 2), default=1, help="1: speed, 2: precision")
    own = parser.add_argument_group("not in the original")
    own.add_argument("--host", default="http://127.0.0.1")
    own.add_argument("--model", default="llama2", help="/models/MODEL/generate_stream")
    own.add_argument("--data", help="alpaca file (alpaca_5010.json, alpaca_521.json if they are here)")
    own.add_argument("--tokenize_url", help="server whose POST /tokenize counts the reference outputs "
                     "(else 1.35 tokens a word)")
    own.add_argument("--max_new_tokens", type=int, default=0, help="bound for small models (none)")
    own.add_argument("--seed", type=int, default=0)
    own.add_argument("--timeout", type=float, default=3600, help="seconds without a byte (3600)")
    options = parser.parse_args(arguments)
    if not (options.qps > 0 and math.isfinite(options.qps)) or round(1 / options.qps, 2) == 0:
        parser.error("-X must lie above 0 and below 200")
    if not 1 <= int(options.test_time * options.qps) <= 1_000_000:
        parser.error("-X times -T must give 1 to 1000000 requests")
    options.npy_dir = pathlib.Path(options.out_dir) / "file_npy"
    return options


def main(arguments=None):
    options = parse(arguments)
    folder = options.npy_dir if options.task == 2 else pathlib.Path(options.out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    logger = open_log("testLog")
    try:
        cases = load_cases(options, logger)
    except (OSError, ValueError) as error:
        logger.error(str(error))
        return 2
    run = Run(options, cases, logger)
    logger.info(f"thread_tasks length is {run.total}")
    run.go()
    return 1 if run.failures else 0
