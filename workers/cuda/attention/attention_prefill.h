// Between PrefillAttention and the files that instantiate FlashInfer's kernels, which take long to
// compile and need nvcc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "workers/cuda/attention/attention.h"

namespace baton::cuda {

class HeadGemm;

/// One step's chunks as FlashInfer wants them, and what it made of them. Rows and lengths count
/// from the first chunk's first row.
struct PrefillPlan {
  int first_row = 0;
  int rows = 0;                           // 0: nothing to do
  std::vector<std::int32_t> row_begin;    // [requests + 1]
  std::vector<std::int32_t> table_begin;  // [requests + 1], into the flat block table
  std::vector<std::int32_t> keys;         // [requests]
  std::vector<std::int64_t> info;         // FlashInfer's plan: offsets into the int workspace
  int gathered_keys = 0;                  // kPrefillDense, kPrefillLatent: in the float workspace
  int heads_at_once = 0;                  // kPrefillLatent: heads that are expanded at a time
  std::size_t sources_at = 0;             // likewise: where they come from, in the int workspace
  std::byte* float_workspace = nullptr;
  std::byte* int_workspace = nullptr;
  std::size_t int_bytes = 0;

  int requests() const { return static_cast<int>(keys.size()); }
};

struct PrefillBuffers {
  void* float_workspace = nullptr;
  std::size_t float_bytes = 0;
  void* int_workspace = nullptr;
  void* pinned = nullptr;
  std::size_t int_bytes = 0;
};

/// Arguments of one layer.
struct PrefillCall {
  const Bf16* qkv = nullptr;
  Bf16* out = nullptr;
  KvLayerView kv;
  const std::int32_t* block_table = nullptr;
  float scale = 0;
  float soft_cap = 0;    // above 0: of kernels that take it
  float* lse = nullptr;  // [rows, heads], from the first chunk's first row; may be null
  // Of latent keys and values:
  std::int64_t q_stride = 0;
  const Bf16* kv_b = nullptr;
  const HeadGemm* gemm = nullptr;
};

constexpr int kGatherUnit = 16;  // keys that a CTA gathers

using PrefillOptions = PrefillAttention::Options;

/// One of the kernels: how much memory it wants, its planner, its launch.
struct PrefillKernel {
  std::size_t (*float_bytes)(const PrefillOptions&, int sm_count);
  std::size_t (*int_bytes)(const PrefillOptions&, int sm_count);
  void (*plan)(const PrefillOptions&, PrefillPlan&, const PrefillBuffers&, Stream);
  void (*run)(const PrefillOptions&, const PrefillPlan&, const PrefillCall&, Stream);
  bool (*serves)(const PrefillOptions&, const PrefillPlan&) = nullptr;  // not set: any step
  // Of those that gather: what most_gathered_keys() says.
  std::int64_t (*most_keys)(const PrefillOptions&) = nullptr;
  // Of kPrefillLatent: so that no step is the first to ask for its products.
  void (*prepare)(const PrefillOptions&, const HeadGemm&) = nullptr;
};

extern const PrefillKernel kPrefillFa2;
/// Without code (plan is null) in builds that leave out sm_90a.
extern const PrefillKernel kPrefillHopper;
/// Gathers the keys first, for steps with many; likewise.
extern const PrefillKernel kPrefillDense;
/// Gathers latent keys and expands them; likewise.
extern const PrefillKernel kPrefillLatent;

}  // namespace baton::cuda
