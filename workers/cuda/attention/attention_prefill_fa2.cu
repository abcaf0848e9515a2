// FlashInfer's FlashAttention-2 kernel over the paged pool (https://github.com/flashinfer-ai), for
// every GPU from sm_80 on.
#include <algorithm>
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>
#include <stdexcept>

#include "workers/cuda/attention/attention_prefill.h"
#include "workers/cuda/launch.cuh"

namespace baton::cuda {
namespace {

using Params =
    flashinfer::BatchPrefillPagedParams<nv_bfloat16, nv_bfloat16, nv_bfloat16, std::int32_t>;
// Without a window the variant with one costs nothing: it only looks closer at masked tiles.
template <bool kCapped>
using Variant = flashinfer::DefaultAttention</*custom_mask=*/false, /*sliding_window=*/true,
                                             /*logits_soft_cap=*/kCapped, /*alibi=*/false>;

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Behind FlashInfer's part of the int workspace lie three arrays of ours: the rows and the tables
/// of the requests and how many tokens their last blocks hold.
std::size_t own_bytes(const PrefillOptions& o) {
  return aligned(3 * (2 * static_cast<std::size_t>(o.max_chunks) + 1) * sizeof(std::int32_t));
}

std::size_t float_bytes(const PrefillOptions& o, int sm_count) {
  // A plan that splits the keys has at most two CTAs a multiprocessor, each of 128 (row, head)
  // pairs.
  const std::size_t pairs = static_cast<std::size_t>(2) * sm_count * 128 + 16 * o.shape.heads;
  return aligned(pairs * (o.shape.head_dim + 1) * sizeof(float) + 64);
}

std::size_t int_bytes(const PrefillOptions& o, int sm_count) {
  const std::size_t group = o.shape.heads / o.shape.kv_heads;
  const std::size_t requests = 2 * static_cast<std::size_t>(o.max_chunks);
  const std::size_t tiles = o.max_rows * group / 16 + 2 * requests + 2 * sm_count;
  const std::size_t entries = 3 * tiles + requests + o.max_rows + 64;
  return aligned(entries * sizeof(std::int32_t)) + own_bytes(o);
}

/// Writes the three arrays into pinned memory and queues their upload.
void upload_requests(const PrefillOptions& o, const PrefillPlan& p, const PrefillBuffers& b,
                     Stream stream) {
  const std::size_t offset = b.int_bytes - own_bytes(o);
  auto* own = reinterpret_cast<std::int32_t*>(static_cast<std::byte*>(b.pinned) + offset);
  std::int32_t* end = std::copy(p.row_begin.begin(), p.row_begin.end(), own);
  end = std::copy(p.table_begin.begin(), p.table_begin.end(), end);
  for (std::int32_t keys : p.keys) *end++ = (keys - 1) % o.tokens_per_block + 1;
  check(cudaMemcpyAsync(static_cast<std::byte*>(b.int_workspace) + offset, own,
                        (end - own) * sizeof(std::int32_t), cudaMemcpyHostToDevice, stream),
        "prefill plan");
}

void plan(const PrefillOptions& o, PrefillPlan& p, const PrefillBuffers& b, Stream stream) {
  if (p.requests() > 2 * o.max_chunks) throw std::invalid_argument("more chunks than max_chunks");
  flashinfer::PrefillPlanInfo info;
  check(flashinfer::PrefillPlan<std::int32_t>(
            b.float_workspace, b.float_bytes, b.int_workspace, b.pinned, b.int_bytes - own_bytes(o),
            info, p.row_begin.data(), p.table_begin.data(), p.rows, p.requests(), o.shape.heads,
            o.shape.kv_heads, o.shape.head_dim, o.shape.head_dim, o.tokens_per_block,
            /*enable_cuda_graph=*/false, sizeof(Bf16), o.window > 0 ? o.window - 1 : -1,
            /*fixed_split_size=*/0, /*disable_split_kv=*/false, /*num_colocated_ctas=*/0,
            /*uniform_q_len=*/0, stream),
        "prefill plan");
  p.info = info.ToVector();
  upload_requests(o, p, b, stream);
}

Params make_params(const PrefillOptions& o, const PrefillPlan& p,
                   const flashinfer::PrefillPlanInfo& info, const PrefillCall& call) {
  const auto at = [&p](std::int64_t offset) {
    return reinterpret_cast<std::int32_t*>(p.int_workspace + offset);
  };
  const auto element = [](const Bf16* x) {
    return reinterpret_cast<nv_bfloat16*>(const_cast<Bf16*>(x));
  };
  const HeadShape& s = o.shape;
  const int requests = p.requests();
  std::int32_t* own = at(static_cast<std::int64_t>(p.int_bytes - own_bytes(o)));
  const Bf16* keys = call.kv.pool + call.kv.layer_offset;
  const std::int64_t strides[] = {call.kv.block_stride, call.kv.head_stride, s.head_dim};
  flashinfer::paged_kv_t<nv_bfloat16, std::int32_t> paged(
      s.kv_heads, o.tokens_per_block, s.head_dim, requests, flashinfer::QKVLayout::kHND,
      element(keys), element(keys + call.kv.part_stride), strides,
      const_cast<std::int32_t*>(call.block_table), own + requests + 1, own + 2 * (requests + 1));
  Params a(element(call.qkv), paged, nullptr, own, nullptr, nullptr, element(call.out), call.lse,
           nullptr, s.heads, (s.heads + 2 * s.kv_heads) * s.head_dim, s.head_dim,
           o.window > 0 ? o.window - 1 : -1, call.soft_cap, call.scale, 1.0F, 1.0F);
  a.request_indices = at(info.request_indices_offset);
  a.qo_tile_indices = at(info.qo_tile_indices_offset);
  a.kv_tile_indices = at(info.kv_tile_indices_offset);
  a.o_indptr = at(info.o_indptr_offset);
  a.kv_chunk_size_ptr = at(info.kv_chunk_size_ptr_offset);
  if (info.split_kv) a.merge_indptr = at(info.merge_indptr_offset);
  a.max_total_num_rows = static_cast<std::uint32_t>(info.total_num_rows);
  a.padded_batch_size = static_cast<std::uint32_t>(info.padded_batch_size);
  return a;
}

template <int kDim, int kTile, bool kCapped>
void launch_kernel(const Params& params, nv_bfloat16* tmp_v, float* tmp_s, Stream stream) {
  check((flashinfer::BatchPrefillWithPagedKVCacheDispatched<
            /*SAME_KV_STRIDES=*/true, kTile, kDim, kDim, flashinfer::PosEncodingMode::kNone,
            /*USE_FP16_QK_REDUCTION=*/false, flashinfer::MaskMode::kCausal, Variant<kCapped>>(
            params, tmp_v, tmp_s, /*enable_pdl=*/false, stream)),
        "prefill attention");
}

/// `tile` is what the plan took: query rows times grouped heads of a CTA; at most 64 for heads of
/// 256.
template <int kDim, bool kCapped = false>
void dispatch(const Params& params, int tile, nv_bfloat16* tmp_v, float* tmp_s, Stream stream) {
  if (tile == 64) return launch_kernel<kDim, 64, kCapped>(params, tmp_v, tmp_s, stream);
  if (tile == 16) return launch_kernel<kDim, 16, kCapped>(params, tmp_v, tmp_s, stream);
  if constexpr (kDim <= 128) {
    if (tile == 128) return launch_kernel<kDim, 128, kCapped>(params, tmp_v, tmp_s, stream);
  }
  throw std::logic_error("prefill attention: a tile size that FlashInfer's plan never took");
}

void run(const PrefillOptions& o, const PrefillPlan& p, const PrefillCall& call, Stream stream) {
  flashinfer::PrefillPlanInfo info;
  info.FromVector(p.info);
  const Params params = make_params(o, p, info, call);
  const auto at = [&p, &info](std::int64_t offset) {
    return info.split_kv ? p.float_workspace + offset : nullptr;
  };
  auto* tmp_v = reinterpret_cast<nv_bfloat16*>(at(info.v_offset));
  auto* tmp_s = reinterpret_cast<float*>(at(info.s_offset));
  const int tile = static_cast<int>(info.cta_tile_q);
  if (o.shape.head_dim == 256) {
    call.soft_cap > 0 ? dispatch<256, true>(params, tile, tmp_v, tmp_s, stream)
                      : dispatch<256>(params, tile, tmp_v, tmp_s, stream);
  } else if (o.shape.head_dim == 128) {
    dispatch<128>(params, tile, tmp_v, tmp_s, stream);
  } else {
    dispatch<64>(params, tile, tmp_v, tmp_s, stream);
  }
}

}  // namespace

const PrefillKernel kPrefillFa2{float_bytes, int_bytes, plan, run};

}  // namespace baton::cuda
