#!/usr/bin/env python3
"""The prefill/decode lab's test with a large model: the sum of its eleven latencies, by transformers the way the
lab's base program runs it, and by Baton.

    python3 tools/bench_lab_gpu.py --model 8b --build build/cuda

Base: one process, one device. Requests collect; every 3 s, or when four wait, the first four run as one batch to
the largest max_length among them, and are answered together; nothing else happens meanwhile. Its HTTP is left out,
in its favour. Baton: real processes, at most four sequences at a time (the lab forbids larger batches). Both get
the same prompts of token ids, temperature 0.7, and go on to the full length (random weights have no end). A request
of Baton ends at its own max_length; the base's runs on to its batch's. Needs torch and transformers for the base.
"""

import argparse
import gc
import json
import pathlib
import random
import sys
import tempfile
import time

TOOLS = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent / "tests" / "e2e")]
import bench_gpu  # noqa: E402
import bench_loads  # noqa: E402
from cluster import Cluster  # noqa: E402
from loadgen import judge, lab, replay, texts  # noqa: E402

BATCH, POLL_S = 4, 3.0


class StaticBatches:
    """The lab's base program as values: who waits, and which batch runs at a time. No clock of its own."""

    def __init__(self, arrivals):
        self.arrivals = arrivals
        self.waiting = []
        self.admitted = 0
        self.next_poll = POLL_S

    def next_event(self):
        """When something may happen next."""
        due = self.arrivals[self.admitted] if self.admitted < len(self.arrivals) else float("inf")
        return min(due, self.next_poll)

    def batch(self, now):
        """The requests of the batch that starts at `now`, or none. Arrivals are taken one by one: the fourth
        starts a batch before the fifth is looked at."""
        while self.admitted < len(self.arrivals) and self.arrivals[self.admitted] <= now:
            self.waiting.append(self.admitted)
            self.admitted += 1
            if len(self.waiting) >= BATCH:
                return self._take()
        if now >= self.next_poll:
            self.next_poll = now + POLL_S
            return self._take()
        return []

    def _take(self):
        batch, self.waiting = self.waiting[:BATCH], self.waiting[BATCH:]
        return batch


def prompts_of(seed):
    """Random ids, as many for each prompt of the lab as its text is worth."""
    rng = random.Random(seed)
    lab_prompts = json.loads(lab.PROMPTS.read_text(encoding="utf-8"))
    return [[rng.randrange(10, 4000) for _ in range(max(8, texts.estimated_tokens(text)))] for text in lab_prompts]


def load_reference(args):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    if args.dummy:
        config = transformers.AutoConfig.from_pretrained(args.model)
        with torch.device(args.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    else:
        dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device)
    print(f"base: transformers {transformers.__version__}, torch {torch.__version__}", flush=True)
    return torch, model.eval()


def generate(torch, model, prompts, max_length):
    """One batch, padded on the left, to `max_length` tokens all in all; returns the new tokens of each row."""
    longest = max(map(len, prompts))
    rows = [[0] * (longest - len(p)) + p for p in prompts]
    mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
    new = max_length - longest  # a folder's generation_config may have a max_new_tokens of its own
    with torch.inference_mode():
        out = model.generate(torch.tensor(rows, device=model.device),
                             attention_mask=torch.tensor(mask, device=model.device), max_new_tokens=new,
                             min_new_tokens=new, do_sample=True, temperature=lab.TEMPERATURE, top_k=0,
                             eos_token_id=None, pad_token_id=0)
        out[0, -1].item()  # waits for the device
    if out.shape[1] != max_length:
        raise RuntimeError(f"the base generated {out.shape[1] - longest} tokens instead of {new}")
    return new


def run_base(args, prompts, lengths):
    torch, model = load_reference(args)
    generate(torch, model, prompts[:BATCH], max(map(len, prompts[:BATCH])) + 8)  # warm-up
    arrivals = [at / args.speed for at in lab.ARRIVALS]
    program, latencies, tokens = StaticBatches(arrivals), {}, 0
    start = time.monotonic()
    while len(latencies) < len(arrivals):
        batch = program.batch(time.monotonic() - start)
        if not batch:
            time.sleep(max(0.0, program.next_event() - (time.monotonic() - start)))
            continue
        tokens += len(batch) * generate(torch, model, [prompts[i] for i in batch], max(lengths[i] for i in batch))
        now = time.monotonic() - start
        latencies.update({i: now - arrivals[i] for i in batch})
        print(f"  batch {batch} ended at {now:.2f} s", flush=True)
    del model
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()
    return [latencies[i] for i in range(len(arrivals))], tokens


def run_baton(args, setup, prompts, lengths):
    trace = [{"timestamp": 1000 * at / args.speed, "input_length": len(p), "output_length": length - len(p)}
             for at, p, length in zip(lab.ARRIVALS, prompts, lengths)]
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder, \
            Cluster(workers=bench_loads.workers(setup), model=args.model, build=args.build / "bin",
                    scheduler={**args.scheduler, "max_running": BATCH}, worker=args.worker) as cluster:
        port = next(iter(cluster.frontends.values()))
        replay.run(args.client, "127.0.0.1", port, bench_loads.loads.requests("4x64/16", 9, 1), seed=9)
        log = pathlib.Path(folder) / "log.jsonl"
        report = replay.run(args.client, "127.0.0.1", port, trace, drain_s=args.drain_s, log=log,
                            temperature=lab.TEMPERATURE)
        if report["errors"]:
            raise RuntimeError(f"{setup}: {report['errors']} requests failed: {report['first_error']}")
        records = sorted(judge.read_log(log), key=lambda r: r["request"])
    return [r["events"][-1] / 1000 for r in records], sum(r["tokens"] for r in records)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", required=True, help="folder, config.json, or 8b, 0.6b")
    add("--dummy", action="store_true", help="random weights though the folder has some")
    add("--build", type=pathlib.Path, default=pathlib.Path("build/cuda"))
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--setups", nargs="*", default=["mixed", "pair"])
    add("--no-base", action="store_true", help="only Baton")
    add("--speed", type=float, default=1, help="arrivals this many times as fast (1: as published)")
    add("--scale", type=float, default=1, help="max_lengths times this (1: as in docs/performance.md)")
    add("--drain-s", type=float, default=240)
    add("--client", type=pathlib.Path)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    args.build = args.build.resolve()
    args.client = (args.client or args.build / "bin" / "baton-bench-client").resolve()
    prompts = prompts_of(args.seed)
    lengths = [max(round(length * args.scale), len(p) + 1) for length, p in zip(lab.MAX_LENGTHS, prompts)]
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        bench_gpu.prepare(args, folder)
        sums = {}
        runs = [] if args.no_base else [("base", lambda: run_base(args, prompts, lengths))]
        runs += [(s, lambda s=s: run_baton(args, s, prompts, lengths)) for s in args.setups]
        for name, run in runs:
            latencies, tokens = run()
            sums[name] = sum(latencies)
            print(json.dumps({"run": name, "sum_s": round(sums[name], 3), "tokens": tokens,
                              "latencies_s": [round(x, 3) for x in latencies]}), flush=True)
    for name, value in sums.items():
        ratio = f", base / this: {sums['base'] / value:.1f}" if "base" in sums and name != "base" else ""
        print(f"{name:8} sum of latencies {value:9.2f} s{ratio}")


if __name__ == "__main__":
    main()
