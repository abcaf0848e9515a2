#include "bench/random_model.h"

#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <vector>

namespace baton {
namespace {

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t size() const {
    std::int64_t n = 1;
    for (const std::int64_t s : shape) n *= s;
    return n;
  }
};

std::vector<Tensor> tensors_of(const RandomModelShape& s) {
  const std::int64_t q = std::int64_t{s.heads} * s.head_dim;
  const std::int64_t kv = std::int64_t{s.kv_heads} * s.head_dim;
  std::vector<Tensor> tensors = {{"model.embed_tokens.weight", {s.vocab, s.hidden}},
                                 {"model.norm.weight", {s.hidden}}};
  if (!s.tied_embeddings) tensors.push_back({"lm_head.weight", {s.vocab, s.hidden}});
  for (int i = 0; i < s.layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    tensors.push_back({prefix + "input_layernorm.weight", {s.hidden}});
    tensors.push_back({prefix + "post_attention_layernorm.weight", {s.hidden}});
    tensors.push_back({prefix + "self_attn.q_proj.weight", {q, s.hidden}});
    tensors.push_back({prefix + "self_attn.k_proj.weight", {kv, s.hidden}});
    tensors.push_back({prefix + "self_attn.v_proj.weight", {kv, s.hidden}});
    tensors.push_back({prefix + "self_attn.o_proj.weight", {s.hidden, q}});
    tensors.push_back({prefix + "mlp.gate_proj.weight", {s.intermediate, s.hidden}});
    tensors.push_back({prefix + "mlp.up_proj.weight", {s.intermediate, s.hidden}});
    tensors.push_back({prefix + "mlp.down_proj.weight", {s.hidden, s.intermediate}});
  }
  return tensors;
}

/// splitmix64: a value between -1 and 1.
float next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-23F - 1.0F;
}

void write_bytes(std::ofstream& file, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) file.put(static_cast<char>(value >> (8 * i)));
}

void write_config(const std::string& path, const RandomModelShape& s) {
  std::ofstream file(path);
  file << "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\",\n"
       << " \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0,\n"
       << " \"hidden_size\": " << s.hidden << ", \"num_hidden_layers\": " << s.layers
       << ",\n \"num_attention_heads\": " << s.heads << ", \"num_key_value_heads\": " << s.kv_heads
       << ",\n \"head_dim\": " << s.head_dim << ", \"intermediate_size\": " << s.intermediate
       << ",\n \"vocab_size\": " << s.vocab << ", \"max_position_embeddings\": " << s.max_context
       << ",\n \"tie_word_embeddings\": " << (s.tied_embeddings ? "true" : "false")
       << ",\n \"torch_dtype\": \"" << (s.bf16 ? "bfloat16" : "float32") << "\",\n"
       << " \"bos_token_id\": 1, \"eos_token_id\": 2}\n";
  if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace

void write_random_model(const std::string& folder, const RandomModelShape& shape,
                        std::uint64_t seed) {
  write_config(folder + "/config.json", shape);
  const std::vector<Tensor> tensors = tensors_of(shape);
  const int bytes = shape.bf16 ? 2 : 4;
  std::string header = "{";
  std::int64_t offset = 0;
  for (const Tensor& t : tensors) {
    header += (header.size() > 1 ? ",\"" : "\"") + t.name + "\":{\"dtype\":\"" +
              (shape.bf16 ? "BF16" : "F32") + "\",\"shape\":[" + std::to_string(t.shape[0]) +
              (t.shape.size() > 1 ? "," + std::to_string(t.shape[1]) : "") +
              "],\"data_offsets\":[" + std::to_string(offset) + "," +
              std::to_string(offset + t.size() * bytes) + "]}";
    offset += t.size() * bytes;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::string path = folder + "/model.safetensors";
  std::ofstream file(path, std::ios::binary);
  write_bytes(file, header.size(), 8);
  file << header;
  for (const Tensor& t : tensors) {
    const bool norm = t.shape.size() == 1;
    // Uniform in (-a, a) has the variance a^2 / 3.
    const float a = norm ? 0.2F : std::sqrt(3.0F / static_cast<float>(t.shape[1]));
    std::uint64_t state = seed ^ std::hash<std::string>{}(t.name);
    for (std::int64_t i = 0; i < t.size(); ++i) {
      const float value = (norm ? 1.0F : 0.0F) + a * next_random(state);
      const auto bits = std::bit_cast<std::uint32_t>(value);
      write_bytes(file, shape.bf16 ? bits >> 16 : bits, bytes);
    }
  }
  if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace baton
