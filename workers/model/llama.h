// A model of the Llama kind on the CPU (families() in config.cpp: one decoder, its variations
// are settings of ModelConfig): one call runs one step of prompt chunks and decode rows mixed. This
// header is free of torch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "ipc/kv_layout.h"
#include "ipc/sealed_memory.h"
#include "ipc/status.h"
#include "ipc/types.h"
#include "workers/collective/collective.h"
#include "workers/cpu/kernels.h"
#include "workers/model/activation_dump.h"
#include "workers/model/config.h"
#include "workers/model/content_digest.h"
#include "workers/model/cut.h"
#include "workers/model/kv_plan.h"
#include "workers/model/safetensors.h"
#include "workers/model/weight_plan.h"

namespace baton {

/// Some consecutive tokens of one sequence: a prompt chunk, or one decode token.
struct StepRow {
  std::span<const Token> tokens;  // at least one
  std::int64_t position = 0;      // of tokens[0]; every position before it has its KV in the pool
  std::span<const BlockId> block_table;  // covers position + tokens.size() tokens
  LogitsWanted logits = LogitsWanted::none;
  bool hidden = false;  // with `last`: what the final norm gives is wanted, and no logits
};

/// A pool in memory that the caller keeps mapped and writable. `base` is aligned to 64 bytes.
struct KvPoolView {
  std::byte* base = nullptr;
  KvGeometry geometry;
};

/// Logits in row order: one line for a row with `last`, tokens.size() lines for `all`, none for
/// `none`. Valid until the next forward(); the caller may change them (masks).
struct LogitsView {
  float* data = nullptr;  // [rows, vocab]; null where no row wants logits
  int rows = 0;
  int vocab = 0;
  const float* normed = nullptr;  // [rows, hidden]: what the logits are made of
  int width = 0;                  // hidden
  std::span<const float> hidden(int r) const {
    return {normed + static_cast<std::int64_t>(r) * width, static_cast<std::size_t>(width)};
  }
  std::span<float> row(int r) const {
    return {data + static_cast<std::int64_t>(r) * vocab, static_cast<std::size_t>(vocab)};
  }
};

/// A model folder, opened. Throws ModelError, and ModelChanged.
struct ModelFiles {
  explicit ModelFiles(const std::string& folder, WeightChoice choice = WeightChoice::stored,
                      Activations wanted = Activations::exact, const DigestCache& cache = {});
  ModelConfig config;
  Checkpoint checkpoint;
  WeightChoice weights;
  Activations activations;  // exact where no weights stay whole numbers
  ContentDigest content;
  std::uint64_t fingerprint = 0;  // LlamaModel::fingerprint()
};

struct LoadOptions {
  int threads = 1;
  cpu::Isa isa = cpu::Isa::best;
  WeightChoice weights = WeightChoice::stored;
  Activations activations = Activations::exact;
  /// Weights that another process has packed out of the same files; null: pack them.
  std::shared_ptr<const SealedMemory> packed = nullptr;
  /// Pack them into memory that others can map: sealed_weights().
  bool seal = false;
  /// The part of one rank. All ranks of the group then run the same steps on the same pool, and
  /// exchange through `group`, which outlives the model.
  ModelCut cut = {};
  Collective* group = nullptr;
  /// Tokens of a block: layers are put into groups whose windows give blocks back (kv_plan.h). 0:
  /// all layers lie in one block, which is needed to the end.
  std::uint32_t kv_groups_for = 0;
};

/// What forward() calls from layer to layer, with the number of layers so far. Either may be empty.
struct LayerHooks {
  /// Behind the layer's keys and values, before its attention: may wait for what others write.
  std::function<void(std::uint32_t layers)> before_attention;
  /// The rows' keys and values of layers 0 .. layers-1 are in the pool. Of a group, those of all
  /// ranks: then it is told later, behind the next exchange that each rank comes to when it has
  /// written its own.
  std::function<void(std::uint32_t layers)> written;
};

/// One loaded model with its own threads and workspace. Not thread-safe: one caller at a time.
///
/// Batch-invariant: the logits and the KV of a token depend, to the bit, on the tokens before it
/// and on the weights alone: not on its neighbours in the step, on how its prompt was cut into
/// chunks, on prefill against decode, on block ids, on the number of threads or the vector width.
class LlamaModel {
 public:
  /// Reads config.json and the safetensors of `folder`. Throws ModelError. `progress`, if given, is
  /// set to percent done on the way (it may be read by another thread).
  static std::unique_ptr<LlamaModel> load(const std::string& folder, const LoadOptions& options,
                                          std::atomic<int>* progress = nullptr);
  /// The same; `options.weights` and `options.activations` are those of the files.
  static std::unique_ptr<LlamaModel> load(const ModelFiles& files, const LoadOptions& options,
                                          std::atomic<int>* progress = nullptr);
  ~LlamaModel();
  LlamaModel(const LlamaModel&) = delete;
  LlamaModel& operator=(const LlamaModel&) = delete;

  const ModelConfig& config() const;
  /// Identifies configuration and weights: pools of models that differ are never connected.
  std::uint64_t fingerprint() const;
  /// The kernels in use, "avx2" or "avx512".
  const char* isa_name() const;
  /// Bytes of weights in memory, as packed.
  std::uint64_t weight_bytes() const;
  /// Bytes of the checkpoint that were read for them; 0 if others have packed them.
  std::uint64_t bytes_read() const;
  /// The memory of the weights, if it is one that others can map, or have packed; else null.
  const std::shared_ptr<const SealedMemory>& sealed_weights() const;

  /// Which layers share blocks.
  const KvPlan& kv_plan() const;
  /// Geometry of a pool for this model. Check it with kv_check().
  KvGeometry kv_geometry(std::uint32_t blocks,
                         std::uint32_t tokens_per_block = kDefaultTokensPerBlock) const;

  /// Whether forward() may run these rows: tokens inside the vocabulary, tables that cover the rows
  /// and name blocks of the pool, positions inside the context, the pool of this model's geometry.
  Status check(std::span<const StepRow> rows, const KvPoolView& pool) const;

  /// Runs one step: writes the rows' keys and values into the pool, returns the logits wanted.
  /// Precondition: check() is ok, and no two rows write the same slot. Rows of one sequence in one
  /// step must be in order of position.
  /// Of a group, all ranks call it with the same rows; rank 0 alone gets the logits. When it
  /// returns, all ranks have ended the step. Throws RankLost, or RanksDiffer.
  LogitsView forward(std::span<const StepRow> rows, const KvPoolView& pool);
  /// From now on for forward(). Of a group, each rank has its own.
  void set_layer_hooks(LayerHooks hooks);
  /// Every later forward() shows what its parts leave.
  void set_dump(ActivationDump dump);

 private:
  struct Impl;
  explicit LlamaModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
