"""./baton app: the published configurations in Baton's words, and the parts that need no server."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
sys.path.insert(0, str(ROOT / "tools"))

from app import process, split_log, translate  # noqa: E402
from gateway import relaxed_json  # noqa: E402

CB = """{
  "model_loading_config": {
    "model_type": "llama",  # the only one
    "model_name_or_path": "PATH_TO_MODEL_DIR",  # safetensors
    "torch_dtype": "float16",
    "tokenizer_name_or_path": null,
    "use_fast_tokenizer": false,
    "trust_remote_code": false,
    "quantize_method": null,
    "model_max_length": 2048,
    "gptq_model_base_name": null,
    "gptq_config_base_name": null
  },
  "batcher_config": {
    "batch_max_tokens": 56000,  # tokens
    "batch_max_beams": 32
  },
  "cache_config": {
    "num_blocks": 2500,
    "num_blocks_cpu": 1024,
    "block_size": 16,
    "watermark": 0.01,  # with a comma after it, as published
  }
}
"""
SB = """{
  "batcher_config": {
    "package_max_workload": "16",  # in quotes, as published
    "packaging_interval_seconds": 2
  },
  "worker_config": {
    "model_name_or_path": "PATH_TO_MODEL_DIR",
    "tokenizer_name_or_path": null,
    "revision": "main",
    "low_cpu_mem_usage": true,
    "torch_dtype": "float16",
    "use_fast_tokenizer": false,
    "trust_remote_code": false,
    "use_safetensors": false,
    "batch_size": -1,
    "is_gptq_quantized": false
  }
}
"""
MODEL = ROOT / "demo" / "model"


def published(text, model=MODEL):
    return relaxed_json.parse(text.replace("PATH_TO_MODEL_DIR", str(model)))


def change(value, path, to):
    """A copy with one key changed."""
    value = json.loads(json.dumps(value))
    at = value
    *folders, key = path.split(".")
    for name in folders:
        at = at.setdefault(name, {})
    at[key] = to
    return value


class Translations(unittest.TestCase):
    def test_the_published_cb_file(self):
        made = translate.continuous(published(CB))
        self.assertEqual({
            "model": str(MODEL), "max_context": 2048,
            "worker": {"tokens_per_block": 16, "pool_blocks": 2500, "host_pool_blocks": 1024,
                       "memory_fraction": 0.98},
            "scheduler": {"batching": "continuous", "token_budget": 56000, "prompt_chunk": 256,
                          "max_running": 32, "watermark": 0.01, "victim": "tail", "preempted": "first"},
            "workers": [{"name": "prefill0", "role": "prefill"}, {"name": "decode0", "role": "decode"}],
        }, made.config)
        noted = {note.split(":")[0] for note in made.notes}
        self.assertEqual({"model_loading_config.torch_dtype", "model_loading_config.use_fast_tokenizer"}, noted)
        pinned = translate.continuous(change(published(CB), "cache_config.pin_memory_on_cpu", False))
        self.assertIn("cache_config.pin_memory_on_cpu", " ".join(pinned.notes))

    def test_the_published_sb_file(self):
        made = translate.static(published(SB))
        self.assertEqual({
            "model": str(MODEL), "worker": {},
            "scheduler": {"batching": "static", "static_batch_size": 16, "static_interval_s": 2,
                          "static_same_config": True},
            "workers": [{"name": "mixed0", "role": "mixed"}]}, made.config)

    def test_keys_that_are_acted_on(self):
        cb = published(CB)
        for path, to, key, wanted in (
                ("batcher_config.batch_max_tokens", 100, ("scheduler", "token_budget"), 100),
                ("batcher_config.batch_max_tokens", 100, ("scheduler", "prompt_chunk"), 100),
                ("batcher_config.batch_max_beams", 7, ("scheduler", "max_running"), 7),
                ("cache_config.num_blocks", 9, ("worker", "pool_blocks"), 9),
                ("cache_config.num_blocks_cpu", 0, ("worker", "host_pool_blocks"), 0),
                ("cache_config.block_size", 32, ("worker", "tokens_per_block"), 32),
                ("cache_config.watermark", 0.05, ("scheduler", "watermark"), 0.05),
                ("cache_config.gpu_memory_utilization", 0.5, ("worker", "memory_fraction"), 0.5),
                ("model_loading_config.torch_dtype", "bfloat16", ("worker", "dtype"), "bf16"),
                ("model_loading_config.torch_dtype", "float32", ("worker", "dtype"), "f32"),
                ("model_loading_config.device", 1, ("worker", "gpu"), "1")):
            made = translate.continuous(change(cb, path, to)).config
            self.assertEqual(wanted, made[key[0]][key[1]], path)
        self.assertNotIn("pool_blocks", translate.continuous(
            change(cb, "cache_config.num_blocks", None)).config["worker"])
        short = translate.continuous(change(cb, "model_loading_config.model_max_length", 100))
        self.assertEqual(100, short.config["max_context"])
        self.assertNotIn("model_max_length", " ".join(short.notes), "the model has more")
        long = translate.continuous(change(cb, "model_loading_config.model_max_length", 1 << 20))
        self.assertIn("model_loading_config.model_max_length", " ".join(long.notes))
        sb = published(SB)
        for path, to, key, wanted in (
                ("worker_config.torch_dtype", "bfloat16", ("worker", "dtype"), "bf16"),
                ("batcher_config.package_max_workload", 3, ("scheduler", "static_batch_size"), 3),
                ("batcher_config.packaging_interval_seconds", 5, ("scheduler", "static_interval_s"), 5),
                ("worker_config.device", "cuda:1", ("worker", "device"), "cuda"),
                ("worker_config.device_map", "cpu", ("worker", "device"), "cpu")):
            made = translate.static(change(sb, path, to)).config
            self.assertEqual(wanted, made[key[0]][key[1]], path)

    def test_keys_that_are_refused_are_named(self):
        cb, sb = published(CB), published(SB)
        for work, value, path, to in (
                (translate.continuous, cb, "model_loading_config.model_name_or_path", "/nowhere"),
                (translate.continuous, cb, "model_loading_config.model_type", "gpt2"),
                (translate.continuous, cb, "model_loading_config.torch_dtype", "int8"),
                (translate.continuous, cb, "model_loading_config.tokenizer_name_or_path", "/tmp"),
                (translate.continuous, cb, "model_loading_config.trust_remote_code", True),
                (translate.continuous, cb, "model_loading_config.quantize_method", "gptq"),
                (translate.continuous, cb, "model_loading_config.gptq_model_base_name", "x"),
                (translate.continuous, cb, "model_loading_config.nonsense", 1),
                (translate.continuous, cb, "batcher_config.batch_max_tokens", 70000),
                (translate.continuous, cb, "batcher_config.batch_max_beams", "many"),
                (translate.continuous, cb, "cache_config.block_size", 0),
                (translate.continuous, cb, "cache_config.watermark", 0.6),
                (translate.continuous, cb, "cache_config.watermark", "a little"),
                (translate.continuous, cb, "cache_config.nothing", 1),
                (translate.continuous, cb, "parallel_config.tp_size", 2),
                (translate.static, sb, "batcher_config.package_max_workload", 257),
                (translate.static, sb, "worker_config.revision", "dev"),
                (translate.static, sb, "worker_config.batch_size", 4),
                (translate.static, sb, "worker_config.max_memory", {"0": "10GB"}),
                (translate.static, sb, "worker_config.device_map", {"": 0}),
                (translate.static, sb, "worker_config.is_gptq_quantized", True)):
            with self.assertRaises(translate.Refused) as caught:
                work(change(value, path, to))
            self.assertTrue(str(caught.exception).startswith(path + ": "), caught.exception)
        with self.assertRaisesRegex(translate.Refused, "the file.more: no such key"):
            translate.static({**sb, "more": 1})
        # A quantized folder may be called so.
        gptq = ROOT / "tests" / "golden" / "models" / "gptq_act_order"
        translate.continuous(change(published(CB, gptq), "model_loading_config.quantize_method", "gptq"))


class Parts(unittest.TestCase):
    def test_log_lines_go_where_they_belong(self):
        head = "frontend0 | 2026-11-22T03:47:06.786 info frontend0 "
        for line, is_request in (
                (head + '18ea-3 POST /v1/completions 400 client=127.0.0.1:3 reason="no"', True),
                (head + "my-id POST /completion/v2 200 client=[::1]:3 choices=1 prompt=3 tokens=4 "
                        "end=length ttft_ms=1.0 ms=2.0", True),
                (head + "18ea-4 - - 400 client=?:0", True),
                (head + "18ea-4 POST /generate client=127.0.0.1:3 left after 3 tokens", True),
                (head + "stopping: 0 streams may end within 8.0 s", False),
                ("scheduler | 2026-11-22T03:47:06.786 info scheduler mixed0: ready, 2500 blocks", False),
                ("baton     | 2026-11-22T03:47:06.786 info baton started scheduler, pid 9377", False)):
            self.assertEqual(is_request, bool(split_log.REQUEST.match(line)), line)

    def test_a_process_is_known_by_more_than_its_number(self):
        child = subprocess.Popen(["sleep", "100"], start_new_session=True)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        who = process.identity(child.pid)
        self.assertTrue(process.alive(who))
        self.assertFalse(process.alive({**who, "started": who["started"] + 1}))
        self.assertTrue(process.end(who, 5))
        self.assertFalse(process.alive(who))

    def test_what_ignores_its_end_is_killed_with_its_children(self):
        # A supervisor's children have groups of their own, and outlive it.
        folder = self.enterContext(tempfile.TemporaryDirectory())
        script = ("import os, signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
                  "child = subprocess.Popen(['sleep', '100'], process_group=0); "
                  f"open('{folder}/new', 'w').write(str(child.pid)); os.rename('{folder}/new', '{folder}/child'); "
                  "time.sleep(100)")
        parent = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
        self.addCleanup(parent.wait)
        self.addCleanup(parent.kill)
        child = pathlib.Path(folder, "child")
        limit = time.monotonic() + 10
        while not child.exists() and time.monotonic() < limit:
            time.sleep(0.02)
        child = process.identity(int(child.read_text()))
        self.assertTrue(process.alive(child))
        self.assertFalse(process.end(process.identity(parent.pid), 0.2))
        limit = time.monotonic() + 5
        while process.alive(child) and time.monotonic() < limit:
            time.sleep(0.02)
        self.assertFalse(process.alive(child))


class CommandLine(unittest.TestCase):
    """What ends before anything is started."""

    def run_app(self, *arguments):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        done = subprocess.run(
            [sys.executable, ROOT / "tools" / "app", *arguments, "--run_dir", folder + "/run"],
            cwd=folder, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    def test_errors(self):
        for arguments, code, words in (
                ([], 2, "--start_client_app"),
                (["--start_client_app", "--start_cb_server_app", "--cb_server_port", "8000"], 2, "ports"),
                (["--start_client_app"], 1, "client_config.json"),
                (["--start_cb_server_app"], 1, "cb_server_config.json"),
                (["status"], 3, "nothing was started"),
                (["stop"], 0, "")):
            got, text = self.run_app(*arguments)
            self.assertEqual(code, got, text)
            self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
