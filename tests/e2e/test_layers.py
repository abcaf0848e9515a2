#!/usr/bin/env python3
"""Activations of the CPU backend, part by part, against those of transformers (tests/golden/make_layers.py)."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("BATON_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("BATON_BUILD_DIR", SOURCE / "build" / "cpu"))
GOLDEN = SOURCE / "tests" / "golden"
sys.path.insert(0, str(GOLDEN))
import layers  # noqa: E402

NAMES = sorted(path.stem.removeprefix("layers_") for path in GOLDEN.glob("layers_*.safetensors"))


def first_wrong(folder, golden, chunk):
    """(the table, the first part that is out of bounds) of a model folder. fp32 gets no more than fp32's bounds."""
    wanted, tokens = layers.read(golden)
    with tempfile.TemporaryDirectory() as out:
        out = pathlib.Path(out)
        (out / "tasks.json").write_text(json.dumps([{"prompts": [tokens], "max_tokens": 1, "chunk": chunk}]))
        subprocess.run([BUILD / "bin" / "baton-bench-worker", "--model", folder, "--threads", "2",
                        "--pool-blocks", "16", "--generate", out / "tasks.json", "--dump", out],
                       check=True, stdout=subprocess.DEVNULL, timeout=120)
        got, computed = layers.read(out / "0-0.safetensors")
    if computed != tokens:
        return [f"tokens {computed} where {tokens} were asked for"], "tokens"
    errors = {part: layers.distance(got[part], wanted.get(part, [])) for part in got}
    sizes = {part: layers.size(values) for part, values in wanted.items()}
    return layers.judge(errors, dict.fromkeys(wanted, (0.0, 0.0)), sizes)


class Layers(unittest.TestCase):
    def test_every_part_is_that_of_transformers(self):
        self.assertGreaterEqual(len(NAMES), 6)
        for name in NAMES:
            for chunk in (64, 7, 1):
                with self.subTest(model=name, chunk=chunk):
                    table, first = first_wrong(GOLDEN / "models" / name, GOLDEN / f"layers_{name}.safetensors",
                                               chunk)
                    self.assertIsNone(first, "\n".join(table))

    def test_a_fault_is_found_where_it_is(self):
        """One row of one matrix is missing."""
        name = "gqa_tied_llama3"
        for tensor, part in (("embed_tokens", "embed"), ("layers.1.self_attn.v_proj", "layer1.attended"),
                             ("layers.1.self_attn.o_proj", "layer1"), ("layers.2.mlp.down_proj", "layer2"),
                             ("layers.0.self_attn.k_proj", "layer0.attended")):
            with self.subTest(tensor=tensor), tempfile.TemporaryDirectory() as folder:
                faulty = pathlib.Path(folder) / "model"
                shutil.copytree(GOLDEN / "models" / name, faulty)
                golden = GOLDEN / f"layers_{name}.safetensors"
                row = layers.read(golden)[1][5] if tensor == "embed_tokens" else 3
                layers.zero_row(faulty / "model.safetensors", f"model.{tensor}.weight", row)
                table, first = first_wrong(faulty, golden, 64)
                self.assertEqual(part, first, "\n".join(table))


if __name__ == "__main__":
    unittest.main()
