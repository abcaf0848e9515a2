#!/usr/bin/env python3
"""Makes the golden logits that tests/cpu_torch compares with. Needs torch, transformers, safetensors.

    make_logits.py [NAME ...]                        the small random models and their logits
    make_logits.py --model demo/model --out FILE     logits of a model that exists
    make_logits.py --model demo/model --long 32000 --out FILE    a few rows of a long prompt

A golden file is a safetensors file: `tokens` I32 [n]; `positions` I32 [m], the positions whose logits
are kept; `logits` F32 [m, vocab], by transformers in fp32 with eager attention (--long: torch's own, which needs no square matrix); `crc32` I64 [1] of the
model.safetensors that it was made from (of all shards, one after another); of a quantised one `crc32.NAME` I64 [1] of the fp32 values [out, in]
that the weight NAME stands for, whose logits they are. The versions that made it stand in its metadata.
"""
import argparse
import json
import pathlib
import tempfile
import zlib

import safetensors.torch
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

import quantized
from families import FAMILIES, OWN_TYPES

GOLDEN = pathlib.Path(__file__).resolve().parent
TOKENS = 150  # more than two attention tiles of 64

LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

# name -> (model type, sizes, dtype of the file, whether config.json is written as transformers 4 did)
# A name's place is its seed: new ones go to the end.
MODELS = {
    "mha": ("llama",
            dict(hidden_size=36, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3,
                 intermediate_size=56, vocab_size=61, tie_word_embeddings=False), torch.float32, False),
    "gqa_tied_llama3": ("llama",
                        dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=6,
                             num_key_value_heads=2, head_dim=16, intermediate_size=100, vocab_size=80,
                             tie_word_embeddings=True, rope_parameters=LLAMA3), torch.bfloat16, False),
    "mqa_linear_f16": ("llama",
                       dict(hidden_size=40, num_hidden_layers=2, num_attention_heads=5,
                            num_key_value_heads=1, intermediate_size=64, vocab_size=64,
                            tie_word_embeddings=True,
                            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0,
                                             "factor": 4.0}), torch.float16, True),
    "wide_heads": ("llama",
                   dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        num_key_value_heads=1, head_dim=80, intermediate_size=50, vocab_size=70,
                        tie_word_embeddings=False,
                        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
                   torch.bfloat16, True),
    # The window ends inside of a tile, and far in front of the prompt's end.
    "mistral_window": ("mistral",
                       dict(hidden_size=40, num_hidden_layers=3, num_attention_heads=4,
                            num_key_value_heads=2, head_dim=12, intermediate_size=60, vocab_size=66,
                            tie_word_embeddings=False, sliding_window=45), torch.bfloat16, True),
    "qwen2_bias": ("qwen2",
                   dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=6,
                        num_key_value_heads=2, intermediate_size=80, vocab_size=72,
                        tie_word_embeddings=True,
                        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
                   torch.bfloat16, True),
    "qwen3_norms": ("qwen3",
                    dict(hidden_size=40, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=24, intermediate_size=64, vocab_size=68,
                         tie_word_embeddings=True,
                         rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
                    torch.float32, False),
    # Scaled angles, most positions past the original length. transformers has one set of dynamic
    # frequencies for a single pass over TOKENS = max_position_embeddings * factor tokens: ours.
    "dynamic_ntk": ("llama",
                    dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=1, intermediate_size=48, vocab_size=60,
                         tie_word_embeddings=True, max_position_embeddings=TOKENS // 2,
                         rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0,
                                          "factor": 2.0}), torch.bfloat16, True),
    "yarn": ("qwen3",
             dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                  head_dim=24, intermediate_size=48, vocab_size=60, tie_word_embeddings=True,
                  max_position_embeddings=40,
                  rope_parameters={"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                                   "original_max_position_embeddings": 40, "beta_fast": 4.0}),
             torch.bfloat16, True),  # the ramp leads from pair 1.2 to 4.8
    "yarn_mscale": ("llama",
                    dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=2, head_dim=40, intermediate_size=48, vocab_size=60,
                         tie_word_embeddings=True,
                         rope_parameters={"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0,
                                          "original_max_position_embeddings": 64, "beta_fast": 12.0,
                                          "beta_slow": 0.7, "mscale": 1.0, "mscale_all_dim": 0.4,
                                          "truncate": False}), torch.bfloat16, False),
    "mixtral": ("mixtral",
                dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, intermediate_size=36, vocab_size=60,
                     num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False,
                     rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
                torch.bfloat16, True),
    # Layers 0 and 2 are dense by the step, 3 by the list.
    "qwen3_moe": ("qwen3_moe",
                  dict(hidden_size=32, num_hidden_layers=4, num_attention_heads=2,
                       num_key_value_heads=1, head_dim=24, intermediate_size=48, vocab_size=60,
                       num_experts=8, num_experts_per_tok=3, moe_intermediate_size=20,
                       norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[3],
                       tie_word_embeddings=True,
                       rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
                  torch.bfloat16, False),
    "qwen3_moe_unnormed": ("qwen3_moe",
                           dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                                num_key_value_heads=2, head_dim=16, intermediate_size=48,
                                vocab_size=60, num_experts=5, num_experts_per_tok=2,
                                moe_intermediate_size=36, norm_topk_prob=False,
                                tie_word_embeddings=True), torch.float16, True),
}
SHARDED = {"mixtral": "40KB"}


def make_model(folder, model_type, sizes, dtype, old_config, seed):
    """A random model whose weights are large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    settings = dict(max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=None,
                    initializer_range=0.2) | sizes
    if "text_config" in settings:  # of a model that sees pictures
        settings["text_config"] = dict(max_position_embeddings=512, initializer_range=0.2) | settings["text_config"]
    config = AutoConfig.for_model(model_type, **settings)
    kind = AutoModelForImageTextToText if "text_config" in settings else AutoModelForCausalLM
    model = kind.from_config(config)
    from_zero = model_type.startswith("gemma")  # norms' weights are stored less one
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_((0 if from_zero else 1) + 0.2 * torch.randn_like(parameter))
            elif name.endswith("bias") or name.endswith("sinks"):
                parameter.copy_(torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.2 * torch.randn_like(buffer))
    for old in folder.glob("*model*.safetensors*"):
        old.unlink()
    model.to(dtype).save_pretrained(folder, max_shard_size=SHARDED.get(folder.name, "1GB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if folder.name.endswith("_turned"):
        path = folder / "model.safetensors"
        state = {name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
                 for name, tensor in safetensors.torch.load_file(path).items()}
        safetensors.torch.save_file(state, path, metadata={"format": "pt"})
    if old_config:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        if model_type == "qwen3_moe":
            config["num_experts"] = config.pop("num_local_experts")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else \
            {"type": rope["rope_type"], **{k: v for k, v in rope.items() if k != "rope_type"}}
        path.write_text(json.dumps(config, indent=2) + "\n")


def part_experts(folder):
    """Experts that lie in one tensor become tensors of their own; returns transformers' model of what was."""
    model = load_reference(folder)
    path = folder / "model.safetensors"
    state = {}
    for name, tensor in safetensors.torch.load_file(path).items():
        experts, part = name.rsplit(".", 1)
        if ".experts." not in name:
            state[name] = tensor
            continue
        for e, matrix in enumerate(tensor):
            halves = zip(("gate_proj", "up_proj"), matrix.chunk(2)) if part == "gate_up_proj" else [(part, matrix)]
            state |= {f"{experts}.{e}.{half}.weight": values.clone() for half, values in halves}
    safetensors.torch.save_file(state, path, metadata={"format": "pt"})
    return model


def make_quantized(folder, model_type, sizes, dtype, quantization, place, seed):
    """A random model whose linear layers are quantised; returns transformers' model of the values that
    they stand for, and those values' CRC32s by name."""
    make_model(folder, model_type, sizes, torch.float32, False, seed)
    path = folder / "model.safetensors"
    state = safetensors.torch.load_file(path)
    state = {name: tensor.to(dtype) for name, tensor in state.items()}
    tensors, values, layers = quantized.quantize(state, quantization, seed, place != "config.json")
    path.unlink()
    if folder.name in quantized.SHARDED:
        names = sorted(tensors)
        parts = [names[:len(names) // 2], names[len(names) // 2:]]
        files = [f"model-0000{i + 1}-of-00002.safetensors" for i in range(2)]
        for part, file in zip(parts, files):
            safetensors.torch.save_file({n: tensors[n] for n in part}, folder / file)
        index = {n: file for part, file in zip(parts, files) for n in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}) + "\n")
    else:
        old = place != "config.json"
        safetensors.torch.save_file(
            tensors, folder / "gptq_model-4bit.safetensors" if old else path)
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text())
    values = {name: value.float() for name, value in values.items()}
    with tempfile.TemporaryDirectory() as plain:
        safetensors.torch.save_file(values, pathlib.Path(plain) / "model.safetensors")
        (pathlib.Path(plain) / "config.json").write_text(json.dumps(config))
        model = load_reference(plain)
    config["dtype"] = str(dtype).removeprefix("torch.")
    if place == "config.json":
        config["quantization_config"] = quantization
    else:
        settings = {k: v for k, v in quantization.items() if k != "quant_method"}
        (folder / place).write_text(json.dumps(settings, indent=2) + "\n")
    config_path.write_text(json.dumps(config, indent=2) + "\n")
    checksums = {f"crc32.{layer}weight":
                 torch.tensor([zlib.crc32(values[layer + "weight"].numpy().tobytes())])
                 for layer in layers}
    return model, checksums


def make_mxfp4(folder, model_type, sizes, dtype, seed):
    """A random model whose experts are stored as MXFP4; returns transformers' model of the values."""
    make_model(folder, model_type, sizes, dtype, False, seed)
    path = folder / "model.safetensors"
    state = safetensors.torch.load_file(path)
    stored, values = quantized.mxfp4_experts(state)
    safetensors.torch.save_file(stored, path)
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text())
    with tempfile.TemporaryDirectory() as plain:
        safetensors.torch.save_file(values, pathlib.Path(plain) / "model.safetensors")
        (pathlib.Path(plain) / "config.json").write_text(json.dumps(config))
        model = load_reference(plain)
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    config_path.write_text(json.dumps(config, indent=2) + "\n")
    return model


def load_reference(folder, attention="eager"):
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    kind = AutoModelForImageTextToText if "text_config" in config else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)


def make_golden(folder, out, positions, model=None, checksums=None, length=TOKENS):
    model = model or load_reference(folder)
    generator = torch.Generator().manual_seed(1)
    vocab = model.config.get_text_config().vocab_size
    special = ("image_token_id", "boi_token_index", "eoi_token_index")  # texts have none of them
    vocab = min([vocab, *(getattr(model.config, name, vocab) for name in special)])
    tokens = torch.randint(0, vocab, (length,), generator=generator)
    crc = 0
    for path in sorted(folder.glob("*model*.safetensors")):
        crc = zlib.crc32(path.read_bytes(), crc)
    with torch.inference_mode():
        logits = model.eval()(tokens[None], logits_to_keep=torch.tensor(positions)).logits[0]
    safetensors.torch.save_file(
        {"tokens": tokens.int(), "positions": torch.tensor(positions, dtype=torch.int32),
         "logits": logits.float().contiguous(),
         "crc32": torch.tensor([crc])} | (checksums or {}),
        out, metadata={"torch": torch.__version__, "transformers": transformers.__version__})
    print(f"{out}: {len(positions)} rows, largest logit {logits.abs().max():.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join([*MODELS, *quantized.MODELS, *FAMILIES])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {known}; default: all")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--long", type=int, metavar="TOKENS")
    arguments = parser.parse_args()
    if arguments.model:
        if not arguments.out:
            parser.error("--model needs --out")
        if arguments.long:
            last = arguments.long - 1
            positions = sorted({*range(0, last, 4096), *range(8191, last, 8192), last})
            make_golden(arguments.model, arguments.out, positions,
                        load_reference(arguments.model, "sdpa"), length=arguments.long)
            return
        make_golden(arguments.model, arguments.out, [0, 1, 15, 16, 63, 64, 127, TOKENS - 1])
        return
    positions = list(range(0, TOKENS, 4)) + [TOKENS - 1]
    for seed, (name, settings) in enumerate((MODELS | quantized.MODELS | FAMILIES).items()):
        if arguments.names and name not in arguments.names:
            continue
        folder = GOLDEN / "models" / name
        out = GOLDEN / f"logits_{name}.safetensors"
        if name.endswith("_mxfp4"):
            make_golden(folder, out, positions, make_mxfp4(folder, *settings[:3], 2000 + list(FAMILIES).index(name)))
        elif name in FAMILIES:
            make_model(folder, *settings, 2000 + list(FAMILIES).index(name))
            make_golden(folder, out, positions, part_experts(folder) if name.endswith("_each") else None)
            if name in OWN_TYPES:
                path = folder / "config.json"
                config = json.loads(path.read_text()) | {"model_type": OWN_TYPES[name]}
                path.write_text(json.dumps(config, indent=2) + "\n")
        elif name in MODELS:
            make_model(folder, *settings, seed)
            make_golden(folder, out, positions)
        else:
            make_golden(folder, out, positions, *make_quantized(folder, *settings, 1000 + seed))


if __name__ == "__main__":
    main()
