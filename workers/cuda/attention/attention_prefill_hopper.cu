// FlashInfer's FlashAttention-3 kernel over the paged pool (https://github.com/flashinfer-ai).
// Compiled for sm_90a alone, see CMakeLists.txt.
#include "workers/cuda/attention/attention_prefill.h"

#if BATON_HOPPER

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#include <flashinfer/attention/scheduler.cuh>

#include "workers/cuda/attention/attention_prefill_params.cuh"
#include "workers/cuda/launch.cuh"

namespace baton::cuda {
namespace {

using Params = flashinfer::BatchPrefillPagedParams<cutlass::bfloat16_t, cutlass::bfloat16_t,
                                                   cutlass::bfloat16_t, std::int32_t>;

std::size_t float_bytes(const PrefillOptions&, int) { return 0; }

std::size_t int_bytes(const PrefillOptions& o, int sm_count) {
  // Tiles are at least 128 rows; one list for each head; the gaps between tables count as chunks.
  const std::size_t works =
      static_cast<std::size_t>(o.shape.heads) * (o.max_rows / 128 + 2 * o.max_chunks + 1);
  return 7 * (works * sizeof(std::int32_t) + 16) + (sm_count + 1) * sizeof(std::int32_t) + 16;
}

void plan(const PrefillOptions& o, PrefillPlan& p, const PrefillBuffers& b, Stream stream) {
  flashinfer::PrefillPlanSM90Info info;
  check(flashinfer::PrefillSM90Plan<std::int32_t>(
            b.float_workspace, b.float_bytes, b.int_workspace, b.pinned, b.int_bytes, info,
            p.row_begin.data(), p.table_begin.data(), p.keys.data(), p.rows, p.requests(),
            o.shape.heads, o.shape.kv_heads, o.shape.head_dim, o.shape.head_dim, o.tokens_per_block,
            /*causal=*/true, /*enable_cuda_graph=*/false, sizeof(Bf16), stream),
        "prefill plan");
  p.info = info.ToVector();
}

Params make_params(const PrefillOptions& o, const PrefillPlan& p,
                   const flashinfer::PrefillPlanSM90Info& info, const PrefillCall& call) {
  const auto element = [](const Bf16* x) {
    return reinterpret_cast<cutlass::bfloat16_t*>(const_cast<Bf16*>(x));
  };
  const Bf16* keys = call.kv.pool + call.kv.layer_offset;
  auto a = query_params<Params>(o, p, info, call);
  a.k_ptr = element(keys);
  a.v_ptr = element(keys + call.kv.part_stride);
  a.kv_indices = const_cast<std::int32_t*>(call.block_table);
  a.k_stride_h = a.v_stride_h = call.kv.head_stride;
  a.k_page_stride = a.v_page_stride = call.kv.block_stride;
  a.page_size = o.tokens_per_block;
  return a;
}

template <int kDim, bool kWindow, bool kSameForAllHeads>
void launch_kernel(Params& params, Stream stream) {
  check(flashinfer::BatchPrefillWithPagedKVCacheDispatched<
            kDim, kDim, flashinfer::MaskMode::kCausal, kWindow, kSameForAllHeads,
            flashinfer::StandardAttention>(params, /*enable_pdl=*/false, stream),
        "prefill attention");
}

template <int kDim>
void dispatch(Params& params, bool window, bool same_for_all_heads, Stream stream) {
  if (window) {
    same_for_all_heads ? launch_kernel<kDim, true, true>(params, stream)
                       : launch_kernel<kDim, true, false>(params, stream);
  } else {
    same_for_all_heads ? launch_kernel<kDim, false, true>(params, stream)
                       : launch_kernel<kDim, false, false>(params, stream);
  }
}

void run(const PrefillOptions& o, const PrefillPlan& p, const PrefillCall& call, Stream stream) {
  flashinfer::PrefillPlanSM90Info info;
  info.FromVector(p.info);
  Params params = make_params(o, p, info, call);
  if (o.shape.head_dim == 64) {
    dispatch<64>(params, o.window > 0, info.same_schedule_for_all_heads, stream);
  } else {
    dispatch<128>(params, o.window > 0, info.same_schedule_for_all_heads, stream);
  }
}

}  // namespace

const PrefillKernel kPrefillHopper{float_bytes, int_bytes, plan, run};

}  // namespace baton::cuda

#else

namespace baton::cuda {
const PrefillKernel kPrefillHopper{};
}  // namespace baton::cuda

#endif
