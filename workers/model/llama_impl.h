// The inside of LlamaModel: what a model holds, and the steps of its forward pass. For llama.cpp,
// llama_load.cpp and llama_ranks.cpp alone: it brings libtorch along.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "workers/cpu/step_ops.h"
#include "workers/model/cpu_step.h"
#include "workers/model/cut.h"
#include "workers/model/kv_plan.h"
#include "workers/model/llama.h"
#include "workers/model/rope.h"
#include "workers/model/weights.h"

namespace baton {

/// How a rank's heads look at the pool: latent keys are one head's, for all queries.
inline cpu::HeadShape shape_of(const ModelConfig& c, const ModelCut& cut) {
  const int heads = static_cast<int>(cut.heads(c).count);
  if (c.latent.rank > 0) return {heads, 1, c.latent.rank + c.latent.rope};
  return {heads, static_cast<int>(cut.kv_heads(c).count), c.head_dim};
}

struct LlamaModel::Impl {
  Impl(const ModelFiles& files, Weights w, std::shared_ptr<const SealedMemory> memory,
       const LoadOptions& options)
      : config(files.config),
        weights(std::move(w)),
        sealed(std::move(memory)),
        fingerprint(files.fingerprint),
        cut(options.cut),
        group(cut.whole() ? nullptr : options.group),
        hidden(cut.part(config.hidden)),
        heads(static_cast<int>(cut.heads(config).count)),
        ops(options.threads, options.isa, shape_of(config, cut)) {
    if (group != nullptr) ops.count_chunks(&group->progress());
    batch.latent = config.latent.rank > 0;
    for (const RopeConfig& rope : config.ropes) ropes.emplace_back(rope, config.max_context);
    const bool all_turn = std::all_of(config.parts.begin(), config.parts.end(),
                                      [](const LayerSpec& l) { return l.attention.rope >= 0; });
    plan = kv_plan_of(config, options.kv_groups_for);
    rope_kinds = ropes.size() + (all_turn ? 0 : 1);
    batch.places.resize(rope_kinds * plan.groups.count);
  }

  ModelConfig config;
  Weights weights;
  std::shared_ptr<const SealedMemory> sealed;
  std::uint64_t fingerprint;
  ModelCut cut;
  Collective* group;                          // null: this is all of the model
  Slice hidden;                               // the columns of x that this rank computes
  int heads;                                  // that this rank computes
  std::array<ColumnRange, kMaxRanks> ranges;  // of gather()
  KvPlan plan;
  std::vector<RopeTable> ropes;
  std::size_t rope_kinds = 0;  // one more where some layers turn nothing
  cpu::StepOps ops;
  StepWorkspace workspace;
  cpu::ExpertPlan expert_plan;
  std::vector<cpu::LinearGroup> gate_up_groups;
  std::vector<cpu::LinearGroup> down_groups;
  std::vector<cpu::ExpertPlan::Group> own_groups;
  std::vector<int> line_owners;  // of the rows gathered by expert
  StepBatch batch;
  LayerHooks hooks;
  ActivationDump dump;

  void norm(const cpu::Rows& x, const NormVectors& w, const cpu::Rows& y) {
    ops.norm(x,
             {w.weight.data(), w.bias.empty() ? nullptr : w.bias.data(),
              static_cast<float>(config.norm.eps), config.norm.kind == NormKind::layer},
             y);
  }
  cpu::QkvFinish qkv_finish(const LayerSpec& spec, const LayerWeights& layer) const {
    const AttentionSpec& a = spec.attention;
    const RopeConfig& rope = config.ropes[static_cast<std::size_t>(std::max(a.rope, 0))];
    return {layer.qkv_bias.data(),
            layer.q_norm.data(),
            layer.k_norm.data(),
            static_cast<float>(config.norm.eps),
            a.qk_norm == QkNorm::whole,
            rope.dims,
            rope.interleaved};
  }
  static cpu::AttentionRule attention_rule(const LayerSpec& spec, const LayerWeights& layer) {
    const AttentionSpec& a = spec.attention;
    return {a.window, static_cast<float>(a.scale), static_cast<float>(a.soft_cap),
            layer.sinks.data(), !layer.latent.absorb.empty()};
  }
  const std::vector<cpu::RowPlace>& places_of(const LayerSpec& spec, const cpu::KvLayer& kv) const {
    const int rope = spec.attention.rope;
    const std::size_t kind = rope < 0 ? rope_kinds - 1 : static_cast<std::size_t>(rope);
    return batch.places[kv.group * rope_kinds + kind];
  }
  /// The rank's columns of x, to be written.
  static cpu::Rows own_columns(const cpu::Rows& x, const Slice& columns) {
    return {x.data + columns.first, x.rows, x.columns};
  }
  /// Each rank has written its part of x's columns: now everybody has all of them. `root`: as in
  /// gather_columns().
  void gather(const cpu::Rows& x, int root = -1) {
    if (group == nullptr) return;
    for (int r = 0; r < cut.ranks; ++r) {
      const Slice theirs = cut.part_of(r, x.columns);
      ranges[static_cast<std::size_t>(r)] = {theirs.first, theirs.count};
    }
    const auto n = static_cast<std::size_t>(cut.ranks);
    group->gather_columns(x.data, x.rows, x.columns, std::span(ranges).first(n), root);
  }
  void tell_written(std::uint32_t layers) const {
    if (hooks.written) hooks.written(layers);
  }
  void embed(const cpu::Rows& x);
  void project(const LayerSpec& spec, const LayerWeights& layer, const cpu::Rows& normed,
               const cpu::KvLayer& kv, const cpu::Rows& to);
  void project_heads(const LayerSpec& spec, const LayerWeights& layer, const cpu::Rows& normed,
                     const cpu::KvLayer& kv, const cpu::Rows& to);
  void project_latent(const LayerSpec& spec, const LatentWeights& w, const cpu::Rows& normed,
                      const cpu::KvLayer& kv, const cpu::Rows& wide);
  void look(const LayerSpec& spec, const LayerWeights& layer,
            std::span<const cpu::Segment> segments, const cpu::KvLayer& kv, const cpu::Rows& qkv,
            const cpu::Rows& attended);
  void through_heads(const cpu::Rows& from, const std::vector<PackedMatrix>& matrices,
                     const cpu::Rows& to);
  void whole_norms(const LayerSpec& spec, const LayerWeights& layer, const cpu::Rows& qkv);
  void end_step(const cpu::Rows& last);
  void attention(const LayerSpec& spec, const LayerWeights& layer, const cpu::Rows& attended,
                 const cpu::Rows& x);
  void feed_forward(const LayerSpec& spec, const LayerWeights& layer, const cpu::Rows& normed,
                    const cpu::Rows& x);
  void dense(const MlpSpec& spec, const FeedForwardWeights& w, const cpu::Rows& normed,
             cpu::Epilogue epilogue, const cpu::Rows& y);
  void experts(const ExpertSpec& spec, const LayerWeights& layer, const cpu::Rows& normed,
               const cpu::Rows& x);
  void route(const ExpertSpec& spec, const LayerWeights& layer, const cpu::Rows& normed);
  void expert_parts(const ExpertSpec& spec, const LayerWeights& layer, const cpu::Rows& taken);
  void finish_part(const LayerSpec& spec, const NormVectors& after, const cpu::Rows& part,
                   const cpu::Rows& x);
  void show(const std::string& part, const cpu::Rows& x) const {
    if (dump) dump(part, x.data, x.rows, static_cast<int>(x.columns));
  }
  LogitsView logits_of(const cpu::Rows& x, const cpu::Rows& normed);
  LogitsView run(const KvPoolView& pool);
};

}  // namespace baton
