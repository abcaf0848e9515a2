#!/usr/bin/env python3
"""Restarts the services one by one under load and checks that every stream ends as if undisturbed.

    docker-compose up -d && ./restart_check.py

A check by hand, since it needs a Docker engine: 16 streams are kept open on the front end; whenever
each of them got a token since the last blow, the next service is restarted, then one is killed, then
one is frozen. Every stream must end with the text of an undisturbed run.
"""

import json
import subprocess
import sys
import threading
import time
import urllib.request

URL = "http://127.0.0.1:8000"
STREAMS = 16
BLOWS = [["restart", "decode0"], ["restart", "prefill0"], ["restart", "scheduler"],
         ["kill", "decode0"], ["start", "decode0"],
         ["restart", "decode0", "prefill0"],
         ["exec", "-T", "decode0", "sh", "-c", "kill -STOP $(cat /run/baton/decode0.pid)"]]


def body(seed):
    return {"prompt": f"{seed}. ", "max_tokens": 600, "min_tokens": 600, "temperature": 1.0,
            "seed": seed, "stream": True, "timeout_s": 600}


class Stream(threading.Thread):
    def __init__(self, seed):
        super().__init__(daemon=True)
        self.seed, self.text, self.events, self.error = seed, "", 0, None

    def run(self):
        try:
            request = urllib.request.Request(URL + "/v1/completions",
                                             json.dumps(body(self.seed)).encode(),
                                             {"Content-Type": "application/json"})
            for line in urllib.request.urlopen(request, timeout=120):
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(event["error"])
                    self.text += "".join(c["text"] for c in event["choices"])
                    self.events += 1
            raise RuntimeError("the stream broke off")
        except Exception as error:  # reported by the main thread
            self.error = error


def start(seeds):
    streams = [Stream(seed) for seed in seeds]
    for stream in streams:
        stream.start()
    return streams


def blow(args):
    print("docker-compose", *args, flush=True)
    subprocess.run(["docker-compose", *args], check=True, capture_output=True)


def main():
    print(f"{STREAMS} streams, undisturbed", flush=True)
    expected = {}
    for stream in start(range(STREAMS)):
        stream.join()
        if stream.error:
            sys.exit(f"undisturbed run failed: {stream.error}")
        expected[stream.seed] = stream.text
    wrong, landed = 0, 0
    remaining = list(BLOWS)
    while remaining:
        streams = start(range(STREAMS))
        while any(s.is_alive() for s in streams):
            seen = [s.events for s in streams]
            while any(s.is_alive() and s.events == n for s, n in zip(streams, seen)):
                time.sleep(0.05)
            if remaining and any(s.is_alive() for s in streams):
                blow(remaining.pop(0))
                landed += 1
        for stream in streams:
            if stream.error or stream.text != expected[stream.seed]:
                wrong += 1
                print(f"seed {stream.seed}: {stream.error or 'another text'}", flush=True)
    print(f"{landed} blows, {wrong} streams disturbed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
