#!/usr/bin/env python3
"""What it is worth that a GPU's memory outlives its workers: kills under load, restarts, and speed.

    python3 tests/gpu/measure_kept.py --build build/cuda kills --kills 50 --prefill-kills 10
    python3 tests/gpu/measure_kept.py --build build/cuda restarts --kills 10
    python3 tests/gpu/measure_kept.py --build build/cuda speed
    python3 tests/gpu/measure_kept.py --build build/cuda memory
    python3 tests/gpu/measure_kept.py --build build/cuda supervisor

`kills`: a pair on one GPU that shares its weights, in deterministic mode. Streams with long contexts decode while the
decode worker is killed again and again: no prompt token may be computed again, and every stream must end with the
tokens of an undisturbed run. Then the prefill worker is killed, idle and in the middle of prompts. At the end the
memory process dies, and streams go on. `restarts`: from a kill to ready again, one worker, without deterministic mode.
`speed`: decode steps and prompts through a pool of its own process and through a mapped one. `memory`: what the memory
process takes. `supervisor`: kills and a rolling restart under the supervisor. One line of JSON a measurement. Works on
CPUs, too (BATON_TEST_DEVICE=cpu --model demo/model).
"""

import argparse
import bisect
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("BATON_TEST_DEVICE", "cuda")
TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "e2e"), str(TOP / "tools")]
import dummy_model  # noqa: E402
from cluster import DEVICE, MIXED, PAIR, Cluster, free_port, wait_until  # noqa: E402


def say(what, **values):
    print(json.dumps({"what": what, **values}), flush=True)


def gpu_used_mib():
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, check=True).stdout.split()
        return int(text[0])
    except (OSError, subprocess.CalledProcessError, IndexError):
        return 0


def spread(values):
    values = sorted(values)
    if not values:
        return {}
    return {"n": len(values), "p50": round(statistics.median(values), 3), "max": round(values[-1], 3),
            "min": round(values[0], 3)}


def settle(seconds=10):
    """Used memory once it does not fall any more."""
    last = gpu_used_mib()
    for _ in range(int(seconds / 0.5)):
        time.sleep(0.5)
        now = gpu_used_mib()
        if now == last:
            break
        last = now
    return last


def prompts(streams, context):
    """No two are alike, nor any two of their blocks."""
    return [[5 + (i * i * 7 + i * 131 + n * 977) % 4000 for i in range(context - 3 * n)] for n in range(streams)]


def computed(cluster):
    return cluster.show("info")["counters"]["computed_tokens"]


def come_back(cluster, name):
    """Kills the worker and starts it: seconds until it is ready again."""
    begin = time.monotonic()
    cluster.kill(name)
    gone = time.monotonic() - begin
    cluster.start(name)
    pid = cluster.processes[name].pid
    while True:
        shown = {w["name"]: w for w in cluster.show("workers")}
        if shown[name]["pid"] == pid and shown[name]["state"] == "ready":
            return time.monotonic() - begin, gone
        if time.monotonic() - begin > 120:
            raise AssertionError(f"{name} does not come back")
        time.sleep(0.005)


def behind(arrivals, at):
    """Those behind `at`, in order."""
    return arrivals[bisect.bisect_right(arrivals, at):]


class Load:
    """Streams that decode all the time."""

    def __init__(self, cluster, asked, tokens):
        self.streams = [cluster.stream(prompt, max_tokens=tokens, temperature=0, ignore_eos=True)
                        for prompt in asked]

    def all_decode(self, cluster):
        for stream in self.streams:
            stream.wait_pieces(2, 300)
        wait_until(lambda: all(r["phase"] == "decode" for r in cluster.show("requests")), 60, "all decode")

    def next_tokens(self, begin, gone, seconds=60):
        """Seconds from `begin` until each stream has had a token from after the death, at `gone`. Waits until each
        has had so many that the death is held against nobody (docs/ARCHITECTURE.md, who is to blame)."""
        marks = [stream.pieces for stream in self.streams]
        for stream, mark in zip(self.streams, marks):
            stream.wait_pieces(mark + 66, seconds)
        later = [behind(stream.arrivals, gone) for stream in self.streams]
        return [arrivals[0] - begin for arrivals in later if arrivals]

    def ends(self):
        return [stream.finish(600) for stream in self.streams]


def lines_with(cluster, name, text):
    log = (cluster.folder / f"{name}.log").read_text(errors="replace")
    return [line for line in log.splitlines() if text in line]


def check_kills(args, model):
    before = gpu_used_mib()
    begin = time.monotonic()
    per_worker = {"prefill0": {"pool_mib": args.prefill_pool}, "decode0": {"pool_mib": args.decode_pool}}
    worker = {"gpu": "0", "load_format": "dummy"} if DEVICE == "cuda" else {}
    if args.gpus == 2:
        per_worker["decode0"]["gpu"] = "1"
    wrong = []
    with Cluster(workers=PAIR, build=args.bin, model=model, worker=worker, per_worker=per_worker,
                 top={"max_context": args.context + args.tokens + 64}) as cluster:
        say("kills: serving", seconds=round(time.monotonic() - begin, 1), mib=gpu_used_mib(),
            setup=cluster.ctl("show setup").splitlines()[:16], kept=sorted(cluster.kept()))
        asked = prompts(args.streams, args.context)
        begin = time.monotonic()
        load = Load(cluster, asked, args.tokens)
        load.all_decode(cluster)
        prefilled = time.monotonic() - begin
        truth = load.ends()
        say("kills: undisturbed", streams=args.streams, prefill_s=round(prefilled, 1),
            seconds=round(time.monotonic() - begin, 1))
        serving = settle()

        load = Load(cluster, asked, args.tokens)
        load.all_decode(cluster)
        counted = computed(cluster)
        resumed = cluster.show("info")["counters"]["resumed"]
        back, gone, gaps, kills = [], [], [], 0
        while kills < args.kills:
            time.sleep(0.01 * (kills % 7))
            if any(stream.done.is_set() for stream in load.streams):
                break  # the streams are too short for so many
            began = time.monotonic()
            ready, ended = come_back(cluster, "decode0")
            back.append(ready)
            gone.append(ended)
            gaps += load.next_tokens(began, began + ended)
            kills += 1
        again = computed(cluster) - counted
        counters = cluster.show("info")["counters"]
        wrong += [i for i, end in enumerate(load.ends()) if end != truth[i]]
        say("kills: decode worker", kills=kills, prompt_tokens_computed_again=again, wrong_streams=wrong,
            resumed=counters["resumed"] - resumed, kill_to_end_s=spread(gone), kill_to_ready_s=spread(back),
            kill_to_next_token_s=spread(gaps), kept=len(lines_with(cluster, cluster.keepers[-1], "blocks, kept")))
        cluster.assert_at_rest()
        after_kills = settle()

        back = []
        counted = computed(cluster)
        for _ in range(args.prefill_kills):
            back.append(come_back(cluster, "prefill0")[0])
        load = Load(cluster, asked, 8)
        again_ends = load.ends()
        idle_again = computed(cluster) - counted
        wrong += [i for i, end in enumerate(again_ends) if not truth[i][0].startswith(end[0])]
        say("kills: prefill worker, idle", kills=args.prefill_kills, tokens_computed_of_cached_prompts=idle_again,
            kill_to_ready_s=spread(back), wrong_streams=wrong)

        fresh = [[7 + (t * 3 + 11) % 3900 for t in prompt] for prompt in asked[:4]]
        counted = computed(cluster)
        load = Load(cluster, fresh, 8)
        total = sum(len(prompt) for prompt in fresh)
        back, kills = [], 0
        for part in range(1, 4):
            wait_until(lambda p=part: computed(cluster) - counted > total * p // 4, 120, "prompts go on")
            back.append(come_back(cluster, "prefill0")[0])
            kills += 1
        first = load.ends()
        more = computed(cluster) - counted - total
        second = Load(cluster, fresh, 8).ends()
        say("kills: prefill worker in the middle of prompts", kills=kills, prompt_tokens=total,
            computed_beyond_that=more, kill_to_ready_s=spread(back), equal=first == second)

        if args.memory_kill:
            load = Load(cluster, asked, min(args.tokens, 400))
            load.all_decode(cluster)
            counters = cluster.show("info")["counters"]
            for keeper in cluster.keepers:
                cluster.kill(keeper)
            ends = load.ends()
            after = cluster.show("info")["counters"]
            wrong += [i for i, end in enumerate(ends) if not truth[i][0].startswith(end[0])]
            for keeper in cluster.keepers:
                cluster.start(keeper)
            cluster.kill("decode0")
            begin = time.monotonic()
            come_back(cluster, "prefill0")
            cluster.start("decode0")
            wait_until(lambda: cluster.worker_state("decode0") == "ready", 60, "decode0 is back")
            back = round(time.monotonic() - begin, 2)
            ends = Load(cluster, asked[:4], 8).ends()
            wrong += [i for i, end in enumerate(ends) if not truth[i][0].startswith(end[0])]
            say("kills: memory process", wrong_streams=wrong,
                requeued=after["requeued"] - counters["requeued"], both_workers_back_s=back,
                kept=sorted(cluster.kept()))
        cluster.assert_at_rest()
        if wrong or args.logs:
            cluster.print_logs(60)
    say("GPU memory", mib_before=before, serving=serving, after_kills=after_kills, at_the_end=settle())
    return not wrong


def measure_restarts(args, model):
    worker = {"load_format": "dummy", "deterministic": False} if DEVICE == "cuda" else {}
    with Cluster(workers=MIXED, build=args.bin, model=model, worker=worker,
                 per_worker={"mixed0": {"pool_mib": args.decode_pool, "host_pool_mib": args.host_pool}},
                 top={"max_context": args.context + args.tokens + 64}) as cluster:
        load = Load(cluster, prompts(args.streams, args.context), args.tokens)
        load.all_decode(cluster)
        back, gone, gaps = [], [], []
        for _ in range(args.kills):
            if any(stream.done.is_set() for stream in load.streams):
                break
            began = time.monotonic()
            ready, ended = come_back(cluster, "mixed0")
            back.append(ready)
            gone.append(ended)
            gaps += load.next_tokens(began, began + ended)
        say("restarts", kills=len(back), host_pool_mib=args.host_pool, kill_to_end_s=spread(gone),
            kill_to_ready_s=spread(back), kill_to_next_token_s=spread(gaps))
        log = (cluster.folder / "mixed0.log").read_text(errors="replace").splitlines()
        starts = [i for i, line in enumerate(log) if " starts: " in line]
        say("first start", log=log[starts[0]:starts[1]][:14])
        say("last start", log=log[starts[-1]:][:14])
        say("keeper", log=lines_with(cluster, cluster.keeper, "")[-12:])


def steps_of(folder, rows):
    """Microseconds of the steps of so many single tokens, by the device's clock."""
    times = []
    for line in (folder / "steps").read_text().splitlines():
        _, n, tokens, _, run = line.split()
        if int(n) == rows and int(tokens) == rows:
            times.append(float(run))
    return times


def measure_speed(args, model):
    """The kernels are chosen once: what differs is the pool, and where the weights lie."""
    choices = None
    with tempfile.TemporaryDirectory() as kept:
        for turn in range(args.turns):
            for memory in (False, True):
                worker = {"load_format": "dummy", "deterministic": False} if DEVICE == "cuda" else {}
                cluster = Cluster(workers=MIXED, build=args.bin, model=model, memory=memory, worker=worker,
                                  per_worker={"mixed0": {"pool_mib": args.decode_pool}},
                                  scheduler={"prefix_cache": False}, top={"max_context": 16384})
                config = json.loads(cluster.config.read_text())
                config["worker"]["step_log"] = str(cluster.folder / "steps")
                cluster.config.write_text(json.dumps(config))
                run_dir = cluster.folder / "run"
                run_dir.mkdir(mode=0o700)
                if choices:
                    shutil.copy(choices, run_dir)
                with cluster:
                    length = args.context
                    firsts = []
                    for n in range(6):
                        stream = cluster.stream([9 + (i * 31 + n * 7919) % 3900 for i in range(length)], max_tokens=2,
                                                temperature=0, ignore_eos=True)
                        begin = time.monotonic()
                        stream.wait_pieces(1, 60)
                        firsts.append(1e3 * (stream.arrivals[0] - begin))
                        stream.finish(60)
                    result = {}
                    for streams, context in ((1, 2048), (32, 2048), (16, 8000)):
                        if streams * (context + 400) > args.decode_pool * 8:  # 128 KiB a token
                            continue
                        load = Load(cluster, prompts(streams, context), 300)
                        load.ends()
                        times = sorted(steps_of(cluster.folder, streams))
                        result[f"{streams}x{context}"] = round(statistics.median(times), 1) if times else None
                        (cluster.folder / "steps").write_text("")
                    say("speed", turn=turn, mapped=memory, ttft_ms=round(statistics.median(firsts[1:]), 2),
                        prompt=length, step_us=result)
                    for file in run_dir.glob("kernels-*.txt"):
                        choices = shutil.copy(file, kept)


def measure_memory(args):
    before = settle()
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.yaml"
        config.write_text(json.dumps({"run_dir": folder + "/run", "model": str(TOP / "demo" / "model")}))
        pathlib.Path(folder, "run").mkdir(mode=0o700)
        begin = time.monotonic()
        process = subprocess.Popen([args.bin / "baton-memory", "--gpu", "0", "--config", config])
        wait_until(lambda: pathlib.Path(folder, "run", "memory-gpu0.up").exists(), 30, "it is up")
        seconds = time.monotonic() - begin
        used = settle()
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        rss = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        say("memory process", gpu_mib=used - before, host_rss_mib=int(rss) // 1024, up_s=round(seconds, 2))
        process.kill()
        process.wait()


def check_supervisor(args, model):
    """The processes of the configuration for GPUs, as `./baton serve` starts them."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = pathlib.Path(folder) / "run"
        options = ["--config", str(TOP / "configs" / "1p1d-cuda.yaml"), "--run_dir", str(run_dir),
                   "--model", str(model), "--frontend.port", str(free_port()), "--worker.load_format", "dummy"]
        log = open(pathlib.Path(folder) / "log", "wb")
        process = subprocess.Popen([args.bin / "baton-supervisor", *options], stdout=log, stderr=log)

        def ctl(*words):
            done = subprocess.run([args.bin / "baton-ctl", "--socket", run_dir / "admin.sock", *words],
                                  capture_output=True, text=True)
            return done.stdout or done.stderr

        def states():
            try:
                return {w["name"]: (w["state"], w["pid"]) for w in json.loads(ctl("show", "workers", "json"))}
            except ValueError:
                return {}

        def ready(other_than=0):
            shown = states()
            return len(shown) == 2 and all(s == "ready" and pid != other_than for s, pid in shown.values())

        begin = time.monotonic()
        wait_until(ready, 120, "both workers are ready")
        say("supervisor: up", seconds=round(time.monotonic() - begin, 1),
            processes=ctl("show", "processes").splitlines(), memory=ctl("show", "memory").splitlines(),
            setup=ctl("show", "setup").splitlines(), mib=gpu_used_mib())
        back = []
        for _ in range(4):
            time.sleep(10.5)  # one that has run for 10 s is started again at once
            pid = states()["decode0"][1]
            begin = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda p=pid: ready(p), 60, "it is back")
            back.append(time.monotonic() - begin)
        say("supervisor: kill to ready", seconds=spread(back), memory=ctl("show", "memory").splitlines())
        begin = time.monotonic()
        answer = ctl("restart", "all", "--rolling")
        wait_until(ready, 60, "all are back")
        say("supervisor: restart all --rolling", seconds=round(time.monotonic() - begin, 1),
            answer=answer.splitlines(), memory=ctl("show", "memory").splitlines(), mib=gpu_used_mib())
        process.terminate()
        process.wait(30)
        say("supervisor: stopped", code=process.returncode, mib=settle())
        if args.logs:
            print((pathlib.Path(folder) / "log").read_text(errors="replace")[-6000:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["kills", "restarts", "speed", "memory", "supervisor"])
    parser.add_argument("--build", default="build/cuda")
    parser.add_argument("--model", default="8b", help="a geometry of tools/dummy_model.py, or a folder")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--prefill-kills", type=int, default=10)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--context", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=4200)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--decode-pool", type=int, default=26000, help="MiB")
    parser.add_argument("--prefill-pool", type=int, default=20000, help="MiB")
    parser.add_argument("--host-pool", type=int, default=0, help="MiB, for restarts")
    parser.add_argument("--gpus", type=int, default=1, choices=[1, 2], help="kills: the workers' own, or one")
    parser.add_argument("--memory-kill", action="store_true", help="kills: the memory process at the end")
    parser.add_argument("--logs", action="store_true")
    args = parser.parse_args()
    args.bin = pathlib.Path(args.build).resolve() / "bin"
    with tempfile.TemporaryDirectory() as folder:
        model = args.model
        if model in dummy_model.GEOMETRIES:
            model = dummy_model.write(model, folder)
        model = pathlib.Path(model).resolve()
        if args.what == "kills":
            sys.exit(0 if check_kills(args, model) else 1)
        if args.what == "restarts":
            measure_restarts(args, model)
        elif args.what == "speed":
            measure_speed(args, model)
        elif args.what == "supervisor":
            check_supervisor(args, model)
        else:
            measure_memory(args)


if __name__ == "__main__":
    main()
