// The part of config.json that says how weights are quantised.
#include <algorithm>
#include <cctype>

#include "workers/model/settings.h"

namespace baton {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// Absent, null or this.
void must_be(const Settings& s, const std::string& key, const Json& value) {
  if (s.has(key) && s.at(key) != value) {
    s.refuse(key, s.at(key).dump() + " is not supported, only " + value.dump() + " is");
  }
}

void must_be_empty(const Settings& s, const std::string& key) {
  if (s.has(key) && !s.at(key).empty()) s.refuse(key, "is not supported");
}

/// Inputs that share a scale; -1 in the file: all of them.
int group_size(const Settings& s) {
  if (s.at("group_size") == -1) return 0;
  return s.integer("group_size", 1, 1 << 20);
}

void bits_must_be_4(const Settings& s) {
  s.at("bits");
  must_be(s, "bits", 4);
}

int four_or_eight(const Settings& s, const std::string& key) {
  const int bits = s.integer(key, 1, 64);
  if (bits != 4 && bits != 8)
    s.refuse(key, std::to_string(bits) + " is not supported, only 4 and 8 are");
  return bits;
}

Quantization read_gptq(const Settings& s) {
  Quantization q;
  q.bits = four_or_eight(s, "bits");
  q.method = QuantMethod::gptq;
  q.group = group_size(s);
  q.act_order = s.flag_or("desc_act", false);
  const std::string format = s.text_or("checkpoint_format", s.text_or("format", "gptq"));
  if (format != "gptq" && format != "gptq_v2") {
    s.refuse("checkpoint_format", format + " is not supported, only gptq and gptq_v2 are");
  }
  q.zero_offset = format == "gptq" ? 1 : 0;
  must_be(s, "is_marlin_format", false);
  must_be(s, "pack_dtype", "int32");
  must_be_empty(s, "dynamic");  // other bits or groups for some modules
  return q;
}

Quantization read_awq(const Settings& s) {
  bits_must_be_4(s);
  const std::string version = lower(s.text_or("version", s.text_or("format", "gemm")));
  if (version != "gemm") s.refuse("version", version + " is not supported, only gemm is");
  must_be(s, "zero_point", true);
  Quantization q;
  q.method = QuantMethod::awq;
  q.group = group_size(s);
  return q;
}

/// [rows, columns] of a block.
void read_block(const Settings& s, const std::string& key, Quantization& q) {
  const Json& block = s.at(key);
  const bool pair = block.is_array() && block.size() == 2;
  for (std::size_t i = 0; i < 2; ++i) {
    if (!pair || !block[i].is_number_unsigned() || block[i].get<std::uint64_t>() < 1 ||
        block[i].get<std::uint64_t>() > (1 << 20)) {
      s.refuse(key, block.dump() + " is not a pair of sizes");
    }
  }
  q.block_rows = block[0].get<int>();
  q.block_columns = block[1].get<int>();
}

Quantization read_fp8(const Settings& s) {
  if (s.text_or("fmt", "e4m3") != "float8_e4m3fn") must_be(s, "fmt", "e4m3");  // MiniMax's word
  // Inputs are not quantised here: the static scales of theirs that a checkpoint may have are left.
  if (s.text_or("activation_scheme", "dynamic") != "static") {
    must_be(s, "activation_scheme", "dynamic");
  }
  Quantization q;
  q.method = QuantMethod::fp8;
  q.scale = "weight_scale_inv";
  if (s.has("weight_block_size")) read_block(s, "weight_block_size", q);
  return q;
}

/// compressed-tensors' integers of four or eight bits.
Quantization read_packed(const Settings& weights) {
  must_be(weights, "type", "int");
  must_be(weights, "dynamic", false);
  Quantization q;
  q.method = QuantMethod::packed;
  q.bits = four_or_eight(weights, "num_bits");
  q.symmetric = weights.flag_or("symmetric", true);
  const std::string strategy = weights.text("strategy");
  if (strategy == "group") {
    q.group = weights.integer("group_size", 1, 1 << 20);
  } else if (strategy != "channel") {
    weights.refuse("strategy", strategy + " is not supported, only group and channel are");
  }
  return q;
}

/// NVIDIA's modelopt: NVFP4 alone.
Quantization read_modelopt(const Settings& s) {
  s.at("quant_algo");
  must_be(s, "quant_algo", "NVFP4");
  must_be_empty(s, "kv_cache_scheme");
  must_be_empty(s, "kv_cache_quant_algo");
  Quantization q;
  q.method = QuantMethod::nvfp4;
  q.group = 16;
  return q;
}

/// One group of 8-bit floats for every linear layer. Inputs are not quantised here, so that what it
/// says of them is left alone, with the scale for all that a checkpoint may have.
Quantization read_compressed_tensors(const Settings& s) {
  const std::string format = s.text("format");
  const bool packed = format == "pack-quantized";
  const bool nvfp4 = format == "nvfp4-pack-quantized";
  if (!packed && !nvfp4 && format != "float-quantized") {
    s.refuse(
        "format",
        format +
            " is not supported, only float-quantized, pack-quantized and nvfp4-pack-quantized are");
  }
  must_be(s, "quantization_status", "compressed");
  must_be_empty(s, "kv_cache_scheme");
  must_be_empty(s, "transform_config");
  if (s.has("sparsity_config")) must_be(s.object("sparsity_config"), "format", "dense");
  const Settings groups = s.object("config_groups");
  if (groups.json().size() != 1) s.refuse("config_groups", "only one group is supported");
  const Settings group = groups.object(groups.json().begin().key());
  must_be(group, "targets", Json::array({"Linear"}));
  must_be_empty(group, "output_activations");
  if (packed) must_be_empty(group, "input_activations");
  if (group.has("input_activations") && !nvfp4) {
    const Settings activations = group.object("input_activations");
    activations.at("dynamic");
    if (activations.text_or("strategy", "token") != "tensor") {
      must_be(activations, "dynamic", true);
    }
  }
  const Settings weights = group.object("weights");
  if (packed) return read_packed(weights);
  if (nvfp4) {
    for (const auto& [key, value] : {std::pair<const char*, Json>{"num_bits", 4},
                                     {"type", "float"},
                                     {"group_size", 16},
                                     {"strategy", "tensor_group"}}) {
      weights.at(key);
      must_be(weights, key, value);
    }
    Quantization q;
    q.method = QuantMethod::nvfp4;
    q.group = 16;
    q.divides = true;
    return q;
  }
  for (const auto& [key, value] :
       {std::pair<const char*, Json>{"num_bits", 8}, {"type", "float"}}) {
    weights.at(key);
    must_be(weights, key, value);
  }
  must_be(weights, "dynamic", false);
  must_be(weights, "symmetric", true);
  Quantization q;
  q.method = QuantMethod::fp8;
  q.scale = "weight_scale";
  const std::string strategy = weights.text("strategy");
  if (strategy == "block") {
    read_block(weights, "block_structure", q);
  } else if (strategy == "channel") {
    q.block_rows = 1;
  } else if (strategy != "tensor") {
    weights.refuse("strategy", strategy + " is not supported, only tensor, channel and block are");
  }
  return q;
}

}  // namespace

Quantization read_quantization(const Settings& s, const std::string& default_method, bool mxfp4) {
  const std::string method = lower(s.text_or("quant_method", default_method));
  if (method == "gptq") return read_gptq(s);
  if (method == "awq") return read_awq(s);
  if (method == "fp8") return read_fp8(s);
  if (method == "compressed-tensors") return read_compressed_tensors(s);
  if (method == "modelopt" || method == "modelopt_fp4") return read_modelopt(s);
  // Experts alone, in tensors of names of their own: expert_reader.cpp.
  if (method == "mxfp4" && mxfp4) {
    Quantization q;
    q.mxfp4 = true;
    return q;
  }
  s.refuse("quant_method",
           (method.empty() ? "none" : method) +
               " is not supported, only gptq, awq, fp8, compressed-tensors and modelopt are");
}

}  // namespace baton
