// A cluster in virtual time: the real scheduler core, workers that take as long as a model of step
// times says and sample by rule, clients that send a trace. One run is a pure function of its
// arguments. For searches and comparisons of settings; what can go wrong is simulated in tests/sim.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "ipc/types.h"
#include "planning/step_times.h"
#include "scheduler/state/cluster_state.h"

namespace baton {

struct VirtualWorker {
  std::string name;
  Role role = Role::mixed;
  std::uint32_t blocks = 0;       // of its KV pool
  std::uint32_t host_blocks = 0;  // of the pool's host part
};

struct VirtualRequest {
  TimeNs arrival = 0;         // its client's; any order
  std::uint32_t input = 1;    // tokens of the prompt
  std::uint32_t output = 1;   // tokens of the answer
  std::uint32_t limit = 0;    // its max_tokens; 0, or less than output: output
  std::vector<Token> prompt;  // empty: `input` tokens that no other request begins with
  std::int32_t priority = 0;
  std::string cache_salt;
  TimeNs timeout = 0;  // after its arrival; 0: none
  TenantShare share;   // whose it is
};

/// What a client saw. Times on the clock of the arrivals.
struct VirtualReply {
  std::vector<TimeNs> tokens;  // when each came
  TimeNs end = 0;              // 0: it had not ended when the run was given up
  ErrorCode code = ErrorCode::ok;
};

struct WorkerUse {
  std::uint64_t steps = 0;
  std::uint64_t prompt_tokens = 0;  // computed, again after a preemption
  std::uint64_t decode_tokens = 0;
  TimeNs busy = 0;  // of its device
};

struct VirtualRun {
  std::vector<VirtualReply> replies;  // as the requests
  std::vector<WorkerUse> workers;     // as the workers
  Counters counters;
  TimeNs end = 0;        // of the last event
  bool complete = true;  // false: given up with requests open
};

struct VirtualOptions {
  std::uint32_t tokens_per_block = 16;
  std::uint32_t max_context = 1U << 24U;
  /// Given up so long after the last arrival.
  TimeNs patience = 600 * kSecond;
  /// Called now and then with the number of requests that have ended; false gives the run up.
  std::function<bool(std::size_t)> progress;
};

/// Plays `requests` to their end. The scheduler, the workers and the settings are those of a real
/// cluster; nobody dies, no message is lost. `workers` must not be empty, their names differ.
VirtualRun run_virtual_cluster(const Settings& settings, const std::vector<VirtualWorker>& workers,
                               const StepTimes& times, const std::vector<VirtualRequest>& requests,
                               const VirtualOptions& options = {});

}  // namespace baton
