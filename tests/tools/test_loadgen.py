"""The load generator: its arithmetic, and its modes against a server that speaks the published shapes."""

import argparse
import contextlib
import io
import json
import math
import os
import pathlib
import random
import statistics
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(ROOT / "tools"))

from loadgen import (arrivals, block_cache, compare, lab, npy, open_loop, precision,  # noqa: E402
                     prefix_replay, quantiles, serving, texts, tutorial)
from published import Published, Reply, completion, generate_stream  # noqa: E402


class Folder(unittest.TestCase):
    """A test in a folder of its own, with what it prints kept."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(contextlib.chdir(self.folder))
        self.output = self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        self.enterContext(contextlib.redirect_stderr(io.StringIO()))

    def serve(self, routes):
        server = self.enterContext(Published(routes))
        return server, str(server.server_address[1])


class Arithmetic(unittest.TestCase):
    def test_poisson_has_its_mean_and_its_variance(self):
        for mean in (0.5, 20, 500, 1700):
            rng = random.Random(1)
            draws = [arrivals.poisson(rng, mean) for _ in range(2000)]
            self.assertAlmostEqual(statistics.mean(draws), mean, delta=5 * math.sqrt(mean / 2000))
            self.assertAlmostEqual(statistics.variance(draws) / mean, 1, delta=0.2)

    def test_contest_gaps_are_nearly_constant(self):
        rng = random.Random(2)
        gaps = [arrivals.contest_gap_s(rng, 2) for _ in range(500)]
        self.assertAlmostEqual(statistics.mean(gaps), 0.5, delta=0.01)
        self.assertLess(max(gaps) - min(gaps), 0.2)

    def test_response_lengths(self):
        rng = random.Random(3)
        self.assertEqual([7] * 5, arrivals.response_lengths(rng, "uniform", 7, 0, 5))
        uniform = arrivals.response_lengths(rng, "uniform", 100, 40, 2000)
        self.assertEqual((80, 120), (min(uniform), max(uniform)))
        cut = arrivals.response_lengths(rng, "exponential", 50, 60, 2000)
        self.assertGreater(cut.count(60), 300)  # what lies above is cut down to it
        capped = arrivals.response_lengths(rng, "capped_exponential", 50, 60, 2000)
        self.assertLess(capped.count(60), 100)  # what lies above is drawn again
        self.assertLessEqual(max(capped), 60)
        self.assertGreaterEqual(min(cut + capped), 1)

    def test_describe_is_what_pandas_says(self):
        self.assertEqual({"count": 4.0, "mean": 2.5, "std": 1.2909944487358056, "min": 1, "25%": 1.75,
                          "50%": 2.5, "75%": 3.25, "max": 4}, quantiles.describe([4, 1, 3, 2]))
        self.assertEqual(0.0, quantiles.describe([])["count"])
        self.assertIsNone(quantiles.describe([5])["std"])

    def test_token_estimate(self):
        self.assertEqual(13, texts.estimated_tokens("word " * 10))
        self.assertEqual(3, texts.estimated_tokens("你是谁"))

    def test_open_loop_hands_the_options_on(self):
        options = argparse.Namespace(
            client="client", url="http://h:81", path="/p", rate=2.5, requests=3, streams=4, tokens=5,
            prompt_words=6, seed=7, model="m", json=None)
        self.assertEqual(
            "client --host h --port 81 --path /p --rate 2.5 --requests 3 --streams 4 --tokens 5 "
            "--prompt-words 6 --seed 7 --model m", " ".join(open_loop.command(options)))


class Npy(Folder):
    def test_files_come_back(self):
        npy.write("a.npy", [1.5, -2, 3, math.inf, 0, 0.25], (2, 3))
        self.assertEqual(((1.5, -2, 3, math.inf, 0, 0.25), (2, 3)), npy.read("a.npy"))
        # numpy's own bytes of np.array([0.5], "<f4") start like this; the data begin at a multiple of 64.
        data = pathlib.Path("a.npy").read_bytes()
        self.assertTrue(data.startswith(b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, "
                                        b"'shape': (2, 3), }"))
        self.assertEqual(b"\n", data[127:128])

    def test_broken_files_are_named(self):
        npy.write("a.npy", [1, 2], (2,))
        data = pathlib.Path("a.npy").read_bytes()
        for broken in (b"", data[:-1], b"x" + data[1:], data.replace(b"<f4", b"|O8")):
            pathlib.Path("b.npy").write_bytes(broken)
            with self.assertRaisesRegex(ValueError, "b.npy"):
                npy.read("b.npy")

    def compare(self, base, new, *more):
        for name, values in (("base", base), ("new", new)):
            pathlib.Path(name).mkdir(exist_ok=True)
            npy.write(f"{name}/0.npy", values, (len(values),))
        code = compare.main(["--base_path", "base", "--new_path", "new", *more])
        return code, self.output.getvalue()

    def test_comparison(self):
        self.assertEqual(0, self.compare([1, 2], [1.004, 2])[0])
        code, text = self.compare([1, 2], [1.006, 2])
        self.assertEqual(1, code)
        self.assertIn("0.npy differs by up to 0.006", text)
        self.assertEqual(0, self.compare([1, 2], [1.006, 2], "--atol", "0.01")[0])
        self.assertEqual(1, self.compare([1, 2], [1, math.nan])[0])
        self.assertEqual(1, self.compare([1, 2], [1, 2, 3])[0])
        pathlib.Path("new/0.npy").unlink()
        self.assertEqual(1, compare.main(["--base_path", "base", "--new_path", "new"]))
        self.assertEqual(2, compare.main(["--base_path", "new", "--new_path", "new"]))


class Performance(Folder):
    """test_serving_performance.py"""

    def test_the_published_command_line_log_and_result(self):
        server, port = self.serve({"/models/llama2/generate_stream": generate_stream})
        code = serving.main(["-X", "20", "-P", port, "-O", "./out", "-T", "1", "--max_new_tokens", "9"])
        self.assertEqual(0, code)
        results = json.loads((self.folder / "out" / "result_20.0_x.json").read_text())
        self.assertEqual(20, len(results))
        for entry in results:
            self.assertEqual({"input", "resp_text", "res_time", "first_token_time"}, set(entry))
            self.assertTrue(entry["resp_text"].startswith(entry["input"] + "w0 "))
            self.assertLessEqual(entry["first_token_time"], entry["res_time"])
        bodies = [body for _, body, *_ in server.seen]
        self.assertEqual({"max_new_tokens", "do_sample", "return_full_text"},
                         set(bodies[0]["parameters"]))
        self.assertEqual({"False"}, {body["parameters"]["do_sample"] for body in bodies})
        times = [entry[3] for entry in server.seen]
        self.assertGreater(times[-1] - times[0], 0.6)  # 19 gaps of about 50 ms
        logs = list((self.folder / "testLog").glob("test_performance_????-??-??-??_??.log"))
        log = "".join(path.read_text() for path in logs)
        for line in ("Start send request, avg interval is 0.05", "first_token_time is 0.",
                     "Test Progress --> 20/20", "All Tasks Done; Exec Time is ", "stand-in with seed 0"):
            self.assertIn(line, log)

    def test_a_data_set_is_taken_in_order_and_again(self):
        rows = [{"instruction": "Add", "input": "1 and 2", "output": "word " * 10},
                {"instruction": "Hello", "input": "", "output": "three words here now"}]
        pathlib.Path("data.json").write_text(json.dumps(rows))
        server, port = self.serve({"/models/llama2/generate_stream": generate_stream})
        self.assertEqual(0, serving.main(["-X", "100", "-P", port, "-T", "1", "--data", "data.json"]))
        asked = [(b["inputs"], b["parameters"]["max_new_tokens"]) for _, b, *_ in server.seen]
        self.assertEqual(100, len(asked))
        self.assertEqual({("Add:1 and 2", 13), ("Hello", 5)}, set(asked))
        self.assertEqual(50, asked.count(("Hello", 5)))
        pathlib.Path("data.json").write_text('[{"instruction": "Add"}]')
        self.assertEqual(2, serving.main(["-X", "1", "-P", port, "-T", "1", "--data", "data.json"]))

    def test_failures_are_counted_and_kept_out_of_the_results(self):
        def sometimes(body):
            sometimes.count += 1
            if sometimes.count == 2:
                return Reply({"detail": "no"}, 500)
            if sometimes.count == 3:
                error = {"generated_text": "Error202: prompt out of range", "tokens": None,
                         "finish_reason": "prompt_out_of_range"}
                return Reply(lines=[json.dumps({"event": "message", "data": [error]})])
            return generate_stream(body)
        sometimes.count = 0
        _, port = self.serve({"/models/llama2/generate_stream": sometimes})
        self.assertEqual(1, serving.main(["-X", "5", "-P", port, "-T", "1", "--max_new_tokens", "2"]))
        self.assertEqual(3, len(json.loads(pathlib.Path("result_5.0_x.json").read_text())))

    def test_task_2_keeps_log_probabilities_that_compare(self):
        _, port = self.serve({"/models/llama2/generate_stream": generate_stream})
        for out in ("a", "b"):
            self.assertEqual(0, serving.main(["--task", "2", "-X", "10", "-P", port, "-O", out, "-T", "1"]))
        self.assertEqual(10, len(list(pathlib.Path("a/file_npy").glob("*.npy"))))
        values, shape = npy.read("a/file_npy/0.npy")
        self.assertEqual((len(values),), shape)
        self.assertEqual(-0.25 * (len(values) - 1), values[-1])
        self.assertEqual(0, compare.main(["--base_path", "a/file_npy", "--new_path", "b/file_npy"]))


class LoadTest(Folder):
    """The tutorial's load_test.py"""

    KEYS = ["throughput_oriented", "batch_size", "latency(s)", "throughput(generated_tokens/s)",
            "fail_rate", "response_len_mean", "response_len_range", "distribution"]

    def run_it(self, routes, *arguments):
        server, port = self.serve(routes)
        code = tutorial.main(["--port", port, "--prompt_len", "40", "--response_len_mean", "8",
                              *arguments])
        return code, json.loads(pathlib.Path("load_test_report.json").read_text()), server

    def test_throughput_mode(self):
        code, report, server = self.run_it({"/completion/v1": completion}, "--throughput_oriented",
                                           "--num_beams", "3", "--num_emit", "4", "--server_type", "sb")
        self.assertEqual((0, self.KEYS), (code, list(report)))
        self.assertEqual((True, 3, -1), (report["throughput_oriented"], report["batch_size"],
                                         report["latency(s)"]))
        self.assertGreater(report["throughput(generated_tokens/s)"], 0)
        self.assertEqual(" 0.0000%", report["fail_rate"])
        body = server.seen[0][1]
        self.assertEqual({"max_new_tokens": 8, "min_new_tokens": 8, "num_beams": 1,
                          "num_return_sequences": 1}, body["generation_config"])
        self.assertEqual(12, len(server.seen))
        self.assertEqual(int(40 / 1.35), len(body["prompt"].split()))

    def test_qps_mode_sends_each_second(self):
        code, report, server = self.run_it({"/completion/v2": completion}, "--qps", "5", "--num_emit", "2",
                                           "--response_len_range", "4")
        self.assertEqual((0, 5, -1), (code, report["batch_size"],
                                      report["throughput(generated_tokens/s)"]))
        self.assertEqual({"count", "mean", "std", "min", "25%", "50%", "75%", "max"},
                         set(report["latency(s)"]))
        self.assertEqual(10, report["latency(s)"]["count"])
        times = sorted(entry[3] for entry in server.seen)
        self.assertGreater(times[5] - times[4], 0.3)
        self.assertGreater(times[5] - times[0], 0.7)
        self.assertIn("  - request_id=0 :: status=200, wall_time= 0.", self.output.getvalue())

    def test_failures(self):
        code, report, _ = self.run_it({}, "--qps", "2", "--num_emit", "1")
        self.assertEqual((1, " 100.0000%", 0.0),
                         (code, report["fail_rate"], report["latency(s)"]["count"]))

    def test_bounds_of_the_distributions(self):
        for arguments in (["--response_len_mean", "4", "--response_len_range", "4"],
                          ["--distribution", "exponential", "--response_len_range", "3"]):
            with self.assertRaises(SystemExit):
                tutorial.main(arguments)


class Lab(Folder):
    def test_the_published_lines_and_file(self):
        server, port = self.serve({"/generate": lambda body: Reply({"generated_text": body["prompt"]})})
        self.assertEqual(0, lab.main(["--url", f"http://127.0.0.1:{port}", "--speed", "40"]))
        responses = json.loads(pathlib.Path("responses.json").read_text())
        self.assertEqual(11, len(responses))
        self.assertEqual(["request_index", "prompt", "response", "request_start_time", "time_taken"],
                         list(responses[0]))
        self.assertEqual({"prompt", "temperature", "min_length", "max_length"}, set(server.seen[0][1]))
        self.assertRegex(self.output.getvalue(), r"请求 0 完成，延时 \d+\.\d\d 秒\n")
        self.assertRegex(self.output.getvalue(), r"总耗时: \d+\.\d+ 秒\n$")


class PrefixReplay(Folder):
    """Blocks of 512 tokens: what is found, and what gives way."""

    @staticmethod
    def request(length, ids, output=1, at=0):
        return {"timestamp": at, "input_length": length, "output_length": output, "hash_ids": ids}

    def found(self, capacity, *requests):
        return block_cache.simulate([self.request(*r) for r in requests], capacity)

    def test_leading_blocks_are_found(self):
        self.assertEqual([0, 1024, 512, 0], self.found(
            0, (1500, [1, 2, 3]), (1600, [1, 2, 4, 5]), (700, [1, 9]), (700, [2, 9])))

    def test_the_last_token_is_always_computed(self):
        self.assertEqual([0, 512, 1024], self.found(0, (1024, [1, 2]), (1024, [1, 2]), (1025, [1, 2, 3])))

    def test_the_longest_unused_gives_way_and_of_a_chain_its_end(self):
        a, b, c = (1025, [1, 2, 3]), (1025, [4, 5, 6]), (513, [7, 8])
        # 6 blocks: a and b leave 2 each, c takes the 2 that are free and leaves one of them.
        self.assertEqual([0, 0, 0, 1024, 1024, 512], self.found(6, a, b, c, b, a, c))
        self.assertEqual([0, 0, 512], self.found(4, a, b, (1025, [1, 2, 9])))  # 2 is forgotten, 1 is not
        self.assertEqual([0, 0, 0], self.found(3, a, b, a))

    def test_answers_take_blocks_too(self):
        long = (513, [1, 2], 1024)  # ends with 1536 tokens: 3 blocks of them full
        self.assertEqual([0, 512], self.found(4, (513, [1, 2]), (513, [1, 3])))
        self.assertEqual([0, 0, 512], self.found(4, (1025, [5, 6, 7]), long, (1025, [5, 6, 8])))
        self.assertEqual([0, 0, 0], self.found(3, (1025, [5, 6, 7]), long, (1025, [5, 6, 8])))
        with self.assertRaisesRegex(ValueError, "request 1 needs more than 2 blocks"):
            self.found(2, long)

    def test_a_chain_whose_beginning_is_gone_is_not_found(self):
        self.assertEqual([0, 0], self.found(0, (1025, [1, 2, 3]), (1025, [9, 2, 3])))

    def write(self, *requests):
        pathlib.Path("t.jsonl").write_text(
            "".join(json.dumps(self.request(*r)) + "\n" for r in requests), encoding="utf-8")

    def replay(self, told, *arguments):
        """Against a server that says of request n that told[n] tokens were cached."""
        told = iter(told)

        def reply(body):
            return Reply({"choices": [{"text": "x"}], "usage": {
                "prompt_tokens": len(body["prompt"]),
                "prompt_tokens_details": {"cached_tokens": next(told)}}})
        server, port = self.serve({"/v1/completions": reply})
        code = prefix_replay.main(["--trace", "t.jsonl", "--url", f"127.0.0.1:{port}", *arguments])
        return code, [body for _, body, *_ in server.seen]

    def test_replay(self):
        self.write((1100, [1, 2, 3], 7), (1030, [1, 2, 4], 9), (600, [2, 5], 9))
        code, bodies = self.replay([0, 1024, 0], "--max_output", "8", "--outputs", "out")
        self.assertEqual(0, code)
        self.assertIn("difference +0.0000, 0 requests differ", self.output.getvalue())
        self.assertEqual([7, 8, 8], [body["max_tokens"] for body in bodies])
        self.assertEqual([1100, 1030, 600], [len(body["prompt"]) for body in bodies])
        first, second, third = (body["prompt"] for body in bodies)
        self.assertEqual(first[:1024], second[:1024])
        self.assertNotEqual(first[1024:1030], second[1024:1030])
        self.assertEqual(first[512:1024], third[:512])
        self.assertEqual(1, len({body["cache_salt"] for body in bodies}))
        self.assertEqual('"x"\n' * 3, pathlib.Path("out").read_text())

    def test_differences(self):
        self.write((1100, [1, 2, 3]), (1030, [1, 2, 4]))
        self.assertEqual(1, self.replay([0, 512])[0])
        self.assertIn("request 2: 512 of 1030 tokens were cached, 1024 in the simulation",
                      self.output.getvalue())
        self.assertEqual(0, self.replay([0, 512], "--at_once", "2")[0])
        self.assertEqual(0, self.replay([0, 512], "--speed", "1000")[0])
        self.assertEqual(1, self.replay([0])[0])  # the second request fails
        self.assertEqual(0, prefix_replay.main(["--trace", "t.jsonl", "--capacity", "4"]))

    def test_bad_traces_are_named(self):
        for line in ("nonsense", "{}", json.dumps(self.request(0, [])),
                     json.dumps(self.request(1024, [1])), json.dumps(self.request(600, [1, [2]]))):
            pathlib.Path("t.jsonl").write_text(line)
            self.assertEqual(2, prefix_replay.main(["--trace", "t.jsonl"]))
        self.assertIn("t.jsonl:1: 1024 tokens are not in 1 blocks of 512", self.output.getvalue())
        self.write((5000, list(range(10))))
        self.assertEqual(2, prefix_replay.main(["--trace", "t.jsonl", "--capacity", "4"]))


class Precision(Folder):
    def test_rows(self):
        def reply(body):
            self.assertEqual((True, 2, 0), (body["echo"], body["logprobs"], body["temperature"]))
            return Reply({"choices": [{"logprobs": {
                "token_logprobs": [None, -1.0, -0.5],
                "top_logprobs": [None, {"a": -0.25, "b": -1.0, "c": -3.0}, {"a": -0.5, "b": -0.75}]}}]})
        _, port = self.serve({"/v1/completions": reply})
        self.assertEqual(0, precision.main(["--url", f"127.0.0.1:{port}", "--count", "3", "--top", "2",
                                            "--out", "out", "--at_once", "2"]))
        self.assertEqual(((-1, -0.25, -1, -0.5, -0.5, -0.75), (2, 3)), npy.read("out/2.npy"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
