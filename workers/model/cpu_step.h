// The memory of one step of the forward pass on CPUs, and its rows as the operations want them.
// Inside of llama_impl.h only: it brings libtorch along.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "workers/cpu/step_ops.h"
#include "workers/model/cut.h"
#include "workers/model/llama.h"
#include "workers/model/rope.h"
#include "workers/model/spec.h"

namespace baton {

inline constexpr std::int64_t kMinWorkspaceRows = 64;

/// What a layer's parts give goes straight into the residual stream.
inline bool adds_at_once(const LayerSpec& spec) {
  return spec.norm == NormPlace::before && spec.residual == 1.0;
}

/// Activations of a step, [capacity, columns] of float each. Grows, never shrinks: the steady state
/// allocates nothing. What a model has no use for has no columns.
struct StepWorkspace {
  at::Tensor hidden;   // x, the residual stream: [rows, hidden]
  at::Tensor normed;   // [rows, hidden]
  at::Tensor part;     // [rows, hidden], what a part gives, where it is not added to x at once
  at::Tensor qkv;      // [rows, (heads + 2 kv_heads) * head_dim], of the rank's heads
  at::Tensor qkv_all;  // the same of all heads, where a rank norms them as one
  // Of latent keys and values, where qkv has each head's query in latent numbers:
  at::Tensor looked;          // [rows, heads * (rank + rope)], what attention leaves
  at::Tensor q_a;             // [rows, q_rank]
  at::Tensor q;               // [rows, heads * (plain + rope)]
  at::Tensor kv;              // [rows, rank + rope]
  at::Tensor by_head;         // [heads * rows, plain or value]
  at::Tensor latent_by_head;  // [heads * rows, rank]
  at::Tensor attended;        // [rows, heads * head_dim], of all heads
  at::Tensor up;              // [rows, 2 * intermediate], of parts that are not plain()
  at::Tensor gated;           // [rows, intermediate]
  at::Tensor routed;          // [rows, experts]
  at::Tensor taken;           // [rows * active, hidden], the rows' copies grouped by expert
  at::Tensor expert_up;       // [rows * active, 2 * intermediate of an expert]
  at::Tensor expert_gated;    // [rows * active, intermediate of an expert]
  at::Tensor shared;          // [rows, hidden], what all rows take, where it has a gate
  at::Tensor shared_gate;     // [rows, 1]
  at::Tensor logits;          // [logit rows, vocab]
  std::int64_t capacity = 0;
  std::int64_t logit_capacity = 0;

  static std::int64_t grown(std::int64_t n) {
    return static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(std::max(n, kMinWorkspaceRows))));
  }

  /// Columns in front of the gate, 0 where gate and up are one product.
  static std::int64_t up_columns(const MlpSpec& m) {
    return m.plain() ? 0 : std::int64_t{m.intermediate} * (m.gated ? 2 : 1);
  }

  void reserve(const ModelSpec& s, const ModelCut& cut, std::int64_t rows,
               std::int64_t logit_rows) {
    if (rows > capacity) {
      capacity = grown(rows);
      const auto make = [this](std::int64_t n, std::int64_t copies = 1) {
        return at::empty({capacity * copies, n}, at::kFloat);
      };
      hidden = make(s.hidden);
      normed = make(s.hidden);
      part = make(std::all_of(s.parts.begin(), s.parts.end(), adds_at_once) ? 0 : s.hidden);
      if (s.latent.rank > 0) {
        const LatentSpec& l = s.latent;
        const std::int64_t heads = cut.heads(s).count;
        const std::int64_t wide = heads * (l.rank + l.rope);
        qkv = make(wide);
        looked = make(wide);
        q_a = make(l.q_rank);
        q = make(heads * s.head_dim);
        kv = make(l.rank + l.rope);
        by_head = make(std::max({l.plain, l.value}), heads);
        latent_by_head = make(l.rank, heads);
      } else {
        qkv = make((cut.heads(s).count + 2 * cut.kv_heads(s).count) * s.head_dim);
        const bool whole_norms = std::any_of(s.parts.begin(), s.parts.end(), [](const auto& l) {
          return l.attention.qk_norm == QkNorm::whole;
        });
        qkv_all = make(!cut.whole() && whole_norms ? s.qkv_columns() : 0);
      }
      attended = make(s.attended_columns());
      const ExpertSpec& e = s.experts();
      std::int64_t widest_up = up_columns(e.shared);
      for (const LayerSpec& layer : s.parts) {
        widest_up = std::max(widest_up, up_columns(layer.mlp));
      }
      up = make(widest_up);
      gated = make(std::max(s.intermediate(), e.shared.intermediate));
      if (e.count > 0) {
        routed = make(e.count);
        taken = make(s.hidden, e.active);
        expert_up = make(up_columns(e.expert), e.active);
        expert_gated = make(e.expert.intermediate, e.active);
        if (e.shared_gate) shared = make(s.hidden);
        if (e.shared_gate) shared_gate = make(1);
      }
    }
    if (logit_rows > logit_capacity) {
      logit_capacity = grown(logit_rows);
      logits = at::empty({logit_capacity, s.vocab}, at::kFloat);
    }
  }
};

inline cpu::Rows rows_of(const at::Tensor& tensor, int rows) {
  return {tensor.mutable_data_ptr<float>(), rows, tensor.size(1)};
}

/// The same with fewer columns than the widest user of the memory.
inline cpu::Rows rows_of(const at::Tensor& tensor, int rows, std::int64_t columns) {
  return {tensor.mutable_data_ptr<float>(), rows, columns};
}

/// A step's rows one after another, as the operations want them. Buffers are reused.
struct StepBatch {
  std::vector<Token> tokens;  // [rows]
  std::vector<std::vector<cpu::RowPlace>>
      places;                          // by group: [ropes + 1][rows]; the last ones turn nothing
  std::vector<cpu::Segment> segments;  // one a StepRow
  std::vector<int> wanted;             // rows with logits, ascending
  std::vector<cpu::Segment> wanted_segments;  // the same rows, one each, numbered in order
  std::vector<RopeTable::Angles> angles;      // of one token
  bool wants_logits = false;                  // any of them does
  bool latent = false;                        // what a token leaves in the pool is a latent vector
  int rows() const { return static_cast<int>(tokens.size()); }

  void clear() {
    tokens.clear();
    for (std::vector<cpu::RowPlace>& of_rope : places) of_rope.clear();
    segments.clear();
    wanted.clear();
    wanted_segments.clear();
    wants_logits = false;
  }

  void add(const StepRow& row, const KvGeometry& g, std::vector<RopeTable>& ropes) {
    const int first = rows();
    const int n = static_cast<int>(row.tokens.size());
    wants_logits = wants_logits || (row.logits != LogitsWanted::none && !row.hidden);
    segments.push_back({first, n, row.position, row.block_table.data()});
    for (int i = 0; i < n; ++i) {
      const std::int64_t position = row.position + i;
      const auto at = static_cast<std::uint64_t>(position);
      const auto slot = static_cast<std::uint32_t>(at % g.tokens_per_block);
      tokens.push_back(row.tokens[static_cast<std::size_t>(i)]);
      angles.clear();
      for (RopeTable& rope : ropes) angles.push_back(rope.at(position));
      const std::size_t each = places.size() / g.groups.count;
      for (std::uint32_t group = 0; group < g.groups.count; ++group) {
        const BlockId block = row.block_table[at / g.tokens_per_block * g.groups.count + group];
        // A latent vector is as wide as a key and a value together.
        const std::uint64_t offset = kv_offset(g, block, 0, KvPart::key, 0, 0) +
                                     kv_token_stride(g) * slot * (latent ? 2 : 1);
        for (std::size_t r = 0; r < each; ++r) {
          const bool turns = r < angles.size();
          places[group * each + r].push_back({turns ? angles[r].cos : nullptr,
                                              turns ? angles[r].sin : nullptr, offset,
                                              turns ? angles[r].query_factor : 1});
        }
      }
      if (row.logits == LogitsWanted::all || (row.logits == LogitsWanted::last && i == n - 1)) {
        wanted_segments.push_back(
            {static_cast<int>(wanted.size()), 1, position, row.block_table.data()});
        wanted.push_back(first + i);
      }
    }
  }
};

/// Moves the named rows, ascending, to the front.
inline void keep_rows(const std::vector<int>& kept, cpu::Rows x) {
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] != static_cast<int>(i)) {
      std::copy_n(x.row(kept[i]), x.columns, x.row(static_cast<int>(i)));
    }
  }
}

}  // namespace baton
