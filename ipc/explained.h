// Requests that have ended, as front ends' files (timing_ring.h) tell of them, and as JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/timing.h"

namespace baton {

/// What clients call the scheduler's requests.
using RequestNames = std::vector<std::pair<RequestId, std::string>>;

/// As its client calls it; one that is not among them, as the scheduler does:
/// "INCARNATION-COUNTER".
std::string name_of(const RequestId& id, const RequestNames& others);

struct TimingSearch {
  std::optional<ExplainedRequest> found;
  RequestNames names;                   // of all that the files tell of
  std::size_t files = 0;                // that were there
  std::vector<std::string> complaints;  // of files that could not be read
};

/// Looks through all front ends' files of a run directory, which takes some 10 ms for each that is
/// full. `id`: a reply's X-Request-Id, or the scheduler's name of its request. A client may call
/// several the same: the last one is meant.
TimingSearch find_timing(const std::string& run_dir, const std::string& id);

/// From its first byte until the scheduler had it.
TimeNs time_before_scheduler(const ExplainedRequest& request);
/// "?" where there is none.
std::string worker_name(const RequestTiming& timing, std::uint32_t worker);

/// One object, of several lines. `others`: those that it waited for or beside.
std::string explain_json(const ExplainedRequest& request, const RequestNames& others);

}  // namespace baton
