// A request's way through its phases, up to its one terminal message.
#include "scheduler/apply/requests.h"

#include <algorithm>

#include "ipc/fault_points.h"
#include "scheduler/apply/sequences.h"
#include "scheduler/plan/queue_order.h"
#include "scheduler/plan/swap.h"

namespace baton {

namespace {

FinishReason finish_after(const Request& request, Token last) {
  const auto& stops = request.sampling.stop_ids;
  if (std::find(stops.begin(), stops.end(), last) != stops.end() &&
      request.generated.size() > request.sampling.min_tokens) {
    return FinishReason::stop;
  }
  if (request.generated.size() >= request.sampling.max_tokens) return FinishReason::length;
  return FinishReason::none;
}

}  // namespace

void note(Request& request, LifetimeMoment moment, TimeNs now) {
  if (moment == LifetimeMoment::context_begin && request.begun == 0) request.begun = now;
  if (request.lifetime.empty()) return;
  TimeNs& time = request.lifetime[static_cast<std::size_t>(moment)];
  if (time == 0) time = now;
}

void charge_prompt(State& state, Request& request, std::uint32_t begin, std::uint32_t end) {
  end = std::min(end, static_cast<std::uint32_t>(request.prompt.size()));
  if (!fault(Fault::charged_again)) begin = std::max(begin, request.charged_prompt);
  if (begin >= end) return;
  state.tenants.charge_prompt(request.tenant, end - begin);
  request.charged_prompt = std::max(request.charged_prompt, end);
}

void charge_output(State& state, Request& request, std::uint32_t length, std::uint32_t width) {
  if (length <= request.charged_output) return;
  state.tenants.charge_output(request.tenant, (length - request.charged_output) * width,
                              state.settings.fair_output_cost);
  request.charged_output = length;
}

Part computing(const Request& request) {
  return request.generated.empty() ? Part::prefill : Part::recompute;
}

FinishReason already_finished(const Request& request) {
  if (request.generated.empty()) {
    return request.sampling.max_tokens == 0 ? FinishReason::length : FinishReason::none;
  }
  return finish_after(request, request.generated.back());
}

void requeue(State& state, Request& request) {
  release_places(state, request);
  request.phase = Phase::waiting;
  request.times.enter(Part::requeue, state.now);
  state.handoffs.erase({request.place, request.id});
  enter_queue(state, request);
  ++state.counters.requeued;
}

void preempt(State& state, Request& request, MoveCause why) {
  ++state.counters.preemptions;
  state.handoffs.erase({request.place, request.id});
  const Sequence* source = state.sequences.find(request.source);
  request.times.lost_place(why, source != nullptr ? source->worker : kNobody, state.now);
  request.times.enter(Part::requeue, state.now);
  const bool whole = source != nullptr && !source->spans();  // all of it in one pool
  const bool kept = whole && swaps(state, state.workers[source->worker]);
  request.kept =
      kept ? Kept{source->worker, state.workers[source->worker].peer.term, 0, true} : Kept();
  const bool again = request.beams != nullptr;
  request.place =
      place_after_preemption(request.place, ++state.evictions, kept, again, state.settings);
  if (whole) {
    for (const BlockId block : source->tail().blocks) {
      if (block != kNoBlock) state.workers[source->worker].store.pool.mark_wanted(block);
    }
  }
  // No result of a step in flight counts any more. Those of a spread prompt bring no token.
  const bool spread = source != nullptr && source->spread;
  if (request.beams || spread) return requeue(state, request);
  release_sequence(state, request.target);
  request.target = 0;
  release_sequence(state, request.source, /*keep=*/true);
  if (state.sequences.find(request.source) != nullptr) {
    request.phase = Phase::preempting;
  } else {
    requeue(state, request);
  }
}

namespace {

/// Values of vectors in one message: more of them make it late for everybody.
constexpr std::size_t kMostValues = 1U << 20U;

/// False: this turn's messages are full. What is not sent now, the front end asks for when it
/// misses it.
bool has_room_for(const Request& request, Outbox& out) {
  return out.has_room() && (!request.sampling.pools() ||
                            out.events_for(request.frontend).logprobs.vectors.size() < kMostValues);
}

/// A row of [begin, end) in the Events; its tokens are the caller's to append.
Events& add_row(const Request& request, std::uint32_t begin, std::uint32_t end, Events& events) {
  events.counters.push_back(request.name.counter);
  events.attempts.push_back(request.attempt);
  events.first_index.push_back(begin);
  events.counts.push_back(end - begin);
  if (begin == 0 && end != 0) {
    events.begun_counters.push_back(request.name.counter);
    events.begun_cached.push_back(request.cached_tokens);
    events.begun_at.push_back(request.begun);
  }
  return events;
}

Events& begin_row(const Request& request, std::uint32_t begin, std::uint32_t end, Outbox& out) {
  return add_row(request, begin, end, out.begin_in(request.frontend));
}

/// Of a prompt's log probabilities, those from entry `first` on that a quarter of a message holds.
PromptLogprobs prompt_part(const Request& request, std::uint32_t first, std::size_t most_bytes) {
  PromptLogprobs part;
  part.owner = request.name.counter;
  part.first = first;
  LogprobReader reader(request.prompt_logprobs);
  LogprobReader::Entry entry;
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; !reader.done() && bytes < most_bytes; ++i) {
    const std::uint32_t item = reader.item();
    reader.take(item, entry);
    if (i < first) continue;
    part.values.push(item, entry.logprob, entry.top_tokens, entry.top_logprobs);
    bytes += 12 + 8 * entry.top_tokens.size();
  }
  part.more = !reader.done();
  return part;
}

/// Before the first token: log probabilities of its prompt from entry `first` on. False: others
/// follow, or there is no room for them, and the token waits until the front end asks for it.
bool tell_prompt(const Request& request, std::uint32_t first, Outbox& out) {
  if (request.prompt_logprobs.items.empty()) return true;
  if (!out.has_room()) return false;
  PromptLogprobs part = prompt_part(request, first, out.message_bytes / 4);
  const bool more = part.more;
  begin_row(request, 0, 0, out).prompt_logprobs.push_back(std::move(part));
  return !more;
}

/// Where its time went so far; `whole`: with all that happened to it.
void tell_times(const State& state, const Request& request, bool whole, Outbox& out) {
  RequestTiming timing = request.times.told(state.now, whole);
  timing.counter = request.name.counter;
  timing.attempt = request.attempt;
  timing.cached_tokens = request.cached_tokens - request.pulled_tokens;
  timing.pulled_tokens = request.pulled_tokens;
  const auto by_name = [&](std::uint32_t& worker) {
    const std::string name =
        worker < state.workers.size() ? state.workers[worker].name() : "nobody";
    const auto at = std::find(timing.workers.begin(), timing.workers.end(), name);
    worker = static_cast<std::uint32_t>(at - timing.workers.begin());
    if (at == timing.workers.end()) timing.workers.push_back(name);
  };
  for (Moment& moment : timing.moments) by_name(moment.worker);
  for (Move& move : timing.moves) {
    by_name(move.from);
    by_name(move.to);
  }
  out.events_for(request.frontend).timings.push_back(std::move(timing));
}

}  // namespace

void tell_progress(const State& state, Request& request, const Sequence& sequence, Outbox& out) {
  // What is computed again for tokens that the client has is no news of its prompt. The phase says
  // nothing: with two steps in flight, decoding is planned before the last chunk's result is in.
  if (!request.progress || sequence.id != request.source || !request.generated.empty()) return;
  const bool whole = sequence.computed >= sequence.prefill_length;
  const bool first = request.progress_told == 0;
  if (!whole && !first && state.now - request.progress_told < kProgressInterval) return;
  request.progress_told = state.now;
  Events& events = out.begin_in(request.frontend);
  events.progress_counters.push_back(request.name.counter);
  events.progress_attempts.push_back(request.attempt);
  events.progress_done.push_back(sequence.computed);
  events.progress_cached.push_back(request.cached_tokens);
  events.progress_took.push_back(state.now - request.begun);
}

void take_token(State& state, Request& request, Token token, const LogprobReader::Entry* logprobs,
                Outbox& out) {
  const auto index = static_cast<std::uint32_t>(request.generated.size());
  request.generated.push_back(token);
  ++state.counters.tokens;
  charge_output(state, request, index + 1, 1);
  if (logprobs != nullptr && !(fault(Fault::vector_not_kept) && request.sampling.pools())) {
    request.logprobs.push(index, logprobs->logprob, logprobs->top_tokens, logprobs->top_logprobs,
                          logprobs->vector);
  }
  const bool room = !request.sampling.pools() || has_room_for(request, out);
  if (index < request.client_tokens && room && (index != 0 || tell_prompt(request, 0, out))) {
    const bool timed = request.times.take_news() || index == 0;
    Events& events = add_row(request, index, index + 1,
                             timed || logprobs != nullptr ? out.begin_in(request.frontend)
                                                          : out.begin_token_in(request.frontend));
    if (logprobs != nullptr) {
      events.logprobs.push(static_cast<std::uint32_t>(events.tokens.size()), logprobs->logprob,
                           logprobs->top_tokens, logprobs->top_logprobs, logprobs->vector);
    }
    events.tokens.push_back(token);
    if (timed) tell_times(state, request, /*whole=*/false, out);
  }
  const FinishReason reason = finish_after(request, token);
  if (reason != FinishReason::none) end_request(state, request, reason, ErrorCode::ok, "", out);
}

void resend_tokens(const Request& request, std::uint32_t begin, std::uint32_t end, Outbox& out,
                   std::uint32_t prompt_entries) {
  if (begin == 0 && !tell_prompt(request, prompt_entries, out)) return;
  LogprobReader reader(request.logprobs);
  LogprobReader::Entry entry;
  while (!reader.done() && reader.item() < begin) reader.take(reader.item(), entry);
  // The front end asks for the rest when it has these.
  while (begin < end && has_room_for(request, out)) {
    Events& events = begin_row(request, begin, end, out);
    const auto first = static_cast<std::uint32_t>(events.tokens.size());
    std::uint32_t at = begin;
    for (std::size_t bytes = 0; at < end && bytes < out.message_bytes / 4; ++at) {
      bytes += sizeof(Token);
      events.tokens.push_back(request.generated[at]);
      if (!reader.take(at, entry)) continue;
      events.logprobs.push(first + at - begin, entry.logprob, entry.top_tokens, entry.top_logprobs,
                           entry.vector);
      bytes += 12 + 8 * entry.top_tokens.size() + 4 * entry.vector.size();
    }
    events.counts.back() = at - begin;
    begin = at;
  }
}

void send_terminal(State& state, Request& request, Outbox& out) {
  if (!state.frontends[request.frontend].alive) return;
  Terminal terminal;
  terminal.counter = request.name.counter;
  terminal.attempt = request.attempt;
  terminal.n = {static_cast<std::uint32_t>(request.generated.size())};
  terminal.reason = {static_cast<std::uint32_t>(request.reason)};
  if (request.beams && !request.beams->lengths.empty()) {
    terminal.n = request.beams->lengths;
    terminal.reason = request.beams->reasons;
    terminal.scores = request.beams->scores;
  }
  terminal.code = request.code;
  terminal.message = request.message;
  terminal.lifetime = request.lifetime;
  out.begin_in(request.frontend).terminals.push_back(std::move(terminal));
  tell_times(state, request, /*whole=*/true, out);
  request.terminal_sent = true;
}

namespace {

/// Static batching answers the whole group at once, when its slowest member has ended.
void end_group_member(State& state, Outbox& out) {
  for (const std::uint64_t id : state.group) {
    const Request* member = state.requests.find(id);
    if (member != nullptr && member->phase != Phase::ended) return;
  }
  std::vector<std::uint64_t> group;
  group.swap(state.group);
  for (const std::uint64_t id : group) {
    if (Request* member = state.requests.find(id)) send_terminal(state, *member, out);
  }
}

}  // namespace

void end_request(State& state, Request& request, FinishReason reason, ErrorCode code,
                 std::string message, Outbox& out) {
  if (request.phase == Phase::ended) return;
  release_places(state, request);
  leave_queue(state, request);
  state.tenants.close(request.tenant);
  state.handoffs.erase({request.place, request.id});
  state.deadlines.erase({request.deadline, request.id});
  request.phase = Phase::ended;
  request.times.end(state.now);
  const std::size_t tokens = request.generated.size();
  if (tokens > request.client_tokens) request.generated.resize(request.client_tokens);
  const bool beyond = tokens > request.client_tokens && reason == FinishReason::stop;
  if (beyond || (tokens >= request.client_tokens && reason == FinishReason::error)) {
    reason = FinishReason::length;  // the client has all that it asked for
    code = ErrorCode::ok;
    message.clear();
  }
  request.reason = reason;
  request.code = code;
  request.message = std::move(message);
  if (request.message.size() > kMaxReasonBytes) request.message.resize(kMaxReasonBytes);
  if (reason == FinishReason::error) {
    ++state.counters.errors;
  } else if (reason == FinishReason::cancelled) {
    ++state.counters.cancelled;
  } else {
    ++state.counters.finished;
  }
  if (request.grouped) {
    end_group_member(state, out);
  } else {
    send_terminal(state, request, out);
  }
}

void forget(State& state, Request& request) {
  state.by_name.erase(request.name);
  state.requests.erase(request.id);
}

}  // namespace baton
