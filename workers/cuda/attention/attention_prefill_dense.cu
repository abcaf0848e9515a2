// FlashInfer's FlashAttention-3 kernel over keys and values that were gathered out of the pool
// first (https://github.com/flashinfer-ai). Its paged twin fetches keys row by row through address
// arithmetic in the producer's threads; over dense keys the bulk tensor copy engine does that,
// which is worth far more than the gathering costs once a step attends to many keys. Compiled for
// sm_90a alone, see CMakeLists.txt.
#include "workers/cuda/attention/attention_prefill.h"

#if BATON_HOPPER

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#include <flashinfer/attention/scheduler.cuh>

#include <algorithm>

#include "workers/cuda/attention/attention_prefill_gather.cuh"
#include "workers/cuda/attention/attention_prefill_params.cuh"
#include "workers/cuda/attention/pool_block.cuh"
#include "workers/cuda/launch.cuh"

namespace baton::cuda {
namespace {

using Params = flashinfer::BatchPrefillRaggedParams<cutlass::bfloat16_t, cutlass::bfloat16_t,
                                                    cutlass::bfloat16_t, std::int32_t>;

constexpr int kUnit = kGatherUnit;
constexpr int kPerVector = 16 / static_cast<int>(sizeof(Bf16));

std::size_t key_bytes(const HeadShape& s) {
  return 2 * sizeof(Bf16) * static_cast<std::size_t>(s.kv_heads) * s.head_dim;
}

/// Keys that the float workspace holds.
std::size_t room_for_keys(const PrefillOptions& o) {
  const std::size_t all = static_cast<std::size_t>(o.max_table) * o.tokens_per_block;
  return std::min(all + std::size_t{kGatherTile} * o.max_chunks,
                  o.gather_bytes / key_bytes(o.shape));
}

std::size_t float_bytes(const PrefillOptions& o, int) {
  return room_for_keys(o) * key_bytes(o.shape);
}

std::int64_t most_keys(const PrefillOptions& o) {
  const bool serves = o.window == 0 && o.tokens_per_block % kUnit == 0;
  return serves ? static_cast<std::int64_t>(room_for_keys(o)) : 0;
}

std::size_t int_bytes(const PrefillOptions& o, int sm_count) {
  return kPrefillHopper.int_bytes(o, sm_count) +
         source_bytes(2 * static_cast<std::size_t>(o.max_chunks) + 1);
}

bool serves(const PrefillOptions& o, const PrefillPlan& p) {
  std::int64_t pairs = 0;
  std::int64_t keys = 0;
  for (int i = 0; i < p.requests(); ++i) {
    const int rows = p.row_begin[i + 1] - p.row_begin[i];
    if (rows == 0) continue;
    pairs += std::int64_t{rows} * (p.keys[i] - rows / 2);
    keys += padded(p.keys[i]);
  }
  return pairs >= o.gather_pairs && keys <= most_keys(o);
}

void plan(const PrefillOptions& o, PrefillPlan& p, const PrefillBuffers& b, Stream stream) {
  plan_gathered(o.shape.heads, o.shape.kv_heads, o.shape.head_dim, o.shape.head_dim, p, b, stream);
}

/// One CTA for each unit and for keys (blockIdx.y = 0) or values: to [kv_heads, gathered, dim].
/// Keys behind a request's last become zeros. kPools: they come from several pools. Strides are in
/// vectors, but that of blocks, which is in elements as the offsets of pools are.
template <bool kPools>
__global__ void __launch_bounds__(256)
    gather_kernel(uint4* to, const uint4* from, std::int64_t part_stride, std::int64_t head_stride,
                  std::int64_t block_stride, const std::int64_t* pool_offsets,
                  const std::int32_t* table, const Source* sources, int requests, int gathered,
                  int kv_heads, int key_vectors, int tokens_per_block) {
  grid_release();
  const auto unit = static_cast<int>(blockIdx.x);
  const Source source = source_of(unit, sources, requests);
  const int key = (unit - source.first_unit) * kUnit;
  const bool padding = key >= source.keys;
  const int block = padding ? 0 : table[source.table_begin + key / tokens_per_block];
  const std::int64_t of_block =
      offset_of_block<kPools>(block, block_stride, pool_offsets) / kPerVector;
  const uint4* part = from + blockIdx.y * part_stride + of_block +
                      static_cast<std::int64_t>(key % tokens_per_block) * key_vectors;
  const std::int64_t to_head = static_cast<std::int64_t>(gathered) * key_vectors;
  uint4* out =
      to + blockIdx.y * to_head * kv_heads + static_cast<std::int64_t>(unit) * kUnit * key_vectors;
  grid_wait();
  const int vectors = kUnit * key_vectors;
  const int filled = padding ? 0 : min(kUnit, source.keys - key) * key_vectors;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < kv_heads * vectors; i += 256) {
    const int head = i / vectors;
    const int at = i - head * vectors;
    out[head * to_head + at] = at < filled ? part[head * head_stride + at] : uint4{0, 0, 0, 0};
  }
}

void gather(const PrefillOptions& o, const PrefillPlan& p, const PrefillCall& call, Stream stream) {
  const Bf16* keys = call.kv.pool + call.kv.layer_offset;
  const auto kernel = call.kv.pool_offsets == nullptr ? gather_kernel<false> : gather_kernel<true>;
  launch("gather keys", kernel, dim3(static_cast<unsigned>(p.gathered_keys / kUnit), 2), dim3(256),
         0, stream, reinterpret_cast<uint4*>(p.float_workspace),
         reinterpret_cast<const uint4*>(keys), call.kv.part_stride / kPerVector,
         call.kv.head_stride / kPerVector, call.kv.block_stride, call.kv.pool_offsets,
         call.block_table, reinterpret_cast<const Source*>(p.int_workspace + p.sources_at),
         p.requests(), p.gathered_keys, o.shape.kv_heads, o.shape.head_dim / kPerVector,
         o.tokens_per_block);
}

Params make_params(const PrefillOptions& o, const PrefillPlan& p,
                   const flashinfer::PrefillPlanSM90Info& info, const PrefillCall& call) {
  const std::int64_t head = std::int64_t{p.gathered_keys} * o.shape.head_dim;
  auto a = query_params<Params>(o, p, info, call);
  a.k_ptr = reinterpret_cast<cutlass::bfloat16_t*>(p.float_workspace);
  a.v_ptr = a.k_ptr + o.shape.kv_heads * head;
  a.k_stride_h = a.v_stride_h = head;
  a.nnz_kv = p.gathered_keys;
  return a;
}

template <int kDim>
void attend(Params& params, bool same_for_all_heads, Stream stream) {
  constexpr auto kMask = flashinfer::MaskMode::kCausal;
  using flashinfer::BatchPrefillWithRaggedKVCacheDispatched;
  using flashinfer::StandardAttention;
  check(same_for_all_heads ? BatchPrefillWithRaggedKVCacheDispatched<kDim, kDim, kMask, false, true,
                                                                     StandardAttention>(
                                 params, /*enable_pdl=*/false, stream)
                           : BatchPrefillWithRaggedKVCacheDispatched<kDim, kDim, kMask, false,
                                                                     false, StandardAttention>(
                                 params, /*enable_pdl=*/false, stream),
        "prefill attention");
}

void run(const PrefillOptions& o, const PrefillPlan& p, const PrefillCall& call, Stream stream) {
  gather(o, p, call, stream);
  flashinfer::PrefillPlanSM90Info info;
  info.FromVector(p.info);
  Params params = make_params(o, p, info, call);
  if (o.shape.head_dim == 64) {
    attend<64>(params, info.same_schedule_for_all_heads, stream);
  } else {
    attend<128>(params, info.same_schedule_for_all_heads, stream);
  }
}

}  // namespace

const PrefillKernel kPrefillDense{float_bytes, int_bytes, plan, run, serves, most_keys};

}  // namespace baton::cuda

#else

namespace baton::cuda {
const PrefillKernel kPrefillDense{};
}  // namespace baton::cuda

#endif
