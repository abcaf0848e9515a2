#!/usr/bin/env python3
"""Counts how many of dev.json's questions a model folder recognises; it chooses between trainings.

    python3 demo/dev_check.py demo/model another/folder

An answer counts when it begins like one of its topic's answers. heldout.json is not touched.
"""

import json
import sys
from pathlib import Path

from check import LocalModel, render_chat
from corpus import HERE, Unknown, read_topics

LETTERS = 24        # of the answer's beginning (half as many in Chinese)


def beginnings(topics, unknown, name):
    if name == "unknown":
        texts = unknown.a + unknown.za
    else:
        texts = [t for field in ("a", "l", "s", "za", "zs") for t in topics[name].text[field]]
    return tuple(t[:LETTERS if t.isascii() else LETTERS // 2] for t in texts)


def main():
    topics, unknown = read_topics(), Unknown()
    questions = json.loads((HERE / "dev.json").read_text(encoding="utf-8"))["questions"]
    for folder in sys.argv[1:] or [HERE / "model"]:
        model, right = LocalModel(Path(folder), 0), 0
        for text, name in questions:
            chat = render_chat(model.format, [{"role": "user", "content": text}])
            answer = model.complete(chat, 16)[0].strip()
            good = answer.startswith(beginnings(topics, unknown, name))
            right += good
            if not good:
                print(f"  {name}: {text} => {answer}")
        print(f"{folder}: {right}/{len(questions)}", flush=True)


if __name__ == "__main__":
    main()
