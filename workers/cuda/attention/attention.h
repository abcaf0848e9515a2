// Attention over the paged pool. A step's rows are of two kinds, computed by two kernels side by
// side: single tokens (decode rows, and every row in deterministic mode) by a split kernel that is
// bound by the bytes of keys and values, and prompt chunks by FlashInfer's tiles.
//
// Each step is planned on the host once (a plan serves all layers): the plan is plain data that the
// caller uploads with the rest of the step's metadata, so nothing here owns a stream or pinned
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "workers/cuda/layer/rowwise.h"
#include "workers/cuda/types.h"

namespace baton::cuda {

/// Queries of one sequence that are consecutive, both in the step's rows and in their positions.
struct AttentionRow {
  int first_row = 0;  // in qkv and in the output
  int n_rows = 0;
  std::int64_t position = 0;  // of its first query; keys 0..position+i are seen by query i
  int first_block = 0;        // its block table starts here in a group's flat table ...
  int n_blocks = 0;           // ... and is this long
};

/// Whether the tiled kernels compute capped scores of such heads, too.
constexpr bool takes_caps(const HeadShape& s) { return s.head_dim == 256; }

/// Whether the tiled kernels compute heads of this shape, with capped scores or without. Single
/// tokens of others have a plain kernel, chunks have none: their rows are to be planned as single
/// tokens.
constexpr bool has_attention_tiles(const HeadShape& s, bool capped) {
  if (capped && !takes_caps(s)) return false;
  const int group = s.heads / s.kv_heads;
  return s.head_dim == 256 ? group <= 8 : (s.head_dim == 64 || s.head_dim == 128) && group <= 16;
}

/// What one layer's queries do to their scores, beside the scale; the defaults are Llama's.
struct AttentionRule {
  int window = 0;                // keys that a query sees at most; 0: as the plan has it
  float soft_cap = 0;            // above 0: scores become soft_cap * tanh(score / soft_cap)
  const float* sinks = nullptr;  // [heads]: one more score of each head's softmax; null: none
};

// ------------------------------------------------------------------ single tokens

/// CTAs of the split kernel that a multiprocessor holds, with so many heads a KV head.
constexpr int split_attention_ctas(int group, int head_dim) {
  return group > 8 || head_dim > 128 ? 2 : 3;
}

/// One piece of work: some keys of one query row, for all its heads.
struct alignas(16) DecodeItem {
  std::int32_t row = 0;          // in qkv and in the output
  std::int32_t first_block = 0;  // of the row, in a group's flat block table
  std::int32_t key_begin = 0;    // the first key that is seen, in tokens of the sequence
  std::int32_t key_end = 0;
  std::int32_t piece = 0;   // of the row: 0 .. pieces-1
  std::int32_t pieces = 0;  // 0: merge() ends the row, not the last piece to come
  std::int32_t slot = 0;    // first of the row's slots in the split workspace, unless pieces == 1
  std::int32_t fresh = 0;   // keys from here on are written by this very step
};

struct DecodePlan {
  std::vector<DecodeItem> items;  // at most max_items(rows)
  int rows = 0;
};

/// A plan on the device.
struct DecodeWork {
  const DecodeItem* items = nullptr;
  const std::int32_t* n_items = nullptr;  // one number
  int rows = 0;        // that it was made for: plan()'s `padded_rows`, or the single rows
  int launch = 0;      // how many items to launch, those behind n_items do nothing; 0: there are no
                       // single rows
  int more_slots = 0;  // that the workspace has, beside those of plans
};

/// A CTA for each piece and KV head.
///
/// The bits of a row depend on its own pieces alone: these are merged in their order by whoever
/// comes last. With fixed_split the pieces depend on nothing but the row's position, and a row that
/// is not spread over several CTAs gets the same bits from one that takes its pieces in turn.
class DecodeAttention {
 public:
  struct Options {
    HeadShape shape;            // head_dim up to 256
    int tokens_per_block = 16;  // any; multiples of 16 are fast
    int max_rows = 0;
    int window = 0;           // sliding window in tokens; 0: none
    bool capped = false;      // scores of some layers are
    int fixed_split = 0;      // > 0: every row is cut into pieces of this many keys (a multiple of
                              // 16), whatever its batch-mates are (deterministic); 0: cut so that
                              // the GPU is full
    bool whole_rows = false;  // plans alone, of rows that are never cut: another kernel computes
                              // them (latent.h)
    int piece_keys = 0;       // > 0: spread rows over CTAs in pieces of about so many keys; for
                              // measurements
  };
  /// Throws std::invalid_argument for a shape that it does not compute, CudaError without a device.
  /// Where has_attention_tiles() is false rows are never cut.
  explicit DecodeAttention(const Options& options);

  /// The most items of a plan, of any plan or of one with so many rows: what to launch in a graph.
  int max_items() const { return max_items(options_.max_rows); }
  int max_items(int rows) const;
  /// Device memory for partial results and counters, zeroed once by the caller. One step at a time.
  std::size_t workspace_bytes(int more_slots = 0) const;
  /// Slots that plans use, the first ones.
  int split_slots() const;
  /// Whether other devices may compute pieces (travel_plan.h), and how many pieces of a row of
  /// average length fill one.
  bool may_travel() const;
  int pieces_at_once() const;
  int fixed_split() const { return options_.fixed_split; }
  /// Pure host code. A graph is recorded for a number of rows, and what it launches must not depend
  /// on the step: `padded_rows`, if > 0, is that number (at least the single rows).
  void plan(std::span<const AttentionRow> single_rows, DecodePlan& plan, int padded_rows = 0) const;

  /// Queues the attention of the planned rows of one layer: q is read from qkv
  /// [rows, (heads + 2 kv_heads) * head_dim], out [rows, heads * head_dim]. What `work` names is
  /// device memory that the caller uploaded; the grid depends on work.rows and work.launch alone,
  /// so that a captured graph serves steps of any lengths. `scale` multiplies q k.
  ///
  /// `block_table` has the tables of the first group of layers; kv.table_shift leads to others.
  /// What lies in front of a row's window is not read: tables may say anything there.
  ///
  /// The items, their number and block_table are read before grid_wait() (launch.cuh), so that the
  /// first keys are on their way while the kernel before still runs: copies that come before the
  /// step's first kernel on the stream must have written them, no kernel of the step. Neither may a
  /// kernel of the step have written keys in front of an item's `fresh`.
  ///
  /// With `rope`, the planned rows of qkv have not been through rope_append(): RoPE, and the newest
  /// key and value into the pool, where block_table says, are done here, and nothing is written
  /// back to qkv. Each row is a sequence of its own then. Throws CudaError where
  /// applies_rope() is false, over several pools, and for a rule that this kernel does not compute.
  void run(const Bf16* qkv, Bf16* out, const KvLayerView& kv, const std::int32_t* block_table,
           const DecodeWork& work, float scale, void* workspace, Stream stream,
           const Rope* rope = nullptr, const AttentionRule& rule = {}) const;
  /// Has the calling thread's GPU load what run() launches for rows over several pools, so that the
  /// first step need not. Throws CudaError.
  void load_over_pools() const;
  /// Ends `n` rows whose pieces have pieces == 0 as items: each of `rows` has its row, its number
  /// of pieces and its slot. All of them have run before, on whatever device, with the same `rule`:
  /// a cap is part of their scores, a sink counts here, once a row.
  void merge(const DecodeItem* rows, int n, Bf16* out, int more_slots, void* workspace,
             Stream stream, const AttentionRule& rule = {}) const;
  /// Whether run() takes `rope`: not with fixed pieces, nor for heads of 256.
  bool applies_rope() const;
  /// Whether a rule's window may differ from the plan's: rows are never cut then.
  bool takes_windows() const { return !tiles_; }

 private:
  void plan_pieces(std::vector<DecodeItem>& queries, DecodePlan& plan) const;
  std::int64_t auto_piece(const std::vector<DecodeItem>& queries) const;

  Options options_;
  bool tiles_ = true;
  int sm_count_ = 0;
};

// ------------------------------------------------------------------ prompt chunks

/// Latent keys and values (latent.h): a token leaves one vector for all heads in the pool.
struct LatentShape {
  int heads = 0;
  int rank = 0;   // numbers that are key and value, a multiple of 8, at most kMostLatentRank
  int rope = 0;   // components that turn, a multiple of 8
  int plain = 0;  // components of a head's query that do not turn, a multiple of 8
  constexpr int width() const { return rank + rope; }
  constexpr int query() const { return plain + rope; }
};
constexpr int kMostLatentRank = 512;
constexpr int kMostLatentRope = 128;

/// What attention of chunks to latent keys and values takes.
struct LatentChunks {
  const Bf16* q = nullptr;  // [rows], of heads * query() each, turned; `q_stride` apart
  std::int64_t q_stride = 0;
  Bf16* out = nullptr;  // [rows, heads, value]
  KvLayerView kv;
  const std::int32_t* block_table = nullptr;  // the flat table
  const Bf16* kv_b = nullptr;                 // [heads, plain + value, rank]
  float scale = 0;
};

class PrefillAttention {
 public:
  static constexpr std::size_t kGatherBytes = std::size_t{512} << 20;

  struct Options {
    HeadShape shape;  // head_dim 64, 128 or 256
    int tokens_per_block = 16;
    int max_rows = 0;    // query rows of a step
    int max_chunks = 0;  // chunks of a step
    int max_table = 0;   // entries of the flat block table
    int window = 0;      // sliding window in tokens; 0: none
    bool hopper = true;  // false: the FA2 kernel everywhere
    // On Hopper, from so many products of a query and a key in a step on, its keys and values are
    // gathered first; below 0: never. Measured on one H200.
    std::int64_t gather_pairs = 1 << 20;
    std::size_t gather_bytes = kGatherBytes;  // of keys and values that are gathered at most
    // With a rank: what is in the pool is latent. It is gathered, and expanded to the keys and
    // values of `shape`'s heads, the latter of `value` numbers: run_latent().
    LatentShape latent = {};
    int value = 0;
  };
  static constexpr int kGatherTile = 128;  // a chunk's gathered keys are filled up to whole tiles
  /// Rows from which on expanding latent keys for all heads at once is quicker than looking at them
  /// as they are (LatentAttention). Measured on one H200.
  static constexpr int kLeastLatentRows = 64;
  /// Whether latent keys and values of these sizes are expanded on this device.
  static bool expands(const LatentShape& shape, int value, int tokens_per_block);
  /// Of a key that is gathered and expanded for `heads` heads.
  static std::size_t expanded_bytes(const LatentShape& shape, int value, int heads);
  /// So many heads are expanded at once at least.
  static int least_heads(int heads);
  /// Takes FlashInfer's Hopper kernels on compute capability 9.0, its FA2 kernel elsewhere and for
  /// heads of 256, which alone may have capped scores. Throws
  /// std::invalid_argument for a shape that it does not compute, CudaError without a device.
  explicit PrefillAttention(const Options& options);
  ~PrefillAttention();
  PrefillAttention(const PrefillAttention&) = delete;
  PrefillAttention& operator=(const PrefillAttention&) = delete;

  std::size_t float_workspace_bytes() const;
  std::size_t int_workspace_bytes() const;  // both of the plan's device and of its pinned buffer

  /// The plan of one step. `pinned` (int_workspace_bytes, pinned host memory) belongs to the step
  /// until its upload is done: two steps in flight need two. The upload into `int_workspace` is
  /// queued on
  /// `stream`. The chunks come in the order of their rows and of their tables, and their rows
  /// follow each other without a gap (single rows lie before the first or behind the last of them).
  /// With a window a chunk begins with the block that its first query's window begins in: nothing
  /// in front of it is looked at, neither keys nor tables.
  struct Plan;
  struct PlanDeleter {
    void operator()(Plan* plan) const;
  };
  using PlanPtr = std::unique_ptr<Plan, PlanDeleter>;
  PlanPtr make_plan() const;
  /// `gather`: keys are to be gathered first, however many or few, since they lie in several pools.
  /// Throws std::invalid_argument where most_gathered_keys() does not allow it.
  void plan(std::span<const AttentionRow> chunks, Plan& plan, void* float_workspace,
            void* int_workspace, void* pinned, Stream stream, bool gather = false) const;
  /// Keys of all chunks of a step, each chunk's filled up to whole tiles, that can be gathered; 0:
  /// none can.
  std::int64_t most_gathered_keys() const;
  /// Whether that bounds every step, and the fewest tokens of a row with so many keys that are
  /// planned as a chunk.
  bool always_gathers() const;
  int least_rows(std::int64_t keys) const;
  static int rows(const Plan& plan);

  /// Queues the attention of the planned chunks of one layer. `block_table` is the flat table of
  /// the layer's group on the device (kv.table_shift is not looked at: chunks are in no graph);
  /// other arguments as in DecodeAttention::run. With a rule's sinks `lse`, [rows of the step,
  /// heads], is room for the logarithms of the softmax's sums. The window is the plan's.
  void run(const Plan& plan, const Bf16* qkv, Bf16* out, const KvLayerView& kv,
           const std::int32_t* block_table, float scale, Stream stream,
           const AttentionRule& rule = {}, float* lse = nullptr) const;
  /// The same of latent keys and values, whose pointers are those of the step's rows.
  void run_latent(const Plan& plan, const LatentChunks& a, Stream stream) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton::cuda
