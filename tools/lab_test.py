#!/usr/bin/env python3
"""The prefill/decode lab's own test: eleven requests at the published arrival times against POST
/generate. Prints each request's latency as it completes, then their sum (the lab's score), and writes
responses.json in completion order.

    tools/lab_test.py [--url http://127.0.0.1:8000] [--out responses.json]

Compare with the baseline by running it against `./baton serve --config configs/static.yaml`.
Exit code 1 if a request failed.
"""

import argparse
import http.client
import json
import pathlib
import sys
import threading
import time
import urllib.parse

PROMPTS = pathlib.Path(__file__).parents[1] / "demo" / "lab_prompts.json"
# Published arrival times; lengths are ours, since the lab does not publish its own.
ARRIVALS = [0.10, 0.30, 2.80, 5.31, 5.41, 6.61, 8.61, 12.62, 15.62, 15.82, 16.62]
MAX_LENGTHS = [512, 256, 512, 256, 1024, 512, 1024, 256, 512, 1024, 512]
MIN_LENGTH = 50
TEMPERATURE = 0.7


def ask(url, body, timeout):
    connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=timeout)
    try:
        connection.request("POST", "/generate", json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class Run:
    def __init__(self, arguments):
        self.url = urllib.parse.urlsplit(arguments.url)
        self.timeout = arguments.timeout
        self.speed = arguments.speed
        self.prompts = json.loads(PROMPTS.read_text(encoding="utf-8"))
        self.responses = []
        self.failures = 0
        self.lock = threading.Lock()

    def request(self, index, start):
        time.sleep(max(0.0, start + ARRIVALS[index] / self.speed - time.monotonic()))
        body = {"prompt": self.prompts[index], "temperature": TEMPERATURE,
                "min_length": MIN_LENGTH, "max_length": MAX_LENGTHS[index]}
        sent_at = time.time()
        sent = time.monotonic()
        try:
            status, text = ask(self.url, body, self.timeout)
        except OSError as failure:
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
        start = time.monotonic()
        threads = [threading.Thread(target=self.request, args=(i, start))
                   for i in range(len(self.prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--out", default="responses.json")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one request")
    parser.add_argument("--speed", type=float, default=1,
                        help="arrivals this many times as fast (1: as published)")
    arguments = parser.parse_args()
    run = Run(arguments)
    run.go()
    print(f"总耗时: {sum(r['time_taken'] for r in run.responses)} 秒")
    pathlib.Path(arguments.out).write_text(
        json.dumps(run.responses, ensure_ascii=False, indent=4), encoding="utf-8")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
