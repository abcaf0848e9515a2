"""The prefill/decode lab's own test: eleven requests at the published arrival times against POST
/generate. Prints each request's latency as it completes, then their sum (the lab's score), and writes
responses.json in completion order.

    ./baton lab [--url http://127.0.0.1:8000] [--out responses.json]

Compare with the baseline by running it against `./baton serve --config configs/static.yaml`.
Exit code 1 if a request failed.
"""

import argparse
import json
import pathlib
import threading
import time

from loadgen.http_json import FAILURES, Server
from loadgen.threads import Fleet

PROMPTS = pathlib.Path(__file__).parents[2] / "demo" / "lab_prompts.json"
# Published arrival times; lengths are ours, since the lab does not publish its own.
ARRIVALS = [0.10, 0.30, 2.80, 5.31, 5.41, 6.61, 8.61, 12.62, 15.62, 15.82, 16.62]
MAX_LENGTHS = [512, 256, 512, 256, 1024, 512, 1024, 256, 512, 1024, 512]
MIN_LENGTH = 50
TEMPERATURE = 0.7


class Run:
    def __init__(self, arguments):
        self.server = Server(arguments.url, arguments.timeout)
        self.speed = arguments.speed
        self.prompts = json.loads(PROMPTS.read_text(encoding="utf-8"))
        self.responses = []
        self.failures = 0
        self.lock = threading.Lock()

    def request(self, index):
        body = {"prompt": self.prompts[index], "temperature": TEMPERATURE,
                "min_length": MIN_LENGTH, "max_length": MAX_LENGTHS[index]}
        sent_at = time.time()
        sent = time.monotonic()
        try:
            status, text = self.server.post("/generate", body)
        except FAILURES as failure:
            status, text = 0, str(failure)
        taken = time.monotonic() - sent
        with self.lock:
            if status != 200:
                self.failures += 1
                print(f"请求 {index} 失败: {status} {text}", flush=True)
                return
            print(f"请求 {index} 完成，延时 {taken:.2f} 秒", flush=True)
            self.responses.append({"request_index": index, "prompt": self.prompts[index],
                                   "response": text, "request_start_time": sent_at,
                                   "time_taken": taken})

    def go(self):
        Fleet(self.request).open_loop([at / self.speed for at in ARRIVALS])


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="lab", description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--out", default="responses.json")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one request")
    parser.add_argument("--speed", type=float, default=1,
                        help="arrivals this many times as fast (1: as published)")
    arguments = parser.parse_args(arguments)
    run = Run(arguments)
    run.go()
    print(f"总耗时: {sum(r['time_taken'] for r in run.responses)} 秒")
    pathlib.Path(arguments.out).write_text(
        json.dumps(run.responses, ensure_ascii=False, indent=4), encoding="utf-8")
    return 1 if run.failures else 0
