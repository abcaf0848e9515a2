#!/usr/bin/env python3
"""What `worker.activations: int8` changes in a model's answers, beside what quantising its weights changes.

    tools/rounding_error.py FOLDER [--model demo/model] [--build build/cpu] [--positions 4000] [--threads 2]
        [--text FILE]

Needs numpy, gguf and sentencepiece. Writes quantised copies of the model (a Llama in bf16 with tied embeddings, as the demo
model) into FOLDER: q8_0.gguf, q4_0.gguf, and gptq (4 bits, groups of 64). Reads documents of the demo model's generator,
drawn with another seed than its training data (or, with --text, a text that it does not know), and compares the next token's
distribution at each position:

  perplexity        of the documents
  KL                mean of sum p log(p / q) in nats: p of bf16 (or of exact activations), q of what is judged
  same first token  share of positions where both give the same token the highest probability
  shift             mean and largest difference of the log probability of the token that follows
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys

import gguf
import numpy as np
import sentencepiece

import random_model

ROOT = pathlib.Path(__file__).resolve().parents[1]
SEED = 2026  # not among the seeds of the training data
GROUP = 64   # divides the demo model's 192 and 512 inputs


def read_safetensors(path):
    """Name -> fp32 array, of bf16 tensors."""
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    tensors = {}
    for name, tensor in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        if tensor["dtype"] != "BF16":
            raise SystemExit(f"{path}: {name} is {tensor['dtype']}; bf16 weights are needed")
        begin, end = tensor["data_offsets"]
        words = np.frombuffer(data, np.uint16, (end - begin) // 2, 8 + size + begin)
        tensors[name] = (words.astype(np.uint32) << 16).view(np.float32).reshape(tensor["shape"])
    return tensors


def in_pairs(values, heads):
    """llama.cpp's order of the rows of q and k."""
    rows, columns = values.shape
    return np.ascontiguousarray(
        values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns))


def write_gguf(path, config, pieces, tensors, kind):
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_tokenizer_model("llama")
    writer.add_token_list([pieces.id_to_piece(i) for i in range(pieces.get_piece_size())])
    writer.add_token_scores([pieces.get_score(i) for i in range(pieces.get_piece_size())])
    writer.add_token_types([6 if pieces.is_byte(i) else 3 if pieces.is_control(i) else 2 if pieces.is_unknown(i) else 1
                            for i in range(pieces.get_piece_size())])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for name, values in tensors.items():
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            module = rest.removesuffix(".weight")
            to = f"blk.{layer}.{names[module]}.weight"
            if module.endswith("q_proj"):
                values = in_pairs(values, config["num_attention_heads"])
            elif module.endswith("k_proj"):
                values = in_pairs(values, config["num_key_value_heads"])
        else:
            to = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
        if values.ndim == 1:
            writer.add_tensor(to, values)
        else:
            writer.add_tensor(to, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gptq(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    random_model.GROUP = GROUP
    stored = []
    for name, values in tensors.items():
        layer = values.ndim == 2 and ".layers." in name
        stored.extend(random_model.gptq(name, values) if layer
                      else [(name, "BF16", values.shape, random_model.bf16_bytes(values))])
    random_model.save(folder / "model.safetensors", stored)
    quantised = {**config, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True,
                                                   "desc_act": False}}
    (folder / "config.json").write_text(json.dumps(quantised))


def documents(positions):
    """Lists of token ids with about so many positions altogether."""
    sys.path.insert(0, str(ROOT / "demo"))
    import generate_data
    writer, encoder = generate_data.Writer(SEED), generate_data.Encoder()
    found, total = [], 0
    while total < positions:
        ids, weights = generate_data.short_document(writer, encoder)
        if 0 in weights[1:]:  # random words, which no model foretells
            continue
        found.append([int(i) for i in ids])
        total += len(ids) - 1
    return found


def pieces_of(path, pieces, positions):
    """A text in pieces of 512 tokens, each after the token that begins a prompt."""
    ids = pieces.encode(path.read_text(encoding="utf-8"))[:positions]
    return [[1, *ids[at:at + 511]] for at in range(0, len(ids) - 1, 511)]


def logits_of(args, model, activations, texts):
    """Arrays [tokens, vocabulary], one for each text."""
    folder = args.folder / "dump"
    folder.mkdir(exist_ok=True)
    tasks = args.folder / "tasks.json"
    tasks.write_text(json.dumps([{"prompts": [text], "max_tokens": 1, "chunk": 512} for text in texts]))
    subprocess.run([args.build / "bin" / "baton-bench-worker", "--model", model, "--device", "cpu", "--threads",
                    str(args.threads), "--activations", activations, "--pool-blocks", "128", "--budget", "512",
                    "--generate", tasks, "--dump", folder], check=True, stdout=subprocess.DEVNULL)
    return [read_logits(folder / f"{i}-0.safetensors")[:len(text)] for i, text in enumerate(texts)]


def read_logits(path):
    data = path.read_bytes()
    size, = struct.unpack_from("<Q", data)
    tensor = json.loads(data[8:8 + size])["logits"]
    begin, end = tensor["data_offsets"]
    path.unlink()
    return np.frombuffer(data, np.float32, (end - begin) // 4, 8 + size + begin).reshape(tensor["shape"])


def log_probabilities(logits):
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


class Judged:
    """What one setting gives at all positions; the last token of a text has none after it."""

    def __init__(self, texts, logits):
        self.all = np.concatenate([log_probabilities(each[:-1]) for each in logits])
        following = np.concatenate([text[1:] for text in texts])
        self.next = self.all[np.arange(len(following)), following]
        self.first = self.all.argmax(-1)
        self.perplexity = float(np.exp(-self.next.mean()))

    def beside(self, other):
        """(KL, share of the same first token, mean shift, largest shift) of this from the other, which is right."""
        kl = (np.exp(other.all) * (other.all - self.all)).sum(-1).mean()
        shift = np.abs(self.next - other.next)
        return float(kl), float((self.first == other.first).mean()), float(shift.mean()), float(shift.max())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("folder", type=pathlib.Path)
    add("--model", type=pathlib.Path, default=ROOT / "demo" / "model")
    add("--build", type=pathlib.Path, default=ROOT / "build" / "cpu")
    add("--positions", type=int, default=4000)
    add("--threads", type=int, default=2)
    add("--text", type=pathlib.Path, help="a text instead of the generator's documents")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((args.model / "config.json").read_text())
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(args.model / "tokenizer.model"))
    tensors = read_safetensors(args.model / "model.safetensors")
    for kind in ("Q8_0", "Q4_0"):
        write_gguf(args.folder / f"{kind.lower()}.gguf", config, pieces, tensors, gguf.GGMLQuantizationType[kind])
    write_gptq(args.folder / "gptq", config, tensors)
    texts = pieces_of(args.text, pieces, args.positions) if args.text else documents(args.positions)
    plain = Judged(texts, logits_of(args, args.model, "exact", texts))
    print(f"{len(plain.next)} positions of {len(texts)} texts; bf16: perplexity {plain.perplexity:.4f}")
    print("| weights | activations | perplexity | KL from bf16 | same first token as bf16 | KL from exact "
          "| same first token as exact | shift from exact, mean / largest |\n|---|---|---|---|---|---|---|---|")
    for name, model in (("Q8_0", "q8_0.gguf"), ("Q4_0", "q4_0.gguf"), ("GPTQ, 4 bits", "gptq")):
        exact = None
        for activations in ("exact", "int8"):
            judged = Judged(texts, logits_of(args, args.folder / model, activations, texts))
            kl, same, _, _ = judged.beside(plain)
            row = f"| {name} | {activations} | {judged.perplexity:.4f} | {kl:.6f} | {100 * same:.2f} % |"
            if exact is None:
                exact = judged
                print(row + " | | |", flush=True)
            else:
                kl, same, mean, most = judged.beside(exact)
                print(row + f" {kl:.6f} | {100 * same:.2f} % | {mean:.4f} / {most:.3f} |", flush=True)


if __name__ == "__main__":
    main()
