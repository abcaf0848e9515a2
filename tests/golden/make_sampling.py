#!/usr/bin/env python3
"""Makes tests/golden/sampling.txt: what the probabilities of a draw should be, by transformers' logits
processors where it has them and by numpy where it has none. Needs torch and transformers.

A case is five lines: its name; `parameter value` pairs; prompt|output; the
logits; the probabilities.
"""
import pathlib

import numpy
import torch
import transformers
from transformers.generation import logits_process as lp

VOCAB = 24


def biased(logits, p, prompt, output):
    """OpenAI's formula for the penalties, vLLM's order; transformers has neither."""
    row = logits.copy()
    if "allowed" in p:
        mask = numpy.ones(VOCAB, bool)
        mask[p["allowed"]] = False
        row[mask] = -numpy.inf
    for word in p.get("bad_words", []):
        ahead = word[:-1]
        if not ahead or output[-len(ahead):] == ahead:
            row[word[-1]] = -numpy.inf
    if len(output) < p.get("min_tokens", 0):
        row[p["stop"]] = -numpy.inf
    for token, value in p.get("bias", []):
        row[token] += value
    return row


def penalised(row, p, prompt, output):
    if "repetition" in p:
        scores = lp.RepetitionPenaltyLogitsProcessor(p["repetition"])(
            torch.tensor([prompt + output]), torch.tensor(row)[None])
        row = scores[0].numpy()
    counts = numpy.bincount(output, minlength=VOCAB) if output else numpy.zeros(VOCAB)
    return row - p.get("frequency", 0) * counts - p.get("presence", 0) * (counts > 0)


def probabilities(logits, p, prompt, output):
    row = penalised(biased(logits, p, prompt, output), p, prompt, output)
    scores = torch.tensor(row)[None]
    ids = torch.tensor([prompt + output or [0]])
    warpers = [lp.TemperatureLogitsWarper(float(p["temperature"]))]
    if "top_k" in p:
        warpers.append(lp.TopKLogitsWarper(p["top_k"]))
    if "top_p" in p:
        warpers.append(lp.TopPLogitsWarper(p["top_p"]))
    if "min_p" in p:
        warpers.append(lp.MinPLogitsWarper(p["min_p"]))
    if "typical_p" in p:
        warpers.append(lp.TypicalLogitsWarper(p["typical_p"]))
    for warper in warpers:
        scores = warper(ids, scores)
    return torch.softmax(scores, -1)[0].numpy()


CASES = [
    ("min_p", dict(temperature=1.0, min_p=0.12), [], []),
    ("min_p_hot", dict(temperature=1.7, min_p=0.3), [], []),
    ("min_p_after_top_p", dict(temperature=1.2, top_p=0.8, min_p=0.25), [], []),
    ("min_p_after_top_k", dict(temperature=1.0, top_k=5, min_p=0.2), [], []),
    ("min_p_all_but_the_best", dict(temperature=1.0, min_p=1.0), [], []),
    ("typical", dict(temperature=1.0, typical_p=0.4), [], []),
    ("typical_hot", dict(temperature=2.0, typical_p=0.7), [], []),
    ("typical_after_top_k", dict(temperature=1.0, top_k=7, typical_p=0.5), [], []),
    ("typical_after_all", dict(temperature=1.1, top_k=12, top_p=0.9, min_p=0.05, typical_p=0.8), [], []),
    ("repetition", dict(temperature=1.0, repetition=1.8), [1, 2, 2, 9], [3, 3, 11]),
    ("repetition_below_one", dict(temperature=1.0, repetition=0.6), [1, 2], [5]),
    ("frequency", dict(temperature=1.0, frequency=0.7), [1, 2], [4, 4, 4, 6]),
    ("presence", dict(temperature=1.0, presence=1.5), [4, 4], [6, 7, 7]),
    ("negative_presence", dict(temperature=0.8, presence=-1.0, frequency=-0.5), [], [8, 8]),
    ("all_penalties", dict(temperature=0.9, repetition=1.3, frequency=0.4, presence=0.3, top_p=0.9),
     [1, 2, 3], [3, 4, 4]),
    ("bias", dict(temperature=1.0, bias=[(0, 3.5), (5, -100.0), (6, -1.25)]), [], []),
    ("allowed", dict(temperature=1.0, allowed=[2, 3, 17]), [], []),
    ("allowed_and_biased", dict(temperature=1.0, allowed=[2, 3, 17], bias=[(3, 2.0), (4, 50.0)]), [], []),
    ("bad_word_of_one", dict(temperature=1.0, bad_words=[[7], [8]]), [7], []),
    ("bad_word_that_began", dict(temperature=1.0, bad_words=[[3, 4, 5], [4, 6], [9, 4, 7]]), [1], [3, 4]),
    ("bad_word_begun_in_the_prompt", dict(temperature=1.0, bad_words=[[3, 4]]), [3], []),
    ("min_tokens", dict(temperature=1.0, min_tokens=3, stop=[1, 5]), [1], [2, 2]),
    ("min_tokens_reached", dict(temperature=1.0, min_tokens=2, stop=[1, 5]), [1], [2, 2]),
    ("everything", dict(temperature=1.4, repetition=1.2, frequency=0.2, presence=0.1, min_tokens=9,
                        stop=[0], bias=[(1, 1.0)], bad_words=[[2, 3]], top_k=15, top_p=0.95,
                        min_p=0.02, typical_p=0.9), [5, 6, 7], [1, 2]),
]


def shown(value):
    if isinstance(value, list):
        return ";".join(",".join(f"{x:.9g}" for x in (v if isinstance(v, (list, tuple)) else [v]))
                        for v in value)
    return f"{value:.9g}"


def main():
    random = numpy.random.default_rng(20261121)
    lines = [f"# by tests/golden/make_sampling.py with transformers {transformers.__version__}"]
    for name, p, prompt, output in CASES:
        logits = random.normal(0, 1.6, VOCAB).astype(numpy.float32)
        result = probabilities(logits, p, prompt, output)
        lines.append(name)
        lines.append(" ".join(f"{key} {shown(value)}" for key, value in p.items()))
        lines.append(",".join(map(str, prompt)) + "|" + ",".join(map(str, output)))
        lines.append(" ".join(f"{x:.9g}" for x in logits))
        lines.append(" ".join(f"{x:.6g}" for x in result))
    path = pathlib.Path(__file__).with_name("sampling.txt")
    path.write_text("\n".join(lines) + "\n")
    print(f"{len(CASES)} cases in {path}")


if __name__ == "__main__":
    main()
