// Everything that a step does row by row between its matrix products: one kernel each, all of them
// chained by programmatic dependent launch (launch.cuh). All pointers are device memory; matrices
// are row-major and dense. Every call only queues work on `stream`, allocates nothing, may be
// captured into a graph, and throws CudaError.
#pragma once

#include <cstdint>

#include "workers/cuda/types.h"

namespace baton::cuda {

/// x[r] = table[token of row r]. A token >= 0 is the id itself; a token -1 - i stands for
/// `sampled[i]`, drawn by the step before and perhaps unknown to the host yet. Ids outside of
/// [0, vocab) read row 0 (such a row failed; what it computes is void).
/// table [vocab, hidden], tokens [rows], x [rows, hidden]; hidden % 8 == 0.
void embed(const Bf16* table, int vocab, const std::int32_t* tokens, const std::int32_t* sampled,
           int rows, int hidden, Bf16* x, Stream stream);

/// y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, in fp32 inside. x, y [rows, hidden].
void rms_norm(const Bf16* x, const Bf16* weight, float eps, int rows, int hidden, Bf16* y,
              Stream stream);

/// x[r] += delta[r]; y[r] = rms_norm(x[r]). The residual stream stays in bf16 (as the reference
/// keeps it); the norm is taken of the rounded sum.
void add_rms_norm(Bf16* x, const Bf16* delta, const Bf16* weight, float eps, int rows, int hidden,
                  Bf16* y, Stream stream);

/// y[i] = x[index[i]] (x and y apart), rows of `columns` elements (columns % 8 == 0).
void gather_rows(const Bf16* x, const std::int32_t* index, int rows, int columns, Bf16* y,
                 Stream stream);

/// Where one layer's keys and values of a pool lie, in elements of Bf16 (ipc/kv_layout.h), and
/// where the tables that lead to them begin.
struct KvLayerView {
  Bf16* pool = nullptr;           // element 0 of the pool
  std::int64_t layer_offset = 0;  // of this layer inside a block
  std::int64_t part_stride = 0;   // from keys to values
  std::int64_t head_stride = 0;   // tokens_per_block * head_dim
  std::int64_t block_stride = 0;  // from block to block
  int tokens_per_block = 0;
  /// How far behind the step's first tables those of this layer's group lie, in entries; in device
  /// memory, since graphs serve steps of any lengths. Null: the layer is of the first group.
  const std::int32_t* table_shift = nullptr;
  /// Tables name blocks of several pools (workers/pool/pool_ids.h): by pool, how far from `pool` it
  /// begins, in device memory. Null: the own pool is all there is.
  const std::int64_t* pool_offsets = nullptr;
};

struct HeadShape {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // a multiple of 8, at most 256
};

/// What a row of q, k and v goes through between its product and attention:
///   + bias (if given, as wide as the row); q and k normed per head (if the weights are given, each
///   [head_dim]; both or neither); q and k turned by their position (the two halves of a head form
///   the pairs, as Hugging Face's Llama has it: cos and sin are [max_positions, head_dim / 2]).
/// fp32 from the load to the one rounding at the end.
struct Rope {
  const Bf16* bias = nullptr;
  const Bf16* q_norm = nullptr;
  const Bf16* k_norm = nullptr;
  float eps = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
};
/// Throws CudaError if only one of the norms is given.
void check_rope(const Rope& rope);

/// The rows of `qkv` [rows, (heads + 2 kv_heads) * head_dim] through `rope`, in place;
///   k and v written to the pool at slot[r] = block * block_stride + token_in_block * head_dim,
///   also left in qkv, as q is. Nothing is written to the pool where slot[r] < 0 (padding).
struct RopeAppend {
  Bf16* qkv = nullptr;
  int rows = 0;
  HeadShape shape;
  Rope rope;
  const std::int32_t* positions = nullptr;  // [rows]
  const std::int64_t* slots = nullptr;      // [rows], elements
  KvLayerView kv;
};
void rope_append(const RopeAppend& a, Stream stream);

/// y[r][j] = silu(gate) * up, y [rows, intermediate]. gate_up [rows, 2 * intermediate] interleaves
/// them in groups of eight columns: columns 16 i .. 16 i + 7 are gate 8 i .. 8 i + 7, the next
/// eight are up (linear.h says why). intermediate % 8 == 0.
void silu_mul(const Bf16* gate_up, int rows, int intermediate, Bf16* y, Stream stream);

}  // namespace baton::cuda
