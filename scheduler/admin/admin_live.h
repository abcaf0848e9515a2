// The cluster at this moment, as the console and `baton-ctl top` draw it: small enough to be asked
// for several times a second. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include "scheduler/admin/admin_commands.h"

namespace baton {

/// What of it is told at the most; the totals say how much there is.
struct LiveLimits {
  std::uint32_t cells = 2048;      // of one pool's map
  std::uint32_t all_cells = 8192;  // of all maps
  std::size_t requests = 64;       // that run; the oldest
  std::size_t waiting = 24;        // the first of the queue
  std::size_t pulls = 64;
  std::size_t ranges = 24;  // of cells, of one request on one worker
  std::size_t workers = 64;
};

nlohmann::ordered_json live(const State& state, const AdminStats& stats, const PullWatch* pulls,
                            TimeNs now, const LiveLimits& limits = {});

}  // namespace baton
