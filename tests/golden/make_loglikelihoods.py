#!/usr/bin/env python3
"""Makes loglikelihoods_demo.json: log probabilities of prompts' tokens under the demo model, by
transformers in fp32; and tests/lm_eval/pairs.json, the documents of an lm-eval task. Needs torch,
transformers and sentencepiece.

    make_loglikelihoods.py

Each entry: `tokens`, the ids; `logprobs`, of every token but the first; `best`, the most probable id in
each of these places.
"""
import json
import pathlib
import zlib

import sentencepiece
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "demo" / "model"
TEXTS = [
    "Baton is a server for language models. The scheduler owns every block.",
    "What happens when I kill a worker? Its requests go back to the queue.",
    "The quick brown fox jumps over the lazy dog, 12 times; naïve 你好.",
]
PAIRS = [
    ("What is Baton?", " A server for large language models."),
    ("The scheduler owns", " every block"),
    ("The scheduler owns", " a small boat"),
    ("Kill a worker and the sentence", " finishes"),
    ("Sorry, that is beyond me: I don't know it. As a small demo model I know mostly", " Baton"),
]


def loglikelihoods(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().log_softmax(-1)


def pair(tokenizer, model, context, target):
    encode = lambda text: [tokenizer.bos_id(), *tokenizer.encode(text)]  # noqa: E731
    ids, begin = encode(context + target), len(encode(context))
    table = loglikelihoods(model, ids)
    places = range(begin, len(ids))
    return {"context": context, "target": target,
            "loglikelihood": round(sum(table[i - 1, ids[i]].item() for i in places), 6),
            "greedy": all(table[i - 1].argmax().item() == ids[i] for i in places)}


def main():
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(MODEL / "tokenizer.model"))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.float32, attn_implementation="eager").eval()
    entries = []
    for text in TEXTS:
        ids = [tokenizer.bos_id(), *tokenizer.encode(text)]
        table = loglikelihoods(model, ids)
        logprobs = [table[i, ids[i + 1]].item() for i in range(len(ids) - 1)]
        entries.append({"tokens": ids, "logprobs": [round(value, 6) for value in logprobs],
                        "best": table[:-1].argmax(-1).tolist()})
    golden = {"made_with": f"torch {torch.__version__}, transformers {transformers.__version__}",
              "model_crc32": zlib.crc32((MODEL / "model.safetensors").read_bytes()),
              "entries": entries}
    out = pathlib.Path(__file__).with_name("loglikelihoods_demo.json")
    out.write_text(json.dumps(golden) + "\n")
    pairs = [pair(tokenizer, model, *texts) for texts in PAIRS]
    (ROOT / "tests" / "lm_eval" / "pairs.json").write_text(json.dumps(pairs, indent=1) + "\n")


main()
