#include "workers/execute/fake_model.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "text/gguf/gguf_folder.h"

namespace baton {

namespace {

constexpr std::size_t kMaxConfigBytes = 4U << 20U;
constexpr std::uint64_t kEmptyPrefix = 0x243F6A8885A308D3ULL;

std::uint64_t extend(std::uint64_t hash, Token token) {
  hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 29U);
}

Token draw(std::uint64_t hash, std::uint32_t vocab_size, std::span<const Token> stop_ids) {
  const std::uint32_t pieces = std::min(kFakePieces, vocab_size);
  const std::uint32_t first = (vocab_size - pieces) / 2;
  for (std::uint32_t i = 0; i < pieces; ++i) {
    const auto token = static_cast<Token>(first + (hash % pieces + i) % pieces);
    if (std::find(stop_ids.begin(), stop_ids.end(), token) == stop_ids.end()) return token;
  }
  return static_cast<Token>(first);  // every piece is a stop id
}

}  // namespace

FakeModel::FakeModel(std::string model_folder, std::uint32_t tokens_per_block)
    : model_folder_(std::move(model_folder)), tokens_per_block_(tokens_per_block) {}

Result<ModelShape> FakeModel::load(std::atomic<int>& percent) {
  ModelShape shape;
  shape.max_context = 32'768;
  const auto text = model_folder_.empty()
                        ? Result<std::optional<std::string>>(std::optional<std::string>())
                        : read_model_json(model_folder_ + "/config.json", kMaxConfigBytes);
  if (!text.ok()) return text.status();
  if (text.value()) {
    const auto json = nlohmann::json::parse(*text.value(), nullptr, /*allow_exceptions=*/false);
    const auto number = [&](const char* key, std::uint32_t& value) {
      const auto it = json.is_object() ? json.find(key) : json.end();
      if (it == json.end() || !it->is_number_unsigned()) return;
      const std::uint64_t n = it->get<std::uint64_t>();
      if (n > 0 && n <= 1U << 24U) value = static_cast<std::uint32_t>(n);
    };
    number("vocab_size", vocab_size_);
    number("max_position_embeddings", shape.max_context);
    number("hidden_size", hidden_size_);
    hidden_size_ = std::min<std::uint32_t>(hidden_size_, SamplingParams::kMaxPooled);
  }
  shape.vocab_size = vocab_size_;
  KvGeometry& g = shape.geometry;
  g.model_fingerprint = 0xFA4EULL << 32U | vocab_size_;
  g.dtype = KvDtype::f32;
  g.layers = 2;
  g.kv_heads = 2;
  g.head_dim = 64;
  g.tokens_per_block = tokens_per_block_;
  set_shape(g, "fake");
  percent = 100;
  return shape;
}

std::uint64_t& FakeModel::hash_at(std::span<const BlockId> blocks, std::int64_t position) {
  const KvGeometry& g = pool().geometry();
  const auto p = static_cast<std::uint64_t>(position);
  const std::uint64_t offset = kv_offset(g, blocks[p / g.tokens_per_block], 0, KvPart::key, 0,
                                         static_cast<std::uint32_t>(p % g.tokens_per_block));
  return *reinterpret_cast<std::uint64_t*>(base() + offset);
}

void FakeModel::run_rows(const RunStep& step, StepOutput& output) {
  // A row's hashes follow from the one before it: what it waits for comes first.
  await_layers(1);
  compute_rows(step, output);
  layers_written(1);
}

void FakeModel::compute_rows(const RunStep& step, StepOutput& output) {
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const BatchRow& row = step.rows[i];
    const std::span<const BlockId> blocks = table(step, i);
    std::uint64_t hash = row.position == 0 ? kEmptyPrefix : hash_at(blocks, row.position - 1);
    std::int64_t position = row.position;
    for (const Token token : row.tokens) {
      hash = extend(hash, token);
      hash_at(blocks, position++) = hash;
    }
    if (row.ranks) rank(hash, row, static_cast<std::uint32_t>(i), output.candidates);
    if (!row.samples()) continue;
    if (row.sampling->pools()) {
      pool_row(hash, row, static_cast<std::uint32_t>(i), output);
      continue;
    }
    output.tokens[i] = draw(hash, vocab_size_, row.sampling->stop_ids);
  }
}

/// As many values as the model has, or as tokens are asked about: all of them follow from the hash.
void FakeModel::pool_row(std::uint64_t hash, const BatchRow& row, std::uint32_t index,
                         StepOutput& output) const {
  const SamplingParams& p = *row.sampling;
  std::vector<float> vector(p.pooling == Pooling::last_hidden ? hidden_size_
                                                              : p.allowed_tokens.size());
  for (std::size_t i = 0; i < vector.size(); ++i) {
    vector[i] = static_cast<float>(extend(hash, static_cast<Token>(i)) % 2001) / 1000 - 1;
  }
  output.tokens[index] = 0;
  output.logprobs.push(index, 0, {}, {}, vector);
}

/// Neighbours of the token that would be drawn, each less probable than the one before.
void FakeModel::rank(std::uint64_t hash, const BatchRow& row, std::uint32_t item,
                     Logprobs& out) const {
  const auto first = static_cast<std::uint32_t>(draw(hash, vocab_size_, row.sampling->stop_ids));
  std::vector<Token> tokens;
  std::vector<float> logprobs;
  for (std::uint32_t i = 0; i < row.sampling->num_beams; ++i) {
    tokens.push_back(static_cast<Token>((first + i) % vocab_size_));
    logprobs.push_back(-0.5F - static_cast<float>(i) - static_cast<float>(hash % 997) / 1000);
  }
  out.push(item, logprobs.front(), tokens, logprobs);
}

Token FakeModel::next_token(std::span<const Token> prefix, std::uint32_t vocab_size,
                            std::span<const Token> stop_ids) {
  std::uint64_t hash = kEmptyPrefix;
  for (const Token token : prefix) hash = extend(hash, token);
  return draw(hash, vocab_size, stop_ids);
}

}  // namespace baton
