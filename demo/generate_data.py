#!/usr/bin/env python3
"""Generates the demo model's training documents from data/*.txt. One seed is one corpus.

    python3 demo/generate_data.py --tokenizer          # trains demo/model/tokenizer.model
    python3 demo/generate_data.py --show 20            # prints some documents
    python3 demo/generate_data.py --docs 400000        # writes demo/out/{short,long}.npz

A document is a chat or a raw prompt with its answer. It is stored as token ids with one weight a
token: 2 for what the model shall write, 1 for what a user wrote, 0 for filler. No training question
may be one of heldout.json (see HeldOut in corpus.py); the generator drops them and counts.
"""

import argparse
import json
import multiprocessing
import random
import re
import sys
from pathlib import Path

from corpus import HERE, HeldOut, Unknown, expand, count, pseudo_word, read_topics
import phrases as ph

USER, ASSISTANT, SYSTEM_TAG, END = "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"
VOCABULARY = 4096
LONG_ROW = 32768
LONG_BY_DEFAULT = ("chess_detail", "write_long")    # asked for at length by their very topic


class Writer:
    """Writes random documents as lists of (text, weight)."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.topics = read_topics()
        self.unknown = Unknown()
        self.heldout = HeldOut()
        self.dropped = 0
        self.names = list(self.topics)
        self.weights = [self.topic_weight(self.topics[name]) for name in self.names]
        self.zh_names = [n for n in self.names if self.topics[n].has("za")]
        self.zh_weights = [self.topic_weight(self.topics[n]) for n in self.zh_names]

    @staticmethod
    def topic_weight(topic):
        forms = sum(count(q) for q in topic.text["q"]) + 20 * len(topic.text["n"])
        return max(forms, 12) ** 0.35

    # --- questions ---

    def plain(self, topic, chinese):
        """A bare question of a topic."""
        rng, z = self.rng, "z" if chinese else ""
        nouns, own = topic.text[z + "n"], topic.text[z + "q"]
        if own and (not nouns or rng.random() < 0.6):
            return expand(rng, rng.choices(own, [count(q) ** 0.5 for q in own])[0])
        if not nouns:
            return None
        form = expand(rng, rng.choice(ph.ABOUT_ZH if chinese else ph.ABOUT))
        return re.sub(r"X", lambda _: rng.choice(nouns), form)

    def swap(self, text):
        """Replaces a few words by words of the same meaning."""
        rng = self.rng
        fitting = [pair for pair in ph.SWAPS if re.search(r"\b" + re.escape(pair[0]) + r"\b", text, re.I)]
        for old, new in rng.sample(fitting, min(len(fitting), rng.randrange(0, 3))):
            text = re.sub(r"\b" + re.escape(old) + r"\b", new, text, count=1, flags=re.I)
        return text

    def typo(self, text):
        rng, chars = self.rng, list(text)
        i = rng.randrange(len(chars))
        kind = rng.randrange(3)
        if kind == 0 and i + 1 < len(chars):
            chars[i], chars[i + 1] = chars[i + 1], chars[i]
        elif kind == 1:
            del chars[i]
        else:
            chars.insert(i, chars[i])
        return "".join(chars)

    def noise(self, text, chinese):
        """Loses or adds a word, so that a question is recognised by more than one of its words."""
        rng = self.rng
        units = list(text) if chinese else text.split()
        if len(units) >= 4 and rng.random() < 0.6:
            del units[rng.randrange(len(units))]
        elif not chinese:
            units.insert(rng.randrange(len(units) + 1), rng.choice(ph.LOOSE))
        return ("" if chinese else " ").join(units)

    def drop_word(self, text):
        words = text.split()
        small = [i for i, w in enumerate(words) if w.lower() in ("the", "a", "an", "is", "do", "does", "of", "to")]
        if small:
            del words[self.rng.choice(small)]
        return " ".join(words)

    def frame(self, text, chinese):
        """Puts a polite frame, punctuation and ordinary sloppiness around a question."""
        rng = self.rng
        if chinese:
            text = rng.choice(ph.BEFORE_ZH) + text if rng.random() < 0.4 else text
            text += rng.choice(ph.AFTER_ZH) if rng.random() < 0.2 else ""
            if rng.random() < 0.08:
                text = self.noise(text, True)
            return text + rng.choice(["？", "？", "", "", "。", "?", "！"])
        text = self.swap(text)
        if rng.random() < 0.08:
            text = self.drop_word(text)
        if rng.random() < 0.12:
            text = self.noise(text, False)
        for _ in range(2):
            if rng.random() < 0.25:
                text = rng.choice(ph.BEFORE) + " " + text
        if rng.random() < 0.2:
            text += rng.choice(["", ","]) + " " + rng.choice(ph.AFTER)
        if rng.random() < 0.06 and text:
            text = self.typo(text)
        if rng.random() < 0.6:
            text = text[:1].upper() + text[1:]
        elif rng.random() < 0.4:
            text = text.lower()
        return text + rng.choice(["?", "?", "?", "", "", ".", " ?", "!", "??"] if rng.random() < 0.9 else ["..."])

    def allowed(self, make):
        """Calls make() until its question is not a held-out one."""
        for _ in range(200):
            made = make()
            if made and made[0] and not self.heldout.forbids(made[0]):
                return made
            self.dropped += made is not None
        raise RuntimeError("every form of a question is held out")

    def styled(self, name, chinese, detailed=False):
        """(question, answer) of a topic: plain, brief, long, or answered in Chinese."""
        rng, topic = self.rng, self.topics[name]
        detailed = detailed or name in LONG_BY_DEFAULT
        z, style = ("z" if chinese else ""), rng.random()

        def make():
            question = self.plain(topic, chinese)
            if question is None:
                return None
            text = topic.text
            if not chinese and topic.has("za") and style < 0.03:
                return question + ", " + rng.choice(ph.IN_CHINESE), rng.choice(text["za"])
            if 0.03 <= style < 0.10 and text[z + "s"]:
                extra = rng.choice(ph.BRIEFLY_ZH if chinese else ph.BRIEFLY)
                question = extra + question if chinese else f"{question}, {extra}" if rng.random() < 0.7 else f"{extra}, {question}"
                return self.frame(question, chinese), text[z + "s"][0]
            if 0.10 <= style < 0.17:
                extra = rng.choice(ph.LONGER_ZH if chinese else ph.LONGER)
                question = extra + question if chinese else f"{question} {extra}"
                return self.frame(question, chinese), self.long_answer(topic, z)
            if detailed and not chinese and topic.has("l"):
                return self.frame(question, chinese), text["l"][0]
            return self.frame(question, chinese), rng.choice(text[z + "a"])

        return self.allowed(make)

    def long_answer(self, topic, z):
        if not z and topic.has("l"):
            return topic.text["l"][0]
        more = topic.text[z + "m"]
        return topic.text[z + "a"][0] + ("\n" + more[0] if more else "")

    def declined(self, chinese):
        def make():
            question = self.unknown.question(self.rng, chinese)
            return self.frame(question, chinese), self.rng.choice(self.unknown.za if chinese else self.unknown.a)
        return self.allowed(make)

    def first_turn(self, detailed=False):
        """(question, answer, topic name or None, chinese)"""
        rng = self.rng
        chinese = rng.random() < 0.3
        if rng.random() < 0.16:
            return (*self.declined(chinese), None, chinese)
        name = rng.choices(self.zh_names, self.zh_weights)[0] if chinese else rng.choices(self.names, self.weights)[0]
        if not (self.topics[name].has("zq" if chinese else "q") or self.topics[name].has("zn" if chinese else "n")):
            chinese = not chinese
        if not chinese and self.topics[name].has("p") and rng.random() < 0.3:
            return self.topics[name].text["p"][0], self.topics[name].text["l"][0], name, False
        return (*self.styled(name, chinese, detailed), name, chinese)

    # --- follow-ups ---

    def follow_up(self, name, chinese):
        """The next turn after a turn about `name`; None if there is nothing to refer to."""
        rng, topic, z = self.rng, self.topics[name], "z" if chinese else ""
        text, kind = topic.text, rng.random()

        def say(forms):
            return self.frame(expand(rng, rng.choice(forms)), chinese)

        if kind < 0.30 and text[z + "s"]:
            return self.allowed(lambda: (say(ph.SHORTER_ZH if chinese else ph.SHORTER), text[z + "s"][0])), name
        if kind < 0.48 and text[z + "m"]:
            return self.allowed(lambda: (say(ph.MORE_ZH if chinese else ph.MORE), text[z + "m"][0])), name
        if kind < 0.53:
            return self.allowed(lambda: (say(ph.AGAIN_ZH if chinese else ph.AGAIN), text[z + "a"][0])), name
        if kind < 0.57 and not chinese and topic.has("za"):
            return self.allowed(lambda: (say(ph.IN_CHINESE), text["za"][0])), name
        if kind < 0.72 and not chinese:
            near = [b if a == name else a for a, b in ph.ALIKE if name in (a, b)]
            if near:
                other = rng.choice(near)
                nouns = ph.ELLIPSIS.get(other, []) * 2 + self.topics[other].text["n"]
                if nouns:
                    return self.allowed(lambda: (self.frame(expand(rng, rng.choice(ph.ALSO)).replace(
                        "X", rng.choice(nouns)), False), self.topics[other].text["a"][0])), other
        other = rng.choice(self.zh_names if chinese else self.names)
        nouns = self.topics[other].text[z + "n"]
        if not nouns or not self.topics[other].has(z + "a"):
            return None
        forms = ph.ALSO_ZH if chinese else ph.ALSO
        return self.allowed(lambda: (self.frame(expand(rng, rng.choice(forms)).replace("X", rng.choice(nouns)),
                                                chinese), self.topics[other].text[z + "a"][0])), other

    def chat(self, turns):
        """A chat of some turns as parts."""
        rng, parts, name, chinese = self.rng, [], None, False
        if rng.random() < 0.2:
            parts.append((SYSTEM_TAG + rng.choice(ph.SYSTEM) + END, 0))
        for _ in range(turns):
            follow = self.follow_up(name, chinese) if name and rng.random() < 0.7 else None
            if follow:
                (question, answer), name = follow
            elif parts and rng.random() < 0.25:
                name = rng.choice(["thanks", "bye", "praise", "yes", "hello"])
                question, answer = self.styled(name, chinese)
            else:
                question, answer, name, chinese = self.first_turn()
            parts += [(USER, 0), (question, 1), (END + ASSISTANT, 0), (answer + END, 2)]
        return parts

    def raw(self):
        """A raw prompt as POST /generate gets it: the answer starts on the next line."""
        rng = self.rng
        if rng.random() < 0.15:
            topic = self.topics[rng.choice([n for n in self.names if self.topics[n].has("p")])]
            question, answer, name, chinese = topic.text["p"][0], topic.text["l"][0], topic.name, False
        else:
            question, answer, name, chinese = self.first_turn(detailed=True)
        more = self.topics[name].text["zm" if chinese else "m"] if name else []
        if more and more[0] not in answer and rng.random() < 0.1:
            answer += "\n" + more[0]    # what to say when an answer must be longer than it is
        return [(question, 1), ("\n" + answer + END, 2)]

    # --- filler: what a long prompt is made of ---

    def filler_sentences(self):
        sentences = []
        for topic in self.topics.values():
            for field in ("a", "m", "l", "za"):
                for text in topic.text[field]:
                    sentences += [" " + s.strip() for s in re.split(r"(?<=[.。])\s*", text) if s.strip()]
        return sentences

    def filler(self, kind):
        """One piece of filler text of the given kind."""
        rng = self.rng
        if kind == "log":
            return f"{rng.randrange(24):02d}:{rng.randrange(60):02d} {rng.choice(['INFO', 'WARN', 'DEBUG'])} " \
                   f"step={rng.randrange(100000)} rows={rng.randrange(256)} blocks={rng.randrange(4096)}\n"
        if kind == "words":
            return " " + " ".join(pseudo_word(rng) if rng.random() < 0.2 else rng.choice(self.all_words())
                            for _ in range(rng.randrange(5, 40))) + rng.choice([".", ".\n"])
        return rng.choice(self.all_sentences())

    def all_sentences(self):
        if not hasattr(self, "_sentences"):
            self._sentences = self.filler_sentences()
        return self._sentences

    def all_words(self):
        if not hasattr(self, "_words"):
            lists = self.unknown.words
            self._words = [w for n in ("THING", "CITY", "COUNTRY", "PERSON") for w in lists[n]] + \
                [w for s in self.all_sentences() for w in s.split()]
        return self._words

    def with_filler(self, length, encode):
        """A document that starts with about `length` tokens of filler: (parts, filler ids)."""
        rng = self.rng
        kind = rng.choice(["sentences", "sentences", "words", "log", "repeat", "mixed"])
        unit = self.filler("sentences")
        ids = []
        while len(ids) < length:
            piece = unit if kind == "repeat" else \
                self.filler(rng.choice(["sentences", "words", "log"]) if kind == "mixed" else kind)
            ids += encode(piece if ids else piece.lstrip())
        question, answer, _, _ = self.first_turn()
        tail = rng.choice(["\n", "\n\n", "\nQuestion: ", "\n\nNow my question: "]) + question
        if rng.random() < 0.5:
            return [(tail, 1), ("\n" + answer + END, 2)], ids, ""
        return [(tail, 1), (END + ASSISTANT, 0), (answer + END, 2)], ids, USER


# --- encoding --------------------------------------------------------------------------------------


class Encoder:
    def __init__(self):
        import sentencepiece
        self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(HERE / "model" / "tokenizer.model"))
        self.cache = {}

    def text(self, text):
        if len(text) < 24:
            return self.pieces.encode(text)
        if text not in self.cache:
            if len(self.cache) > 20000:
                self.cache.clear()
            self.cache[text] = self.pieces.encode(text)
        return self.cache[text]

    def parts(self, parts, ids=(), opening=""):
        """Token ids and weights of a document. Part borders are special pieces or line breaks, which
        never merge with a neighbour, so the ids are those of the whole text encoded at once."""
        out, weights = [self.pieces.bos_id()], [0]
        opening = self.text(opening) if opening else []
        out += list(opening) + list(ids)
        weights += [0] * (len(opening) + len(ids))
        for text, weight in parts:
            new = self.text(text)
            out += new
            weights += [weight] * len(new)
        return out, weights


def short_document(writer, encoder):
    kind = writer.rng.random()
    if kind < 0.42:
        return encoder.parts(writer.chat(1))
    if kind < 0.66:
        return encoder.parts(writer.chat(writer.rng.choice([2, 2, 2, 3, 3, 4])))
    if kind < 0.95:
        return encoder.parts(writer.raw())
    parts, ids, opening = writer.with_filler(writer.rng.randrange(20, 500), encoder.text)
    return encoder.parts(parts, ids, opening)


def long_document(writer, encoder, limit):
    rng = writer.rng
    if rng.random() < 0.25:
        ids, weights = encoder.parts(writer.chat(rng.randrange(4, max(5, limit // 150))))
    else:
        length = int(400 * (limit / 400) ** rng.random()) - 300
        ids, weights = encoder.parts(*writer.with_filler(length, encoder.text))
    return (ids, weights) if len(ids) <= limit else None


def worker(job):
    """One share of the corpus: (ids, weights, lengths) as arrays, and the count of dropped questions."""
    import numpy as np
    kind, seed, number = job
    writer, encoder = Writer(seed), Encoder()
    ids, weights, lengths = [], [], []
    while len(lengths) < number:
        document = short_document(writer, encoder) if kind == "short" else \
            long_document(writer, encoder, LONG_ROW if kind == "long" else 4096)
        if document:
            ids.append(np.array(document[0], dtype=np.uint16))
            weights.append(np.array(document[1], dtype=np.uint8))
            lengths.append(len(document[0]))
    return np.concatenate(ids), np.concatenate(weights), np.array(lengths), writer.dropped


def write_corpus(kind, documents, seed, processes):
    import numpy as np
    shares = max(processes, 1)
    offset = {"short": 0, "middle": 10_000, "long": 20_000}[kind]
    jobs = [(kind, seed * 100_000 + offset + i, (documents + shares - 1) // shares) for i in range(shares)]
    with multiprocessing.Pool(shares) as pool:
        results = pool.map(worker, jobs)
    path = HERE / "out" / f"{kind}.npz"
    path.parent.mkdir(exist_ok=True)
    np.savez(path, ids=np.concatenate([r[0] for r in results]), weights=np.concatenate([r[1] for r in results]),
             lengths=np.concatenate([r[2] for r in results]))
    tokens = sum(len(r[0]) for r in results)
    print(f"{kind}: {documents} documents, {tokens / 1e6:.1f} M tokens, "
          f"{sum(r[3] for r in results)} held-out questions dropped", flush=True)


def check_heldout(writer, samples=60000):
    """Fails if a training question is a held-out one, word for word or in its content words."""
    seen = set()
    for _ in range(samples // 2):
        parts = writer.chat(2)
        seen.update(text for text, weight in parts if weight == 1)
    for question in seen:
        if writer.heldout.forbids(question):
            sys.exit(f"held-out question in the training data: {question}")
    print(f"{len(seen)} different training questions, none of them held out "
          f"({writer.dropped} were drawn and dropped)")


def train_tokenizer(seed):
    import io
    import sentencepiece
    writer = Writer(seed)
    lines = []
    for topic in writer.topics.values():
        for field in ("a", "s", "m", "l", "p", "za", "zs", "zm"):
            for text in topic.text[field]:
                lines += text.split("\n") * 12
    for _ in range(30000):
        lines += [text for text, weight in writer.chat(1) if weight == 1]
    lines += [w for words in writer.unknown.words.values() for w in words]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=VOCABULARY,
        byte_fallback=True, character_coverage=0.9999, normalization_rule_name="identity",
        add_dummy_prefix=False, remove_extra_whitespaces=False, split_digits=True, max_sentencepiece_length=12,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, eos_piece=END, num_threads=2,
        user_defined_symbols=[END, SYSTEM_TAG, USER, ASSISTANT], minloglevel=2)
    path = HERE / "model" / "tokenizer.model"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.getvalue())
    print(f"{path}: {path.stat().st_size} bytes from {len(lines)} lines")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--docs", type=int, default=400_000, help="short documents")
    parser.add_argument("--middle-docs", type=int, default=8000, help="documents of up to 4K tokens")
    parser.add_argument("--long-docs", type=int, default=900, help="documents of up to 32K tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=16, help="part of the seed")
    parser.add_argument("--tokenizer", action="store_true", help="only train the tokenizer")
    parser.add_argument("--show", type=int, default=0, help="only print that many documents")
    options = parser.parse_args()
    writer = Writer(options.seed)
    prompts = [t.text["p"][0] for t in writer.topics.values() if t.has("p")]
    if prompts != json.loads((HERE / "lab_prompts.json").read_text(encoding="utf-8")):
        sys.exit("lab_prompts.json and data/lab.txt differ")
    if options.tokenizer:
        return train_tokenizer(options.seed)
    if options.show:
        for _ in range(options.show):
            parts = writer.raw() if writer.rng.random() < 0.3 else writer.chat(writer.rng.choice([1, 1, 2, 3]))
            print("".join(text for text, _ in parts), "\n")
        return None
    check_heldout(writer)
    write_corpus("short", options.docs, options.seed, options.processes)
    write_corpus("middle", options.middle_docs, options.seed, options.processes)
    write_corpus("long", options.long_docs, options.seed, options.processes)
    return None


if __name__ == "__main__":
    main()
