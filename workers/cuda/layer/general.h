// The parts of a layer that the fused kernels do not cover, one kernel each: what a family asks for
// that is not of Llama's pattern. All pointers are device memory; matrices are row-major and dense
// unless a stride is given. As in rowwise.h, every call only queues work, may be captured into a
// graph, and throws CudaError; fp32 inside, rounded once, and a row's bits depend on the row alone.
#pragma once

#include <cstdint>

#include "workers/cuda/layer/rowwise.h"
#include "workers/cuda/types.h"

namespace baton::cuda {

/// A norm's weights, fp32, [columns]. No `weight`: nothing is normed.
struct NormWeights {
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 0;
  bool layer = false;  // (x - mean) / sqrt(variance + eps), else x / sqrt(mean(x^2) + eps)
};

/// y[r] = norm(x[r] + before); `before`, [columns], may be null; y may be x. The strides are from
/// row to row.
struct NormCall {
  const Bf16* x = nullptr;
  std::int64_t x_stride = 0;
  const float* before = nullptr;
  NormWeights norm;
  int rows = 0;
  int columns = 0;
  Bf16* y = nullptr;
  std::int64_t y_stride = 0;
};
void norm_rows(const NormCall& call, Stream stream);

/// x[r] += factor * norm(part[r] + bias): what a part of a layer gives joins the residual stream;
/// normed[r] = next(x[r]), of the rounded sum. `bias`, [hidden], the norms and `normed` may be
/// missing.
struct PartCall {
  const Bf16* part = nullptr;
  const float* bias = nullptr;
  NormWeights norm;
  float factor = 1;
  int rows = 0;
  int hidden = 0;
  Bf16* x = nullptr;
  NormWeights next;
  Bf16* normed = nullptr;
};
void add_part(const PartCall& call, Stream stream);

/// x[r] += sigmoid(w . n[r]) * (part[r] + bias); w, [hidden], in fp32; `bias` may be null.
void add_gated_part(const Bf16* part, const float* bias, const Bf16* n, const float* w, int rows,
                    int hidden, Bf16* x, Stream stream);

enum class Gate : std::uint8_t {
  silu,
  gelu,
  gelu_tanh,
  clamped,  // gpt-oss: g = min(gate, limit), u = clamp(up, -limit, limit); g / (1 + exp(-alpha g))
            // * (u + 1)
};
struct Activate {
  Gate gate = Gate::silu;
  bool gated = true;
  float limit = 0;
  float alpha = 1;
};

/// y = act(gate + bias) * (up + bias), y [rows, intermediate]. x is [rows, 2 * intermediate],
/// interleaved as linear.h has it, or [rows, intermediate] without a gate. `bias` may be null; it
/// is gate's, then up's. intermediate % 8 == 0.
void activate(const Bf16* x, const float* bias, const Activate& how, int rows, int intermediate,
              Bf16* y, Stream stream);

/// x *= factor.
void scale_rows(float factor, int rows, int hidden, Bf16* x, Stream stream);

/// logits = scale * logits; cap > 0: and then cap * tanh(logits / cap).
void finish_logits(float scale, float cap, int rows, int vocab, float* logits, Stream stream);

/// What q, k and v go through, as Rope in rowwise.h, but more of it: any pairs, fewer or none that
/// turn, and biases and weights in fp32.
struct HeadFinish {
  const float* bias = nullptr;    // [(heads + 2 kv_heads) * head_dim]
  const float* q_norm = nullptr;  // [head_dim] of every head, both or neither ...
  const float* k_norm = nullptr;
  bool whole = false;  // ... or [heads * head_dim] and [kv_heads * head_dim], over all heads:
                       // then `squares` must be there
  float eps = 0;
  const float* cos = nullptr;  // [max_positions, dims / 2]; null: nothing turns
  const float* sin = nullptr;
  int dims = 0;
  bool interleaved = false;  // pairs are (2i, 2i + 1), else (i, i + dims / 2)
  float query_growth = 0;    // q is multiplied by 1 + query_growth * ln(1 + floor(position /
  float query_context = 1;   // query_context))
  /// What head_squares() gave of all ranks that share the model's heads, side by side in their
  /// order: [rows][ranks][heads + kv_heads]. Where `kv_repeats` of them in a row have the same
  /// keys, those of the first are taken.
  const float* squares = nullptr;
  int ranks = 1;
  int kv_repeats = 1;
};
struct HeadAppend {
  Bf16* qkv = nullptr;
  int rows = 0;
  HeadShape shape;
  HeadFinish finish;
  // Are read before grid_wait() (launch.cuh), so no kernel of the step may write them:
  const std::int32_t* positions = nullptr;
  const std::int64_t* slots = nullptr;  // as in RopeAppend
  KvLayerView kv;
};
void finish_heads(const HeadAppend& a, Stream stream);

/// squares[r][h] = the sum of the squares of head h of q, then of k, with its biases: of what norms
/// over all of q and all of k divide by. Heads are added up one by one, so the bits do not depend
/// on how ranks share them. [rows, heads + kv_heads]
void head_squares(const HeadAppend& a, float* squares, Stream stream);

/// out[r][h] *= 1 / (1 + 2^(sinks[h] * log2(e) - lse[r][h])): a softmax without its sink becomes
/// the one with it. lse [rows, heads] is in base 2; out [rows, heads * head_dim].
void apply_sinks(const float* lse, const float* sinks, int rows, int heads, int head_dim, Bf16* out,
                 Stream stream);

}  // namespace baton::cuda
