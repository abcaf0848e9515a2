"""Quantised checkpoints for make_logits.py, packed as the formats' public descriptions say.

GPTQ: Frantar et al., arXiv:2210.17323; layout of AutoGPTQ and GPTQModel (README, "checkpoint_format").
AWQ: Lin et al., arXiv:2306.00978; layout of AutoAWQ's "gemm" version.
FP8: "fp8" with weight_block_size as DeepSeek-V3 and Qwen3-FP8 publish it (README_WEIGHTS.md of
DeepSeek-V3: weight_scale_inv multiplies), and compressed-tensors' float-quantized.

Packed integers and NVFP4: compressed-tensors' pack-quantized and nvfp4-pack-quantized, and modelopt's NVFP4.

Every function quantises one weight [out, in] and returns its tensors and the values that they stand
for, computed from the chosen numbers and never from the packed words. Rounding to nearest is all the
quantising there is: what is tested is the reading.
"""
import torch

from families import MISTRAL4


def pack(values, order=range(8), bits=4):
    """[rows, 8 n] of 0..15 -> int32 [rows, n]: value j of eight goes to nibble order[j]. Of eight bits four by four."""
    rows = values.shape[0]
    each = 32 // bits
    eights = values.reshape(rows, -1, each).to(torch.int64)
    words = torch.zeros(rows, eights.shape[1], dtype=torch.int64)
    for j, nibble in enumerate(list(order)[:each]):
        words |= eights[:, :, j] << (bits * nibble)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def choose(weight, group, sym, bits=4):
    """q [in, out], and zero and scale [groups, out], for the inputs' groups [in]."""
    inputs = weight.float().T
    n_groups = int(group.max()) + 1
    low = torch.stack([inputs[group == g].amin(0).clamp(max=0) for g in range(n_groups)])
    high = torch.stack([inputs[group == g].amax(0).clamp(min=0) for g in range(n_groups)])
    most = 2 ** bits - 1
    if sym:
        scale = 2 * torch.maximum(-low, high) / most
        zero = torch.full_like(scale, (most + 1) // 2)
    else:
        scale = (high - low) / most
        zero = (-low / scale).round()
    scale = scale.half()
    q = ((inputs / scale.float()[group]).round() + zero[group]).clamp(0, most)
    return q, zero, scale, ((q - zero[group]) * scale.float()[group]).T.contiguous()


def groups_of(inputs, group_size):
    size = inputs if group_size == -1 else group_size
    return torch.arange(inputs) // size


def gptq(weight, config, generator):
    group = groups_of(weight.shape[1], config["group_size"])
    if config["desc_act"]:  # any order of the inputs stands for the one by activation size
        group = group[torch.randperm(len(group), generator=generator)]
    bits = config["bits"]
    q, zero, scale, values = choose(weight, group, config["sym"], bits)
    stored = zero if config.get("checkpoint_format") == "gptq_v2" else (zero - 1) % 2 ** bits
    tensors = {"qweight": pack(q.T, bits=bits).T.contiguous(), "qzeros": pack(stored, bits=bits), "scales": scale}
    if config["desc_act"] or config["sym"]:  # both ways: with g_idx where it is not needed, too
        tensors["g_idx"] = group.to(torch.int32)
    return tensors, values


def awq(weight, config, generator):
    q, zero, scale, values = choose(weight, groups_of(weight.shape[1], config["group_size"]), False)
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    return {"qweight": pack(q, order), "qzeros": pack(zero, order), "scales": scale}, values


def fp8(weight, rows, columns, scale_type):
    """One scale for each block of rows x columns."""
    out, inputs = weight.shape
    row = torch.arange(out) // rows
    column = torch.arange(inputs) // columns
    scale = torch.zeros(int(row.max()) + 1, int(column.max()) + 1)
    for r in range(scale.shape[0]):
        for c in range(scale.shape[1]):
            scale[r, c] = weight[row == r][:, column == c].abs().max() / 448
    scale = scale.to(scale_type)
    spread = scale.float()[row][:, column]
    q = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    return q, scale, q.float() * spread


def fp8_block(weight, config, generator):
    if weight.dim() == 3:  # experts: one tensor of scales for all
        found, values = zip(*(fp8_block(matrix, config, generator) for matrix in weight))
        return {"": torch.stack([f["weight"] for f in found])} | {
            key.removeprefix("weight"): torch.stack([f[key] for f in found]).reshape(
                len(found), *(found[0][key].shape or (1, 1)))
            for key in found[0] if key != "weight"}, torch.stack(values)
    if config["weight_block_size"] is None:
        q, scale, values = fp8(weight, *weight.shape, torch.bfloat16)
        return {"weight": q, "weight_scale_inv": scale[0, 0].clone(), "activation_scale": torch.tensor(0.02)}, values
    q, scale, values = fp8(weight, *config["weight_block_size"], torch.bfloat16)
    return {"weight": q, "weight_scale_inv": scale}, values


def fp8_channel(weight, config, generator):
    q, scale, values = fp8(weight, 1, weight.shape[1], torch.float32)
    return {"weight": q, "weight_scale": scale}, values


def packed(weight, config, generator):
    weights = config["config_groups"]["group_0"]["weights"]
    bits, sym = weights["num_bits"], weights["symmetric"]
    size = weights["group_size"] if weights["strategy"] == "group" else -1
    q, zero, scale, values = choose(weight, groups_of(weight.shape[1], size), sym, bits)
    tensors = {"weight_packed": pack(q.T.contiguous(), bits=bits), "weight_scale": scale.T.contiguous(),
               "weight_shape": torch.tensor(weight.shape)}
    if not sym:  # along the outputs
        tensors["weight_zero_point"] = pack(zero, bits=bits).T.contiguous()
    return tensors, values


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def e2m1(scaled):
    """(codes of the nearest numbers, the numbers)"""
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
    return (codes + 8 * (scaled < 0)).to(torch.uint8), torch.where(scaled < 0, -E2M1[codes], E2M1[codes])


def nvfp4(weight, config, generator):
    divides = config["quant_method"] == "compressed-tensors"
    blocks = weight.reshape(weight.shape[0], -1, 16)
    whole = (6 * 448 / blocks.abs().max() if divides else blocks.abs().max() / (6 * 448)).reshape(1)
    most = blocks.abs().amax(-1) / 6
    step = (most * whole if divides else most / whole).clamp(max=448).to(torch.float8_e4m3fn)
    spread = (step.float() / whole if divides else step.float() * whole)[..., None]
    codes, numbers = e2m1(blocks / spread)
    codes = codes.reshape(weight.shape)
    stored = codes[:, 0::2] | codes[:, 1::2] << 4
    names = ["weight_packed", "weight_global_scale"] if divides else ["weight", "weight_scale_2"]
    return ({names[0]: stored.contiguous(), "weight_scale": step, names[1]: whole},
            (numbers * spread).reshape(weight.shape))


def compressed_tensors(weight, config, generator):
    by_format = {"float-quantized": fp8_channel, "pack-quantized": packed, "nvfp4-pack-quantized": nvfp4}
    return by_format[config["format"]](weight, config, generator)


METHODS = {"gptq": gptq, "awq": awq, "fp8": fp8_block, "compressed-tensors": compressed_tensors,
           "modelopt": nvfp4}


def quantize(state, config, seed, idle_bias, shared_order=False):
    """The state of a checkpoint -> (its tensors, the state that they stand for, quantised layers).

    Linear layers inside of the model are quantised, neither the embedding nor lm_head, nor routers. With
    shared_order layers of as many inputs have one act-order (q, k and v, as real quantisers leave them)."""
    method = METHODS[config["quant_method"]]
    generator = torch.Generator().manual_seed(seed)
    tensors, values, layers = {}, {}, []
    for name, weight in state.items():
        if ".experts." in name and weight.dim() == 3:
            found, values[name] = method(weight.float(), config, generator)
            tensors |= {name + ("_" if key.startswith("a") else "") + key: value for key, value in found.items()}
            continue
        decoder = name.startswith(("model.layers.", "language_model.model.layers.", "model.language_model.layers."))
        linear = weight.dim() == 2 and decoder \
            and not name.endswith((".gate.weight", ".shared_expert_gate.weight"))
        if not linear:
            tensors[name] = values[name] = weight
            continue
        layer = name.removesuffix("weight")
        layers.append(layer)
        if shared_order:
            generator.manual_seed(seed + weight.shape[1])
        found, values[name] = method(weight.float(), config, generator)
        tensors |= {layer + key: value for key, value in found.items()}
        if idle_bias and layer + "bias" not in state:
            tensors[layer + "bias"] = torch.zeros(weight.shape[0], dtype=torch.float16)
    return tensors, values, sorted(layers)


def packed_config(bits, group, symmetric):
    """Of compressed-tensors; a group of -1: a channel."""
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False,
               "strategy": "channel" if group == -1 else "group"} | ({} if group == -1 else {"group_size": group})
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             intermediate_size=48, vocab_size=60)

# name -> (model type, sizes, dtype of the rest, quantization_config, where it is written)
MODELS = {
    "gptq_act_order": ("llama", SIZES | dict(tie_word_embeddings=True), torch.float16,
                       {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": True,
                        "sym": False, "true_sequential": True}, "config.json"),
    # An old one: the settings in a file of their own, zero biases that the model does not have.
    "gptq_sym": ("qwen2", SIZES | dict(tie_word_embeddings=False), torch.float16,
                 {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": False,
                  "sym": True}, "quantize_config.json"),
    "gptq_v2_experts": ("qwen3_moe",
                        SIZES | dict(num_hidden_layers=1, head_dim=16, num_experts=4,
                                     num_experts_per_tok=2, moe_intermediate_size=24,
                                     norm_topk_prob=True, tie_word_embeddings=True),
                        torch.bfloat16,
                        {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False,
                         "sym": False, "checkpoint_format": "gptq_v2"}, "config.json"),
    "awq": ("mistral", SIZES | dict(tie_word_embeddings=False, sliding_window=None), torch.float16,
            {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm",
             "zero_point": True, "modules_to_not_convert": None}, "config.json"),
    # Sizes that end inside of a block.
    "fp8_block": ("qwen3",
                  SIZES | dict(hidden_size=136, num_hidden_layers=1, head_dim=8,
                               intermediate_size=144, tie_word_embeddings=True), torch.bfloat16,
                  {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                   "weight_block_size": [128, 128]}, "config.json"),
    "fp8_channel": ("llama", SIZES | dict(tie_word_embeddings=False), torch.bfloat16,
                    {"quant_method": "compressed-tensors", "format": "float-quantized",
                     "quantization_status": "compressed", "ignore": ["lm_head"],
                     "kv_cache_scheme": None,
                     "config_groups": {"group_0": {
                         "targets": ["Linear"], "output_activations": None,
                         "weights": FLOAT8 | {"strategy": "channel", "dynamic": False},
                         "input_activations": FLOAT8 | {"strategy": "token", "dynamic": True}}}},
                    "config.json"),
    # As DeepSeek publishes V3: what leads from the latent vector to the heads ends inside of blocks.
    "deepseek_v3_fp8": ("deepseek_v3",
                        SIZES | dict(hidden_size=136, num_attention_heads=6, num_key_value_heads=6, q_lora_rank=24,
                                     kv_lora_rank=18, qk_nope_head_dim=18, qk_rope_head_dim=6, v_head_dim=14,
                                     n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=20,
                                     n_shared_experts=1, first_k_dense_replace=1, n_group=2, topk_group=1,
                                     routed_scaling_factor=2.5, tie_word_embeddings=False,
                                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
                        torch.bfloat16,
                        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                         "weight_block_size": [128, 128]}, "config.json"),
    # As Mistral publishes it: one scale a matrix, and one for its inputs.
    "ministral3_fp8": ("ministral3",
                       SIZES | dict(tie_word_embeddings=False, rope_parameters={
                           "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "beta_fast": 32.0,
                           "beta_slow": 1.0, "original_max_position_embeddings": 60, "mscale": 1.0,
                           "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}), torch.bfloat16,
                       {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None,
                        "dequantize": False, "modules_to_not_convert": ["model.vision_tower", "lm_head"]},
                       "config.json"),
    # The same of Mistral 4, whose experts lie in one tensor for all.
    "mistral4_fp8": ("mistral3", MISTRAL4, torch.bfloat16,
                     {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None,
                      "dequantize": False, "modules_to_not_convert": ["model.vision_tower", "lm_head"]},
                     "config.json"),
    "mistral4_fp8_block": ("mistral3", MISTRAL4, torch.bfloat16,
                           {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [10, 16]}, "config.json"),
}
SHARDED = {"gptq_act_order"}


def mxfp4(weight):
    """(blocks, scales, the values they stand for) of [count, in, out]: for each output, 32 inputs share a power of
    two; numbers are e2m1, two a byte, the lower half first."""
    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    rows = weight.transpose(1, 2).contiguous()
    blocks = rows.view(*rows.shape[:2], -1, 32)
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True) / 6)) + 1
    scaled = blocks / 2 ** exponent
    codes = (scaled.abs()[..., None] - grid).abs().argmin(-1)
    values = torch.where(scaled < 0, -grid[codes], grid[codes]) * 2 ** exponent
    codes = (codes + 8 * (scaled < 0)).to(torch.uint8)
    packed = codes[..., 0::2] | codes[..., 1::2] << 4
    return (packed.contiguous(), (exponent[..., 0] + 127).to(torch.uint8),
            values.view(rows.shape).transpose(1, 2).contiguous())


def mxfp4_experts(state):
    """A gpt-oss checkpoint's tensors with experts in MXFP4, and all tensors' values in fp32."""
    stored, values = {}, {}
    for name, tensor in state.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name + "_blocks"], stored[name + "_scales"], values[name] = mxfp4(tensor.float())
        else:
            stored[name], values[name] = tensor, tensor.float()
    return stored, values
