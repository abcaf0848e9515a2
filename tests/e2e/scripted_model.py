"""A checkpoint that answers with a text that the client chooses.

A last message `N|TEXT` (N: tokens of TEXT) is answered with TEXT, then the end of the turn. `script(text)` writes such a
message. `script.anywhere(text)` writes one that may stand anywhere in the prompt, with other text around it; the last one of a
prompt counts. Everything else of the server is real, so tests decide what a model "says" and watch what clients receive:

    folder = scripted_model.write(path, template=CHATML, marks=["<|im_start|>", "<|im_end|>", "<think>"], end="<|im_end|>")
    client.chat([{"role": "user", "content": scripted_model.script("<think>\\nhm\\n</think>\\n\\nyes")}])

How it works
- Tokens are single bytes (byte-level BPE without merges) and the marks. A client cannot write special tokens, so each mark
  has an alias, a private-use character; `script()` replaces the marks of TEXT by their aliases.
- One attention layer copies the token DISTANCE positions back: queries and keys are constant vectors, so the score depends
  on the distance alone (RoPE, llama layout) and peaks at DISTANCE. W_v reads the code of a token, lm_head compares codes.
- The chat template is wrapped: it renders as published, then pads behind TEXT until the reply starts DISTANCE tokens after
  TEXT. The padding token is copied as the end of the turn.

Standard library only.
"""

import array
import json
import math
import pathlib
import random
import struct

DISTANCE = 2048            # tokens between a token of TEXT and its copy in the reply
CODE = 128                 # components of a token's code, each +1 or -1
PAIRS = 64                 # RoPE frequencies of the one head
THETA = 400.0              # base of the frequencies: 1 .. 1/THETA radians a token
CONTEXT = 16384            # max_position_embeddings
FIRST_ALIAS = 0xE000       # private-use characters: aliases of marks
PADDING = chr(0xF8FF)      # the padding's character, an alias of the end of the turn
OPEN, CLOSE = chr(0xF8FD), chr(0xF8FE)  # around a script that may stand anywhere

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


def byte_letters():
    """GPT-2's letters for the 256 bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters, more = {}, 0
    for byte in range(256):
        if byte in plain:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + more)
            more += 1
    return letters


class Script:
    """Writes messages for a folder's marks."""

    def __init__(self, marks):
        # Longer marks first: "<|im_end|>" before "<|".
        self.aliases = sorted(((mark, chr(FIRST_ALIAS + i)) for i, mark in enumerate(marks)),
                              key=lambda pair: -len(pair[0]))

    def __call__(self, text):
        for mark, alias in self.aliases:
            text = text.replace(mark, alias)
        special = sum(text.count(alias) for _, alias in self.aliases)
        tokens = len(text.encode()) - 2 * special  # an alias: 3 bytes, one token
        return f"{tokens}|{text}"

    def anywhere(self, text):
        return OPEN + self(text) + CLOSE


def wrap(template, marks, distance=DISTANCE):
    """The template, with TEXT of the last message, or of the last OPEN N|TEXT CLOSE, padded to DISTANCE (Jinja)."""
    count = "after"
    for mark in sorted(marks, key=len, reverse=True):
        count += f" | replace({json.dumps(mark)}, '0')"
    quoted = {name: json.dumps(letter, ensure_ascii=False) for name, letter in (("open", OPEN), ("close", CLOSE))}
    anywhere = (
        "{%- set rendered %}" + template + "{% endset %}"
        f"{{%- set start = rendered.rfind({quoted['open']}) %}}"
        "{%- if start >= 0 and add_generation_prompt %}"
        f"{{%- set stop = rendered.find({quoted['close']}, start) %}}{{%- set after = rendered[stop + 1:] %}}"
        f"{{%- set room = {distance} - (rendered[start + 1:].split('|')[0] | int) - (({count}).encode() | length) %}}"
        "{%- if room < 0 %}{{- raise_exception('the script, or what is behind it, is too long') }}{% endif %}"
        "{{- rendered[:stop] + " + json.dumps(PADDING, ensure_ascii=False) + " * room + after }}"
        "{%- else %}{{- rendered }}{% endif %}")
    return (
        "{%- set scripted = namespace(content=none, count=0) %}"
        "{%- if messages and add_generation_prompt %}"
        "{%- set last = messages[-1] %}"
        "{%- if last.content is string %}{%- set scripted.content = last.content %}"
        "{%- elif last.content %}{%- set scripted.content = (last.content | last).text | default('') %}{% endif %}"
        "{%- endif %}"
        "{%- if scripted.content and '|' in scripted.content and scripted.content.split('|')[0] | int(-1) >= 0 %}"
        f"{{%- set padding = {json.dumps(PADDING, ensure_ascii=False)} %}}"
        "{%- set messages = messages[:-1] + [dict(messages[-1], content=scripted.content + padding)] %}"
        "{%- set rendered %}" + template + "{% endset %}"
        "{%- set pieces = rendered.split(padding) %}{%- set after = pieces[1] %}"
        f"{{%- set tail = ({count}) | length %}}"
        f"{{{{- pieces[0] + padding * ({distance} - (scripted.content.split('|')[0] | int) - tail) + after }}}}"
        "{%- else %}" + anywhere + "{%- endif %}")


def tokenizer(marks, special):
    vocab = {letter: byte for byte, letter in byte_letters().items()}
    added = []
    for content, is_special in ([(mark, mark in special) for mark in marks]
                                + [(chr(FIRST_ALIAS + i), False) for i in range(len(marks))] + [(PADDING, False)]):
        added.append({"id": 256 + len(added), "content": content, "single_word": False, "lstrip": False,
                      "rstrip": False, "normalized": False, "special": is_special})
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": letters, "post_processor": None, "decoder": letters,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": []}}


def frequencies():
    return [THETA ** (-pair / PAIRS) for pair in range(PAIRS)]


def score_gap(limit=CONTEXT, distance=DISTANCE):
    """How much less the best other distance scores than this one, for unit vectors in each pair."""
    angles = frequencies()
    return PAIRS - max(sum(math.cos(angle * delta) for angle in angles)
                       for delta in range(-distance, limit - distance) if delta)


def write_tensors(path, tensors):
    """tensors: name -> (shape, rows of floats); float32."""
    header, data = {}, bytearray()
    for name, (shape, values) in tensors.items():
        start = len(data)
        data += array.array("f", values).tobytes()
        assert len(data) - start == 4 * math.prod(shape), name
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))


def matrix(rows, columns, entries):
    values = array.array("f", bytes(4 * rows * columns))
    for row, column, value in entries:
        values[row * columns + column] = value
    return (rows, columns), values


def weights(vocab, same_code, distance=DISTANCE):
    """same_code: token -> the token whose code it has (aliases)."""
    hidden = 3 * CODE  # a token's code, ones, the copied code
    generator = random.Random(5)
    codes = [[generator.choice((-1.0, 1.0)) for _ in range(CODE)] for _ in range(vocab)]
    for alias, token in same_code.items():
        codes[alias] = codes[token]
    # Every token has 2 * CODE components of +-1, so RMSNorm scales all of them alike.
    scale = math.sqrt(1.5)  # what RMSNorm makes of a 1: 1 / sqrt(2/3)
    head = 2 * PAIRS
    size = math.sqrt(40.0 / score_gap(distance=distance) * math.sqrt(head))  # softmax: e^-40 for the best other distance
    angles = frequencies()
    # Key (1, 0) in each pair; the query is turned so that R(p) q and R(p - back) k agree. The token before the copy asks.
    back = distance - 1
    query = ([size * math.cos(angle * back) for angle in angles] + [-size * math.sin(angle * back) for angle in angles])
    ones = range(CODE, 2 * CODE)
    tensors = {
        "model.embed_tokens.weight": ((vocab, hidden),
                                      [value for code in codes for value in code + [1.0] * CODE + [0.0] * CODE]),
        "model.norm.weight": ((hidden,), [1.0] * hidden),
        "lm_head.weight": matrix(vocab, hidden, [(token, 2 * CODE + i, 0.5 * codes[token][i])
                                                 for token in range(vocab) if token not in same_code
                                                 for i in range(CODE)]),
        "model.layers.0.input_layernorm.weight": ((hidden,), [1.0] * hidden),
        "model.layers.0.post_attention_layernorm.weight": ((hidden,), [1.0] * hidden),
        "model.layers.0.self_attn.q_proj.weight": matrix(head, hidden, [
            (row, column, value / (CODE * scale)) for row, value in enumerate(query) for column in ones]),
        "model.layers.0.self_attn.k_proj.weight": matrix(head, hidden, [
            (row, column, size / (CODE * scale)) for row in range(PAIRS) for column in ones]),
        "model.layers.0.self_attn.v_proj.weight": matrix(head, hidden, [(i, i, 1.0 / scale) for i in range(CODE)]),
        "model.layers.0.self_attn.o_proj.weight": matrix(hidden, head, [(2 * CODE + i, i, 1.0) for i in range(CODE)]),
    }
    for name, shape in (("gate_proj", (64, hidden)), ("up_proj", (64, hidden)), ("down_proj", (hidden, 64))):
        tensors[f"model.layers.0.mlp.{name}.weight"] = matrix(*shape, [])
    return hidden, head, tensors


def write(folder, template=CHATML, marks=("<|im_start|>", "<|im_end|>"), end="<|im_end|>", special=None, context=CONTEXT,
          distance=DISTANCE):
    """Writes the folder; returns its Script. `special`: the marks that are special tokens (all that look like <|...|>).
    `context`: up to 65,536 (score_gap()). `distance`: bounds a script and what is behind it in the prompt."""
    folder, marks = pathlib.Path(folder), list(marks)
    folder.mkdir(parents=True, exist_ok=True)
    special = set(special if special is not None else [mark for mark in marks if mark.startswith("<|")] + [end])
    aliases = {256 + len(marks) + i: 256 + i for i in range(len(marks))}
    padding, stop = 256 + 2 * len(marks), 256 + marks.index(end)
    vocab = padding + 1
    hidden, head, tensors = weights(vocab, {**aliases, padding: stop}, distance)
    write_tensors(folder / "model.safetensors", tensors)
    files = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden,
            "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": head,
            "intermediate_size": 64, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": THETA,
            "max_position_embeddings": context, "tie_word_embeddings": False, "eos_token_id": stop,
            "torch_dtype": "float32"},
        "tokenizer.json": tokenizer(marks, special),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end,
                                  "model_max_length": context},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(wrap(template, marks, distance))
    return Script(marks)
