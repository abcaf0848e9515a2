// Beam searches: their rows, their blocks, their ends (docs/adr/0006).
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/apply/events.h"

namespace baton {

/// Most blocks that the beams of `request` can need at once on `worker`, shared ones counted once.
std::uint32_t beam_blocks(const Worker& worker, const Request& request);
/// `worker` can decode the request with that many tokens, and all its beams to their end, if it is
/// alone.
bool can_hold(const Worker& worker, const Request& request, std::uint32_t tokens);
/// Why it cannot, in numbers.
std::string cannot_hold(const Worker& worker, const Request& request, std::uint32_t tokens);
/// Blocks that the next step of a beam search must be given.
std::uint32_t beam_growth(const State& state, const Request& request);
/// Adds that step to a plan: forks, copies, growth, rows. The blocks are free.
std::size_t due_beams(const Request& request);
void plan_beams(State& state, Request& request, StepPlan& plan, InFlightStep& step);
/// Takes what a worker says may follow its beams; ends the searches that are over.
void take_candidates(State& state, WorkerIndex worker, const StepResult& result, Outbox& out);

}  // namespace baton
