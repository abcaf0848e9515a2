"""Prompts: a data set's file, or a seeded stand-in for it; and how many tokens a text has."""

import json
import math
import pathlib

from loadgen.http_json import FAILURES, Server

_MAX_FILE_BYTES = 256 << 20
_VERBS = ["Explain", "Describe", "Summarise", "List", "Compare", "Rewrite", "Classify", "Translate",
          "Discuss", "Name", "Give an example of", "Write a short story about"]
_THINGS = ["the seasons", "a computer", "the stock market", "chess", "a healthy meal", "photosynthesis",
           "the Internet", "a long journey", "ancient Rome", "climate change", "a good teacher",
           "electric cars", "the ocean", "a library", "music", "the human heart"]
_WAYS = ["in one sentence", "for a child", "with two examples", "in detail", "as a poem", "step by step",
         "in your own words", "in three points"]


def read_json(path):
    """The parsed file; ValueError with the path if it is too large or no JSON."""
    path = pathlib.Path(path)
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"{path} has more than {_MAX_FILE_BYTES} bytes")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: no valid JSON: {error}") from None


def alpaca_cases(path):
    """[(prompt, reference output)] of an alpaca file: a list of {instruction, input, output}."""
    rows = read_json(path)
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path}: not a list of records")
    cases = []
    for i, row in enumerate(rows):
        try:
            prompt = row["instruction"] + ":" + row["input"] if row["input"] else row["instruction"]
            cases.append((prompt, row["output"]))
        except (TypeError, KeyError) as error:
            raise ValueError(f"{path}: record {i} has no {error}") from None
    return cases


def synthetic_prompt(rng):
    return f"{rng.choice(_VERBS)} {rng.choice(_THINGS)} {rng.choice(_WAYS)}."


def synthetic_cases(rng, count):
    """[(prompt, tokens of the reply)]. Lengths are log-normal around 60 tokens (half of them between
    27 and 130), which is about what alpaca's reference outputs have; not the data set itself."""
    return [(synthetic_prompt(rng), min(512, max(1, round(math.exp(rng.gauss(math.log(60), 1.15))))))
            for _ in range(count)]


def synthetic_words(rng, count):
    words = []
    while len(words) < count:
        words += synthetic_prompt(rng).split()
    return " ".join(words[:count])


def estimated_tokens(text):
    """1.35 tokens a word, the tutorial's rule; scripts without spaces count a token a character."""
    dense = sum(1 for c in text if ord(c) > 0x2E7F)
    return max(1, dense + int(1.35 * len([w for w in text.split() if w.isascii() or not dense])))


class TokenCounter:
    """Counts with the tokeniser of a server that has POST /tokenize, else by estimate. `how` says which."""

    def __init__(self, url):
        self._server = Server(url, timeout_s=30) if url else None
        self.how = "1.35 tokens a word"
        if self._server is None:
            return
        try:
            self._ask("a")
            self.how = "the server's POST /tokenize"
        except FAILURES:
            self._server = None

    def _ask(self, text):
        reply = self._server.post_json("/tokenize", {"prompt": text, "add_special_tokens": False})
        return [int(token) for token in reply["tokens"]]

    def count(self, text):
        return max(1, len(self._ask(text))) if self._server else estimated_tokens(text)

    def cut(self, text, tokens):
        """`text` repeated or cut to about `tokens` tokens (exactly so many, save where the seams merge)."""
        have = self.count(text)
        text = " ".join([text] * math.ceil(tokens / have))
        if self._server is None:
            return " ".join(text.split()[:max(1, int(tokens / 1.35))])
        ids = self._ask(text)[:tokens]
        return self._server.post_json("/detokenize", {"tokens": ids})["prompt"]
