"""A worker of several ranks: processes that share one model. Their tokens are those of one process, to
the bit; pools go from and to workers of any number of ranks; and whichever rank dies, or freezes, the
streams end as if nothing had been.

    test_ranks.py [-v]              the suite's
    test_ranks.py kills COUNT [SEED]    by hand: COUNT kills of random ranks under 64 streams
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import random_model
import requests_mix
from cluster import BIN, DEMO_MODEL, DEVICE, MIXED, PATIENCE, SOURCE, Cluster, wait_until
from supervised import Supervised


def runs(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def gpus():
    """Of this machine."""
    if DEVICE == "cpu":
        return 0
    return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())


GPUS = gpus()


def of_ranks(ranks, first=0):
    """Options of a worker: on GPUs each rank has one, the first one that number, as far as there are so many."""
    if not GPUS:
        return {"ranks": ranks}
    return {"ranks": ranks, "gpu": ",".join(str((first + i) % GPUS) for i in range(ranks))}


PAIR_OF_TWO = {"prefill0": of_ranks(2), "decode0": of_ranks(2, 2)}
# The demo model's six heads are shared by two and six ranks; GPUs want features in sixteens, too.
GPU_MODEL = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32,
             "intermediate_size": 512, "num_hidden_layers": 6}
_folder = tempfile.TemporaryDirectory()
MODEL = random_model.write(pathlib.Path(_folder.name) / "model", **GPU_MODEL) if GPUS else DEMO_MODEL
BY_PARTS = random_model.write(pathlib.Path(_folder.name) / "by_parts", **random_model.NORMS_BEHIND)


class SameTokens(requests_mix.AgainstSolo):
    """Logits are equal to the bit (tests/cpu_torch/ranks_test.cpp); here everything around them is real."""

    everywhere = {"model": MODEL}
    requests = [*requests_mix.mix(16, 80),
                {"prompt": "Count to ten.", "max_tokens": 60, "seed": 5, "logprobs": 3},
                {"prompt": "A number:", "max_tokens": 40, "seed": 3, "guided_regex": "[0-9]{12}"}]

    def test_one_worker_of_two_ranks(self):
        with Cluster(workers=MIXED, worker=of_ranks(2), **self.everywhere) as cluster:
            self.assertEqual(requests_mix.run(cluster, self.requests), self.solo)
            self.assertEqual(cluster.show("workers")[0]["ranks"], 2)
            cluster.assert_at_rest()

    def test_a_pair_of_two_ranks_each(self):
        counters = self.check(per_worker=PAIR_OF_TWO)
        self.assertGreaterEqual(counters["handoffs"], len(self.requests) - 2)

    def test_from_one_rank_to_two_and_back(self):
        for one, two in (("prefill0", "decode0"), ("decode0", "prefill0")):
            with self.subTest(two=two):
                counters = self.check(per_worker={one: of_ranks(1), two: of_ranks(2, 1)})
                self.assertGreater(counters["handoffs"], 0)

    def test_more_ranks_than_kv_heads(self):
        # Two KV heads: three of six ranks have the same one, or two of four.
        for prefill, decode in ((2, 4), (4, 2)) if GPUS else ((2, 6),):
            with self.subTest(prefill=prefill, decode=decode):
                counters = self.check(per_worker={"prefill0": of_ranks(prefill), "decode0": of_ranks(decode)})
                self.assertGreater(counters["handoffs"], 0)

    def test_preemption_and_a_host_part(self):
        host_part = {} if GPUS else {"host_pool_blocks": 80}
        counters = self.check(workers=MIXED, worker={**of_ranks(2), "pool_blocks": 40, **host_part})
        self.assertGreater(counters["preemptions"], 0)

    @unittest.skipIf(GPUS, "refused on several GPUs")
    def test_checked_pulls(self):
        self.check(per_worker=PAIR_OF_TWO, worker={"check_pulls": True})


class LayersByParts(requests_mix.AgainstSolo):
    """Of a family that GPUs compute part by part: norms over the heads of all ranks, two windows."""

    everywhere = {"model": BY_PARTS}
    requests = [*requests_mix.mix(6, 60), {"prompt": "Count to ten.", "max_tokens": 40, "seed": 5, "logprobs": 3}]

    def test_one_worker_of_two_ranks(self):
        self.check(workers=MIXED, worker=of_ranks(2))

    def test_more_ranks_than_kv_heads(self):
        counters = self.check(per_worker={"prefill0": of_ranks(2), "decode0": of_ranks(4)})
        self.assertGreater(counters["handoffs"], 0)


@unittest.skipUnless(DEVICE == "cpu", "ranks are processes on CPUs")
class Refusals(unittest.TestCase):
    def refused(self, **worker):
        cluster = Cluster(workers=MIXED, worker=worker)
        try:
            for name in ("scheduler", *cluster.processes_of("mixed0")):
                cluster.start(name)
            first = cluster.processes[cluster.processes_of("mixed0")[0]]
            self.assertEqual(first.wait(30), 2)
            return (cluster.folder / f"{cluster.processes_of('mixed0')[0]}.log").read_text()
        finally:
            cluster.stop()

    def test_ranks_that_do_not_divide(self):
        self.assertIn("4 ranks cannot share the model's 6 heads and 2 KV heads evenly; it can have 1, 2, 6",
                      self.refused(ranks=4))

    def test_the_fake_model_has_none(self):
        self.assertIn("ranks above 1 needs fake: false", self.refused(ranks=2, fake=True))


class Deaths(unittest.TestCase):
    requests = requests_mix.mix(12, 150)

    @classmethod
    def setUpClass(cls):
        with Cluster(workers=MIXED, model=MODEL) as cluster:
            cls.solo = requests_mix.run(cluster, cls.requests)

    def serve(self, **options):
        cluster = self.enterContext(Supervised(
            per_worker=PAIR_OF_TWO, model=MODEL, **{"worker": {"step_delay_ms": 10}, **options}))
        streams = [cluster.stream(**request) for request in self.requests]
        for stream in streams:
            stream.wait_pieces(3, 60)
        return cluster, streams

    def check(self, cluster, streams):
        self.assertEqual([stream.finish() for stream in streams], self.solo)
        cluster.assert_at_rest()

    def pids(self, cluster, worker):
        return [cluster.pid(process) for process in cluster.processes_of(worker)]

    def end(self, cluster, process, number, others_within):
        """Signals one rank: all processes of its worker are replaced, the living ones that soon."""
        worker = process.partition(".")[0]
        before = self.pids(cluster, worker)
        os.kill(cluster.pid(process), number)
        began = time.monotonic()
        wait_until(lambda: not any(runs(p) for p in before), others_within,
                   "every rank of the group has ended")
        ended = time.monotonic() - began
        wait_until(lambda: all(p not in (None, *before) for p in self.pids(cluster, worker)), 30,
                   "the supervisor starts all ranks again")
        started = time.monotonic()
        wait_until(lambda: cluster.worker_state(worker) == "ready", 30, f"{worker} is whole again")
        return ended, time.monotonic() - started

    def test_a_killed_rank(self):
        cluster, streams = self.serve()
        for process in ("decode0.1", "decode0.0", "prefill0.1"):
            with self.subTest(process=process):
                ended, whole = self.end(cluster, process, signal.SIGKILL, 1)
                print(f"{process}: all ended after {ended:.2f} s, whole {whole:.2f} s after the start")
                # GPUs make their contexts and record their graphs again.
                self.assertLess(whole, (10 if GPUS else 2) * PATIENCE)
        self.check(cluster, streams)
        self.assertGreater(cluster.show("info")["counters"]["resumed"], 0, "the pool was kept")

    def test_two_at_once(self):
        cluster, streams = self.serve()
        for process in ("decode0.1", "prefill0.1"):
            os.kill(cluster.pid(process), signal.SIGKILL)
        self.check(cluster, streams)

    def test_a_frozen_rank(self):
        cluster, streams = self.serve(worker={"step_delay_ms": 10, "rank_timeout_s": 1})
        ended, _ = self.end(cluster, "decode0.1", signal.SIGSTOP, 3)
        self.assertGreater(ended, 0.5)
        self.check(cluster, streams)

    def test_a_rank_that_dies_while_it_loads(self):
        cluster = self.enterContext(Supervised(per_worker=PAIR_OF_TWO, model=MODEL))
        for _ in range(3):
            before = cluster.pid("decode0.1")
            os.kill(before, signal.SIGKILL)
            wait_until(lambda: cluster.pid("decode0.1") not in (None, before), 30, "it is started again")
        cluster.wait_ready()
        streams = [cluster.stream(**request) for request in self.requests]
        self.check(cluster, streams)

    def test_a_restart_of_the_worker(self):
        cluster, streams = self.serve()
        code, text, complaint = cluster.restart_words("decode0")
        self.assertEqual((code, complaint), (0, ""))
        self.assertIn("decode0.0 is replaced", text)
        self.assertIn("decode0.1 is replaced", text)
        self.check(cluster, streams)

    def test_a_restart_of_one_rank(self):
        """It means the worker, and takes no longer, whoever of its processes is named or signalled."""
        cluster, streams = self.serve()
        code, text, complaint = cluster.restart_words("decode0.1")
        self.assertEqual((code, complaint), (0, ""))
        self.assertIn("decode0.0 is replaced", text)
        self.assertIn("decode0.1 is replaced", text)
        self.check(cluster, streams)
        took = {}
        for how in ("decode0", "decode0.1", "SIGTERM"):
            before = self.pids(cluster, "decode0")
            began = time.monotonic()
            if how == "SIGTERM":
                os.kill(cluster.pid("decode0.1"), signal.SIGTERM)
            else:
                self.assertEqual(cluster.restart_words(how)[0], 0)
            wait_until(lambda: all(p not in (None, *before) for p in self.pids(cluster, "decode0")), 30,
                       "both ranks are others")
            wait_until(lambda: cluster.worker_state("decode0") == "ready", 30, "decode0 is whole again")
            took[how] = time.monotonic() - began
        print("a worker of two ranks is back after", {how: round(s, 2) for how, s in took.items()})
        # Nothing runs: there is nothing to drain. A rank that waited by itself for rank 0 took 10 s.
        for how, seconds in took.items():
            self.assertLess(seconds, 5 * PATIENCE, how)

    def test_show_processes(self):
        cluster = self.enterContext(Supervised(per_worker=PAIR_OF_TWO, model=MODEL))
        wait_until(lambda: all(p["state"] == "up" for p in cluster.known()), 10, "all are up")
        ranks = {p["name"]: (p["kind"], p["rank"]) for p in cluster.known() if "." in p["name"]
                 and p["kind"] in ("worker", "rank")}
        self.assertEqual(ranks, {"prefill0.0": ("worker", 0), "prefill0.1": ("rank", 1),
                                 "decode0.0": ("worker", 0), "decode0.1": ("rank", 1)})


@unittest.skipUnless(DEVICE == "cpu", "ranks are processes on CPUs")
class InContainers(unittest.TestCase):
    """What docker/compose.yaml calls: a service is a worker, with all of its ranks."""

    def test_a_service_of_two_ranks(self):
        with Cluster(workers=MIXED, worker={"ranks": 2}) as cluster:
            for name in cluster.processes_of("mixed0"):
                cluster.kill(name)
            service = subprocess.Popen([BIN / "baton-supervisor", "--config", cluster.config, "--only", "mixed0"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(service.wait)
            self.addCleanup(service.terminate)
            run_dir = cluster.folder / "run"
            pids = {}

            def started():
                for rank in range(2):
                    with contextlib.suppress(OSError, ValueError):
                        pids[rank] = int((run_dir / f"mixed0.{rank}.pid").read_text())
                return len(pids) == 2

            wait_until(started, 30, "the supervisor starts both")
            cluster.processes.pop("mixed0.0")  # the supervisor's own is asked after now
            cluster.wait_ready()
            self.assertEqual(cluster.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3})[0], 200)

            def healthy(ranks):
                return subprocess.run([SOURCE / "docker" / "healthcheck.sh", "mixed0"], stderr=subprocess.DEVNULL,
                                      env={**os.environ, "BATON_RUN_DIR": str(run_dir), "BATON_RANKS": ranks}).returncode == 0

            self.assertTrue(healthy("2"))
            self.assertFalse(healthy("3"), "there is no third")
            self.assertFalse(healthy("1"), "no process has the worker's own name")
            old = time.time() - 30
            os.kill(pids[1], signal.SIGSTOP)
            os.utime(run_dir / "mixed0.1.alive", (old, old))
            self.assertFalse(healthy("2"), "one of the two has not come round")
            os.kill(pids[1], signal.SIGCONT)
            service.send_signal(signal.SIGINT)
            self.assertEqual(service.wait(30), 0)


@unittest.skipUnless(DEVICE == "cpu", "ranks are processes on CPUs")
class Planned(unittest.TestCase):
    def test_step_times_of_ranks_are_planned_with(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        files = []
        for ranks in (1, 2):
            files += ["--step-times", folder / f"{ranks}.json"]
            subprocess.run([sys.executable, SOURCE / "tools" / "step_times.py", "--model", DEMO_MODEL, "--threads", "1",
                            "--ranks", str(ranks), "--budget", "32", "--max-running", "4", "--pool-blocks", "3000", "--program",
                            BIN / "baton-bench-worker", "--out", files[-1]], check=True, timeout=100)
            self.assertEqual(json.loads(files[-1].read_text())["ranks"], ranks)
        table = folder / "table.json"
        subprocess.run([BIN / "baton-plan", *files, "--devices", "2", "--chunks", "32", "--rate", "5", "--requests", "20",
                        "--input-length", "40", "--output-length", "10", "--json", table], check=True, timeout=60,
                       stdout=subprocess.DEVNULL)
        self.assertEqual({row["setup"] for row in json.loads(table.read_text())}, {"2m", "1p1m", "1p1d", "1m of 2"})


def kills(count, seed=1):
    """COUNT kills of random ranks under 64 streams, which must end as those of an undisturbed run."""
    requests = [{**request, "seed": 3000 + i} for i, request in enumerate(requests_mix.mix(64, 150))]
    with Cluster(workers=MIXED, worker={"pool_mib": 128}, model=MODEL) as quiet:
        want = requests_mix.run(quiet, requests)
    rng = random.Random(seed)
    done = rounds = 0
    longest = 0.0
    with Supervised(per_worker=PAIR_OF_TWO, worker={"pool_mib": 128}, model=MODEL) as cluster:
        while done < count:
            streams = [cluster.stream(**request) for request in requests]
            while done < count and not all(stream.done.is_set() for stream in streams):
                process = rng.choice(["prefill0.0", "prefill0.1", "decode0.0", "decode0.1"])
                worker = process.partition(".")[0]
                cluster.kill(process)
                began = time.monotonic()
                cluster.wait_ready()
                longest = max(longest, time.monotonic() - began)
                done += 1
                time.sleep(rng.random() * 0.3)
                print(f"kill {done}: {process} ({worker} back after {time.monotonic() - began:.2f} s)", flush=True)
            got = [stream.finish(300) for stream in streams]
            rounds += 1
            assert got == want, "streams differ"
            cluster.assert_at_rest()
    print(f"{done} kills, {rounds} rounds of {len(requests)} streams, all equal; longest absence {longest:.2f} s")


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "kills":
        kills(*map(int, sys.argv[2:]))
    else:
        unittest.main()
