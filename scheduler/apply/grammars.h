// Which worker can draw by which grammar (docs/adr/0007).
#pragma once

#include <cstdint>

#include "scheduler/apply/events.h"
#include "scheduler/state/grammar_key.h"

namespace baton {

/// Prompts that may be admitted before their grammar is ready, so that both take place at once;
/// more would take the places of those who need not wait.
constexpr std::uint32_t kMostHeld = 8;
/// `worker` draws by the request's grammar, if it has one, without waiting.
bool grammar_ready(const Worker& worker, const Request& request);
/// Tells `worker` of a grammar that is not ready there, unless it has just been told, or a suspect
/// has its turn there.
/// `awaited`: the request has a place there. A suspect's own grammar takes such a turn
/// (compile_alone()).
void ask_grammar(const State& state, Worker& worker, const Request& request, bool awaited,
                 TimeNs now, Outbox& out);
/// The oldest grammar that is not answered is asked for again now and then: question or answer may
/// be lost. Also one that nobody wants any more: the worker may be compiling it, or hang in it.
void repeat_grammar(Worker& worker, TimeNs now, Outbox& out);
/// `worker` had no compiled grammar for the request's row: the next question compiles it again.
void lose_grammar(Worker& worker, const Request& request);
/// For a suspect: nothing is outstanding on `worker`, and nothing begins before the answer.
void compile_alone(Worker& worker, const Request& request, TimeNs now, Outbox& out);

}  // namespace baton
