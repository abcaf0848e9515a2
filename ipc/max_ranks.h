#pragma once

namespace baton {

/// Processes that one worker may consist of (worker.ranks).
constexpr int kMaxRanks = 8;

}  // namespace baton
