#!/usr/bin/env python3
"""Makes beams.json: what transformers' beam search finds with the demo model and with small random
ones, in fp32 with eager attention. Needs torch, transformers and sentencepiece.

    make_beams.py

A case: `model`, a folder below the root; `prompt`, ids; `params`, by the names of SamplingParams;
`sequences`, best first: `tokens` (what ended it included), `score`, `reason`.
"""
import json
import pathlib
import random

import sentencepiece
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = "demo/model"
RANDOM_MODELS = ["mha", "gqa_tied_llama3", "qwen2_bias", "mixtral"]
EARLY = {0: False, 1: True, 2: "never"}  # ipc/types.h: EarlyStopping

TEXTS = ["What is Baton?", "The scheduler owns", "Kill a worker and"]
DEMO_PARAMS = [
    dict(num_beams=4, max_tokens=24),
    dict(num_beams=4, max_tokens=32, length_penalty=0.0, early_stopping=2, num_return_sequences=4),
    dict(num_beams=3, max_tokens=20, length_penalty=2.0, early_stopping=1, num_return_sequences=2),
    dict(num_beams=8, max_tokens=12, min_tokens=6, repetition_penalty=1.3, num_return_sequences=8),
]


def random_params(rng, vocab):
    """Several stop ids, so that many sequences end on their way."""
    params = dict(num_beams=rng.randint(2, 6), max_tokens=rng.randint(1, 20),
                  length_penalty=rng.choice([1.0, 1.0, 0.0, -0.5, 0.6, 2.0]),
                  early_stopping=rng.choice([0, 0, 1, 2]),
                  stop_ids=sorted(rng.sample(range(vocab), rng.choice([1, 1, 3, 6]))))
    params["num_return_sequences"] = rng.randint(1, params["num_beams"])
    if rng.random() < 0.3:
        params["min_tokens"] = rng.randint(1, params["max_tokens"])
    if rng.random() < 0.3:
        params["repetition_penalty"] = rng.choice([0.8, 1.4])
    if rng.random() < 0.3:
        tokens = rng.sample(range(vocab), 3)
        params["bias_tokens"], params["bias_values"] = tokens, [2.5, -3.0, 1.25]
    if rng.random() < 0.3:
        params["bad_words"] = [[t] for t in rng.sample(range(vocab), 4)
                               if t not in params["stop_ids"]]
    return params


def search(model, prompt, params):
    options = dict(max_new_tokens=params["max_tokens"], num_beams=params["num_beams"],
                   num_return_sequences=params.get("num_return_sequences", 1),
                   length_penalty=params.get("length_penalty", 1.0),
                   early_stopping=EARLY[params.get("early_stopping", 0)],
                   eos_token_id=params["stop_ids"], pad_token_id=0, do_sample=False,
                   return_dict_in_generate=True, output_scores=True)
    if params.get("min_tokens"):
        options["min_new_tokens"] = params["min_tokens"]
    if "repetition_penalty" in params:
        options["repetition_penalty"] = params["repetition_penalty"]
    if "bias_tokens" in params:
        options["sequence_bias"] = [[[t], v] for t, v in
                                    zip(params["bias_tokens"], params["bias_values"])]
    if params.get("bad_words"):
        options["bad_words_ids"] = params["bad_words"]
    ids = torch.tensor([prompt])
    with torch.no_grad():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    sequences = []
    for row, score in zip(found.sequences, found.sequences_scores):
        tokens = row[len(prompt):].tolist()
        ends = [i for i, token in enumerate(tokens) if token in params["stop_ids"]]
        if ends:
            tokens = tokens[:ends[0] + 1]
        sequences.append({"tokens": tokens, "score": round(score.item(), 5),
                          "reason": "stop" if ends else "length"})
    return sequences


def cases_of(folder, prompts_and_params):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        ROOT / folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config = transformers.GenerationConfig()
    return [{"model": folder, "prompt": prompt, "params": params,
             "sequences": search(model, prompt, params)} for prompt, params in prompts_and_params]


def main():
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(ROOT / DEMO / "tokenizer.model"))
    encode = lambda text: [tokenizer.bos_id(), *tokenizer.encode(text)]  # noqa: E731
    eos = json.loads((ROOT / DEMO / "config.json").read_text())["eos_token_id"]
    cases = cases_of(DEMO, [(encode(text), params | {"stop_ids": [eos]})
                            for text in TEXTS for params in DEMO_PARAMS])
    rng = random.Random(20261122)
    for name in RANDOM_MODELS:
        folder = f"tests/golden/models/{name}"
        vocab = json.loads((ROOT / folder / "config.json").read_text())["vocab_size"]
        cases += cases_of(folder, [([rng.randrange(vocab) for _ in range(rng.randint(1, 20))],
                                    random_params(rng, vocab)) for _ in range(15)])
    golden = {"made_with": f"torch {torch.__version__}, transformers {transformers.__version__}",
              "cases": cases}
    out = pathlib.Path(__file__).with_name("beams.json")
    head, tail = json.dumps(golden | {"cases": []}).split("[]")
    lines = ",\n".join(json.dumps(case) for case in cases)
    out.write_text(f"{head}[\n{lines}\n]{tail}\n")
    print(f"{len(cases)} cases, {out.stat().st_size} bytes in {out}")


main()
