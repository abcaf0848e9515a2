// What a request is told, or cut to, when a worker could take it on: checks that need the worker's
// facts.
#pragma once

#include "scheduler/apply/events.h"

namespace baton {

/// So long a request waits for the only pool that can hold it, if that pool's process is gone; and,
/// if it awaits_pools(), for a worker with such a pool to join a scheduler that began a moment ago.
constexpr TimeNs kWaitForPools = 10 * kSecond;
/// One that an earlier scheduler had accepted (`again`: it fitted some pool then), or that came
/// when this one was so young that workers may not have joined it yet.
bool awaits_pools(const State& state, bool again, TimeNs submitted);
/// Some worker holds that many tokens, or may soon.
bool may_fit_later(const State& state, const Request& request, std::uint32_t tokens, TimeNs now);
/// Prompt + output tokens that the request may have here.
std::uint32_t context_for(const State& state, const Request& request);

/// True if `worker` cannot hold the request and one more token. One that no worker will ever hold
/// is ended (it was accepted before anybody knew them); another one waits for a larger pool.
bool refuse_too_long(State& state, const Worker& worker, Request& request, TimeNs now, Outbox& out);

/// False: the request's beams would stay on `worker` and do not fit it to their end. If they fit
/// nobody who may take the prompt, the request has been ended.
bool beams_fit(State& state, const Worker& worker, Request& request, TimeNs now, Outbox& out);

/// An answer ends where the largest pool does, or where all those do that it may lie in, also if
/// the front end could not know that. Where the prompt alone is longer, it ends where the model's
/// context does.
void clamp_output(const State& state, Request& request);

}  // namespace baton
