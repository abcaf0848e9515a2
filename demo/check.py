#!/usr/bin/env python3
"""Asks the 40 held-out questions and counts the right answers.

    python3 demo/check.py                               # the model folder, through transformers
    python3 demo/check.py --url http://127.0.0.1:8000   # any server with /v1/chat/completions

A question passes when its last answer obeys the general rules (it ends by itself, it has a
readable length, it does not loop) and the question's own word groups in heldout.json.
Greedy decoding, fp32. The exit status is 0 when at least `need` questions pass.
"""

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_TOKENS = 600


def words(text):
    """Latin words and single CJK characters: the units of the loop rule."""
    return re.findall(r"[a-z0-9']+|[\u4e00-\u9fff]", text.lower())


def longest_repeat(text, length=8):
    """How often the most frequent run of `length` words occurs."""
    units = words(text)
    counts = {}
    for i in range(len(units) - length + 1):
        run = tuple(units[i:i + length])
        counts[run] = counts.get(run, 0) + 1
    return max(counts.values(), default=1)


def judge(question, answer, finished):
    """Returns the list of broken rules; an empty list means that the answer is right."""
    wrong = []
    text = answer.strip()
    low = text.lower()
    if not finished:
        wrong.append("did not end by itself")
    if len(text) < 8:
        wrong.append("too short to be an answer")
    if len(text) > question.get("max_chars", 6000):
        wrong.append(f"longer than {question.get('max_chars', 6000)} characters")
    if "\ufffd" in text:
        wrong.append("broken UTF-8")
    if longest_repeat(text) > 2:
        wrong.append("loops")
    for group in question["must"]:
        if not any(word.lower() in low for word in group):
            wrong.append("none of " + " / ".join(group))
    for word in question.get("must_not", []):
        if word.lower() in low:
            wrong.append("says " + word)
    return wrong


def render_chat(chat_format, messages):
    """The chat as one plain string, with the opening of the assistant's turn at its end."""
    text = ""
    for message in messages:
        prefix, suffix = chat_format[message["role"]]
        text += prefix + message["content"] + suffix
    return text + chat_format["assistant"][0]


class LocalModel:
    """The model folder through transformers, tokenised by the sentencepiece model itself."""

    def __init__(self, folder, threads):
        import sentencepiece
        import torch
        import transformers

        if threads:
            torch.set_num_threads(threads)
        self.torch = torch
        self.pieces = sentencepiece.SentencePieceProcessor(
            model_file=str(folder / "tokenizer.model"))
        self.format = json.loads((folder / "chat_format.json").read_text(encoding="utf-8"))
        self.eos = json.loads((folder / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
        self.model = transformers.LlamaForCausalLM.from_pretrained(
            folder, dtype=torch.float32).eval()

    def complete(self, text, max_tokens=MAX_TOKENS):
        """Greedy continuation of a text: (answer, ended by itself, number of tokens)."""
        torch = self.torch
        ids = self.pieces.encode(text)
        if self.format["bos"]:
            ids = [self.pieces.bos_id()] + ids
        row = torch.tensor([ids])
        with torch.inference_mode():
            out = self.model.generate(row, attention_mask=torch.ones_like(row), do_sample=False,
                                      max_new_tokens=max_tokens, pad_token_id=0)
        new = out[0, len(ids):].tolist()
        ended = bool(new) and new[-1] == self.eos
        return self.pieces.decode(new[:-1] if ended else new), ended, len(new)

    def chat(self, messages):
        answer, ended, _ = self.complete(render_chat(self.format, messages))
        return answer, ended


class Server:
    """Any server that offers /v1/chat/completions."""

    def __init__(self, url):
        self.url = url.rstrip("/")
        self.model = self.get("/v1/models")["data"][0]["id"]

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return json.load(reply)

    def chat(self, messages):
        body = {"model": self.model, "messages": messages, "temperature": 0,
                "max_tokens": MAX_TOKENS}
        request = urllib.request.Request(
            self.url + "/v1/chat/completions", data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            choice = json.load(reply)["choices"][0]
        return choice["message"]["content"], choice["finish_reason"] == "stop"


def ask(backend, turns):
    """Holds the chat turn by turn and returns the last answer."""
    messages, answer, finished = [], "", False
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        answer, finished = backend.chat(messages)
        messages.append({"role": "assistant", "content": answer.strip()})
    return answer, finished


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=HERE / "model", help="model folder")
    parser.add_argument("--url", help="ask this server instead of the model folder")
    parser.add_argument("--heldout", type=Path, default=HERE / "heldout.json")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: its default)")
    parser.add_argument("--answers", action="store_true", help="print every answer")
    options = parser.parse_args()

    data = json.loads(options.heldout.read_text(encoding="utf-8"))
    try:
        backend = Server(options.url) if options.url else LocalModel(options.model,
                                                                     options.threads)
    except (OSError, urllib.error.URLError, KeyError, IndexError) as error:
        sys.exit(f"check: cannot use {options.url or options.model}: {error}")

    right = 0
    for question in data["questions"]:
        answer, finished = ask(backend, question["turns"])
        wrong = judge(question, answer, finished)
        right += not wrong
        print(f"{'pass' if not wrong else 'FAIL'}  {question['id']:<20} {'; '.join(wrong)}",
              flush=True)
        if wrong or options.answers:
            print(f"      Q: {question['turns'][-1]}\n      A: {answer.strip()}", flush=True)
    total = len(data["questions"])
    print(f"{right}/{total} right, {data['need']} needed")
    return 0 if right >= data["need"] else 1


if __name__ == "__main__":
    sys.exit(main())
