// A request's way between its phases, and what its front end is told of it.
#pragma once

#include <string>

#include "scheduler/apply/events.h"

namespace baton {

/// A moment of its life has come: kept if it is the first one and the client wants to know.
void note(Request& request, LifetimeMoment moment, TimeNs now);
/// The part of its time that computing its prompt is.
Part computing(const Request& request);
/// Its tenant pays for [begin, end) of its tokens, which a step computes: for those of the prompt,
/// and for each of them once.
void charge_prompt(State& state, Request& request, std::uint32_t begin, std::uint32_t end);
/// ... and for its reply up to `length` tokens, of each of `width` beams.
void charge_output(State& state, Request& request, std::uint32_t length, std::uint32_t width);
/// Back to the queue, at its place.
void requeue(State& state, Request& request);
/// Takes the request off its workers; it is queued again once the steps that name it have ended.
void preempt(State& state, Request& request, MoveCause why = MoveCause::preempted);
/// How far `sequence`, which computes the request's prompt, is: to a front end that wants to know,
/// not too often. The end of the prompt is always told.
void tell_progress(const State& state, Request& request, const Sequence& sequence, Outbox& out);
/// Appends one sampled token, sends it, and ends the request when it is the last one. `logprobs`
/// may be null: none were asked for.
void take_token(State& state, Request& request, Token token, const LogprobReader::Entry* logprobs,
                Outbox& out);
/// Sends the tokens [begin, end) of `generated` again, with what belongs to them: before the first
/// one the log probabilities of the prompt, of which the front end has `prompt_entries`. As much as
/// this turn's messages have room for.
void resend_tokens(const Request& request, std::uint32_t begin, std::uint32_t end, Outbox& out,
                   std::uint32_t prompt_entries = 0);
/// Ends the request: sequences released, terminal sent (or held back for a static group).
void end_request(State& state, Request& request, FinishReason reason, ErrorCode code,
                 std::string message, Outbox& out);
/// Sends the terminal of an ended request (again).
void send_terminal(State& state, Request& request, Outbox& out);
/// Reason to end before anything is sampled: generated tokens already end it.
FinishReason already_finished(const Request& request);
/// Forgets an ended request, whatever its front end knows.
void forget(State& state, Request& request);

}  // namespace baton
