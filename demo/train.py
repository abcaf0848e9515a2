#!/usr/bin/env python3
"""Trains the demo model from scratch on the corpus of generate_data.py and writes demo/model.

    python3 demo/train.py --minutes 5          # one large GPU
    python3 demo/train.py --steps 20 --device cpu --no-compile   # a trial run

The model is a Llama written out here (RMSNorm, RoPE, grouped-query attention, SwiGLU) with the
names of Hugging Face, so that the state dict is the checkpoint. fp32 weights, bf16 autocast, AdamW.
Rows begin with a document and hold several; most have 1,024 tokens, the last part of the training
has rows of 4,096 and 32,768 tokens, so that every distance of the context length has been seen.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from corpus import HERE

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4096,
    "hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 512, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0, "rope_scaling": None, "max_position_embeddings": 32768,
    "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": True,
    "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "use_cache": True,
    "torch_dtype": "bfloat16",
}
GENERATION = {"bos_token_id": 1, "eos_token_id": 2, "do_sample": False, "max_new_tokens": 512}
FIRST_PIECE = 262               # after the special pieces and the 256 byte pieces
WEIGHT = (0.0, 0.05, 1.0)       # of filler, of a user's words, of the model's words
# (row length, rows a step on a large GPU)
SHAPES = {"tiny": (256, 256), "short": (1024, 64), "middle": (4096, 16), "long": (32768, 2)}


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        x32 = x.float()
        return x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    """x [rows, heads, tokens, dim]; the two halves of a head are the pairs, as in Hugging Face."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.q_heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        hidden = c["hidden_size"]
        self.q_proj = nn.Linear(hidden, self.q_heads * self.dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.q_heads * self.dim, hidden, bias=False)

    def forward(self, x, cos, sin):
        rows, tokens, _ = x.shape

        def heads(y, n):
            return y.view(rows, tokens, n, self.dim).transpose(1, 2)

        q = rotate(heads(self.q_proj(x), self.q_heads), cos, sin)
        k = rotate(heads(self.k_proj(x), self.kv_heads), cos, sin)
        v = heads(self.v_proj(x), self.kv_heads)
        group = self.q_heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, tokens, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)
        self.drop = nn.Dropout(c.get("dropout", 0.0))   # in training only; no part of the checkpoint

    def forward(self, x, cos, sin):
        x = x + self.drop(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.drop(self.mlp(self.post_attention_layernorm(x)))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model, self.c = Body(c), c
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = 0.02
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    scale /= math.sqrt(2 * c["num_hidden_layers"])
                nn.init.normal_(p, std=scale)

    def forward(self, ids):
        """ids [rows, tokens] -> hidden states [rows, tokens, width]"""
        half = torch.arange(0, self.c["head_dim"], 2, device=ids.device).float() / self.c["head_dim"]
        angles = torch.outer(torch.arange(ids.shape[1], device=ids.device).float(),
                             self.c["rope_theta"] ** -half)
        cos, sin = angles.cos(), angles.sin()
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.model.norm(x)


def weighted_loss(hidden, embedding, targets, weights):
    """Cross entropy of the next token through the tied output, weighted."""
    logits = F.linear(hidden, embedding).float()
    loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1), reduction="none")
    weights = weights.reshape(-1)
    return (loss * weights).sum() / weights.sum().clamp(min=1.0)


class Rows:
    """Endless rows of one length over one or several corpora; every row begins with a document."""

    def __init__(self, corpora, length, seed, device, noise):
        self.length, self.device, self.noise = length, device, noise
        self.rng = np.random.default_rng(seed)
        self.ids = np.concatenate([c["ids"] for c in corpora])
        self.weights = np.concatenate([c["weights"] for c in corpora])
        self.lengths = np.concatenate([c["lengths"] for c in corpora])
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.begin_epoch()

    def begin_epoch(self):
        order = self.rng.permutation(len(self.lengths))
        lengths = self.lengths[order]
        cum = np.cumsum(lengths) - lengths
        index = np.repeat(self.starts[order] - cum, lengths) + np.arange(lengths.sum())
        self.stream_ids = torch.from_numpy(self.ids[index].astype(np.int32)).to(self.device)
        self.stream_weights = torch.from_numpy(self.weights[index]).to(self.device)
        rows, document = [], 0
        while document < len(cum) and cum[document] + self.length + 1 <= len(index):
            rows.append(cum[document])
            document = np.searchsorted(cum, cum[document] + self.length)
        self.rows, self.next = self.rng.permutation(np.array(rows)), 0

    def batch(self, number):
        """(inputs, targets, weights), each [number, length]"""
        if self.next + number > len(self.rows):
            self.begin_epoch()
        first = torch.from_numpy(self.rows[self.next:self.next + number]).to(self.device)
        self.next += number
        index = first[:, None] + torch.arange(self.length + 1, device=self.device)
        ids = self.stream_ids[index].long()
        kinds = self.stream_weights[index].long()
        table = torch.tensor(WEIGHT, device=self.device)
        inputs = ids[:, :-1]
        if self.noise:                  # some of a user's tokens become others
            hit = (kinds[:, :-1] == 1) & (torch.rand(inputs.shape, device=self.device) < self.noise)
            inputs = torch.where(hit, torch.randint_like(inputs, FIRST_PIECE, CONFIG["vocab_size"]), inputs)
        return inputs, ids[:, 1:], table[kinds[:, 1:]]


def phase(progress, step):
    """Which rows a step takes. The long ones come late, mixed with short ones."""
    if progress < 0.78:
        return "tiny" if step % 4 == 3 else "short"
    if progress < 0.90:
        return ("middle", "short", "middle", "tiny")[step % 4]
    return ("long", "short", "long", "middle", "tiny")[step % 5]


def learning_rate(progress, step, peak):
    warm = min(1.0, (step + 1) / 150)
    return peak * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))


def save(model, folder):
    from safetensors.torch import save_file
    tensors = {name: p.detach().to(torch.bfloat16).cpu().contiguous() for name, p in model.state_dict().items()}
    folder.mkdir(exist_ok=True, parents=True)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION, indent=2) + "\n")


def train(options):
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    device = options.device
    model = Llama(CONFIG | {"dropout": options.dropout}).to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
    corpora = {}
    for kind in ("short", "middle", "long"):
        with np.load(HERE / "out" / f"{kind}.npz") as stored:
            corpora[kind] = {name: stored[name] for name in stored.files}
    short, some = corpora["short"], {}
    keep = len(short["lengths"]) // 8
    some["lengths"] = short["lengths"][:keep]
    some["ids"], some["weights"] = (short[k][:some["lengths"].sum()] for k in ("ids", "weights"))
    sources = {"tiny": [short], "short": [short], "middle": [corpora["middle"], some],
               "long": [corpora["long"], corpora["middle"]]}
    rows = {}
    decay = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
                                  lr=options.lr, betas=(0.9, 0.98), fused=device != "cpu")
    loss_of = weighted_loss
    if options.compile:
        for layer in model.model.layers:
            layer.compile(dynamic=False)
        loss_of = torch.compile(weighted_loss, dynamic=False)

    def run(kind):
        length, number = SHAPES[kind]
        length, number = min(length, options.max_row), max(1, int(number * options.batch_scale))
        if kind not in rows:
            rows[kind] = Rows(sources[kind], length, options.seed, device, options.noise)
        inputs, targets, weights = rows[kind].batch(number)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device != "cpu"):
            loss = loss_of(model(inputs), model.model.embed_tokens.weight, targets, weights)
        loss.backward()
        return loss.detach(), inputs.numel()

    for kind in SHAPES:                 # compiles every shape before the clock starts
        began = time.time()
        run(kind)
        optimizer.zero_grad(set_to_none=True)
        if device != "cpu":
            torch.cuda.synchronize()
        print(f"warm-up {kind}: {time.time() - began:.1f} s", flush=True)

    began, tokens, step, shown = time.time(), 0, 0, time.time()
    losses = {}
    while True:
        progress = (step / options.steps) if options.steps else (time.time() - began) / (60 * options.minutes)
        if progress >= 1:
            break
        kind = phase(progress, step)
        rate = learning_rate(progress, step, options.lr)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss, count = run(kind)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens, step = tokens + count, step + 1
        losses.setdefault(kind, []).append(loss)
        if time.time() - shown > 10 or step in (1, 20) or (options.steps and step == options.steps):
            shown = time.time()
            text = ", ".join(f"{k} {torch.stack(v[-50:]).mean().item():.4f}" for k, v in losses.items())
            print(f"step {step} {100 * progress:.0f}% {time.time() - began:.0f} s {tokens / 1e6:.0f} M tokens "
                  f"lr {rate:.2e} loss: {text}", flush=True)
            losses = {}
    save(model, options.out)
    print(f"done: {step} steps, {tokens / 1e6:.0f} M tokens, {time.time() - began:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="training time (unless --steps)")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--noise", type=float, default=0.03, help="share of a user's tokens replaced")
    parser.add_argument("--out", type=Path, default=HERE / "model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--batch-scale", type=float, default=1.0, help="rows a step, times this")
    parser.add_argument("--max-row", type=int, default=1 << 20, help="cuts longer rows (for trials)")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
