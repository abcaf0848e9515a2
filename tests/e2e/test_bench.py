"""The benchmarks themselves: a table of set-ups against loads, with the demo model on CPUs."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from cluster import BUILD, DEMO_MODEL, SOURCE, Cluster

TOOLS = SOURCE / "tools"
sys.path.insert(0, str(TOOLS))
from loadgen import judge, replay, trace  # noqa: E402


def run(*words):
    """(exit status, output) of one of the tools."""
    environment = {**os.environ, "BATON_BUILD_DIR": str(BUILD), "BATON_SOURCE_DIR": str(SOURCE)}
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False,
                          env=environment, timeout=200)
    return done.returncode, done.stdout + done.stderr


class BenchTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_a_table(self):
        path = self.folder / "t.jsonl"
        code, text = run(TOOLS / "loadgen", "trace", "--out", path, "--seconds", "4", "--sessions_per_s", "3",
                         "--think_s", "1", "--system_tokens", "512", "--first_median", "300", "--max_input",
                         "1500", "--turn_median", "40", "--output_median", "10", "--max_output", "20")
        self.assertEqual(0, code, text)
        out = self.folder / "out.jsonl"
        code, text = run(TOOLS / "bench_gpu.py", "--model", DEMO_MODEL, "--device", "cpu", "--build", BUILD,
                         "--setups", "pair", "mixed:scheduler.prefix_cache=false", "--loads", "100/20@6",
                         "4x50/30..40", path, "--seconds", "2", "--out", out, "--step-log", "--logs",
                         self.folder / "logs")
        self.assertEqual(0, code, text)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertFalse([line for line in lines if "error" in line], text)
        reports = {(r["setup"], r["load"]): r for r in lines if "load" in r}
        self.assertEqual(6, len(reports))
        for (setup, load), r in reports.items():
            self.assertEqual((0, r["requests"]), (r["errors"], r["completed"]), (setup, load))
            self.assertGreater(r["output_tokens_per_s"], 0)
            self.assertLess(r["client_late_ms_p99"], 100)
        pair, mixed = reports["pair", "t.jsonl"], reports["mixed:scheduler.prefix_cache=false", "t.jsonl"]
        self.assertEqual(pair["requests"], pair["counters"]["handoffs"])
        self.assertEqual((0, 0), (mixed["counters"]["handoffs"], mixed["counters"]["cached_tokens"]))
        # Some of what the trace shares is found again: a prompt may come before the one that it repeats has run.
        self.assertGreater(trace.reuse(trace.loads.read(path)), 0.2)
        self.assertGreater(pair["counters"]["cached_tokens"], 512)
        self.assertGreater(pair["steps"]["decode0"]["steps"], 0)
        self.assertIn("device idle between", text)
        self.assertIn("ITL p50", text)
        self.assertEqual(6, len(list((self.folder / "logs").iterdir())))

    def test_what_is_logged_is_what_was_sent(self):
        requests = [{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
                    {"timestamp": 300.5, "input_length": 512, "output_length": 7, "hash_ids": [1]}]
        log = self.folder / "log.jsonl"
        with Cluster(workers=[("mixed0", "mixed")]) as cluster:
            port = next(iter(cluster.frontends.values()))
            report = replay.run(BUILD / "bin" / "baton-bench-client", "127.0.0.1", port, requests, log=log)
            self.assertEqual((2, 0), (report["completed"], report["errors"]), report)
            counters = cluster.show("info")["counters"]
            # All full blocks but the one that holds the last token of the prompt.
            self.assertEqual(496, counters["cached_tokens"])
            records = sorted(judge.read_log(log), key=lambda r: r["request"])
            self.assertEqual([5, 7], [r["tokens"] for r in records])
            self.assertEqual([0, 300.5], [r["at"] for r in records])
            bad = replay.run(BUILD / "bin" / "baton-bench-client", "127.0.0.1", port, requests[:1],
                             ids=(4000, 5000))  # beyond the vocabulary
            self.assertEqual((0, 1), (bad["completed"], bad["errors"]))
            self.assertIn("400", bad["first_error"])
            code, text = run(TOOLS / "loadgen", "replay", "--url", f"127.0.0.1:{port}", "--load", "3x20/4")
            self.assertEqual(0, code, text)

    def test_the_control_path_beside_bare_round_trips(self):
        out = self.folder / "pair.json"
        code, text = run(TOOLS / "bench_pair.py", "--build", BUILD, "--rounds", "2", "--quick", "--json", out)
        self.assertEqual(0, code, text)
        figures = json.loads(out.read_text())
        self.assertEqual({"control_path", "tokens_per_s", "frontend_pss_mib", "scheduler_pss_mib"}, set(figures))
        self.assertEqual(["plan", "plan_queue", "sample_to_socket", "sample_to_socket_idle", "handoff"],
                         list(figures["control_path"]))
        for name, figure in figures["control_path"].items():
            self.assertEqual({"us", "p99_us", "round_trip_us", "ratio", "ratios"}, set(figure), name)
            self.assertGreater(min(figure["us"], figure["round_trip_us"], figure["ratio"]), 0, name)
            self.assertEqual(2, len(figure["ratios"]))
            self.assertLessEqual(figure["us"], figure["p99_us"] + 1e-9)
            self.assertAlmostEqual(sum(figure["ratios"]) / 2, figure["ratio"])
        self.assertIn("round trips of bare ZeroMQ", text)
        for label in ("worker's sample to client's socket", "hand-off of a small prompt", "tokens a second"):
            self.assertIn(label, text)

    def test_wrong_options_are_refused(self):
        for words in (["--loads", "fast"], ["--setups", "triple"], ["--set", "chunk=1"]):
            code, text = run(TOOLS / "bench_gpu.py", "--model", DEMO_MODEL, "--device", "cpu", "--build", BUILD,
                             *words)
            self.assertEqual(2, code, text)
            self.assertIn("error: ", text)
        (self.folder / "bad.jsonl").write_text('{"timestamp": 0, "input_length": 1}\n')
        done = subprocess.run([BUILD / "bin" / "baton-bench-client", "--trace", self.folder / "bad.jsonl"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(2, done.returncode)
        self.assertIn("line 1: output_length must be an integer", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
