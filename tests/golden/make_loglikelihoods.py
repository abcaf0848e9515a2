#!/usr/bin/env python3
"""Makes loglikelihoods_demo.json: log probabilities of prompts' tokens under the demo model, by
transformers; and the documents of lm-eval's tasks, tests/lm_eval/*.json, with what transformers makes of
them. Made with torch 2.11.0, transformers 5.23.0, sentencepiece 0.2.3.

    make_loglikelihoods.py

The model computes in double precision, so that the numbers are the same on every machine (in single
precision they differ by 3e-5 between two CPUs). Each entry of loglikelihoods_demo.json: `tokens`, the ids;
`logprobs`, of every token but the first; `best`, the most probable id in each of these places.
"""
import json
import pathlib
import zlib

import sentencepiece
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "demo" / "model"
DOCUMENTS = ROOT / "tests" / "lm_eval"
TEXTS = [
    "Baton is a server for language models. The scheduler owns every block.",
    "What happens when I kill a worker? Its requests go back to the queue.",
    "The quick brown fox jumps over the lazy dog, 12 times; naïve 你好.",
]
# Several blocks of tokens, most of them nearly certain: sums of many unlikely ones are not known to 1e-4
# in single precision, whoever computes them.
LONG = " ".join([
    "What happens when I kill a worker?\nNo answer is lost. When a worker dies, even by kill -9, the scheduler",
    "notices it and puts its sequences back into the queue with their prompts and all the tokens that were",
    "already sent. They prefill again on a living worker, or wait for the restart, and then they continue",
    "exactly where they stopped.",
])
PAIRS = [
    ("What is Baton?", " A server for large language models."),
    ("The scheduler owns", " every block"),
    ("The scheduler owns ", "a small boat"),
    ("Kill a worker and the sentence", " finishes"),
    ("Sorry, that is beyond me: I don't know it. As a small demo model I know mostly", " Baton"),
    ("你是谁\n我是 Baton 的", "演示模型"),
    (LONG, " The client sees a short pause."),
]
CHOICES = [
    ("What is Baton?\n",
     ["Baton is a fish.", "Baton is a server for large language models.", "No.", "A stick, in music"], 1),
    ("Who owns the blocks?\n", ["The scheduler is the one process that decides.", "Nobody."], 0),
    ("What happens when I kill a worker?\n", ["No answer is lost.", "All is lost.", "It rains."], 0),
    ("The scheduler owns every", [" boat", " block", " fish"], 0),  # the model knows better
]
ROLLING = [*TEXTS, LONG]
QUESTIONS = ["What is Baton?", "Who owns the blocks?", "What happens when I kill a worker?", "你是谁"]


class Reference:
    def __init__(self):
        self.spm = sentencepiece.SentencePieceProcessor(model_file=str(MODEL / "tokenizer.model"))
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            MODEL, dtype=torch.float64, attn_implementation="eager").eval()

    def encode(self, text):
        return [self.spm.bos_id(), *self.spm.encode(text)]

    def table(self, ids):
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].log_softmax(-1)

    def entry(self, text):
        ids = self.encode(text)
        table = self.table(ids)
        logprobs = [table[i, ids[i + 1]].item() for i in range(len(ids) - 1)]
        return {"tokens": ids, "logprobs": [round(value, 6) for value in logprobs],
                "best": table[:-1].argmax(-1).tolist()}

    def pair(self, context, target):
        """The log-likelihood of `target` and whether it is the greedy one. As in lm-eval, spaces at a
        context's end belong to the target."""
        ids, begin = self.encode(context + target), len(self.encode(context.rstrip()))
        table = self.table(ids)
        places = range(begin, len(ids))
        return (round(sum(table[i - 1, ids[i]].item() for i in places), 6),
                all(table[i - 1].argmax().item() == ids[i] for i in places))

    def greedy(self, ids, max_new_tokens):
        made = self.model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)),
                                   do_sample=False, max_new_tokens=max_new_tokens,
                                   eos_token_id=self.tokenizer.eos_token_id)[0, len(ids):]
        return self.tokenizer.decode(made, skip_special_tokens=True)


def write(name, documents):
    (DOCUMENTS / name).write_text(json.dumps(documents, indent=1, ensure_ascii=False) + "\n")


def main():
    reference = Reference()
    golden = {"made_with": f"torch {torch.__version__}, transformers {transformers.__version__}",
              "model_crc32": zlib.crc32((MODEL / "model.safetensors").read_bytes()),
              "entries": [reference.entry(text) for text in TEXTS]}
    out = pathlib.Path(__file__).with_name("loglikelihoods_demo.json")
    out.write_text(json.dumps(golden) + "\n")

    pairs = [(*texts, *reference.pair(*texts)) for texts in PAIRS]
    write("pairs.json", [dict(zip(("context", "target", "loglikelihood", "greedy"), pair, strict=True))
                         for pair in pairs])
    write("choices.json", [
        {"question": question, "choices": choices, "label": label,
         "loglikelihoods": [reference.pair(question, choice)[0] for choice in choices]}
        for question, choices, label in CHOICES])
    write("rolling.json", [{"text": text, "loglikelihood": reference.pair("", text)[0]}
                           for text in ROLLING])
    questions = []
    for question in QUESTIONS:
        chat = reference.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True)
        prompt = question + "\n"
        questions.append({"question": question, "prompt": prompt,
                          "text": reference.greedy(reference.encode(prompt), 24),
                          "chat": reference.greedy(chat["input_ids"], 24)})
    write("questions.json", questions)


main()
