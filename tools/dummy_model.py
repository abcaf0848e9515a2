#!/usr/bin/env python3
"""A model folder without weights, for `load_format: dummy`: a config.json and a tokenizer.json of as many made-up
words as the vocabulary has, so that every token a random model samples is text, and an event at the client.

    tools/dummy_model.py 8b FOLDER            Llama 3.1 8B's geometry; others: GEOMETRIES below
    tools/dummy_model.py my/config.json FOLDER
"""

import argparse
import json
import pathlib
import sys

GEOMETRIES = {
    "8b": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
           "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 128, "intermediate_size": 14336, "max_position_embeddings": 131072,
           "rope_theta": 500000.0, "rms_norm_eps": 1e-05, "tie_word_embeddings": False,
           "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
    "0.6b": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
             "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
             "head_dim": 128, "intermediate_size": 3072, "max_position_embeddings": 40960,
             "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "tie_word_embeddings": True,
             "rope_scaling": None},
    "qwen3-30b-a3b": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936,
                      "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
                      "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
                      "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
                      "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
                      "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-06,
                      "tie_word_embeddings": False},
    "deepseek-v2-lite": {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": 102400,
                         "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
                         "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512,
                         "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
                         "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
                         "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
                         "moe_layer_freq": 1, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
                         "norm_topk_prob": False, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
                         "max_position_embeddings": 163840, "rope_theta": 10000, "rms_norm_eps": 1e-06,
                         "tie_word_embeddings": False,
                         "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
                                          "mscale": 0.707, "mscale_all_dim": 0.707,
                                          "original_max_position_embeddings": 4096}},
    "gpt-oss-20b": {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201088,
                    "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
                    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 32,
                    "num_experts_per_tok": 4, "sliding_window": 128, "swiglu_limit": 7.0,
                    "layer_types": ["sliding_attention", "full_attention"] * 12,
                    "max_position_embeddings": 131072, "rope_theta": 150000.0, "rms_norm_eps": 1e-05,
                    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                     "original_max_position_embeddings": 4096, "truncate": False},
                    "attention_bias": True, "tie_word_embeddings": False,
                    "quantization_config": {"quant_method": "mxfp4"}},
    "gemma3-12b": {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 262208,
                   "hidden_size": 3840, "num_hidden_layers": 48, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 15360, "sliding_window": 1024,
                   "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "max_position_embeddings": 131072,
                   "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rms_norm_eps": 1e-06,
                   "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                   "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True},
}
GEOMETRIES["qwen3-30b-a3b-fp8"] = GEOMETRIES["qwen3-30b-a3b"] | {
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [128, 128]}}
GEOMETRIES["qwen3-30b-a3b-int4"] = GEOMETRIES["qwen3-30b-a3b"] | {
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}}
GEOMETRIES["gpt-oss-120b"] = GEOMETRIES["gpt-oss-20b"] | {
    "num_hidden_layers": 36, "num_local_experts": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18}
GEOMETRIES["gpt-oss-20b-bf16"] = {k: v for k, v in GEOMETRIES["gpt-oss-20b"].items() if k != "quantization_config"}
GEOMETRIES["70b"] = {**GEOMETRIES["8b"], "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
                     "intermediate_size": 28672}
_COMMON = {"hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False,
           "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "use_cache": True,
           "torch_dtype": "bfloat16"}


def byte_characters():
    """The 256 characters that stand for bytes in byte-level vocabularies: printable ones for themselves, the
    others counted up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def tokenizer(vocab_size):
    """All bytes, then words "\u0120w256", "\u0120w257" ... (the first character is a space)."""
    words = byte_characters() + [f"\u0120w{i}" for i in range(256, vocab_size)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": True, "vocab": {word: i for i, word in enumerate(words)}, "merges": []}}


def write(what, folder, weights=None):
    """`what`: a name of GEOMETRIES or the path of a config.json; `weights`: a folder whose weights are linked.
    Returns the folder."""
    if what in GEOMETRIES:
        config = {**_COMMON, **GEOMETRIES[what]}
    else:
        config = json.loads(pathlib.Path(what).read_text(encoding="utf-8"))
    if not isinstance(config.get("vocab_size"), int) or not 256 <= config["vocab_size"] <= 1 << 20:
        raise ValueError(f"{what}: vocab_size must lie between 256 and {1 << 20}")
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    for file in pathlib.Path(weights).glob("*.safetensors*") if weights else []:
        (folder / file.name).symlink_to(file.resolve())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(config["vocab_size"])), encoding="utf-8")
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", help=f"{', '.join(GEOMETRIES)}, or a config.json")
    parser.add_argument("folder")
    arguments = parser.parse_args()
    try:
        print(write(arguments.what, arguments.folder))
    except (OSError, ValueError) as error:
        sys.exit(f"dummy_model: {error}")


if __name__ == "__main__":
    main()
