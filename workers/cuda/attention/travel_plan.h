// Which GPU computes which piece of a row whose keys lie in pools on several: each those that lie
// in its own memory, since over the link they are read at a tenth of the speed or less. The row's
// query goes there, and the pieces' partial results come back (travel.h). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "workers/cuda/attention/attention.h"

namespace baton::cuda {

struct TravelRules {
  /// By number of a pool (workers/pool/pool_ids.h): the device that attends to it. 0 is the own
  /// one, which may read it over the link. Numbers behind the last are the own device's, too.
  std::span<const int> device_of_pool;
  int devices = 1;  // the own one included
  int tokens_per_block = 16;
  int fixed_split = 0;     // as DecodeAttention::Options has it
  int pieces_at_once = 1;  // that fill a device
  int first_slot = 0;      // of those for what travels ...
  int slots = 0;           // ... and how many there are: so many pieces at most
  /// With no more keys elsewhere in a step nothing travels.
  std::int64_t in_place_keys = 0;
};

struct TravelPlan {
  std::vector<std::vector<DecodeItem>> items;  // by device: pieces of the rows that travel
  std::vector<DecodeItem> merges;              // these rows, with the number of their pieces
  std::vector<AttentionRow> others;            // which do not travel: to be planned as ever
  std::int64_t keys_elsewhere = 0;             // of single tokens, whether they travel or not
};

/// Rows of prompts do not travel: they are computed one by one for their bits' sake, or since they
/// found no room elsewhere, and would take more slots than there are. With fixed pieces the bits
/// are those of one pool: a piece that lies on two devices is the own one's, as a whole.
/// `tables` is what rows' first_block counts from. tokens_per_block is a multiple of 16.
void plan_travel(std::span<const AttentionRow> rows, const std::int32_t* tables,
                 const TravelRules& rules, TravelPlan& plan);

}  // namespace baton::cuda
