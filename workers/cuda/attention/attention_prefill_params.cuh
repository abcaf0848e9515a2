// What both of FlashInfer's Hopper kernels take (attention_prefill_hopper.cu,
// attention_prefill_dense.cu).
#pragma once

#include <flashinfer/attention/scheduler.cuh>

#include "workers/cuda/attention/attention_prefill.h"

namespace baton::cuda {

/// All of `Params` but where keys and values lie: pointers, strides of heads and pages, their
/// number.
template <typename Params>
Params query_params(const PrefillOptions& o, const PrefillPlan& p,
                    const flashinfer::PrefillPlanSM90Info& info, const PrefillCall& call) {
  const auto at = [&p](std::int64_t offset) {
    return reinterpret_cast<std::int32_t*>(p.int_workspace + offset);
  };
  const HeadShape& s = o.shape;
  Params a{};
  a.q_ptr = reinterpret_cast<cutlass::bfloat16_t*>(const_cast<Bf16*>(call.qkv));
  a.o_ptr = reinterpret_cast<cutlass::bfloat16_t*>(call.out);
  a.qo_tile_indices = at(info.qo_tile_indices_offset);
  a.qo_indptr = at(info.qo_indptr_offset);
  a.kv_indptr = at(info.kv_indptr_offset);
  a.qo_lens = at(info.qo_len_offset);
  a.kv_lens = at(info.kv_len_offset);
  a.head_indices = at(info.head_indices_offset);
  a.work_indptr = at(info.work_indptr_offset);
  a.batch_indices = at(info.batch_indices_offset);
  a.additional_params.sm_scale = call.scale;
  a.q_stride_n = static_cast<std::int64_t>(s.heads + 2 * s.kv_heads) * s.head_dim;
  a.k_stride_n = a.v_stride_n = s.head_dim;
  a.o_stride_n = static_cast<std::int64_t>(s.heads) * s.head_dim;
  a.q_stride_h = a.o_stride_h = s.head_dim;
  a.nnz_qo = p.rows;
  a.num_qo_heads = s.heads;
  a.num_kv_heads = s.kv_heads;
  a.group_size = s.heads / s.kv_heads;
  a.window_left = o.window > 0 ? o.window - 1 : -1;
  a.causal = true;
  a.lse_ptr = call.lse;
  return a;
}

}  // namespace baton::cuda
