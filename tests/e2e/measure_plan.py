#!/usr/bin/env python3
"""Does a plan come true? Measures the step times of a model here, lets baton-plan predict what a set-up makes of a
trace, sends the same trace to that set-up, and prints both. Not a test: it wants a quiet machine.

    tests/e2e/measure_plan.py [--setup 1p1d] [--chunk 128] [--rate 20] [--requests 300] ...
    tests/e2e/measure_plan.py --device cuda --model 8b --setup 1p1d --chunk 2048 --rate 12 \
        --input-length 2048 --output-length 256 --pull-us 450 --pull-block-us 7.6

With --device cuda the model is a folder or a geometry of tools/dummy_model.py, whose weights are random.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from cluster import BIN, DEMO_MODEL, SOURCE, Cluster

sys.path.insert(0, str(SOURCE / "tools"))
import dummy_model  # noqa: E402
from loadgen import judge, quantiles  # noqa: E402

ROLES = {"p": "prefill", "d": "decode", "m": "mixed"}
POOL_BLOCKS = {"cpu": 4096, "cuda": 12288}
PROMPT = 8  # tokens of the requests that find out what lies around the steps


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", default=str(DEMO_MODEL), help="folder, or with cuda 8b or 0.6b (the demo model)")
    parser.add_argument("--setup", default="1p1d", help="1p1d or 2m (1p1d)")
    parser.add_argument("--chunk", type=int, default=128, help="prompt tokens of a step (128)")
    parser.add_argument("--rate", type=float, default=20, help="requests a second (20)")
    parser.add_argument("--requests", type=int, default=300, help="how many (300)")
    parser.add_argument("--input-length", default="uniform:64:512")
    parser.add_argument("--output-length", default="uniform:16:96")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slo", default="1:0.03,0.3:0.03,0.15:0.01,0.08:0.006",
                        type=lambda text: [tuple(map(float, one.split(":"))) for one in text.split(",")],
                        help="objectives TTFT:GAP in seconds")
    parser.add_argument("--runs", type=int, default=3, help="how often the trace is sent (3)")
    parser.add_argument("--step-delay-ms", type=int, default=0,
                        help="steps take so much longer: the machine's noise then counts for less (0)")
    parser.add_argument("--max-running", type=int, default=64, help="sequences of a worker (64)")
    parser.add_argument("--pull-us", type=float, default=0, help="of a hand-off beside its copy (0)")
    parser.add_argument("--pull-block-us", type=float, default=0, help="of a hand-off's copy, a block (0)")
    parser.add_argument("--step-times", type=pathlib.Path, help="measured before")
    parser.add_argument("--keep", help="folder for step times, trace and logs")
    return parser.parse_args()


def measure_steps(o, folder):
    """On CPUs every worker's at once, as they will run: they share caches and memory."""
    count = sum(int(c) for c in o.setup if c.isdigit()) if o.device == "cpu" else 1
    commands = [[sys.executable, SOURCE / "tools" / "step_times.py", "--model", o.model, "--device", o.device,
                 *(["--threads", "1"] if o.device == "cpu" else ["--dummy"] if o.dummy else []),
                 "--budget", str(o.chunk), "--max-running", str(o.max_running),
                 "--pool-blocks", str(POOL_BLOCKS[o.device]), "--program", BIN / "baton-bench-worker",
                 "--out", folder / f"times{i}.json"] for i in range(count)]
    running = [subprocess.Popen(c) for c in commands]
    if any([p.wait() for p in running]):
        raise SystemExit("the step times could not be measured")
    return json.loads((folder / "times0.json").read_text())


def find_model(o, folder):
    """A geometry by name gets a folder with a configuration and no weights."""
    o.dummy = o.model in dummy_model.GEOMETRIES
    if o.dummy:
        o.model = str(dummy_model.write(o.model, folder / "model").resolve())


def worker_options(o, times):
    own = {"threads": 1} if o.device == "cpu" else {"device": "cuda", "deterministic": False, "pool_mib": 0}
    return {**own, "load_format": "dummy" if o.dummy else "auto", "pool_blocks": times["pool_blocks"],
            "step_delay_ms": o.step_delay_ms}


def bench(port, *arguments):
    command = [BIN / "baton-bench-client", "--port", str(port), *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def add_surroundings(o, times, port, folder):
    """What a step's result passes besides the device, from requests that are alone: gaps between tokens beyond
    the step, and the way of a prompt beyond its step."""
    trace = folder / "alone.jsonl"
    apart = 200 + 40 * o.step_delay_ms
    trace.write_text("".join(json.dumps({"timestamp": apart * i, "input_length": PROMPT, "output_length": 24}) + "\n"
                             for i in range(20)))
    bench(port, "--trace", trace, "--seed", 1000, "--log", folder / "alone.log")
    alone = [judge.figures(r) for r in judge.read_log(folder / "alone.log")]

    def median(values):
        return 1000 * quantiles.quantile(sorted(values), .5)

    times["message_us"] = 50
    gap = median([g for f in alone for g in f["gaps"][1:]])
    times["host_us"] = round(max(0, gap - times["decode_us"][0][1] - PROMPT * times["decode_context_ns"] / 1000), 1)
    step = min(us for tokens, us in times["prompt_us"] if tokens >= PROMPT) + times["sample_us"] + times["host_us"]
    ttft = median([f["ttft"] for f in alone])
    times["request_us"] = round(max(0, ttft - step - 5 * times["message_us"]), 1)


def plan(o, folder, times, objective, *load):
    (folder / "times.json").write_text(json.dumps(times))
    ttft, gap = objective
    subprocess.run([BIN / "baton-plan", "--config", folder / "plan.yaml", "--step-times", folder / "times.json", "--splits", o.setup,
                    "--chunks", str(o.chunk), "--ttft-slo", str(ttft), "--tpot-slo", str(gap),
                    "--json", folder / "plan.json", *map(str, load)], check=True, stdout=subprocess.DEVNULL)
    return json.loads((folder / "plan.json").read_text())[0]


def line(name, ttft50, ttft99, itl99):
    print(f"{name:<10} TTFT p50 {ttft50:8.1f} p99 {ttft99:8.1f} ms  ITL p99 {itl99:7.2f} ms", flush=True)


def send(turn, port, folder, trace):
    """The trace once, with prompts that no cache knows: figures of each request."""
    bench(port, "--trace", trace, "--seed", turn, "--log", folder / "run.log")
    own = [judge.figures(record) for record in judge.read_log(folder / "run.log")]
    good = [f for f in own if f is not None]
    ttft = sorted(f["ttft"] for f in good)
    gaps = sorted(g for f in good for g in f["gaps"])
    line("measured", quantiles.quantile(ttft, .5), quantiles.quantile(ttft, .99), quantiles.quantile(gaps, .99))
    return own


def run(o, folder):
    find_model(o, folder)
    times = json.loads(o.step_times.read_text()) if o.step_times else measure_steps(o, folder)
    times.update(pull_us=o.pull_us, pull_block_us=o.pull_block_us)
    scheduler = {"token_budget": o.chunk, "prompt_chunk": o.chunk, "max_running": o.max_running}
    (folder / "plan.yaml").write_text(json.dumps({"scheduler": scheduler}))
    roles = [ROLES[role] for count, role in zip(o.setup[::2], o.setup[1::2]) for _ in range(int(count))]
    workers = [(f"{role}{i}", role) for i, role in enumerate(roles)]
    trace = folder / "trace.jsonl"
    with Cluster(workers=workers, model=o.model, worker=worker_options(o, times), scheduler=scheduler) as cluster:
        port = next(iter(cluster.frontends.values()))
        add_surroundings(o, times, port, folder)
        print(json.dumps(times))
        drawn = plan(o, folder, times, o.slo[0], "--rate", o.rate, "--requests", o.requests, "--seed", o.seed,
                     "--input-length", o.input_length, "--output-length", o.output_length, "--write-trace", trace)
        line("predicted", drawn["ttft_p50_ms"], drawn["ttft_p99_ms"], drawn["itl_p99_ms"])
        runs = [send(turn, port, folder, trace) for turn in range(1, o.runs + 1)]
    arrival_s = json.loads(trace.read_text().splitlines()[-1])["timestamp"] / 1000
    for objective in o.slo:
        predicted = plan(o, folder, times, objective, "--trace", trace)["goodput_per_s"]
        bounds = {"ttft": 1000 * objective[0], "gap_p99": 1000 * objective[1]}
        measured = quantiles.quantile(sorted(
            sum(judge.meets(f, bounds) for f in own) / arrival_s for own in runs), .5)
        off = f"{100 * (predicted / measured - 1):+.1f} %" if measured else "none met it"
        print(f"first token in {objective[0]:g} s, gaps of {1000 * objective[1]:g} ms: goodput predicted "
              f"{predicted:.2f}/s, measured {measured:.2f}/s (median of {o.runs}), off by {off}", flush=True)


def main():
    o = options()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(o.keep or temporary)
        folder.mkdir(exist_ok=True)
        run(o, folder)


main()
