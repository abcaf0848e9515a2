// FlashInfer's FlashAttention-3 kernel for heads of 192 and values of 128 numbers
// (https://github.com/flashinfer-ai) over keys and values that are made of latent vectors first, as
// DeepSeek-V2 (arXiv 2405.04434) makes them: those of a step's chunks are gathered out of the pool,
// and each goes through the matrices of some heads at a time, which then attend. A query and a key
// take 320 products a head so, instead of the 1,088 of LatentAttention. Compiled for sm_90a alone,
// see CMakeLists.txt.
#include "workers/cuda/attention/attention_prefill.h"

#if BATON_HOPPER

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#include <flashinfer/attention/scheduler.cuh>

#include <algorithm>

#include "workers/cuda/attention/attention_prefill_gather.cuh"
#include "workers/cuda/attention/attention_prefill_params.cuh"
#include "workers/cuda/attention/head_gemm.h"
#include "workers/cuda/attention/pool_block.cuh"
#include "workers/cuda/launch.cuh"

namespace baton::cuda {
namespace {

using Params = flashinfer::BatchPrefillRaggedParams<cutlass::bfloat16_t, cutlass::bfloat16_t,
                                                    cutlass::bfloat16_t, std::int32_t>;

constexpr int kPerVector = 16 / static_cast<int>(sizeof(Bf16));

// The float workspace: latent vectors without what turns, [keys, rank], and behind them what heads
// make of them, [keys, heads at once], of each head its value, and its key: what does not turn, and
// behind that what does, which is the same for all heads.

std::size_t bytes_of_key(const PrefillOptions& o, int heads) {
  return PrefillAttention::expanded_bytes(o.latent, o.value, heads);
}

std::size_t float_bytes(const PrefillOptions& o, int) { return o.gather_bytes; }

std::int64_t most_keys(const PrefillOptions& o) {
  const int least = PrefillAttention::least_heads(o.shape.heads);
  return static_cast<std::int64_t>(o.gather_bytes / bytes_of_key(o, least));
}

std::size_t int_bytes(const PrefillOptions& o, int sm_count) {
  return kPrefillHopper.int_bytes(o, sm_count) +
         source_bytes(2 * static_cast<std::size_t>(o.max_chunks) + 1);
}

/// The most heads that there is room for, which divide all.
int heads_at_once(const PrefillOptions& o, int keys) {
  for (int n = o.shape.heads; n > 1; --n) {
    const bool fits = static_cast<std::size_t>(keys) * bytes_of_key(o, n) <= o.gather_bytes;
    if (o.shape.heads % n == 0 && fits) return n;
  }
  return 1;
}

void plan(const PrefillOptions& o, PrefillPlan& p, const PrefillBuffers& b, Stream stream) {
  const int heads = p.heads_at_once = heads_at_once(o, p.gathered_keys);
  plan_gathered(heads, heads, o.latent.query(), o.value, p, b, stream);
}

struct GatherArguments {
  uint4* latent;    // [keys, rank]
  uint4* expanded;  // the keys' part that turns of the first key and head
  KvLayerView kv;
  const std::int32_t* table;
  const Source* sources;
  int requests, rank, rope, heads, of_head;  // numbers in vectors
};

/// One CTA for each unit of keys. Behind a request's last they become noughts.
template <bool kPools>
__global__ void __launch_bounds__(256) gather_kernel(GatherArguments a) {
  grid_release();
  const auto unit = static_cast<int>(blockIdx.x);
  const Source source = source_of(unit, a.sources, a.requests);
  const int key = (unit - source.first_unit) * kGatherUnit;
  const int filled = min(kGatherUnit, source.keys - key);  // 0 or less: padding
  const int block = filled <= 0 ? 0 : a.table[source.table_begin + key / a.kv.tokens_per_block];
  const int width = a.rank + a.rope;
  const std::int64_t of_block =
      offset_of_block<kPools>(block, a.kv.block_stride, a.kv.pool_offsets);
  const auto* const from =
      reinterpret_cast<const uint4*>(a.kv.pool + a.kv.layer_offset + of_block) +
      static_cast<std::int64_t>(key % a.kv.tokens_per_block) * width;
  const std::int64_t first = std::int64_t{unit} * kGatherUnit;
  grid_wait();
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kGatherUnit * width; i += 256) {
    const int k = i / width, at = i - k * width;
    const uint4 v = k < filled ? from[i] : uint4{0, 0, 0, 0};
    if (at < a.rank) {
      a.latent[(first + k) * a.rank + at] = v;
      continue;
    }
    uint4* to = a.expanded + (first + k) * a.heads * a.of_head + at - a.rank;
    for (int head = 0; head < a.heads; ++head, to += a.of_head) *to = v;
  }
}

/// What lies in the workspace for each key and head.
struct Places {
  std::int64_t head, key;  // from one to the next
  Bf16 *latent, *values, *keys, *turned;

  Places(const PrefillOptions& o, int heads, int gathered_keys, std::byte* workspace)
      : head(o.latent.query() + o.value),
        key(head * heads),
        latent(reinterpret_cast<Bf16*>(workspace)),
        values(latent + std::int64_t{gathered_keys} * o.latent.rank),
        keys(values + o.value),
        turned(keys + o.latent.plain) {}
};

void gather(const PrefillOptions& o, const PrefillPlan& p, const PrefillCall& call,
            const Places& to, Stream stream) {
  GatherArguments a{};
  a.latent = reinterpret_cast<uint4*>(to.latent);
  a.expanded = reinterpret_cast<uint4*>(to.turned);
  a.kv = call.kv;
  a.table = call.block_table;
  a.sources = reinterpret_cast<const Source*>(p.int_workspace + p.sources_at);
  a.requests = p.requests();
  a.rank = o.latent.rank / kPerVector;
  a.rope = o.latent.rope / kPerVector;
  a.heads = p.heads_at_once;
  a.of_head = static_cast<int>(to.head) / kPerVector;
  launch("gather latent keys",
         call.kv.pool_offsets == nullptr ? gather_kernel<false> : gather_kernel<true>,
         dim3(static_cast<unsigned>(p.gathered_keys / kGatherUnit)), dim3(256), 0, stream, a);
}

/// Keys (else values) of `heads` heads.
HeadProduct expansion(const PrefillOptions& o, int heads, int keys, const Places& to,
                      bool of_keys) {
  const LatentShape& s = o.latent;
  HeadProduct a;
  a.w_head = std::int64_t{s.plain + o.value} * s.rank;
  a.in = s.rank;
  a.out = of_keys ? s.plain : o.value;
  a.rows = keys;
  a.heads = heads;
  a.x = to.latent;
  a.x_row = s.rank;
  a.y = of_keys ? to.keys : to.values;
  a.y_row = to.key;
  a.y_head = to.head;
  return a;
}

/// Keys and values of the heads from `first` on.
void expand(const PrefillOptions& o, const PrefillPlan& p, const PrefillCall& call,
            const Places& to, int first, Stream stream) {
  for (const bool of_keys : {true, false}) {
    HeadProduct a = expansion(o, p.heads_at_once, p.gathered_keys, to, of_keys);
    a.w = call.kv_b + first * a.w_head;
    if (!of_keys) a.w += std::int64_t{o.latent.plain} * o.latent.rank;
    call.gemm->run(a, stream);
  }
}

void prepare(const PrefillOptions& o, const HeadGemm& gemm) {
  for (int heads = 1; heads <= o.shape.heads; ++heads) {
    if (o.shape.heads % heads != 0 || heads < PrefillAttention::least_heads(o.shape.heads))
      continue;
    const auto keys = static_cast<int>(o.gather_bytes / bytes_of_key(o, heads));
    const Places places(o, heads, keys, nullptr);
    for (const bool of_keys : {true, false}) {
      gemm.prepare(expansion(o, heads, keys, places, of_keys));
    }
  }
}

Params make_params(const PrefillOptions& o, const PrefillPlan& p,
                   const flashinfer::PrefillPlanSM90Info& info, const PrefillCall& call,
                   const Places& at) {
  auto a = query_params<Params>(o, p, info, call);
  a.q_stride_n = call.q_stride;
  a.q_stride_h = o.latent.query();
  a.o_stride_n = std::int64_t{o.shape.heads} * o.value;
  a.o_stride_h = o.value;
  a.num_qo_heads = a.num_kv_heads = p.heads_at_once;
  a.group_size = 1;
  a.k_ptr = reinterpret_cast<cutlass::bfloat16_t*>(at.keys);
  a.v_ptr = reinterpret_cast<cutlass::bfloat16_t*>(at.values);
  a.k_stride_n = a.v_stride_n = at.key;
  a.k_stride_h = a.v_stride_h = at.head;
  a.nnz_kv = p.gathered_keys;
  return a;
}

void attend(Params& params, Stream stream) {
  check((flashinfer::BatchPrefillWithRaggedKVCacheDispatched<
            192, 128, flashinfer::MaskMode::kCausal, /*window=*/false, /*same_for_all_heads=*/false,
            flashinfer::StandardAttention>(params, /*enable_pdl=*/false, stream)),
        "prefill attention");
}

void run(const PrefillOptions& o, const PrefillPlan& p, const PrefillCall& call, Stream stream) {
  const Places places(o, p.heads_at_once, p.gathered_keys, p.float_workspace);
  gather(o, p, call, places, stream);
  flashinfer::PrefillPlanSM90Info info;
  info.FromVector(p.info);
  if (info.same_schedule_for_all_heads) {  // more tiles of rows than any step has
    throw std::logic_error("prefill attention: more chunks than are planned for");
  }
  Params params = make_params(o, p, info, call, places);
  for (int head = 0; head < o.shape.heads; head += p.heads_at_once) {
    expand(o, p, call, places, head, stream);
    attend(params, stream);
    params.q_ptr += p.heads_at_once * o.latent.query();
    params.o_ptr += p.heads_at_once * o.value;
  }
}

}  // namespace

const PrefillKernel kPrefillLatent{float_bytes, int_bytes, plan, run, nullptr, most_keys, prepare};

}  // namespace baton::cuda

#else

namespace baton::cuda {
const PrefillKernel kPrefillLatent{};
}  // namespace baton::cuda

#endif
