// What a trace found, as JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open: the trace
// event format. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ipc/trace_ring.h"

namespace baton {

/// A process's end, as whoever traced saw it.
struct SeenDeath {
  std::string name;
  std::uint32_t pid = 0;
  TimeNs at = 0;
};

struct Trace {
  TimeNs began = 0;  // monotonic
  TimeNs ended = 0;
  TimeNs wall_offset = 0;  // of unix time above monotonic time
  std::string version;
  /// By the process's name: its records, in order, of all its lives.
  std::map<std::string, std::vector<TraceRecord>> processes;
  std::vector<SeenDeath> deaths;
  std::uint64_t lost = 0;  // records that were overwritten before they were read
};

/// What is in it, for whoever asked.
struct TraceCounts {
  std::size_t processes = 0;  // lives
  std::size_t steps = 0;
  std::size_t pulls = 0;
  std::size_t requests = 0;
  std::size_t deaths = 0;
};

/// Slices are complete ("X") or have their end beside them ("b", "e"): nothing stays open, whoever
/// died meanwhile. Times are microseconds since the earliest event.
std::string trace_json(const Trace& trace, TraceCounts* counts = nullptr);

}  // namespace baton
