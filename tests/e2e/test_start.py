"""Starts that can never succeed: they end with the reason, and a running service outlives the same."""

import json
import os
import pathlib
import signal
import struct
import subprocess
import unittest

import folders
import random_model
from test_supervisor import SUPERVISOR, Supervised, wait_until

ROOT = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
CONFIG = ROOT / "configs" / "1p1d.yaml"
TINY = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "intermediate_size": 32, "num_hidden_layers": 1}


def spoil(model, tensor, data):
    """Writes `data` over the beginning of a tensor."""
    with open(model / "model.safetensors", "r+b") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        begin = json.loads(file.read(size))[tensor]["data_offsets"][0]
        file.seek(8 + size + begin)
        file.write(data)


class StartTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(folders.temporary(self, "baton-start-"))
        self.run_dir = self.folder / "run"
        self.run_dir.mkdir()

    def model(self):
        return random_model.write(self.folder / "model", **TINY)

    def arguments(self, model, *more):
        return ["--config", str(CONFIG), "--model", str(model),
                "--frontend.port", "0", "--worker.threads", "1", "--worker.pool_mib", "16", *more]

    def refused(self, model, *more):
        """Starts all processes, which must end by themselves; the last line that they leave."""
        done = subprocess.run([SUPERVISOR, "--run_dir", self.run_dir, *self.arguments(model, *more)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual(2, done.returncode, done.stdout)
        self.assertNotIn("signal 15", done.stdout)  # of those that end since one cannot run
        return [line for line in done.stdout.splitlines() if " | stopped" not in line][-1]

    def test_a_family_that_is_not_served(self):
        model = self.model()
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
        self.assertRegex(self.refused(model), "cannot run, and starting it again does not help: the model "
                         r"cannot be loaded: .*config.json: architectures: \[\"MambaForCausalLM\"\] is not")

    def test_a_tokenizer_that_is_not_served(self):
        model = self.model()
        (model / "tokenizer.model").write_bytes(b"none")
        self.assertRegex(self.refused(model), "frontend0 cannot run.*tokenizer.model")

    def test_brackets_without_end(self):
        model = self.model()
        (model / "config.json").write_text("[" * 1_500_000)
        self.assertIn("config.json: the JSON is nested more than 64 deep", self.refused(model))

    def test_weights_that_are_a_pipe(self):
        model = self.model()
        (model / "model.safetensors").unlink()
        os.mkfifo(model / "model.safetensors")
        self.assertIn("model.safetensors: not a regular file", self.refused(model))

    def test_a_weight_that_is_no_number(self):
        model = self.model()
        spoil(model, "model.layers.0.mlp.up_proj.weight", b"\xC0\x7F")
        self.assertIn("tensor model.layers.0.mlp.up_proj.weight: element 0 is nan", self.refused(model))

    def test_too_little_memory(self):
        self.assertRegex(self.refused(self.model(), "--worker.memory_mib", "70"),
                         r"not enough memory: weights 0\.\d+ GiB .* \+ KV pool 0\.02 GiB .* allows 0\.07 GiB")

    def test_a_running_service_outlives_what_would_have_ended_its_start(self):
        model = self.model()
        s = Supervised(str(self.run_dir), *self.arguments(model, "--model_name", "tiny"))
        self.addCleanup(s.end)
        for name in ("frontend0", "prefill0", "decode0"):
            wait_until(lambda name=name: (self.run_dir / f"{name}.up").exists(), 60, f"{name} is up")
        good = (model / "config.json").read_text()
        (model / "config.json").write_text("[]")
        prefill, decode = s.pid("prefill0"), s.pid("decode0")
        os.kill(decode, signal.SIGKILL)
        s.wait_text("decode0 (pid", 10)
        wait_until(lambda: s.text().count("ended with status 2") > 1, 30, "two restarts that fail")
        self.assertEqual(prefill, s.pid("prefill0"), s.text())
        (model / "config.json").write_text(good)
        wait_until(lambda: s.text().count(" begins") > 2, 30, "decode0 is back")
        self.assertEqual(0, s.stop(), s.text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
