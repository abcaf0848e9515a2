// The chunks of a step, put the way FlashInfer's planners want them; attention_prefill_*.cu launch.
#include "workers/cuda/attention/attention_prefill.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "workers/cuda/attention/head_gemm.h"
#include "workers/cuda/current_device.h"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/general.h"

namespace baton::cuda {

struct PrefillAttention::Impl {
  Options options;
  int sm_count = 0;
  const PrefillKernel* kernel = nullptr;
  const PrefillKernel* dense = nullptr;  // of the steps that it serves
  std::unique_ptr<HeadGemm> gemm;        // of latent keys
};

struct PrefillAttention::Plan {
  PrefillPlan data;
  const PrefillKernel* kernel = nullptr;
};

namespace {

void add_request(PrefillPlan& plan, int row_end, int table_end, std::int64_t keys) {
  plan.row_begin.push_back(row_end);
  plan.table_begin.push_back(table_end);
  plan.keys.push_back(static_cast<std::int32_t>(keys));
}

/// The first block that any of the chunk's queries sees, counted from its first. The masks count
/// from the end of its keys, so that it may begin there.
int first_seen(const AttentionRow& chunk, const PrefillAttention::Options& o) {
  if (o.window == 0) return 0;
  const std::int64_t key = std::max<std::int64_t>(chunk.position + 1 - o.window, 0);
  return static_cast<int>(key / o.tokens_per_block);
}

/// FlashInfer takes a request's tables to end where the next one's begin. Where ours do not, a
/// request without queries fills the gap.
void fill_requests(std::span<const AttentionRow> chunks, const PrefillAttention::Options& o,
                   PrefillPlan& plan) {
  const int tokens_per_block = o.tokens_per_block;
  plan.row_begin.assign(1, 0);
  plan.table_begin.assign(1, chunks.front().first_block + first_seen(chunks.front(), o));
  plan.keys.clear();
  plan.first_row = chunks.front().first_row;
  int table_end = chunks.front().first_block;  // of the chunk before
  for (const AttentionRow& chunk : chunks) {
    const int row = chunk.first_row - plan.first_row;
    const int behind = first_seen(chunk, o);
    const int begin = chunk.first_block + behind;
    if (row != plan.row_begin.back() || chunk.first_block < table_end) {
      throw std::invalid_argument("prompt chunks out of order, or with rows between them");
    }
    if (begin > plan.table_begin.back()) {
      const int gap = begin - plan.table_begin.back();
      add_request(plan, row, begin, std::int64_t{gap} * tokens_per_block);
    }
    const std::int64_t keys = chunk.position + chunk.n_rows;
    const std::int64_t blocks = (keys + tokens_per_block - 1) / tokens_per_block;
    if (chunk.n_rows < 1 || blocks > chunk.n_blocks) {
      throw std::invalid_argument("a prompt chunk without rows, or behind its block table");
    }
    add_request(plan, row + chunk.n_rows, chunk.first_block + static_cast<int>(blocks),
                keys - std::int64_t{behind} * tokens_per_block);
    table_end = plan.table_begin.back();
  }
  plan.rows = plan.row_begin.back();
}

/// As they are gathered.
std::int64_t gathered_keys(const PrefillPlan& plan) {
  std::int64_t keys = 0;
  for (int i = 0; i < plan.requests(); ++i) {
    constexpr std::int64_t kTile = PrefillAttention::kGatherTile;
    const bool empty = plan.row_begin[i] == plan.row_begin[i + 1];
    if (!empty) keys += (plan.keys[i] + kTile - 1) / kTile * kTile;
  }
  return keys;
}

void check_shape(const PrefillAttention::Options& o) {
  const HeadShape& s = o.shape;
  if (o.latent.rank > 0) {
    const bool expands = PrefillAttention::expands(o.latent, o.value, o.tokens_per_block);
    if (expands && s.heads == o.latent.heads && o.window == 0) {
      return;
    }
    throw std::invalid_argument("attention: latent keys that are not expanded here");
  }
  if (s.head_dim != 64 && s.head_dim != 128 && s.head_dim != 256) {
    throw std::invalid_argument("attention: head_dim " + std::to_string(s.head_dim) +
                                " is not supported on CUDA (64, 128 and 256 are)");
  }
  if (s.kv_heads < 1 || s.heads % s.kv_heads != 0 || o.tokens_per_block < 1) {
    throw std::invalid_argument("attention: heads must be a multiple of kv_heads");
  }
}

}  // namespace

PrefillAttention::PrefillAttention(const Options& options) : impl_(new Impl) {
  check_shape(options);
  impl_->options = options;
  impl_->sm_count = multiprocessors();
  if (options.latent.rank > 0) {
    impl_->kernel = impl_->dense = &kPrefillLatent;
    impl_->gemm = std::make_unique<HeadGemm>();
    impl_->kernel->prepare(options, *impl_->gemm);
    return;
  }
  const bool hopper = options.hopper && is_hopper() && kPrefillHopper.plan != nullptr &&
                      options.shape.head_dim <= 128;
  impl_->kernel = hopper ? &kPrefillHopper : &kPrefillFa2;
  if (hopper && options.gather_pairs >= 0) impl_->dense = &kPrefillDense;
}

PrefillAttention::~PrefillAttention() = default;

std::size_t PrefillAttention::float_workspace_bytes() const {
  const PrefillKernel& kernel = impl_->dense != nullptr ? *impl_->dense : *impl_->kernel;
  return kernel.float_bytes(impl_->options, impl_->sm_count);
}

std::size_t PrefillAttention::int_workspace_bytes() const {
  const PrefillKernel& kernel = impl_->dense != nullptr ? *impl_->dense : *impl_->kernel;
  return kernel.int_bytes(impl_->options, impl_->sm_count);
}

std::int64_t PrefillAttention::most_gathered_keys() const {
  return impl_->dense == nullptr ? 0 : impl_->dense->most_keys(impl_->options);
}

bool PrefillAttention::always_gathers() const { return impl_->options.latent.rank > 0; }

/// Heads by parts attend one part behind the other, each of which fills the device less.
int PrefillAttention::least_rows(std::int64_t keys) const {
  if (!always_gathers()) return 2;
  const Options& o = impl_->options;
  const std::size_t all = expanded_bytes(o.latent, o.value, o.shape.heads);
  const std::size_t parts = (static_cast<std::size_t>(keys) * all - 1) / o.gather_bytes + 1;
  return kLeastLatentRows * static_cast<int>(parts);
}

int PrefillAttention::rows(const Plan& plan) { return plan.data.rows; }

bool PrefillAttention::expands(const LatentShape& shape, int value, int tokens_per_block) {
  const bool sizes = shape.plain == 128 && shape.rope == 64 && value == 128;  // FlashInfer's
  return sizes && tokens_per_block % kGatherUnit == 0 && kPrefillLatent.plan != nullptr &&
         is_hopper();
}

std::size_t PrefillAttention::expanded_bytes(const LatentShape& shape, int value, int heads) {
  return sizeof(Bf16) * static_cast<std::size_t>(shape.rank + heads * (shape.query() + value));
}

int PrefillAttention::least_heads(int heads) {
  for (int n = std::min(heads, 8);; --n) {
    if (heads % n == 0) return n;
  }
}

void PrefillAttention::PlanDeleter::operator()(Plan* plan) const { delete plan; }

PrefillAttention::PlanPtr PrefillAttention::make_plan() const { return PlanPtr(new Plan); }

void PrefillAttention::plan(std::span<const AttentionRow> chunks, Plan& plan, void* float_workspace,
                            void* int_workspace, void* pinned, Stream stream, bool gather) const {
  plan.data.rows = 0;
  if (chunks.empty()) return;
  fill_requests(chunks, impl_->options, plan.data);
  plan.data.float_workspace = static_cast<std::byte*>(float_workspace);
  plan.data.int_workspace = static_cast<std::byte*>(int_workspace);
  plan.data.int_bytes = int_workspace_bytes();
  const PrefillBuffers buffers{float_workspace, float_workspace_bytes(), int_workspace, pinned,
                               plan.data.int_bytes};
  gather |= always_gathers();
  const std::int64_t keys = gather ? gathered_keys(plan.data) : 0;
  if (keys > most_gathered_keys()) {
    throw std::invalid_argument("prompt chunks with more keys than are gathered");
  }
  plan.data.gathered_keys = static_cast<int>(keys);
  const bool dense =
      gather || (impl_->dense != nullptr && impl_->dense->serves(impl_->options, plan.data));
  plan.kernel = dense ? impl_->dense : impl_->kernel;
  plan.kernel->plan(impl_->options, plan.data, buffers, stream);
}

void PrefillAttention::run(const Plan& plan, const Bf16* qkv, Bf16* out, const KvLayerView& kv,
                           const std::int32_t* block_table, float scale, Stream stream,
                           const AttentionRule& rule, float* lse) const {
  if (plan.data.rows == 0) return;
  const HeadShape& s = impl_->options.shape;
  if ((rule.soft_cap > 0 && !takes_caps(s)) ||
      (rule.window > 0 && rule.window != impl_->options.window)) {
    throw CudaError("prefill attention: no capped scores, and no window but the plan's");
  }
  const std::int64_t row = plan.data.first_row;
  const PrefillCall call{qkv + row * (s.heads + 2 * s.kv_heads) * s.head_dim,
                         out + row * s.heads * s.head_dim,
                         kv,
                         block_table,
                         scale,
                         rule.soft_cap,
                         rule.sinks == nullptr ? nullptr : lse + row * s.heads};
  plan.kernel->run(impl_->options, plan.data, call, stream);
  if (rule.sinks == nullptr) return;
  apply_sinks(call.lse, rule.sinks, plan.data.rows, s.heads, s.head_dim, call.out, stream);
}

void PrefillAttention::run_latent(const Plan& plan, const LatentChunks& a, Stream stream) const {
  if (plan.data.rows == 0) return;
  const Options& o = impl_->options;
  if (o.latent.rank == 0) throw CudaError("prefill attention: no latent keys were asked for");
  const std::int64_t row = plan.data.first_row;
  PrefillCall call{};
  call.qkv = a.q + row * a.q_stride;
  call.out = a.out + row * o.shape.heads * o.value;
  call.kv = a.kv;
  call.block_table = a.block_table;
  call.scale = a.scale;
  call.q_stride = a.q_stride;
  call.kv_b = a.kv_b;
  call.gemm = impl_->gemm.get();
  plan.kernel->run(o, plan.data, call, stream);
}

}  // namespace baton::cuda
