// A loaded model, a pool in plain memory, and sequences whose blocks are handed out in random
// order.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "workers/model/llama.h"

namespace baton::test {

inline std::string golden_folder() {
  const char* source = std::getenv("BATON_SOURCE_DIR");
  return std::string(source != nullptr ? source : ".") + "/tests/golden";
}

inline const std::vector<std::string>& golden_models() {
  static const std::vector<std::string> kNames = {
      "mha",        "gqa_tied_llama3", "mqa_linear_f16",    "wide_heads", "mistral_window",
      "qwen2_bias", "qwen3_norms",     "dynamic_ntk",       "yarn",       "yarn_mscale",
      "mixtral",    "qwen3_moe",       "qwen3_moe_unnormed"};
  return kNames;
}

/// Those of tests/golden/families.py.
inline const std::vector<std::string>& family_models() {
  static const std::vector<std::string> kNames = {"llama_biases",
                                                  "ministral",
                                                  "qwen2_moe",
                                                  "granite",
                                                  "smollm3",
                                                  "phi3",
                                                  "phi3_long",
                                                  "phi3_short",
                                                  "olmo2",
                                                  "olmo3",
                                                  "cohere2",
                                                  "starcoder2",
                                                  "glm",
                                                  "glm4",
                                                  "exaone4",
                                                  "exaone4_full",
                                                  "gemma2",
                                                  "gemma3",
                                                  "gemma3_pictures",
                                                  "mistral3_pictures",
                                                  "glm4_moe",
                                                  "gpt_oss",
                                                  "gpt_oss_mxfp4",
                                                  "deepseek_v2",
                                                  "deepseek_v3",
                                                  "deepseek_v2_lite",
                                                  "kimi_k2",
                                                  "seed_oss",
                                                  "ernie4_5",
                                                  "olmoe",
                                                  "minimax_m2",
                                                  "solar_open",
                                                  "gemma",
                                                  "cohere",
                                                  "glm4_moe_lite",
                                                  "llava",
                                                  "llava_onevision",
                                                  "internvl",
                                                  "smolvlm",
                                                  "qwen2_vl",
                                                  "qwen2_5_vl",
                                                  "qwen3_vl",
                                                  "qwen3_vl_moe",
                                                  "glm4v",
                                                  "glm4v_moe",
                                                  "qwen3_vl_moe_turned",
                                                  "ministral3",
                                                  "mistral4",
                                                  "mistral4_each",
                                                  "vaultgemma",
                                                  "youtu",
                                                  "dots1",
                                                  "ernie4_5_moe",
                                                  "granitemoe",
                                                  "granitemoeshared",
                                                  "granite4",
                                                  "hyperclovax",
                                                  "exaone_moe",
                                                  "hy_v3",
                                                  "cwm",
                                                  "mellum",
                                                  "qwen2_windows",
                                                  "qwen3_moe_window"};
  return kNames;
}

/// Models whose linear layers are stored quantised.
inline const std::vector<std::string>& quantized_models() {
  static const std::vector<std::string> kNames = {
      "gptq_act_order", "gptq_sym",        "gptq_v2_experts", "awq",          "fp8_block",
      "fp8_channel",    "deepseek_v3_fp8", "ministral3_fp8",  "mistral4_fp8", "mistral4_fp8_block"};
  return kNames;
}

/// Those whose weights stay whole numbers in memory.
inline const std::vector<std::string>& whole_number_models() {
  static const std::vector<std::string> kNames = {"gptq_sym", "gptq_v2_experts", "awq",
                                                  "gpt_oss_mxfp4"};
  return kNames;
}

/// All models of tests/golden/models.
inline std::vector<std::string> all_models() {
  std::vector<std::string> names = golden_models();
  names.insert(names.end(), quantized_models().begin(), quantized_models().end());
  names.insert(names.end(), family_models().begin(), family_models().end());
  return names;
}

/// Those whose steps run through code of their own: the others differ in how they are loaded.
inline const std::vector<std::string>& distinct_models() {
  static const std::vector<std::string> kNames = {
      "mha",          "gqa_tied_llama3", "mqa_linear_f16",
      "wide_heads",   "mistral_window",  "qwen2_bias",
      "qwen3_norms",  "dynamic_ntk",     "yarn_mscale",
      "mixtral",      "qwen3_moe",       "qwen3_moe_unnormed",
      "llama_biases", "qwen2_moe",       "granite",
      "olmo2",        "cohere2",         "starcoder2",
      "glm4",         "gemma2",          "gemma3",
      "glm4_moe",     "gpt_oss",         "gpt_oss_mxfp4",
      "deepseek_v2",  "deepseek_v3",     "ministral3",
      "mistral4"};
  return kNames;
}

inline std::unique_ptr<LlamaModel> load(const std::string& folder, int threads = 1,
                                        cpu::Isa isa = cpu::Isa::best) {
  return LlamaModel::load(folder, {threads, isa});
}

inline std::unique_ptr<LlamaModel> load_golden(const std::string& name, int threads = 1,
                                               cpu::Isa isa = cpu::Isa::best) {
  return load(golden_folder() + "/models/" + name, threads, isa);
}

inline std::vector<Token> random_tokens(std::size_t n, int vocab, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<Token> tokens(n);
  for (Token& t : tokens) t = static_cast<Token>(rng() % static_cast<std::uint32_t>(vocab));
  return tokens;
}

/// A pool whose unwritten memory is NaN, so that a read of it shows.
class TestPool {
 public:
  TestPool(const LlamaModel& model, std::uint32_t blocks, std::uint32_t tokens_per_block,
           std::uint32_t seed)
      : memory_(*kv_pool_bytes(model.kv_geometry(blocks, tokens_per_block)) / sizeof(float),
                std::numeric_limits<float>::quiet_NaN()),
        free_(blocks) {
    view_.base = reinterpret_cast<std::byte*>(memory_.data());
    view_.geometry = model.kv_geometry(blocks, tokens_per_block);
    std::iota(free_.begin(), free_.end(), 0U);
    std::mt19937 rng(seed);
    std::shuffle(free_.begin(), free_.end(), rng);
  }

  const KvPoolView& view() const { return view_; }

  /// Blocks for `tokens` tokens, never given out before.
  std::vector<BlockId> table(std::size_t tokens) {
    const auto n = static_cast<std::ptrdiff_t>(kv_blocks_for(view_.geometry, tokens));
    std::vector<BlockId> blocks(free_.end() - n, free_.end());
    free_.resize(free_.size() - static_cast<std::size_t>(n));
    return blocks;
  }

 private:
  std::vector<float> memory_;
  std::vector<BlockId> free_;
  KvPoolView view_;
};

using Logits = std::vector<std::vector<float>>;  // one line a position

inline void append(Logits& to, const LogitsView& view) {
  for (int r = 0; r < view.rows; ++r) {
    const std::span<float> row = view.row(r);
    to.emplace_back(row.begin(), row.end());
  }
}

/// Logits of every position of `tokens`, computed in chunks of the given size in an own pool.
inline Logits logits_of(LlamaModel& model, const std::vector<Token>& tokens, std::size_t chunk,
                        std::uint32_t tokens_per_block = 16, std::uint32_t seed = 1) {
  const auto blocks = static_cast<std::uint32_t>(tokens.size() / tokens_per_block + 4);
  TestPool pool(model, blocks, tokens_per_block, seed);
  const std::vector<BlockId> table = pool.table(tokens.size());
  Logits all;
  for (std::size_t at = 0; at < tokens.size(); at += chunk) {
    const std::size_t n = std::min(chunk, tokens.size() - at);
    const StepRow row{
        {tokens.data() + at, n}, static_cast<std::int64_t>(at), table, LogitsWanted::all};
    const Status status = model.check({&row, 1}, pool.view());
    if (!status.ok()) throw std::runtime_error(status.message());
    append(all, model.forward({&row, 1}, pool.view()));
  }
  return all;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace baton::test
