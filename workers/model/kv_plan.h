// Which layers of a model share blocks of keys and values: those that see equally far, in groups of
// one size (docs/adr/0020). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "ipc/kv_groups.h"
#include "workers/model/config.h"

namespace baton {

struct KvPlan {
  KvGroups groups;
  std::uint32_t layers_in_block = 0;  // of the largest group: others leave a little of it unused
  struct Place {
    std::uint32_t group = 0;
    std::uint32_t layer = 0;  // in its blocks
  };
  std::vector<Place> places;  // of each layer
};

/// One group of all layers that sees everything: nothing is ever given back.
KvPlan one_kv_group(const ModelSpec& spec);

/// The groups with which one sequence of `max_context` tokens takes the fewest bytes, once its
/// windows have left behind what they can. One group if that saves less than a tenth.
KvPlan plan_kv_groups(const ModelSpec& spec, std::uint32_t max_context,
                      std::uint32_t tokens_per_block);

/// The groups of a model in blocks of so many tokens; 0: one_kv_group().
KvPlan kv_plan_of(const ModelConfig& config, std::uint32_t tokens_per_block);

}  // namespace baton
