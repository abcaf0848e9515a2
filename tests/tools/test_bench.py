"""Loads, traces and judgement of the benchmarks: the arithmetic alone."""

import argparse
import contextlib
import io
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(ROOT / "tools"))

import bench_lab_gpu  # noqa: E402
import bench_llama_cpp  # noqa: E402
import bench_loads  # noqa: E402
import dummy_model  # noqa: E402
from loadgen import judge, loads, trace  # noqa: E402


class Loads(unittest.TestCase):
    def test_a_rate_gives_poisson_arrivals(self):
        made = loads.requests("2048/256@20", 1, 400)
        self.assertEqual(made, loads.requests("2048/256@20", 1, 400))
        self.assertNotEqual(made, loads.requests("2048/256@20", 2, 400))
        self.assertEqual({(2048, 256)}, {(r["input_length"], r["output_length"]) for r in made})
        times = [r["timestamp"] for r in made]
        self.assertEqual(sorted(times), times)
        self.assertLess(times[-1], 400_000)
        self.assertAlmostEqual(len(made), 8000, delta=5 * math.sqrt(8000))
        gaps = [b - a for a, b in zip(times, times[1:])]
        self.assertAlmostEqual(statistics.mean(gaps), 50, delta=3)
        self.assertAlmostEqual(statistics.stdev(gaps), 50, delta=4)  # as large as the mean: no clock

    def test_the_mix(self):
        made = loads.requests("mix@50", 3, 100)
        inputs = [r["input_length"] for r in made]
        outputs = [r["output_length"] for r in made]
        self.assertAlmostEqual(statistics.median(inputs), 1500, delta=100)
        self.assertAlmostEqual(statistics.median(outputs), 250, delta=15)
        self.assertEqual((8000, 1000), (max(inputs), max(outputs)))
        self.assertGreaterEqual(min(inputs), 64)
        self.assertGreaterEqual(min(outputs), 16)
        middle = [math.log(x) for x in inputs if 64 < x < 8000]
        self.assertAlmostEqual(statistics.stdev(middle), 0.93, delta=0.06)  # sigma 1 without its ends

    def test_bursts(self):
        made = loads.requests("32x100/8192", 1, 40)
        self.assertEqual([{"timestamp": 0.0, "input_length": 100, "output_length": 8192}] * 32, made)
        made = loads.requests("256x100..1024/10..20", 1, 40)
        self.assertEqual((256, 10, 20), (len(made), min(r["output_length"] for r in made),
                                         max(r["output_length"] for r in made)))
        self.assertTrue(all(100 <= r["input_length"] <= 1024 for r in made))

    def test_nonsense_is_named(self):
        for name in ("", "fast", "0/1@1", "9..3/1@1", "1/1@0", "mix@", "0x1/1", "1/1@9999999", "no.jsonl"):
            with self.assertRaises(loads.BadLoad, msg=name):
                loads.requests(name, 1, 40)


def record(at, events, tokens=None, error="", output=None):
    tokens = len(events) if tokens is None else tokens
    return {"at": at, "sent": 0.1, "events": events, "tokens": tokens, "error": error,
            "output": tokens if output is None else output}


class Judge(unittest.TestCase):
    def test_figures_of_one_request(self):
        own = judge.figures(record(5, [100, 110, 140], 3))
        self.assertEqual((100, [10, 30], 20), (own["ttft"], own["gaps"], own["tpot"]))
        self.assertAlmostEqual(own["gap_p99"], 29.8)
        self.assertIsNone(judge.figures(record(0, [1, 2], error="500")))
        self.assertIsNone(judge.figures(record(0, [1, 2], output=3)))  # shorter than asked for
        self.assertIsNone(judge.figures(record(0, [])))
        self.assertEqual(0, judge.figures(record(0, [7]))["tpot"])

    def test_objectives(self):
        def smooth(ttft, gap, count=200):
            return judge.figures(record(0, [ttft + gap * i for i in range(count)]))
        self.assertTrue(judge.meets(smooth(1000, 15), judge.SLO_I))
        self.assertFalse(judge.meets(smooth(1001, 15), judge.SLO_I))
        self.assertFalse(judge.meets(smooth(10, 30.1), judge.SLO_I))
        self.assertTrue(judge.meets(smooth(500, 15), judge.SLO_II))
        self.assertFalse(judge.meets(smooth(500.1, 15), judge.SLO_II))
        self.assertFalse(judge.meets(smooth(500, 15.1), judge.SLO_II))
        self.assertFalse(judge.meets(None, judge.SLO_II))
        # One stall in 200 tokens is the 99.5th percentile: allowed by i; three are not.
        stalls = [10.0 * i + (100 if i > 50 else 0) for i in range(200)]
        self.assertTrue(judge.meets(judge.figures(record(0, stalls)), judge.SLO_I))
        stalls = [10.0 * i + 100 * sum(i > at for at in (50, 100, 150)) for i in range(200)]
        self.assertFalse(judge.meets(judge.figures(record(0, stalls)), judge.SLO_I))

    def test_a_report(self):
        good = [record(1000 * i, [100 + 10 * k for k in range(11)]) for i in range(8)]
        slow = record(8000, [700 + 10 * k for k in range(11)])  # meets i alone
        lost = record(9000, [50], 1, error="it had not ended when time was up", output=11)
        report = judge.report([*good, slow, lost], 12, 10)  # two were never logged
        self.assertEqual((12, 9, 3), (report["requests"], report["completed"], report["errors"]))
        self.assertEqual("it had not ended when time was up", report["first_error"])
        self.assertAlmostEqual(report["slo_i"], 9 / 12)
        self.assertAlmostEqual(report["slo_ii"], 8 / 12)
        self.assertAlmostEqual(report["goodput_per_s"], 0.8)
        self.assertAlmostEqual(report["seconds"], 9.05)
        self.assertAlmostEqual(report["output_tokens_per_s"], 9 * 11 / 9.05)
        self.assertEqual((100, 10), (report["ttft_ms"]["p50"], report["itl_ms"]["p99"]))
        text = judge.table([{"setup": "pair", "load": "mix@8", **report},
                            {"setup": "pair", "load": "none", **judge.report([], 0, 1)}])
        self.assertEqual(3, len(text.splitlines()))
        self.assertIn("0.80", text.splitlines()[1])

    def test_idle_between_steps(self):
        lines = ["5 2 2 500 1000"] + [f"{i} 64 64 {20 if i % 2 else 10} 985" for i in range(10)]
        lines.append("9 64 500 90000 4000")  # a step with prompts is no step of single tokens
        steps = judge.steps(lines)
        self.assertEqual((10, 64), (steps["steps"], steps["rows"]))
        self.assertAlmostEqual(steps["idle_share"], 15 / 1000)
        self.assertEqual({"steps": 0}, judge.steps([]))


def options(**changes):
    return argparse.Namespace(**{**vars(trace.parse(["--out", "x"])), **changes})


class Trace(unittest.TestCase):
    def test_its_shape(self):
        made = trace.generate(options(seconds=600))
        self.assertEqual(made, trace.generate(options(seconds=600)))
        self.assertGreater(len(made), 1000)
        inputs = [r["input_length"] for r in made]
        self.assertTrue(2500 < statistics.median(inputs) < 6000, statistics.median(inputs))
        self.assertLess(statistics.median(r["output_length"] for r in made), 250)
        for r in made:
            self.assertEqual(math.ceil(r["input_length"] / 512), len(r["hash_ids"]))
            self.assertLessEqual(r["input_length"], 16000)
        times = [r["timestamp"] for r in made]
        self.assertEqual(sorted(times), times)

    def test_conversations_grow_and_share(self):
        made = trace.generate(options(seconds=300))
        by_beginning = {}
        for r in made:
            by_beginning.setdefault(tuple(r["hash_ids"][:2]), []).append(r)
        self.assertEqual(8, len([k for k, v in by_beginning.items() if len(v) > 1]))
        # Behind the shared beginning: whoever shares a third block is a later, longer turn.
        third = {}
        for r in made:
            if r["input_length"] >= 3 * 512:
                third.setdefault(r["hash_ids"][2], []).append(r["input_length"])
        grown = [lengths for lengths in third.values() if len(lengths) > 1]
        self.assertGreater(len(grown), 50)
        self.assertTrue(all(a < b for lengths in grown for a, b in zip(lengths, lengths[1:])))
        self.assertTrue(0.4 < trace.reuse(made) < 0.8, trace.reuse(made))
        self.assertLess(trace.reuse(trace.generate(options(seconds=300, turns=1, system_tokens=0))), 0.01)

    def test_reuse_counts_full_leading_blocks(self):
        def request(length, ids):
            return {"timestamp": 0, "input_length": length, "output_length": 1, "hash_ids": ids}
        made = [request(1024, [1, 2]), request(1100, [1, 2, 3]), request(1024, [9, 2]), request(600, [1, 3])]
        self.assertAlmostEqual(trace.reuse(made), (1024 + 512) / (1024 + 1100 + 1024 + 600))

    def test_arrivals_come_in_bursts(self):
        def dispersion(factor):
            """Variance of the counts of three seconds over their mean; 1 for Poisson."""
            times = trace.burst_arrivals(random.Random(5), 2, factor, 6000)
            self.assertAlmostEqual(len(times) / 6000, 2, delta=0.2)
            counts = [0] * 2001
            for at in times:
                counts[int(at / 3)] += 1
            return statistics.variance(counts) / statistics.mean(counts)
        self.assertAlmostEqual(dispersion(1), 1, delta=0.15)
        self.assertGreater(dispersion(6), 2)

    def test_it_is_written_and_read(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as told:
            path = str(pathlib.Path(folder) / "t.jsonl")
            self.assertEqual(0, trace.main(["--out", path, "--seconds", "30"]))
            self.assertEqual(trace.generate(options(seconds=30, out=path)), loads.requests(path, 1, 40))
            self.assertIn("requests in", told.getvalue())
            pathlib.Path(path).write_text('{"timestamp": 1}')
            with self.assertRaises(loads.BadLoad):
                loads.requests(path, 1, 40)
            for wrong in (["--turns", "0.5"], ["--system_tokens", "100"], ["--max_input", "1000"]):
                with self.assertRaises(SystemExit):
                    trace.parse(["--out", "x", *wrong])


class SetUps(unittest.TestCase):
    def test_names(self):
        self.assertEqual([("prefill0", "prefill"), ("decode0", "decode")], bench_loads.workers("pair"))
        self.assertEqual([("mixed0", "mixed"), ("mixed1", "mixed")], bench_loads.workers("mixed2"))
        self.assertEqual([("prefill0", "prefill"), ("prefill1", "prefill"), ("prefill2", "prefill"),
                          ("decode0", "decode")], bench_loads.workers("3p1d"))
        for wrong in ("", "p", "0p1d", "1p1p", "3", "20m", "triple"):
            with self.assertRaises(ValueError, msg=wrong):
                bench_loads.workers(wrong)

    def test_settings(self):
        made = bench_loads.settings(["scheduler.prompt_chunk=512", "scheduler.prefix_cache=false",
                                     "worker.device=cpu", "prefill.threads=2", "awake_ms=0"])
        self.assertEqual({"scheduler": {"prompt_chunk": 512, "prefix_cache": False}, "frontend": {},
                          "worker": {"device": "cpu"}, "prefill": {"threads": 2}, "decode": {}, "mixed": {},
                          "top": {"awake_ms": 0}}, made)
        self.assertEqual({"prefill0": {"threads": 2}, "decode0": {}},
                         bench_loads.of_workers(bench_loads.workers("pair"), made))
        for wrong in ("chunk=1", "awake_ms", "=1", ".chunk=1", "scheduler.chunk", "scheduler.=1", "top.model=x"):
            with self.assertRaises(ValueError):
                bench_loads.settings([wrong])


class LabBase(unittest.TestCase):
    def batches(self, arrivals, seconds):
        """[(start, batch)] if every batch takes `seconds`."""
        program, now, run = bench_lab_gpu.StaticBatches(arrivals), 0.0, []
        while sum(len(batch) for _, batch in run) < len(arrivals):
            batch = program.batch(now)
            if batch:
                run.append((now, batch))
                now += seconds
            else:
                self.assertGreater(program.next_event(), now)
                now = program.next_event()
        return run

    def test_batches_of_the_base_program(self):
        published = bench_lab_gpu.lab.ARRIVALS
        # While a batch runs nothing else happens: afterwards the fourth of those that wait starts the next.
        self.assertEqual([(3.0, [0, 1, 2]), (33.0, [3, 4, 5, 6]), (63.0, [7, 8, 9, 10])],
                         self.batches(published, 30))
        # Fast ones: every three seconds, counted from the poll before.
        self.assertEqual([(3.0, [0]), (6.0, [1, 2])], self.batches([1, 4, 5], 0.5))
        self.assertEqual([(0.4, [0, 1, 2, 3]), (3.0, [4])], self.batches([.1, .2, .3, .4, .5], 0.2))

    def test_prompts(self):
        prompts = bench_lab_gpu.prompts_of(0)
        self.assertEqual((11, prompts), (len(prompts), bench_lab_gpu.prompts_of(0)))
        self.assertTrue(all(8 <= len(p) < 256 for p in prompts))


class DummyModel(unittest.TestCase):
    def test_folders(self):
        with tempfile.TemporaryDirectory() as name:
            folder = dummy_model.write("0.6b", pathlib.Path(name) / "a")
            config = json.loads((folder / "config.json").read_text())
            vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
            self.assertEqual(config["vocab_size"], len(vocab))
            self.assertEqual(set(range(len(vocab))), set(vocab.values()))
            again = dummy_model.write(str(folder / "config.json"), pathlib.Path(name) / "b")
            self.assertEqual(config, json.loads((again / "config.json").read_text()))
            (folder / "config.json").write_text('{"vocab_size": 12}')
            with self.assertRaises(ValueError):
                dummy_model.write(str(folder / "config.json"), pathlib.Path(name) / "c")


class LlamaCpp(unittest.TestCase):
    """The peer on CPUs is compiled for the processor that measures."""

    def test_it_is_built_natively(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch("subprocess.run") as run:
            source = pathlib.Path(folder)
            with self.assertRaisesRegex(SystemExit, "--llama-source: .* has no CMakeLists.txt"):
                bench_llama_cpp.build_native(source)
            run.assert_not_called()
            (source / "CMakeLists.txt").touch()
            server = bench_llama_cpp.build_native(source)
            self.assertEqual(source / "build-native" / "bin" / "llama-server", server)
            configure, build = (call.args[0] for call in run.call_args_list)
            self.assertIn("-DGGML_NATIVE=ON", configure)
            self.assertIn("llama-server", build)

    def test_what_its_log_says_of_the_processor(self):
        log = ("llama_model_loader: x\nsystem_info: n_threads = 2 (n_threads_batch = 2) / 2 | CPU : SSE3 = 1 | AVX2 = 1 "
               "| AVX512 = 1 | AVX512_VNNI = 1 | AMX_INT8 = 0 | REPACK = 1 | \nmain: y\n")
        self.assertEqual(["SSE3", "AVX2", "AVX512", "AVX512_VNNI", "REPACK"], bench_llama_cpp.processor_features(log))
        self.assertEqual([], bench_llama_cpp.processor_features("nothing"))

    def test_a_peer_must_be_named(self):
        done = subprocess.run([sys.executable, ROOT / "tools" / "bench_llama_cpp.py", "x.gguf"], capture_output=True, text=True)
        self.assertEqual(2, done.returncode)
        self.assertIn("--llama-source --llama-server", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
