"""Reads data/*.txt into topics and expands the {a|b} templates. No randomness of its own."""

import json
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIELDS = ("n", "q", "a", "s", "m", "l", "p", "zn", "zq", "za", "zs", "zm")
LISTS = ("n", "q", "zn", "zq")          # fields that hold alternatives


class Topic:
    """One topic; `text[field]` is a list of strings (alternatives or variants)."""

    def __init__(self, name, source):
        self.name, self.source = name, source
        self.text = {field: [] for field in FIELDS}

    def has(self, field):
        return bool(self.text[field])


def split_top(text):
    """Splits at the '|' that stand outside of braces."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char == "{") - (char == "}")
        if char == "|" and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    return parts + [current]


def expand(rng, template):
    """One random expansion of a template."""
    while True:
        match = re.search(r"\{([^{}]*)\}", template)
        if not match:
            return re.sub(r"  +", " ", template).strip()
        choice = rng.choice(match.group(1).split("|"))
        template = template[:match.start()] + choice + template[match.end():]


def count(template):
    """The number of expansions: how much weight a template deserves."""
    total = 1
    for group in re.findall(r"\{([^{}]*)\}", template):
        total *= group.count("|") + 1
    return total


def logical_lines(path):
    """Lines without comments, continuations joined, ' /' turned into a line break."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("  ") and lines:
            lines[-1] += " " + line.strip()
        elif line.strip() and not line.startswith("# "):
            lines.append(line.strip())
    return [re.sub(r" / ", "\n", line) for line in lines]


def read_topics():
    topics = {}
    for source in ("baton", "lab", "talk", "more"):
        topic = None
        for line in logical_lines(HERE / "data" / f"{source}.txt"):
            if line.startswith("@ "):
                name = line[2:]
                if (name in topics) != (source == "more"):
                    raise ValueError(f"{source}: topic {name} is unknown or occurs twice")
                topic = topics.setdefault(name, Topic(name, source))
                continue
            field, text = line.split(": ", 1)
            if field in LISTS:
                topic.text[field] += [part.strip() for part in split_top(text)]
            elif field in FIELDS:
                topic.text[field].append(text)
            else:
                raise ValueError(f"{source}: unknown field in: {line}")
    for topic in topics.values():
        if not (topic.has("a") and topic.has("s")):
            raise ValueError(f"topic {topic.name} lacks an answer")
    return topics


class Unknown:
    """Questions that must be declined."""

    def __init__(self):
        self.q, self.zq, self.a, self.za, self.words = [], [], [], [], {}
        for line in logical_lines(HERE / "data" / "unknown.txt"):
            if line.startswith("= "):
                name, rest = line[2:].split(" ", 1)
                self.words[name] = [word.strip() for word in rest.split("|")]
                continue
            field, text = line.split(": ", 1)
            parts = [part.strip() for part in split_top(text)] if field in ("q", "zq") else [text]
            getattr(self, field).extend(parts)

    def question(self, rng, chinese):
        template = expand(rng, rng.choice(self.zq if chinese else self.q))
        names = sorted(self.words, key=len, reverse=True)
        for _ in range(2):              # ACTION may contain CITY
            template = re.sub("|".join(names) + "|NUM|HAN", lambda m: self.word(rng, m.group(0)),
                              template)
        return template

    def word(self, rng, name):
        if name == "NUM":
            return str(rng.randrange(2, rng.choice([10, 100, 10000])))
        if name == "HAN":
            return "".join(chr(rng.randrange(0x4e00, 0x9fa0)) for _ in range(rng.randrange(1, 4)))
        if name == "WORD" and rng.random() < 0.6:
            return pseudo_word(rng)
        return rng.choice(self.words[name])


def pseudo_word(rng):
    syllables = rng.randrange(1, 4)
    return "".join(rng.choice(["b", "br", "c", "d", "dr", "f", "g", "k", "l", "m", "n", "p", "pr", "r",
                               "s", "st", "t", "tr", "v", "w", "z", "sh", "ch"]) +
                   rng.choice("aeiou") + rng.choice(["", "", "n", "r", "l", "s", "x"])
                   for _ in range(syllables))


# --- the held-out questions ----------------------------------------------------------------------

STOP = set("""a an the is are was be am do does did i you me my your it its this that of in on at to for
from with by and or so what whats which who how can could would will may should please tell exactly
about here there ok okay hey hi then now again into all any have has im id like just really actually
s d t ve re""".split())
STOP_ZH = set("请问一下吗呢呀啊吧的了是什么能可以我你想知道讲说用中文到底有在里那么怎样如何就会要")


def normal(text):
    """Lower case, words and CJK characters only."""
    return re.findall(r"[a-z0-9]+|[\u4e00-\u9fff]", text.lower())


def content(text):
    """The words that carry the meaning: two questions with the same set count as the same."""
    return frozenset(w for w in normal(text) if w not in STOP and w not in STOP_ZH)


class HeldOut:
    """Says whether a training question is (nearly) one of heldout.json or dev.json.

    A held-out question of one turn forbids its exact words and every other order or frame of the
    same content words. The last turn of a held-out chat is elliptical ("and the other one?"), so it
    forbids its exact words only.
    """

    def __init__(self):
        heldout = json.loads((HERE / "heldout.json").read_text(encoding="utf-8"))["questions"]
        dev = json.loads((HERE / "dev.json").read_text(encoding="utf-8"))["questions"]
        chats = [question["turns"] for question in heldout] + [[text] for text, _ in dev]
        self.exact = {tuple(normal(turns[-1])) for turns in chats}
        self.content = {content(turns[0]) for turns in chats if len(turns) == 1} - {frozenset()}

    def forbids(self, text):
        words = tuple(normal(text))
        return words in self.exact or content(text) in self.content
