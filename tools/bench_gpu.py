#!/usr/bin/env python3
"""Set-ups on GPUs against each other, over HTTP, unloaded and under load.

    python3 tools/bench_gpu.py --model 8b --build build/cuda
    python3 tools/bench_gpu.py --model 8b --setups pair mixed2 --loads standard

For each set-up it starts real processes, sends prompts of random token ids and reports: time to the first
token (TTFT), the gap before the second token (it hides the hand-off), time per output token (TPOT), and
with --streams the same under closed-loop load. With --loads it instead sends open-loop loads (see
`./baton loadgen replay --help`) and ends with a table. JSON lines on stdout, one a measurement.

--model is a folder, a config.json, or the name of a geometry (tools/dummy_model.py); without weights they
are random. Its tokenizer is replaced by made-up words, one for each id: replies go on beyond the model's own end,
and every token must be text to be seen. Processes, prompts and judgement need nothing but Python's standard library.
"""

import argparse
import contextlib
import json
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

TOOLS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent / "tests" / "e2e")]
import bench_loads  # noqa: E402
import dummy_model  # noqa: E402
from cluster import Cluster, wait_until  # noqa: E402


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p * len(values)))] if values else 0.0


def one(cluster, length, tokens, seed):
    """One stream: (TTFT, gap before the second token, later gaps), in milliseconds."""
    generator = random.Random(f"{length} {seed}")  # no prompt begins like another: the prefix cache finds none
    ids = [generator.randrange(10, 4000) for _ in range(length)]
    begin = time.monotonic()
    stream = cluster.stream(ids, max_tokens=tokens, temperature=0, ignore_eos=True)
    stream.finish(300)
    at = [1e3 * (t - begin) for t in stream.arrivals]
    gaps = [b - a for a, b in zip(at, at[1:])]
    return at[0], gaps[0] if gaps else 0, gaps[1:], at[-1]


def unloaded(cluster, length, tokens, repeats, group=0):
    runs = [one(cluster, length, tokens, f"{group} {i}") for i in range(repeats + 1)][1:]
    last = [(r[3] - r[0]) / max(tokens - 1, 1) for r in runs]
    return {"prompt": length, "ttft_ms": statistics.median(r[0] for r in runs),
            "second_gap_ms": statistics.median(r[1] for r in runs),
            "itl_p50_ms": percentile([g for r in runs for g in r[2]], 0.5),
            "tpot_ms": statistics.median(last)}


def loaded(cluster, length, tokens, streams, rounds):
    results = []

    def client(index):
        for i in range(rounds):
            results.append(one(cluster, length, tokens, 1000 * index + i))

    begin = time.monotonic()
    threads = [threading.Thread(target=client, args=(i,)) for i in range(streams)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    wall = time.monotonic() - begin
    gaps = [g for r in results for g in [r[1], *r[2]]]
    return {"prompt": length, "streams": streams, "tokens_per_s": streams * rounds * tokens / wall,
            "ttft_p50_ms": percentile([r[0] for r in results], 0.5),
            "itl_p50_ms": percentile(gaps, 0.5), "itl_p99_ms": percentile(gaps, 0.99)}


@contextlib.contextmanager
def decoding(cluster, streams):
    """Keeps so many streams decoding, from their first tokens on."""
    generator = random.Random(streams)
    running = [cluster.stream([generator.randrange(10, 4000) for _ in range(64)], max_tokens=4000, temperature=0,
                              ignore_eos=True) for _ in range(streams)]
    for stream in running:
        stream.wait_pieces(2)
    yield
    if any(stream.done.is_set() for stream in running):
        raise SystemExit("a stream of --busy ended before the measurement: fewer --repeats, or fewer --lengths")
    for stream in running:
        stream.leave()


def handoffs(events, model, tokens_per_block):
    """Pulls as the scheduler sees them, by their number of blocks: sent to answered, the copy alone, GB/s."""
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    heads = config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    block = tokens_per_block * config["num_hidden_layers"] * 2 * heads * dim * 2
    sent, by_blocks = {}, {}
    for event in map(json.loads, events):
        if event["event"] == "pull":
            sent[event["pull"]] = event
        elif event["event"] == "pull_done" and event["pull"] in sent:
            pull = sent.pop(event["pull"])
            by_blocks.setdefault(pull["blocks"], []).append(
                ((event["t"] - pull["t"]) / 1e3, event["copy_us"]))
    for blocks, times in sorted(by_blocks.items()):
        median = statistics.median(t for t, _ in times)
        copy = statistics.median(c for _, c in times)
        control = statistics.median(t - c for t, c in times)
        yield {"blocks": blocks, "mib": blocks * block / 2**20, "pulls": len(times),
               "median_us": median, "copy_us": copy, "control_us": control,
               "gb_per_s": blocks * block / median / 1e3, "copy_gb_per_s": blocks * block / copy / 1e3}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", required=True, help=f"folder, config.json, or {', '.join(dummy_model.GEOMETRIES)}")
    add("--dummy", action="store_true", help="random weights though the folder has some")
    add("--build", type=pathlib.Path, default=pathlib.Path("build/cuda"))
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--setups", nargs="*", default=["mixed", "pair"],
        help="pair, mixed, mixed2, or counts: 1p3d, 4m; settings of one's own behind a colon: "
             "pair:scheduler.prompt_chunk=512,worker.tokens_per_block=64; of workers of one role: "
             "prefill.mps_thread_percentage=60; of one worker: mixed1.gpu=1")
    add("--chunk", type=int, default=2048, help="prompt tokens of one step (2048)")
    add("--budget", type=int, default=8192, help="tokens of one step, all in all (8192)")
    add("--set", nargs="*", default=[], metavar="SECTION.KEY=VALUE",
        help="further settings: scheduler.local_prefill=tokens=512 scheduler.prefix_cache=false "
             "worker.tokens_per_block=64 awake_ms=0 ...")
    unloaded_only = parser.add_argument_group("without --loads")
    unloaded_only.add_argument("--lengths", type=int, nargs="*", default=[2048, 8000])
    unloaded_only.add_argument("--tokens", type=int, default=128)
    unloaded_only.add_argument("--rounds", type=int, default=3, help="requests of each stream under load")
    unloaded_only.add_argument("--repeats", type=int, default=5)
    unloaded_only.add_argument("--busy", type=int, nargs="*", default=[0],
                               help="measure beside so many streams that decode all the time (0); several: in turns")
    unloaded_only.add_argument("--streams", type=int, default=0, help="also this many closed-loop streams")
    table = parser.add_argument_group("with --loads")
    table.add_argument("--loads", nargs="*", help=f"standard: {' '.join(bench_loads.STANDARD)}; or such words, "
                       "32x100/8192, FILE.jsonl")
    table.add_argument("--seconds", type=float, default=40, help="of arrivals of each load (40)")
    table.add_argument("--drain-s", type=float, default=30, help="waited for the last replies (30)")
    table.add_argument("--limit-s", type=float, default=570, help="for everything; later loads are left out (570)")
    table.add_argument("--ids", type=int, nargs=2, default=(10, 4000), metavar=("FROM", "BELOW"))
    table.add_argument("--seed", type=int, default=1)
    table.add_argument("--step-log", action="store_true", help="also how long the devices idle between steps")
    table.add_argument("--out", type=pathlib.Path, help="the JSON lines go to this file, too")
    table.add_argument("--logs", type=pathlib.Path, help="folder that keeps every event's time of every request")
    table.add_argument("--client", type=pathlib.Path, help="baton-bench-client (BUILD/bin/baton-bench-client)")
    args = parser.parse_args()
    args.build = args.build.resolve()
    args.client = (args.client or args.build / "bin" / "baton-bench-client").resolve()
    if args.loads is not None:
        args.loads = [word for load in args.loads or ["standard"]
                      for word in (bench_loads.STANDARD if load == "standard" else [load])]
    try:
        bench_loads.settings(args.set)
        for setup in args.setups:
            bench_loads.workers(setup.partition(":")[0])
            bench_loads.settings(filter(None, setup.partition(":")[2].split(",")))
        for load in args.loads or []:
            bench_loads.loads.requests(load, 0, 1)
    except ValueError as error:
        parser.error(str(error))
    for program in (args.build / "bin" / "baton-worker", *([args.client] if args.loads else [])):
        if not program.exists():
            parser.error(f"{program} is not there")
    return args


def find_model(args, folder):
    """A model folder in `folder`: with the weights of args.model if it has some (else args.dummy is set), but with a
    tokenizer all of whose ids are text, so that replies beyond the model's own end still are events."""
    path = pathlib.Path(args.model)
    what = path / "config.json" if path.is_dir() else args.model
    made = dummy_model.write(str(what), pathlib.Path(folder) / "model", weights=path if path.is_dir() else None)
    args.dummy = args.dummy or not any(made.glob("*.safetensors"))
    return made.resolve()


def prepare(args, folder):
    """Finds the model; what all set-ups have in common goes to args.scheduler and args.worker."""
    args.model = find_model(args, folder)
    args.scheduler = {"token_budget": 8192, "prompt_chunk": 2048, "max_running": 256}
    if args.device == "cuda":
        args.worker = {"device": "cuda", "deterministic": False, "pool_mib": 0,
                       "load_format": "dummy" if args.dummy else "auto"}
    else:
        args.worker = {"device": "cpu", "threads": 1, "pool_mib": 256}


def measure_unloaded(args):
    for name in args.setups:
        trace = pathlib.Path(tempfile.mkdtemp(prefix="baton-bench-")) / "trace"
        own = bench_loads.settings([*args.set, *filter(None, name.partition(":")[2].split(","))])
        workers = bench_loads.workers(name.partition(":")[0])
        with Cluster(workers=workers, per_worker=bench_loads.of_workers(workers, own), model=args.model,
                     build=args.build / "bin", frontend=own["frontend"], top=own["top"],
                     scheduler={**args.scheduler, "event_log": str(trace), **own["scheduler"]},
                     worker={**args.worker, **own["worker"]}) as cluster:
            for busy in args.busy:
                with decoding(cluster, busy), open(trace) as events:
                    events.seek(0, 2)
                    for length in args.lengths:
                        print(json.dumps({"setup": name, "busy": busy,
                                          **unloaded(cluster, length, args.tokens, args.repeats, busy)}), flush=True)
                    pulls = list(handoffs(events, args.model, own["worker"].get("tokens_per_block", 16)))
                for line in pulls if args.device == "cuda" else []:
                    print(json.dumps({"setup": name, "busy": busy, **line}), flush=True)
            if args.streams:
                print(json.dumps({"setup": name, **loaded(cluster, args.lengths[0], args.tokens,
                                                          args.streams, args.rounds)}), flush=True)
            wait_until(cluster.pools_at_rest, 20, "at rest")


def main():
    args = parse()
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        prepare(args, folder)
        args.scheduler.update(token_budget=args.budget, prompt_chunk=args.chunk)
        if args.loads is None:
            measure_unloaded(args)
            return
        if args.logs:
            args.logs.mkdir(parents=True, exist_ok=True)
        bench_loads.Table(Cluster, args).run()


if __name__ == "__main__":
    main()
