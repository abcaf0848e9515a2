#include "workers/model/kv_plan.h"

#include <algorithm>
#include <map>
#include <utility>

namespace baton {

namespace {

/// How far the layer sees; 0: everything that there can be.
std::uint32_t window_of(const LayerSpec& layer, std::uint32_t max_context) {
  const auto window = static_cast<std::uint32_t>(std::max(layer.attention.window, 0));
  return window >= max_context ? 0 : window;
}

/// Layers by window, those that see everything first.
using Kinds = std::map<std::uint32_t, std::vector<std::uint32_t>>;

Kinds kinds_of(const ModelSpec& spec, std::uint32_t max_context) {
  Kinds kinds;
  for (std::uint32_t i = 0; i < spec.parts.size(); ++i)
    kinds[window_of(spec.parts[i], max_context)].push_back(i);
  return kinds;
}

/// Each kind in as many groups of up to `size` layers as it takes; no places if those are too many.
KvPlan cut_by(const Kinds& kinds, std::uint32_t size, std::size_t layers) {
  KvPlan plan;
  plan.layers_in_block = size;
  plan.places.resize(layers);
  std::uint32_t group = 0;
  for (const auto& [window, members] : kinds) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (i % size == 0 && group == kMaxKvGroups) return {};
      if (i % size == 0) plan.groups.windows[group++] = window;
      plan.places[members[i]] = {group - 1, static_cast<std::uint32_t>(i % size)};
    }
  }
  plan.groups.count = group;
  return plan;
}

/// Layers times blocks.
std::uint64_t cost_of(const KvPlan& plan, std::uint32_t max_context,
                      std::uint32_t tokens_per_block) {
  return TableShape(tokens_per_block, plan.groups).live_blocks(max_context) * plan.layers_in_block;
}

}  // namespace

KvPlan one_kv_group(const ModelSpec& spec) {
  KvPlan plan;
  plan.layers_in_block = static_cast<std::uint32_t>(spec.parts.size());
  for (std::uint32_t i = 0; i < plan.layers_in_block; ++i) plan.places.push_back({0, i});
  return plan;
}

KvPlan plan_kv_groups(const ModelSpec& spec, std::uint32_t max_context,
                      std::uint32_t tokens_per_block) {
  KvPlan best = one_kv_group(spec);
  const Kinds kinds = kinds_of(spec, max_context);
  std::uint64_t least = cost_of(best, max_context, tokens_per_block) * 9 / 10;
  // Large blocks first: of equal costs, the fewest groups.
  for (auto size = static_cast<std::uint32_t>(spec.parts.size()); size > 0; --size) {
    KvPlan plan = cut_by(kinds, size, spec.parts.size());
    if (plan.places.empty()) continue;
    const std::uint64_t cost = cost_of(plan, max_context, tokens_per_block);
    if (cost >= least) continue;
    least = cost;
    best = std::move(plan);
  }
  return best;
}

KvPlan kv_plan_of(const ModelConfig& config, std::uint32_t tokens_per_block) {
  if (tokens_per_block == 0) return one_kv_group(config);
  return plan_kv_groups(config, static_cast<std::uint32_t>(config.max_context), tokens_per_block);
}

}  // namespace baton
