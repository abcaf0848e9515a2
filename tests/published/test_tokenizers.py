"""Tokenizers as their makers publish them, in ours: the same ids as in tokenizers and sentencepiece, and the same
text back, for every line of the generated corpus (tests/golden/make_tokenizers.py).

Writes folders of goldens into the build folder and has hf_golden_test compare them.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import unittest

import published
from make_tokenizers import decode_cases, fingerprint, golden_of, make_corpus
from tokenizers import Tokenizer

FOLDER = published.client_packages.BUILD / "published-tokenizers"
PROGRAM = published.client_packages.BUILD / "tests" / "hf_golden_test"


def golden_of_sentencepiece(model, pieces, corpus):
    """As golden_of(). Lines with the text of a control symbol have no golden for parsed ones: here the library and
    transformers differ on purpose."""
    texts = [entry if isinstance(entry, str) else entry[0] * entry[1] for entry in corpus]
    plain = [fingerprint(model.encode(text)) for text in texts]
    symbols = [piece for i, piece in enumerate(pieces) if model.is_control(i) or piece == "<unk>"]
    lines = [None if any(symbol in text for symbol in symbols) else made for text, made in zip(texts, plain)]
    words = [i for i in range(len(pieces)) if not (model.is_control(i) or model.is_byte(i) or model.is_unknown(i))]
    rng = random.Random(3)
    cases = [rng.sample(words, rng.randrange(12)) for _ in range(200)]
    cases += [model.encode(text) for text in texts[:40]]
    return {"lines": lines, "plain": plain, "added": [[model.bos_id(), *model.encode(text)] for text in texts[:8]],
            "decoded": [[ids, model.decode(ids), None] for ids in cases]}


class Published(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.corpus = make_corpus()
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        (FOLDER / "corpus.json").write_text(json.dumps(cls.corpus))

    def compare(self, name, eos, golden):
        folder = FOLDER / name
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
        (folder / "golden.json").write_text(json.dumps(golden))
        run = subprocess.run([PROGRAM], cwd=published.ROOT, capture_output=True, text=True, check=False,
                             env={**os.environ, "BATON_TOKENIZERS": f"{FOLDER}/", "BATON_TOKENIZER": name})
        self.assertEqual(run.returncode, 0, run.stdout[-6000:] + run.stderr)
        self.assertIn("[  PASSED  ] 5 tests.", run.stdout)

    def test_tokenizer_json(self):
        for name, maker in published.TOKENIZER_JSON.items():
            with self.subTest(name):
                tokenizer, eos = maker()
                (FOLDER / name).mkdir()
                file = FOLDER / name / "tokenizer.json"
                file.write_text(tokenizer.to_str())
                self.compare(name, eos, golden_of(Tokenizer.from_file(str(file)), self.corpus))

    def test_sentencepiece(self):
        for name, file in published.SENTENCEPIECE.items():
            with self.subTest(name):
                (FOLDER / name).mkdir()
                shutil.copy(published.mistral_file(file), FOLDER / name / "tokenizer.model")
                self.compare(name, "</s>", golden_of_sentencepiece(*published.pieces_of(published.mistral_file(file)),
                                                                   self.corpus))


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
