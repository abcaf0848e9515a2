// What FlashInfer's Hopper kernel over gathered keys is told, whatever is gathered
// (attention_prefill_dense.cu, attention_prefill_latent.cu).
#pragma once

#include <flashinfer/attention/scheduler.cuh>

#include "workers/cuda/attention/attention_prefill.h"
#include "workers/cuda/launch.cuh"

namespace baton::cuda {

constexpr int kGatherTile = PrefillAttention::kGatherTile;  // keys that the kernel takes at once

/// Where a request's keys come from and go to.
struct Source {
  std::int32_t table_begin;
  std::int32_t keys;
  std::int32_t first_unit;  // its first key's place in the workspace, in units
};

inline std::size_t source_bytes(std::size_t requests) { return requests * sizeof(Source) + 16; }

inline int padded(int keys) { return (keys + kGatherTile - 1) / kGatherTile * kGatherTile; }

/// The request that has a unit of gathered keys: the last one that begins there or before.
__device__ __forceinline__ Source source_of(int unit, const Source* sources, int requests) {
  int low = 0;
  for (int high = requests; low + 1 < high;) {
    const int middle = (low + high) / 2;
    (sources[middle].first_unit <= unit ? low : high) = middle;
  }
  return sources[low];
}

/// Requests begin at whole tiles of keys, so that a tile has no other request's keys, which may be
/// NaN. The sources lie at the end of the int workspace.
inline void plan_gathered(int heads, int kv_heads, int key_dim, int value_dim, PrefillPlan& p,
                          const PrefillBuffers& b, Stream stream) {
  const auto requests = static_cast<std::size_t>(p.requests());
  const std::size_t own = source_bytes(requests);
  const std::size_t theirs = (b.int_bytes - own) / 16 * 16;
  std::vector<std::int32_t> key_begin(1, 0);
  auto* sources = reinterpret_cast<Source*>(static_cast<std::byte*>(b.pinned) + theirs);
  for (std::size_t i = 0; i < requests; ++i) {
    const bool empty = p.row_begin[i] == p.row_begin[i + 1];
    sources[i] = {p.table_begin[i], p.keys[i], key_begin.back() / kGatherUnit};
    key_begin.push_back(key_begin.back() + (empty ? 0 : padded(p.keys[i])));
  }
  p.gathered_keys = key_begin.back();
  p.sources_at = theirs;
  check(cudaMemcpyAsync(static_cast<std::byte*>(b.int_workspace) + theirs, sources,
                        requests * sizeof(Source), cudaMemcpyHostToDevice, stream),
        "prefill plan");
  flashinfer::PrefillPlanSM90Info info;
  check(flashinfer::PrefillSM90Plan<std::int32_t>(
            b.float_workspace, b.float_bytes, b.int_workspace, b.pinned, theirs, info,
            p.row_begin.data(), key_begin.data(), p.keys.data(), p.rows, p.requests(), heads,
            kv_heads, key_dim, value_dim, /*page_size=*/1, /*causal=*/true,
            /*enable_cuda_graph=*/false, sizeof(Bf16), stream),
        "prefill plan");
  p.info = info.ToVector();
}

}  // namespace baton::cuda
