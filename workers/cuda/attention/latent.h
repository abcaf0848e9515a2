// Attention over latent keys and values (multi-head latent attention, MLA: DeepSeek-V2,
// arXiv 2405.04434): a token leaves one vector for all heads in the pool, `rank` numbers that are
// both key and value and `rope` that are key alone. Queries are brought into latent numbers first
// ("absorbed"), and what attention leaves is brought out of them behind it, both through matrices
// of the head. workers/cpu/latent.cpp is the same on CPUs.
//
// All pointers are device memory. As in rowwise.h, every call only queues work, may be captured
// into a graph, and throws CudaError; a row's bits depend on the row alone, but for
// LatentAttention without `deterministic`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/layer/rowwise.h"
#include "workers/cuda/types.h"

namespace baton::cuda {

/// Of each row: its latent vector is normed, turned and written to the pool, at its slot, where a
/// token's key and value lie side by side; the parts of its queries that turn go to `wide`, or stay
/// where they are (of rows whose keys are expanded).
struct LatentAppend {
  LatentShape shape;
  int rows = 0;
  const Bf16* kv = nullptr;  // [rows], of width() each, `kv_stride` apart
  std::int64_t kv_stride = 0;
  Bf16* q = nullptr;  // [rows], of heads * query() each, `q_stride` apart
  std::int64_t q_stride = 0;
  int in_place = 0;             // rows, the first ones, whose queries turn in q
  const float* norm = nullptr;  // [rank]
  float eps = 0;
  const float* cos = nullptr;  // [max_positions, rope / 2]
  const float* sin = nullptr;
  bool interleaved = false;  // pairs are (2i, 2i + 1), else (i, i + rope / 2)
  float query_growth = 0;    // as in HeadFinish (workers/cuda/layer/general.h)
  float query_context = 1;
  const std::int32_t* positions = nullptr;  // [rows]; no kernel of the step writes them
  const std::int64_t* slots = nullptr;      // [rows], as in RopeAppend, of half a vector each
  KvLayerView kv_layer;
  Bf16* wide = nullptr;  // [rows, heads, width()], of which the last `rope` are written, of others
};
void latent_append(const LatentAppend& a, Stream stream);

/// y[r][h] = W[h] x[r][h] for each head. Rows of x and y and their heads lie some elements apart;
/// `in` and `out` are multiples of 8, and so are all strides.
struct HeadProduct {
  const Bf16* w = nullptr;  // [heads], `w_head` apart: [out, in], or with inputs_first [in, out]
  std::int64_t w_head = 0;
  bool inputs_first = false;
  int in = 0, out = 0;
  int rows = 0, heads = 0;
  const Bf16* x = nullptr;
  std::int64_t x_row = 0, x_head = 0;
  Bf16* y = nullptr;
  std::int64_t y_row = 0, y_head = 0;
};
void head_product(const HeadProduct& a, Stream stream);

class LatentAttention {
 public:
  struct Options {
    LatentShape shape;
    bool deterministic = false;  // no row's keys are shared out
  };
  /// Throws std::invalid_argument for a shape that it does not compute, CudaError without a device.
  explicit LatentAttention(const Options& options);
  std::size_t workspace_bytes() const;
  /// `wide` [rows, heads, width()], out [rows, heads, rank]: the planned rows of one layer, whose
  /// items are whole rows (DecodeAttention's plan of a shape without tiles). Other arguments as in
  /// DecodeAttention::run.
  void run(const Bf16* wide, Bf16* out, const KvLayerView& kv, const std::int32_t* block_table,
           const DecodeWork& work, float scale, void* workspace, Stream stream) const;

 private:
  int splits_of(int items) const;
  Options options_;
  int tiles_ = 0;   // of 16 heads, a CTA's; 0: not of DeepSeek's rank and rope, the plain kernel
  int places_ = 0;  // for CTAs of the tiled kernel, on all multiprocessors
};

}  // namespace baton::cuda
