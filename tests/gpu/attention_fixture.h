// A step's rows over a pool with shuffled blocks, on the host and on the device, and what attention
// should give.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/launch.cuh"
#include "workers/pool/pool_ids.h"

namespace baton::cuda {

inline std::uint16_t to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float from_bf16(std::uint16_t x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

/// Device memory (or pinned host memory) of n elements.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n, bool pinned = false) : n_(n), pinned_(pinned) {
    const std::size_t bytes = std::max<std::size_t>(n, 1) * sizeof(T);
    check(pinned ? cudaMallocHost(&p_, bytes) : cudaMalloc(&p_, bytes), "allocation");
  }
  explicit DeviceArray(std::span<const T> values) : DeviceArray(values.size()) {
    check(cudaMemcpy(p_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice), "copy");
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { pinned_ ? cudaFreeHost(p_) : cudaFree(p_); }

  T* data() const { return static_cast<T*>(p_); }
  void fill(int byte) { check(cudaMemset(p_, byte, n_ * sizeof(T)), "fill"); }
  std::vector<T> read() const {
    std::vector<T> values(n_);
    check(cudaMemcpy(values.data(), p_, n_ * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return values;
  }

 private:
  void* p_ = nullptr;
  std::size_t n_;
  bool pinned_;
};

/// One element of a result and the size of what was summed up for it.
struct Expected {
  double value = 0;
  double magnitude = 0;
};

/// The kernels of prompt chunks: over gathered keys, over the pool, and what other GPUs than Hopper
/// take.
enum class PrefillKind { dense, paged, fa2 };

struct AttentionCase {
  static constexpr int kLayers = 2;     // attention runs on the second
  static constexpr int kNanBlocks = 3;  // the first ones: no token's
  static constexpr int kPools = 3;      // that blocks may be spread over

  HeadShape shape;
  int tokens_per_block, window;
  std::vector<AttentionRow> rows;  // one for each sequence
  int n_rows = 0;
  std::vector<std::int32_t> table;
  std::vector<std::uint16_t> pool, qkv;
  KvLayerView view;  // without the pool's address
  float scale = 0;
  float soft_cap = 0;
  std::vector<float> sinks;  // empty: none
  /// The layer is of a second group: the first group's tables, which lie in front, lead to NaN.
  bool second_group = false;
  /// Blocks lie in three allocations in turn; in the other two there is NaN.
  bool over_pools = false;

  AttentionCase(HeadShape s, int tokens, int win)
      : shape(s), tokens_per_block(tokens), window(win) {
    scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
    const std::int64_t head = static_cast<std::int64_t>(tokens) * s.head_dim;
    view.head_stride = head;
    view.part_stride = head * s.kv_heads;
    view.layer_offset = 2 * view.part_stride;
    view.block_stride = kLayers * 2 * view.part_stride;
    view.tokens_per_block = tokens;
  }

  void gap_rows(int n) { n_rows += n; }
  void gap_blocks(int n) { table.resize(table.size() + n); }
  /// A sequence that is at `position` and has n rows in this step.
  void add(int position, int n) {
    const int blocks = (position + n + tokens_per_block - 1) / tokens_per_block;
    rows.push_back({n_rows, n, position, static_cast<int>(table.size()), blocks});
    n_rows += n;
    table.resize(table.size() + blocks);
  }

  /// As if windows had given back what they have left behind: the tables lead to NaN there. After
  /// build(); the reference does not look there.
  void forget_behind() {
    told_table = table;
    for (const AttentionRow& row : rows) {
      const int first = std::max(0, static_cast<int>(row.position) + 1 - window) / tokens_per_block;
      for (int i = 0; window > 0 && i < first; ++i)
        told_table[row.first_block + i] = i % kNanBlocks;
    }
  }

  /// Fills the pool; what no sequence's token wrote is NaN. The first and the last key that a row
  /// sees have large values, and so has the one in front of its window: each would be missed.
  void build() {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    std::iota(table.begin(), table.end(), kNanBlocks);
    std::shuffle(table.begin(), table.end(), rng);
    told_table = table;
    pool.assign((table.size() + kNanBlocks) * view.block_stride, 0xFFFF);
    qkv.resize(static_cast<std::size_t>(n_rows) * width());
    for (auto& x : qkv) x = to_bf16(normal(rng));
    for (const AttentionRow& row : rows) {
      const int end = static_cast<int>(row.position) + row.n_rows;
      for (int t = 0; t < end; ++t) {
        const bool large = t == 0 || t == end - 1 || t == end - window || t == end - window - 1;
        for (int h = 0; h < shape.kv_heads; ++h) {
          for (int d = 0; d < shape.head_dim; ++d) {
            const std::size_t at = offset(row, t, h) + d;
            pool[at] = to_bf16(normal(rng));
            pool[at + view.part_stride] = to_bf16(normal(rng) * (large ? 16.0F : 1.0F));
          }
        }
      }
    }
  }

  int width() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }
  std::size_t offset(const AttentionRow& row, int token, int head) const {
    return table[row.first_block + token / tokens_per_block] * view.block_stride +
           view.layer_offset + head * view.head_stride +
           static_cast<std::size_t>(token % tokens_per_block) * shape.head_dim;
  }

  /// Query i of a sequence, one head.
  std::vector<Expected> reference(const AttentionRow& row, int i, int head) const {
    const int end = static_cast<int>(row.position) + i + 1;
    const int begin = window > 0 ? std::max(0, end - window) : 0;
    const int kv_head = head / (shape.heads / shape.kv_heads);
    const std::uint16_t* q = &qkv[static_cast<std::size_t>(row.first_row + i) * width() +
                                  static_cast<std::size_t>(head) * shape.head_dim];
    std::vector<double> p(end - begin);
    for (int t = begin; t < end; ++t) {
      const std::uint16_t* k = &pool[offset(row, t, kv_head)];
      double s = 0;
      for (int d = 0; d < shape.head_dim; ++d) s += from_bf16(q[d]) * from_bf16(k[d]);
      p[t - begin] = s * scale;
      if (soft_cap > 0) p[t - begin] = soft_cap * std::tanh(p[t - begin] / soft_cap);
    }
    double largest = *std::max_element(p.begin(), p.end());
    double sum = 0;
    if (!sinks.empty()) {
      largest = std::max<double>(largest, sinks[head]);
      sum = std::exp(sinks[head] - largest);
    }
    for (double& x : p) sum += x = std::exp(x - largest);
    std::vector<Expected> out(shape.head_dim);
    for (int t = begin; t < end; ++t) {
      const std::uint16_t* v = &pool[offset(row, t, kv_head) + view.part_stride];
      for (int d = 0; d < shape.head_dim; ++d) {
        out[d].value += p[t - begin] / sum * from_bf16(v[d]);
        out[d].magnitude += p[t - begin] / sum * std::abs(from_bf16(v[d]));
      }
    }
    return out;
  }

  struct Result {
    std::vector<std::uint16_t> out, pool;
  };

  /// Output rows that no item wrote stay NaN. Twice over the same workspace, as layers do it.
  std::vector<std::uint16_t> run_decode(DecodeAttention::Options options,
                                        std::span<const AttentionRow> some = {},
                                        int padded_rows = 0) const {
    const DecodeAttention attention(completed(options, std::max(n_rows, padded_rows)));
    DecodePlan plan;
    attention.plan(some.empty() ? rows : some, plan, padded_rows);
    if (static_cast<int>(plan.items.size()) > attention.max_items(plan.rows)) {
      throw std::logic_error("more items than promised");
    }
    const int n = static_cast<int>(plan.items.size());
    plan.items.resize(n + 5, DecodeItem{-1, -1, -1, -1, -1, -1, -1, -1});  // never looked at
    const DeviceArray<DecodeItem> items{std::span<const DecodeItem>(plan.items)};
    const DeviceArray<std::int32_t> count{std::span<const std::int32_t>(&n, 1)};
    DeviceArray<std::byte> workspace(attention.workspace_bytes());
    workspace.fill(0);
    const DeviceArray<float> sink{std::span<const float>(sinks)};
    AttentionRule rule;
    rule.soft_cap = soft_cap;
    rule.sinks = sinks.empty() ? nullptr : sink.data();
    if (attention.takes_windows()) rule.window = window;
    return run(pool,
               [&](Bf16* q, Bf16* out, const KvLayerView& kv, const std::int32_t* blocks) {
                 for (int i = 0; i < 2; ++i) {
                   attention.run(q, out, kv, blocks,
                                 {items.data(), count.data(), plan.rows, n + 5 * i}, scale,
                                 workspace.data(), nullptr, nullptr, rule);
                 }
               })
        .out;
  }

  /// Single rows that have not been through RoPE: by the attention itself, or by rope_append() in
  /// front of it. What the pool holds of the newest tokens before is NaN.
  Result run_rope(DecodeAttention::Options options, bool inside, bool bias, bool norms) const {
    const DecodeAttention attention(completed(options, n_rows));
    DecodePlan plan;
    attention.plan(rows, plan);
    const DeviceArray<DecodeItem> items{std::span<const DecodeItem>(plan.items)};
    const std::int32_t planned = static_cast<std::int32_t>(plan.items.size());
    const DeviceArray<std::int32_t> count{std::span<const std::int32_t>(&planned, 1)};
    DeviceArray<std::byte> workspace(attention.workspace_bytes());
    workspace.fill(0);

    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    const auto randoms = [&](int n, float mean) {
      std::vector<std::uint16_t> values(n);
      for (auto& x : values) x = to_bf16(mean + 0.3F * normal(rng));
      return DeviceArray<std::uint16_t>(std::span<const std::uint16_t>(values));
    };
    const auto biases = randoms(width(), 0);
    const auto q_weights = randoms(shape.head_dim, 1), k_weights = randoms(shape.head_dim, 1);
    std::vector<std::int32_t> at;
    std::vector<std::int64_t> slot;
    auto stale = pool;
    for (const AttentionRow& row : rows) {
      at.push_back(static_cast<std::int32_t>(row.position));
      slot.push_back(offset(row, at.back(), 0) - view.layer_offset);
      for (int h = 0; h < shape.kv_heads; ++h) {
        const auto key = stale.begin() + offset(row, at.back(), h);
        std::fill_n(key, shape.head_dim, 0xFFFF);
        std::fill_n(key + view.part_stride, shape.head_dim, 0xFFFF);
      }
    }
    std::vector<float> cosines, sines;
    for (int p = 0; p <= *std::max_element(at.begin(), at.end()); ++p) {
      for (int i = 0; i < shape.head_dim / 2; ++i) {
        const float angle = static_cast<float>(p) * std::pow(1e4F, -2.0F * i / shape.head_dim);
        cosines.push_back(std::cos(angle));
        sines.push_back(std::sin(angle));
      }
    }
    const DeviceArray<float> cos{std::span<const float>(cosines)};
    const DeviceArray<float> sin{std::span<const float>(sines)};
    const DeviceArray<std::int32_t> positions{std::span<const std::int32_t>(at)};
    const DeviceArray<std::int64_t> slots{std::span<const std::int64_t>(slot)};
    const auto bf16 = [](const auto& array) { return reinterpret_cast<const Bf16*>(array.data()); };
    return run(stale, [&](Bf16* q, Bf16* out, const KvLayerView& kv, const std::int32_t* blocks) {
      RopeAppend append{q, n_rows, shape, {}, positions.data(), slots.data(), kv};
      append.rope = {bias ? bf16(biases) : nullptr,
                     norms ? bf16(q_weights) : nullptr,
                     norms ? bf16(k_weights) : nullptr,
                     1e-5F,
                     cos.data(),
                     sin.data()};
      if (!inside) rope_append(append, nullptr);
      const int n = static_cast<int>(plan.items.size());
      attention.run(q, out, kv, blocks, {items.data(), count.data(), plan.rows, n}, scale,
                    workspace.data(), nullptr, inside ? &append.rope : nullptr);
    });
  }

  std::vector<std::uint16_t> run_prefill(PrefillKind kind) const {
    PrefillAttention::Options options;
    options.shape = shape;
    options.tokens_per_block = tokens_per_block;
    options.max_rows = n_rows;
    options.max_chunks = static_cast<int>(rows.size());
    options.max_table = static_cast<int>(table.size());
    options.window = window;
    options.hopper = kind != PrefillKind::fa2;
    options.gather_pairs = kind == PrefillKind::dense ? 0 : -1;
    const PrefillAttention attention(options);
    const DeviceArray<std::byte> floats(attention.float_workspace_bytes());
    const DeviceArray<std::byte> ints(attention.int_workspace_bytes());
    const DeviceArray<std::byte> pinned(attention.int_workspace_bytes(), true);
    const auto plan = attention.make_plan();
    attention.plan(rows, *plan, floats.data(), ints.data(), pinned.data(), nullptr,
                   /*gather=*/over_pools);
    const DeviceArray<float> sink{std::span<const float>(sinks)};
    const DeviceArray<float> lse(static_cast<std::size_t>(n_rows) * shape.heads);
    const AttentionRule rule{window, soft_cap, sinks.empty() ? nullptr : sink.data()};
    return run(pool,
               [&](Bf16* q, Bf16* out, const KvLayerView& kv, const std::int32_t* blocks) {
                 attention.run(*plan, q, out, kv, blocks + (second_group ? table.size() : 0), scale,
                               nullptr, rule, lse.data());
                 check(cudaDeviceSynchronize(), "prefill");
               })
        .out;
  }

 private:
  std::vector<std::int32_t> told_table;  // what the device is told

  /// What one of the pools holds.
  std::vector<std::uint16_t> of_pool(std::vector<std::uint16_t> all,
                                     std::size_t pool_number) const {
    for (std::size_t block = 0; over_pools && block * view.block_stride < all.size(); ++block) {
      if (block % kPools == pool_number) continue;
      std::fill_n(all.begin() + block * view.block_stride, view.block_stride, 0xFFFF);
    }
    return all;
  }

  DecodeAttention::Options completed(DecodeAttention::Options options, int max_rows) const {
    options.shape = shape;
    options.tokens_per_block = tokens_per_block;
    options.max_rows = max_rows;
    options.capped = options.capped || soft_cap > 0;
    const bool of_rule = options.capped && !has_attention_tiles(shape, true);
    options.window = of_rule ? 0 : window;
    return options;
  }

  template <typename Call>
  Result run(const std::vector<std::uint16_t>& pool_before, Call call) const {
    const DeviceArray<std::uint16_t> pool_memory{
        std::span<const std::uint16_t>(of_pool(pool_before, 0))};
    const std::vector<std::uint16_t> none;
    const DeviceArray<std::uint16_t> second{
        std::span<const std::uint16_t>(of_pool(over_pools ? pool_before : none, 1))};
    const DeviceArray<std::uint16_t> third{
        std::span<const std::uint16_t>(of_pool(over_pools ? pool_before : none, 2))};
    const std::vector<std::int64_t> offset = {0, second.data() - pool_memory.data(),
                                              third.data() - pool_memory.data()};
    const DeviceArray<std::int64_t> offsets{std::span<const std::int64_t>(offset)};
    const DeviceArray<std::uint16_t> q{std::span<const std::uint16_t>(qkv)};
    std::vector<std::int32_t> tables;
    for (std::size_t i = 0; second_group && i < table.size(); ++i) tables.push_back(i % kNanBlocks);
    const auto shift = static_cast<std::int32_t>(tables.size());
    tables.insert(tables.end(), told_table.begin(), told_table.end());
    for (std::int32_t& id : tables) {
      if (over_pools) id |= id % kPools << kPoolBlockBits;
    }
    const DeviceArray<std::int32_t> blocks{std::span<const std::int32_t>(tables)};
    const DeviceArray<std::int32_t> shifts{std::span<const std::int32_t>(&shift, 1)};
    DeviceArray<std::uint16_t> out(static_cast<std::size_t>(n_rows) * shape.heads * shape.head_dim);
    out.fill(0xFF);
    KvLayerView kv = view;
    kv.pool = reinterpret_cast<Bf16*>(pool_memory.data());
    if (second_group) kv.table_shift = shifts.data();
    if (over_pools) kv.pool_offsets = offsets.data();
    call(reinterpret_cast<Bf16*>(q.data()), reinterpret_cast<Bf16*>(out.data()), kv, blocks.data());
    check(cudaDeviceSynchronize(), "attention");
    return {out.read(), pool_memory.read()};
  }
};

}  // namespace baton::cuda
