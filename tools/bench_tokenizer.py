#!/usr/bin/env python3
"""Tokenising on one thread: Baton beside Hugging Face's tokenizers, same files, same text, same parts.

    ninja -C build/cpu baton-bench-tokenizer
    bench_tokenizer.py [--binary build/cpu/bin/baton-bench-tokenizer] [--size 32000] [--megabytes 8] [FAMILY|FOLDER ...]

Needs tokenizers 0.23.3. Trains a tokenizer in each family's configuration on the text (the sources of Python's
standard library, which are code and English, and a tenth of lines in other scripts), or takes the tokenizer.json of a
folder, and checks that the ids are the same. Times are processor time.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "golden"))

import make_tokenizers as golden  # noqa: E402
from tokenizers import Tokenizer, trainers  # noqa: E402


def make_text(megabytes):
    rng = random.Random(1)
    lines = []
    size = 0
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.rglob("*.py")):
        if "site-packages" in path.parts or size >= megabytes * 1e6:
            continue
        for line in path.read_text("utf-8", "replace").splitlines(keepends=True):
            size += len(line)
            lines.append(line)
            if rng.random() < 0.05:
                lines.append(rng.choice(golden.SENTENCES) + "\n")
    return "".join(lines).encode()[:int(megabytes * 1e6)].decode("utf-8", "ignore")


def cut(data, size):
    parts = []
    while data:
        end = data.find(b"\n", min(size, len(data)))
        length = len(data) if end < 0 else end + 1
        parts.append(data[:length].decode())
        data = data[length:]
    return parts


def library(folder, parts, rounds):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    best = 1e9
    for _ in range(rounds):
        begin = time.process_time()
        encoded = tokenizer.encode_batch_fast(parts, add_special_tokens=False)  # without offsets
        best = min(best, time.process_time() - begin)
    value = 0xCBF29CE484222325
    count = 0
    for entry in encoded:
        for number in entry.ids:
            value = (value ^ number) * 0x100000001B3 % 2**64
        count += len(entry.ids)
    return sum(len(part.encode()) for part in parts) / 1e6 / best, count, f"{value:016x}"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--binary", default=str(ROOT / "build/cpu/bin/baton-bench-tokenizer"))
    arguments.add_argument("--size", type=int, default=32000)
    arguments.add_argument("--megabytes", type=float, default=8)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("families", nargs="*", default=["gpt2", "llama3", "qwen2", "deepseek3", "llama2", "mistral"])
    options = arguments.parse_args()
    text = make_text(options.megabytes)
    parts = cut(text.encode(), 4096)

    def train(tokenizer, size, alphabet=()):
        trainer = trainers.BpeTrainer(vocab_size=options.size, show_progress=False, initial_alphabet=list(alphabet))
        tokenizer.train_from_iterator(parts, trainer)
        return tokenizer

    golden.train = train
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text").write_bytes(text.encode())
        for family in options.families:
            if family in golden.MAKERS:
                tokenizer, eos = golden.MAKERS[family]()
                (folder / "tokenizer.json").write_text(tokenizer.to_str())
                (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
            else:
                for file in ("tokenizer.json", "tokenizer_config.json"):
                    shutil.copy(pathlib.Path(family) / file, folder / file)
            theirs, count, fingerprint = library(folder, parts, options.rounds)
            ours = json.loads(subprocess.check_output([options.binary, name, str(folder / "text"), "--rounds",
                                                       str(options.rounds)]))
            same = (count, fingerprint) == (ours["tokens"], ours["hash"])
            print(f"{pathlib.Path(family).name:17} {count / len(parts):7.0f} tokens a part   library {theirs:6.2f} MB/s   Baton {ours['mb_s']:6.2f} MB/s"
                  f"   {ours['mb_s'] / theirs:5.1f} times   {ours['ns_a_token_out']:5.1f} ns a token out   "
                  f"{'same ids' if same else 'OTHER IDS'}", flush=True)


if __name__ == "__main__":
    main()
