"""baton-plan as a program: its table, its configuration, what it says about bad input."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
PLAN = pathlib.Path(os.environ.get("BATON_BUILD_DIR", ROOT / "build" / "cpu")) / "bin" / "baton-plan"
TIMES = {"model": "/models/seven", "device": "cuda", "tokens_per_block": 16, "pool_blocks": 8000,
         "max_context": 32768,
         "decode_us": [[1, 5000], [64, 8000], [256, 14000]], "decode_context_ns": 30,
         "prompt_us": [[1, 9000], [256, 15000], [2048, 90000]], "prompt_pair_ns": 2,
         "sample_us": 5, "host_us": 50, "pull_us": 100, "pull_block_us": 5, "message_us": 50,
         "request_us": 500}
LOAD = ["--rate", "6", "--requests", "120", "--input-length", "uniform:200:2000", "--output-length", "100"]


class Plan(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.times = self.write("times.json", json.dumps(TIMES))

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def run_plan(self, *arguments, code=0, times=None):
        result = subprocess.run([PLAN, "--step-times", times or self.times, *arguments], capture_output=True,
                                text=True, timeout=120)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result.stdout if code == 0 else result.stderr

    def table(self, *arguments):
        self.run_plan(*arguments, "--json", self.folder / "table.json")
        return json.loads((self.folder / "table.json").read_text())

    def test_every_set_up_is_tried_and_the_best_is_marked(self):
        text = self.run_plan(*LOAD, "--devices", "3", "--chunks", "256,512", "--json", self.folder / "t.json",
                             "--out", self.folder / "best.yaml")
        rows = json.loads((self.folder / "t.json").read_text())
        self.assertEqual(len(rows), 2 * 6)
        self.assertEqual({r["setup"] for r in rows}, {"3m", "1p2m", "1p1d1m", "1p2d", "2p1m", "2p1d"})
        best = [line for line in text.splitlines() if line.startswith("* ")]
        self.assertEqual(len(best), 1)
        self.assertIn(rows[0]["setup"], best[0])
        self.assertEqual(rows, sorted(rows, key=lambda r: (-r["goodput_per_s"], r["ttft_p99_ms"])))
        yaml = (self.folder / "best.yaml").read_text()
        self.assertTrue(text.endswith(yaml))
        self.assertIn("model: /models/seven\n", yaml)
        self.assertIn(f"prompt_chunk: {rows[0]['chunk']}\n", yaml)

    def test_a_run_is_a_function_of_its_arguments(self):
        first = self.table(*LOAD)
        self.assertEqual(first, self.table(*LOAD, "--jobs", "1"))
        self.assertNotEqual(first, self.table(*LOAD, "--seed", "2"))

    def test_a_trace_that_was_written_gives_the_same_table(self):
        trace = self.folder / "trace.jsonl"
        drawn = self.table(*LOAD, "--write-trace", trace)
        self.assertEqual(len(trace.read_text().splitlines()), 120)
        self.assertEqual(drawn, self.table("--trace", trace))

    def test_objectives_count(self):
        def share(*slo):
            return self.table(*LOAD, "--splits", "1p1d", "--chunks", "512", *slo)[0]["share"]

        self.assertEqual(share("--ttft-slo", "100", "--tpot-slo", "10"), 1)
        self.assertEqual(share("--ttft-slo", "0.001"), 0)
        self.assertEqual(share("--tpot-slo", "0.0001"), 0)
        self.assertGreater(share("--ttft-slo", "2", "--tpot-slo", "0.1"), 0.5)

    def with_ranks(self, ranks, speed):
        """The times of a worker of so many ranks, which is so much quicker than one of one rank."""
        times = {**TIMES, "ranks": ranks, "pool_blocks": ranks * TIMES["pool_blocks"]}
        for curve in ("decode_us", "prompt_us"):
            times[curve] = [[n, us / speed] for n, us in TIMES[curve]]
        return self.write(f"times{ranks}.json", json.dumps(times))

    def test_ranks_take_devices(self):
        more = ["--step-times", self.with_ranks(4, 3), "--step-times", self.with_ranks(2, 1.8)]
        text = self.run_plan(*more, *LOAD, "--devices", "4", "--chunks", "512", "--json", self.folder / "t.json",
                             "--out", self.folder / "best.yaml", "--tpot-slo", "0.0055")
        rows = json.loads((self.folder / "t.json").read_text())
        setups = {r["setup"]: r["ranks"] for r in rows}
        self.assertLessEqual({"4m": 1, "2m of 2": 2, "1p1d of 2": 2, "1p1m of 2": 2, "1m of 4": 4}.items(), setups.items())
        self.assertEqual(len(setups), 10 + 3 + 1)
        # No step of a worker of one rank ends within that objective: only a quicker one can meet it.
        self.assertGreater(rows[0]["ranks"], 1)
        self.assertIn(f"  ranks: {rows[0]['ranks']}\n", (self.folder / "best.yaml").read_text())
        self.assertNotIn("for want of step times", text)
        only = self.table(*more, *LOAD, "--devices", "4", "--chunks", "512", "--ranks", "2")
        self.assertEqual({"2m of 2", "1p1d of 2", "1p1m of 2"}, {r["setup"] for r in only})
        # A worker of three ranks leaves one of the four devices over.
        left = self.table("--step-times", self.with_ranks(3, 2), *LOAD, "--devices", "4", "--chunks", "512", "--ranks", "3")
        self.assertEqual(["1m of 3"], [r["setup"] for r in left])

    def test_ranks_that_were_not_measured_are_named(self):
        text = self.run_plan(*LOAD, "--devices", "4", "--chunks", "512")
        self.assertIn("Ranks a worker that were tried: 1. Not 2, 4, for want of step times: tools/step_times.py --ranks N", text)
        self.assertNotIn("for want of", self.run_plan(*LOAD, "--devices", "1", "--chunks", "512"))
        wanted = self.run_plan(*LOAD, "--devices", "4", "--ranks", "1,2", code=2)
        self.assertIn("the times of 2 ranks are missing: tools/step_times.py --ranks 2 measures them", wanted)
        two = self.with_ranks(2, 1.8)
        self.assertIn("the times of 2 ranks are there already",
                      self.run_plan("--step-times", two, "--step-times", two, *LOAD, code=2))
        other = self.write("other.json", json.dumps({**TIMES, "ranks": 2, "model": "/models/eight"}))
        self.assertIn("is of another model or device than", self.run_plan("--step-times", other, *LOAD, code=2))
        self.assertIn("--devices is smaller than the ranks of every worker",
                      self.run_plan(*LOAD, "--devices", "1", code=2, times=two))

    def test_settings_of_a_configuration_hold(self):
        config = self.write("c.yaml", "scheduler:\n  max_running: 1\n")
        one = self.table(*LOAD, "--splits", "2m", "--chunks", "512", "--config", config)[0]
        many = self.table(*LOAD, "--splits", "2m", "--chunks", "512")[0]
        self.assertLess(one["goodput_per_s"], many["goodput_per_s"])

    def test_what_is_wrong_is_said(self):
        bad = {key: value for key, value in TIMES.items() if key != "pull_us"}
        for what, arguments, times in (
                ("what is to be served", [], None),
                ("/nowhere: cannot be read", ["--trace", "/nowhere"], None),
                ("line 2", ["--trace", self.write("t", '{"timestamp":0,"input_length":1,"output_length":1}\n{}\n')],
                 None),
                ("'ranks' must be an integer from 1 to 8", LOAD, self.write("r.json", json.dumps({**TIMES, "ranks": 9}))),
                ("'pull_us' is missing", LOAD, self.write("bad.json", json.dumps(bad))),
                ("a JSON object", LOAD, self.write("worse.json", "3")),
                ("'7x' is no set-up", [*LOAD, "--splits", "7x"], None),
                ("--input-length: 'normal:3' is no length", ["--rate", "1", "--input-length", "normal:3"], None),
                ("hold 16000", ["--rate", "1", "--input-length", "20000", "--pool-blocks", "1000"], None),
                ("does not tell the size of a pool", LOAD,
                 self.write("p.json", json.dumps({**TIMES, "pool_blocks": 0})))):
            with self.subTest(what=what):
                self.assertIn(what, self.run_plan(*arguments, code=2, times=times))
        self.assertNotEqual(0, subprocess.run([PLAN, "--devices", "0"], capture_output=True).returncode)


if __name__ == "__main__":
    unittest.main(verbosity=2)
