#!/usr/bin/env python3
"""SIGKILL of the prefill and of the decode worker in turns, under load, on GPUs (or CPUs).

    python3 tests/gpu/kill_soak.py --build build/cuda --kills 50

Streams run all the time; every one must end whole, with the tokens of an undisturbed run (the workers run in
deterministic mode, so that tokens can be compared exactly). At the end every block is free, and the GPU's
memory is what it was at the start.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import threading
import time

os.environ.setdefault("BATON_TEST_DEVICE", "cuda")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from cluster import PAIR, Cluster, wait_until  # noqa: E402

PROMPTS = [f"Tell me about number {i} and why it matters. " * (1 + i % 9) for i in range(24)]


def gpu_memory():
    """MiB in use on each GPU; empty without one."""
    try:
        lines = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                               capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return []
    return [int(line) for line in lines]


def ask(cluster, prompt):
    return cluster.stream(prompt, max_tokens=400, temperature=0, ignore_eos=True).finish(300)[:2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/cuda")
    parser.add_argument("--kills", type=int, default=50)
    args = parser.parse_args()
    before = gpu_memory()
    wrong, done, stop = [], [0], threading.Event()
    with Cluster(workers=PAIR, build=pathlib.Path(args.build).resolve() / "bin",
                 worker={"pool_mib": 512}) as cluster:
        truth = {prompt: ask(cluster, prompt) for prompt in PROMPTS}
        serving = gpu_memory()

        def client(index):
            while not stop.is_set():
                prompt = PROMPTS[(index + done[0]) % len(PROMPTS)]
                try:
                    if ask(cluster, prompt) != truth[prompt]:
                        wrong.append(f"other tokens for {prompt[:40]!r}")
                except AssertionError as failure:
                    wrong.append(str(failure))
                done[0] += 1

        clients = [threading.Thread(target=client, args=(i,)) for i in range(16)]
        for thread in clients:
            thread.start()
        back = []
        for kill in range(args.kills):
            name = PAIR[kill % 2][0]
            time.sleep(0.3 + 0.1 * (kill % 5))
            cluster.kill(name)
            begin = time.monotonic()
            cluster.start(name)
            wait_until(lambda: cluster.worker_state(name) == "ready", 60, f"{name} ready")
            back.append(time.monotonic() - begin)
        stop.set()
        for thread in clients:
            thread.join()
        cluster.assert_at_rest()
        time.sleep(1)
        after = gpu_memory()
        print(f"{args.kills} kills, {done[0]} streams ended, {len(wrong)} wrong; a worker serves again "
              f"after {sorted(back)[len(back) // 2]:.1f} s (median), {max(back):.1f} s at most")
        print(f"GPU memory in MiB: {before} before, {serving} serving, {after} after the kills")
        for text in wrong[:10]:
            print(" ", text)
    # A restarted worker may differ by what its libraries keep: a pool left behind would be 512 MiB.
    grown = any(b - a > 256 for a, b in zip(serving, after))
    sys.exit(1 if wrong or grown else 0)


if __name__ == "__main__":
    main()
