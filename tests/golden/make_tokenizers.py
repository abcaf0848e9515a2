#!/usr/bin/env python3
"""Makes the small tokenizers of tests/golden/tokenizers, and what the tokenizers library does with them.

    make_tokenizers.py [NAME ...]

Needs tokenizers 0.23.3. A folder NAME holds a tokenizer.json in the configuration of a known family,
trained on generated text; a tokenizer_config.json; and golden.json:

    lines:   per line of corpus.json "count:hash" of its ids, with special tokens parsed and nothing added
    added:   ids of the first lines with what the post-processor adds
    plain:   as lines, with special tokens as letters (encode_special_tokens); "" where it is the same
    decoded: [ids, text without special tokens, text with them]

corpus.json is a list of texts; [text, n] is a text n times. The hash is FNV-1a of 64 bits over the ids as 32 bits,
little-endian, folded to 32 bits.
"""
import collections
import json
import pathlib
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors, trainers

FOLDER = pathlib.Path(__file__).resolve().parent / "tokenizers"

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

SENTENCES = [
    "The scheduler owns every block, and nobody else frees one.", "It's what we've said: they'll see, I'D SAY.",
    "A prompt of 12345678 tokens costs $3.50 (or 7,5 €) at 10:45.", "naïve café, Ångström, Straße, İstanbul, ŒUVRE",
    "Быстрая коричневая лиса прыгает через ленивую собаку.", "Η γρήγορη καφέ αλεπού πηδάει. ΣΊΣΥΦΟΣ",
    "你是谁？我是一个语言模型。今天天气很好，我们去公园。", "すみません、カタカナとひらがなと漢字の文です。",
    "안녕하세요, 오늘은 날씨가 좋습니다.", "مرحبا بالعالم، كيف حالك اليوم؟", "שלום עולם, מה שלומך היום?",
    "नमस्ते दुनिया, आप कैसे हैं?", "สวัสดีชาวโลก วันนี้อากาศดี", "Xin chào thế giới, hôm nay trời đẹp",
    "ሰላም ለዓለም", "Բարեւ աշխարհ", "გამარჯობა მსოფლიო", "ᎣᏏᏲ ᎡᎶᎯ", "ꦱꦸꦒꦼꦁ", "𝕳𝖊𝖑𝖑𝖔 𝒲ℴ𝓇𝓁𝒹 ①②③ ⅷ ½ ٣٤٥ १२३ 𝟙𝟚",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪🏳️‍🌈 ❤️ family and flags", "e\u0301 é o\u0308 ö A\u030a Å \u1e9b\u0323 ﬁ ﬀ ㎏ Ⅳ 가 각",
    "def f(x):\n    return {'a': x[0], \"b\": [1, 2.5e-3]}  # comment\n", "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i];\n\t}\n",
    "<html><body class=\"x\">&nbsp;</body></html>", "https://example.org/a/b?c=d&e=%20f#g user@example.com",
    "#include <vector>\r\n\r\nint main() { return 0; }\r\n", "SELECT * FROM t WHERE a >= 10 AND b != 'x';",
    "\\frac{1}{2} \\sum_{i=0}^{n} x_i^2", "____ ---- ==== .... !!!! ???? ~~~~ ````", "| a | b |\n|---|---|\n| 1 | 2 |\n",
]
ODD = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", " \n", "\n ", "\t", "a ", " a", "a  b", "a   b", "  a", "a\n\n\nb", " \n \n x", "x \t \n\t y",
    "\u0000\u0001\u0007\u001b[0m\u007f", "a\u0000b", "\u00a0a\u00a0\u00a0b", "\u3000全角\u3000", "\u1680\u2003\u2028\u2029\u0085x\u200b\u180ey\ufeff",
    "\u202eright to left\u202c", "a\u0300\u0301\u0302\u0303b", "\ufffd\ufffe\uffff", "\U0010ffff\U000e0001", "ſ 'ſ 'S 'RE 'Ll K", "'s's't''ve", "don't DON'T",
    "1 22 333 4444 55555 666666 7777777", "3.14159 1e10 0x1F ٠١٢٣٤٥٦٧٨٩", "²³¹ ½ Ⅻ 一二三", "a1b2c3 a_b-c", "...a", "a...", "(a)", " (a)", " ( a )", "?!", " ?!\n", "!\n\n!", "x;\n}\n",
    "▁a▁▁b ▁ c", "▁", "▁▁", " ▁", "▁ ", "Ġa Ċ ĉ", "<0x41><0x0A>", "<unk> <s> </s>", "<s>x</s>y", " <s> x </s> y", "<|endoftext|>", "a<|endoftext|>b<|endoftext|>",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\nhm</think>", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
    "[INST] hi [/INST] yes</s>[INST]", "<｜begin▁of▁sentence｜>a<｜User｜>b", "<|im_start", "<|im_start|", "|im_start|>", "<<|im_start|>>", "<thin<think>k>",
    "left <L> right", "left   <L>right", "a <R>   b", "a<R>\n\nb", "aWORDb WORD b,WORD WORD.", "éWORD WORDé WORD", " <L><R> ", "<R> <L>", "NORM norm Norm éNORM", "<B>  <B>", "  <B>  ",
    "nbsp\u00a0<L>\u3000x", "x\u0085<R>\u2003y", "İI ıi ẞ ß Σς", "Ａｂｃ１２ ﷺ ǆ", "\u0958 \u0344 \u2126 \u212b \u1e9b\u0323", "\uac00\u11a8 \u1100\u1161\u11a8",
]
LONG = [["a", 3000], ["ab", 1500], ["the ", 400], [" ", 2000], ["\n", 700], [" \n", 500], ["你好", 800], ["é", 900], ["e\u0301", 900], ["1", 1000], ["!", 900], ["\u00a0", 300],
        ["👩‍👩‍👧‍👦", 150], ["xX", 900], ["▁", 500], ["สวัสดี", 120], ["<|im_start|>", 40], ["'s", 300], ["A", 900], ["\u0301", 400]]


def words(rng, count):
    """Words of a made-up language, the first of them the most frequent."""
    syllables = [a + b + c for a in ("b", "d", "st", "k", "l", "m", "th", "r", "s", "tr", "v", "w", "") for b in "aeiou"
                 for c in ("", "n", "r", "s", "l", "t")]
    return ["".join(rng.choice(syllables) for _ in range(rng.choice((1, 1, 2, 2, 3)))) for _ in range(count)]


def training_text(rng):
    vocabulary = words(rng, 600)
    weights = [1 / (i + 1) for i in range(len(vocabulary))]
    for _ in range(1500):
        line = rng.choices(vocabulary, weights, k=rng.randrange(4, 16))
        if rng.random() < 0.3:
            line[rng.randrange(len(line))] = str(rng.randrange(10 ** rng.randrange(1, 7)))
        text = " ".join(line) + rng.choice((".", "!", "?", ";\n", ":", ",", "...", "\n\n", "    "))
        yield text.capitalize() if rng.random() < 0.5 else text
    for sentence in SENTENCES:
        for _ in range(12):
            yield sentence
    for _ in range(200):
        yield rng.choice(("  ", "    ", "\t\t", "\n\n", "        ", "\n    ")) + rng.choice(vocabulary)


def make_corpus():
    rng = random.Random(2)
    lines = list(SENTENCES) + list(ODD)
    pool = SENTENCES + ODD
    vocabulary = words(random.Random(1), 600)
    for _ in range(120):  # pieces of everything, side by side
        parts = []
        for _ in range(rng.randrange(2, 6)):
            text = rng.choice(pool) if rng.random() < 0.7 else rng.choice(vocabulary)
            begin = rng.randrange(len(text)) if text else 0
            parts.append(text[begin:begin + rng.randrange(1, 24)])
            parts.append(rng.choice(("", "", " ", "  ", "\n", "<|im_end|>", "</s>", "<L>", "<R>")))
        lines.append("".join(parts))
    # Any characters; old ones, which the libraries' versions of Unicode agree on.
    old = [chr(c) for c in range(0xA0, 0xD7A4) if unicodedata.ucd_3_2_0.category(chr(c)) != "Cn"]
    for _ in range(60):
        lines.append("".join(rng.choice((chr(rng.randrange(0x7F)), rng.choice(old[:3000]), rng.choice(old),
                                         chr(rng.randrange(0x1F300, 0x1F600))))
                             for _ in range(rng.randrange(1, 30))))
    return lines + LONG


def special(content, **more):
    return AddedToken(content, special=True, normalized=more.pop("normalized", False), **more)


def train(tokenizer, size, alphabet=()):
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=list(alphabet), limit_alphabet=700)
    tokenizer.train_from_iterator(training_text(random.Random(1)), trainer)
    return tokenizer


def byte_level(steps, normalizer=None, size=1400, prefix=False, use_regex=False):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    last = pre.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre.Sequence([*steps, last]) if steps else last
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(tokenizer, size, sorted(pre.ByteLevel.alphabet()))


def split(pattern, behavior="isolated", invert=False):
    return pre.Split(Regex(pattern), behavior, invert)


def with_bytes(tokenizer, specials, unk="<unk>"):
    """The model with special tokens and 256 byte tokens in front, as sentencepiece models have."""
    spec = json.loads(tokenizer.to_str())
    model = spec["model"]
    names = specials + [f"<0x{b:02X}>" for b in range(256)]
    vocab = {name: i for i, name in enumerate(names)}
    for token in sorted(model["vocab"], key=model["vocab"].get):
        vocab[token] = len(vocab)
    model.update(vocab=vocab, byte_fallback=True, unk_token=unk, fuse_unk=True)
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.add_special_tokens([special(name) for name in specials])
    return tokenizer


def around(tokenizer, before, behind=""):
    names = [name for name in (before, behind) if name]
    return processors.TemplateProcessing(single=f"{before} $A {behind}".strip(), pair=None,
                                         special_tokens=[(name, tokenizer.token_to_id(name)) for name in names])


def metaspace_trained(size=1300):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme="always", split=True)
    return train(tokenizer, size)


def make_gpt2():
    tokenizer = byte_level([], use_regex=True)
    tokenizer.add_special_tokens([special("<|endoftext|>", normalized=True)])
    return tokenizer, "<|endoftext|>"


def make_llama3():
    tokenizer = byte_level([split(LLAMA3)])
    spec = json.loads(tokenizer.to_str())
    vocab = spec["model"]["vocab"]
    for word in ("Ġscheduler", "Ġfamily", "ĠFROM", "return", "ä½łå¥½", "ĊĊĊ"):  # reached by ignore_merges alone
        vocab.setdefault(word, len(vocab))
    spec["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens([special(name) for name in names + [f"<|reserved_special_token_{i}|>" for i in range(20)]])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), around(tokenizer, "<|begin_of_text|>")])
    return tokenizer, "<|end_of_text|>"


def make_qwen2():
    tokenizer = byte_level([split(QWEN2)], normalizers.NFC())
    tokenizer.add_special_tokens([special(name) for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ("<think>", "</think>", "<tool_call>")])
    return tokenizer, "<|im_end|>"


def make_o200k():
    tokenizer = byte_level([split(O200K)])
    tokenizer.add_special_tokens([special("<|endoftext|>")])
    return tokenizer, "<|endoftext|>"


def make_deepseek():
    steps = [split(r"[\r\n]"), split(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳ]+"), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"),
             split(r"[一-龥ࠀ-一가-퟿]+"), pre.Digits(individual_digits=True)]
    tokenizer = byte_level(steps)
    tokenizer.add_special_tokens([special("<｜begin▁of▁sentence｜>"), special("<｜end▁of▁sentence｜>")])
    tokenizer.add_tokens([AddedToken("<｜User｜>", normalized=True)])
    tokenizer.post_processor = around(tokenizer, "<｜begin▁of▁sentence｜>")
    return tokenizer, "<｜end▁of▁sentence｜>"


def make_deepseek3():
    tokenizer = byte_level([split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3)], normalizers.Sequence([]))
    tokenizer.add_special_tokens([special("<｜begin▁of▁sentence｜>"), special("<｜end▁of▁sentence｜>")])
    return tokenizer, "<｜end▁of▁sentence｜>"


def make_llama2():
    tokenizer = with_bytes(metaspace_trained(), ["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = around(tokenizer, "<s>")
    return tokenizer, "</s>"


def make_mistral():
    tokenizer = with_bytes(metaspace_trained(), ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = around(tokenizer, "<s>", "</s>")
    return tokenizer, "</s>"


def make_metaspace():
    """Words with a Metaspace decoder, an unknown token instead of bytes, and tokens that strip."""
    tokenizer = metaspace_trained(900)
    spec = json.loads(tokenizer.to_str())
    spec["model"]["vocab"]["<unk>"] = len(spec["model"]["vocab"])
    spec["model"]["unk_token"] = "<unk>"
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always", split=True)
    tokenizer.add_special_tokens([special("<unk>"), special("</s>"), special("<L>", lstrip=True), special("<R>", rstrip=True)])
    tokenizer.add_tokens([AddedToken("<B>", lstrip=True, rstrip=True, normalized=False), AddedToken("WORD", single_word=True, normalized=False)])
    return tokenizer, "</s>"


def make_odd():
    """Every other part: strings and behaviors of Split, Punctuation, Whitespace, normalizers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.NFKC(), normalizers.Strip(),
                                                 normalizers.Replace(Regex(r"[\t ]{2,}"), " ")])
    tokenizer.pre_tokenizer = pre.Sequence([
        pre.Split("-", "merged_with_previous"), pre.Split(Regex(r"[=&]"), "merged_with_next"), pre.Split(Regex(r"[;:]+"), "contiguous"),
        pre.Split(Regex(r"[^~`]+"), "removed", invert=True), pre.Punctuation("merged_with_next"), pre.Digits(), pre.WhitespaceSplit(),
        pre.ByteLevel(add_prefix_space=True, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 800, sorted(pre.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([special("</s>")])
    tokenizer.add_tokens([AddedToken("norm", normalized=True, single_word=True), AddedToken("<L>", normalized=True, lstrip=True)])
    return tokenizer, "</s>"


def make_whitespace():
    """Rust's words, and a vocabulary that lacks most characters: what is not there fuses or is lost."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Replace("'", "")])
    tokenizer.pre_tokenizer = pre.Sequence([pre.Whitespace(), pre.Punctuation("contiguous")])
    tokenizer.decoder = decoders.Fuse()
    text = list(training_text(random.Random(1)))
    # The trainer would choose anew in each run among characters that are as frequent.
    count = collections.Counter(c for line in text for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(
        tokenizer.normalizer.normalize_str(line)) for c in word)
    alphabet = sorted(count, key=lambda c: (-count[c], c))[:60]
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet, limit_alphabet=60,
                                  special_tokens=["<unk>"])
    tokenizer.train_from_iterator(text, trainer)
    spec = json.loads(tokenizer.to_str())
    spec["model"].update(unk_token="<unk>", fuse_unk=True)
    return Tokenizer.from_str(json.dumps(spec)), "<unk>"


def make_boundary():
    """Words by their bounds, as some cut text."""
    tokenizer = byte_level([split(r"\b\d+\b|\B\p{P}+|\w+\b"), split(r"\s+\B")])
    tokenizer.add_special_tokens([special("</s>")])
    return tokenizer, "</s>"


def fingerprint(ids):
    value = 0xCBF29CE484222325
    for number in ids:
        for byte in number.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{len(ids)}:{(value >> 32) ^ (value & 0xFFFFFFFF):x}"


def decode_cases(tokenizer, rng):
    """Random ids; byte tokens only as whole characters (byte_runs has others)."""
    size = tokenizer.get_vocab_size()
    fallback = {tokenizer.token_to_id(f"<0x{b:02X}>"): b for b in range(256)}
    fallback.pop(None, None)
    specials = [i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special]
    for _ in range(120):
        ids = []
        for _ in range(rng.randrange(12)):
            choice = rng.random()
            if choice < 0.15 and specials:
                ids.append(rng.choice(specials))
            elif choice < 0.45 and fallback:
                by_byte = {b: i for i, b in fallback.items()}
                ids += [by_byte[b] for b in rng.choice(("é", "你", "👍", " ", "a", "\n")).encode()]
            else:
                number = rng.randrange(min(300, size)) if choice < 0.6 else rng.randrange(size)
                if number not in fallback:
                    ids.append(number)
        yield ids


def byte_runs(tokenizer, rng):
    """Runs of byte tokens, most of them broken: one bad byte spoils a whole run for the library. Text and special
    tokens are around and between them; no run is longer than 64 bytes, which is what a stream holds back."""
    byte = [tokenizer.token_to_id(f"<0x{b:02X}>") for b in range(256)]
    if None in byte:
        return
    size = tokenizer.get_vocab_size()
    specials = [i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special]
    pieces = ("你".encode(), "👍".encode(), "é".encode(), b" ", b"K", b"\n", b"\xE4", b"\xBD\xA0", b"\xF0\x9F", b"\xFF",
              b"\xC0\xAF", b"\xED\xA0\x80", b"\xA4")
    for _ in range(200):
        ids = []
        for _ in range(rng.randrange(1, 4)):
            good = rng.random() < 0.3
            run = b"".join(rng.choice(pieces[:6] if good else pieces) for _ in range(rng.randrange(1, 6)))
            ids += [byte[b] for b in run]
            if rng.random() < 0.3:  # left out, it does not end the run
                ids.append(rng.choice(specials))
                ids += [byte[b] for b in rng.choice(pieces)]
            if rng.random() < 0.8:
                ids.append(rng.randrange(300, size))
        yield ids


def golden_of(tokenizer, corpus):
    texts = [entry if isinstance(entry, str) else entry[0] * entry[1] for entry in corpus]
    golden = {"lines": [], "added": [], "plain": [], "decoded": []}
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        golden["lines"].append(fingerprint(ids))
    for text in texts[:8]:
        golden["added"].append(tokenizer.encode(text).ids)
    tokenizer.encode_special_tokens = True
    for text, line in zip(texts, golden["lines"]):
        plain = fingerprint(tokenizer.encode(text, add_special_tokens=False).ids)
        golden["plain"].append(plain if plain != line else "")
    tokenizer.encode_special_tokens = False
    for ids in decode_cases(tokenizer, random.Random(3)):
        golden["decoded"].append([ids, tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=False)])
    for ids in byte_runs(tokenizer, random.Random(4)):
        golden["decoded"].append([ids, tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=False)])
    return golden


def write(name, tokenizer, eos, corpus):
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    spec = json.loads(tokenizer.to_str())
    if name in ("gpt2", "llama2"):  # the older way to write merges
        spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}) + "\n")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    golden = golden_of(tokenizer, corpus)
    (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n")
    sizes = [(folder / file).stat().st_size for file in ("tokenizer.json", "golden.json")]
    print(f"{name}: {tokenizer.get_vocab_size()} tokens, {sizes[0]} + {sizes[1]} bytes")


MAKERS = {name[5:]: maker for name, maker in globals().items() if name.startswith("make_") and name != "make_corpus"}


def main():
    corpus = make_corpus()
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "corpus.json").write_text(json.dumps(corpus, ensure_ascii=False, indent=0) + "\n")
    for name in sys.argv[1:] or MAKERS:
        tokenizer, eos = MAKERS[name]()
        write(name, tokenizer, eos, corpus)


if __name__ == "__main__":
    main()
