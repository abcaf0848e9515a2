"""Open-loop load on a running server: arrivals, lengths and prompts of a load or a trace, judged by
service-level objectives. Prompts are token ids, replies run to their full length. baton-bench-client sends and
takes the times at the socket.

    ./baton loadgen replay --url http://127.0.0.1:8000 --load mix@8 --seconds 40
    ./baton loadgen replay --load conversation.jsonl --json report.json

Exit code 1 if a request failed.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import urllib.parse

from loadgen import judge, loads

ROOT = pathlib.Path(__file__).parents[2]
PATH = "/v1/completions"


def default_client():
    return pathlib.Path(os.environ.get("BATON_BUILD_DIR", ROOT / "build" / "cpu")) / "bin" / "baton-bench-client"


def run(client, host, port, trace, *, seed=1, ids=(10, 4000), drain_s=60, model=None, log=None,
        temperature=0):
    """Sends the trace, waits at most `drain_s` after the last arrival; returns judge's report. RuntimeError if
    the client could not work."""
    arrival_s = loads.arrival_seconds(trace)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        loads.write(folder / "trace.jsonl", trace)
        log = pathlib.Path(log) if log else folder / "log.jsonl"
        words = [client, "--host", host, "--port", port, "--path", PATH, "--trace", folder / "trace.jsonl",
                 "--log", log, "--seed", seed, "--ids-from", ids[0], "--ids-below", ids[1],
                 "--temperature", temperature, "--timeout-s", round(arrival_s + drain_s, 1)]
        words += ["--model", model] if model else []
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1) or not log.exists():
            raise RuntimeError(f"baton-bench-client: {done.stdout}{done.stderr}")
        return judge.report(judge.read_log(log), len(trace), arrival_s)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="loadgen replay", description="open-loop load, judged by objectives")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--load", default="mix@8", help="2048/256@8, mix@8, 32x100/8192 or FILE.jsonl (mix@8)")
    parser.add_argument("--seconds", type=float, default=40, help="of arrivals (40)")
    parser.add_argument("--drain_s", type=float, default=60, help="waited for the last replies (60)")
    parser.add_argument("--ids", type=int, nargs=2, default=(10, 4000), metavar=("FROM", "BELOW"),
                        help="token ids of the prompts (10 4000)")
    parser.add_argument("--model", help="model name to send (none)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="also write the report to this file")
    parser.add_argument("--log", help="also keep the times of every event, a JSON line a request")
    parser.add_argument("--client", type=pathlib.Path, default=default_client())
    options = parser.parse_args(arguments)
    if not options.client.exists():
        parser.error(f"{options.client} is not there: ./baton build baton-bench-client")
    url = urllib.parse.urlsplit(options.url if "//" in options.url else "http://" + options.url)
    try:
        trace = loads.requests(options.load, options.seed, options.seconds)
        result = run(options.client, url.hostname or "127.0.0.1", url.port or 80, trace, seed=options.seed,
                     ids=options.ids, drain_s=options.drain_s, model=options.model, log=options.log)
    except (loads.BadLoad, RuntimeError) as error:
        print(f"replay: {error}")
        return 2
    result = {"setup": url.netloc[:10], "load": options.load, **result}
    print(judge.table([result]))
    if result["first_error"]:
        print("first error:", result["first_error"])
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result) + "\n", encoding="utf-8")
    return 1 if result["errors"] else 0
