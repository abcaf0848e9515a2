// Which worker can draw by which grammar (docs/adr/0007).
#include "scheduler/apply/grammars.h"

#include "scheduler/apply/blame.h"

namespace baton {

namespace {

/// Grammars that a worker is remembered to have been told of: more than requests can wait and run.
constexpr std::size_t kMaxTold = 1U << 16U;
/// An answer may be lost: the question is repeated while somebody waits.
constexpr TimeNs kAgain = kSecond;

}  // namespace

bool grammar_ready(const Worker& worker, const Request& request) {
  if (request.grammar == 0) return true;
  const auto told = worker.compute.grammars.find(request.grammar);
  return told != worker.compute.grammars.end() && told->second.ready;
}

namespace {

/// Those that are being compiled are still outstanding.
void forget_grammars(Worker& worker) {
  std::erase_if(worker.compute.grammars, [](const auto& entry) { return entry.second.ready; });
}

}  // namespace

namespace {

void send(Worker& worker, std::uint64_t key, ToldGrammar& told, TimeNs now, Outbox& out) {
  told.told = now;
  out.to_workers.emplace_back(
      worker.peer.link, PrepareGrammar{worker.peer.term, key, told.kind, told.text, told.awaited});
}

void tell(Worker& worker, const Request& request, bool awaited, TimeNs now, Outbox& out) {
  ToldGrammar& told = worker.compute.grammars[request.grammar];
  const bool again = told.number != 0;
  if (!again) told.number = worker.peer.work.add(Work::compile, request.id, request.grammar, now);
  told.kind = request.sampling.grammar_kind;
  told.text = request.sampling.grammar;
  told.awaited = told.awaited || awaited;
  send(worker, request.grammar, told, now, out);
}

}  // namespace

void ask_grammar(const State& state, Worker& worker, const Request& request, bool awaited,
                 TimeNs now, Outbox& out) {
  if (grammar_ready(worker, request) || !worker.may_begin()) return;
  if (is_suspect(state, request, Stage::compile)) return;
  const auto told = worker.compute.grammars.find(request.grammar);
  if (told != worker.compute.grammars.end() && (!awaited || now - told->second.told < kAgain))
    return;
  if (told == worker.compute.grammars.end() && worker.compute.grammars.size() >= kMaxTold)
    forget_grammars(worker);
  tell(worker, request, awaited, now, out);
}

void repeat_grammar(Worker& worker, TimeNs now, Outbox& out) {
  const auto& open = worker.peer.work.of(Work::compile);
  if (!worker.ready() || open.empty()) return;
  const auto told = worker.compute.grammars.find(open.begin()->second.key);
  if (told == worker.compute.grammars.end() || now - told->second.told < kAgain) return;
  send(worker, told->first, told->second, now, out);
}

void lose_grammar(Worker& worker, const Request& request) {
  const auto told = worker.compute.grammars.find(request.grammar);
  // One that is still compiled is answered for.
  if (told != worker.compute.grammars.end() && told->second.ready)
    worker.compute.grammars.erase(told);
}

void compile_alone(Worker& worker, const Request& request, TimeNs now, Outbox& out) {
  worker.compute.compiles_alone = true;
  tell(worker, request, /*awaited=*/true, now, out);
}

}  // namespace baton
