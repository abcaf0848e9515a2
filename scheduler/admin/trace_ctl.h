// `baton-ctl trace`: turns a run directory's trace on, reads what its processes write meanwhile,
// and makes one file of it. No process is asked: who is there finds the trace by itself
// (ipc/trace_ring.h).
#pragma once

#include <string>

#include "ipc/types.h"

namespace baton {

struct TraceCommand {
  std::string run_dir;
  std::string output = "trace.json";  ///< "-": standard output
  TimeNs length = 5 * kSecond;
};

/// Returns the exit code. Ctrl-C ends the trace early; what there is by then is written.
int run_trace(const TraceCommand& command);

}  // namespace baton
