// A model without weights, for benchmarks of everything around a model and for tests of the
// hand-off. It keeps a running hash of the prefix in the KV pool, at each token's place, and reads
// the previous token's hash from there: a block that was lost, mixed up or pulled too early changes
// its tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "workers/pool/host_pool.h"

namespace baton {

/// Draws from kFakePieces ids around the middle of the vocabulary (ordinary pieces of a
/// sentencepiece model), never a stop id; temperature and seed are ignored. vocab_size and the
/// context come from
/// `model`/config.json if there is one, else 32,000 and 32,768.
class FakeModel final : public HostExecutor {
 public:
  FakeModel(std::string model_folder, std::uint32_t tokens_per_block);

  Result<ModelShape> load(std::atomic<int>& percent) override;

  /// The token that follows `prefix`, computed without a pool: what tests compare with.
  static Token next_token(std::span<const Token> prefix, std::uint32_t vocab_size,
                          std::span<const Token> stop_ids = {});

 private:
  void run_rows(const RunStep& step, StepOutput& output) override;
  void compute_rows(const RunStep& step, StepOutput& output);
  void rank(std::uint64_t hash, const BatchRow& row, std::uint32_t item, Logprobs& out) const;
  void pool_row(std::uint64_t hash, const BatchRow& row, std::uint32_t index,
                StepOutput& output) const;
  std::uint64_t& hash_at(std::span<const BlockId> blocks, std::int64_t position);

  std::string model_folder_;
  std::uint32_t tokens_per_block_;
  std::uint32_t vocab_size_ = 32'000;
  std::uint32_t hidden_size_ = 64;
};

constexpr std::uint32_t kFakePieces = 64;

}  // namespace baton
