// Which worker can draw by which grammar (docs/adr/0007).
#include <functional>

#include "scheduler/apply/lifecycle.h"

namespace baton {

namespace {

/// Grammars that a worker is remembered to have been told of: more than requests can wait and run.
constexpr std::size_t kMaxTold = 1U << 16U;
/// An answer may be lost: the question is repeated while somebody waits.
constexpr TimeNs kAgain = kSecond;

}  // namespace

std::uint64_t grammar_key(const SamplingParams& sampling) {
  if (sampling.grammar_kind == GrammarKind::none) return 0;
  const std::uint64_t hash =
      std::hash<std::string>()(sampling.grammar) + static_cast<std::uint64_t>(sampling.grammar_kind);
  return hash == 0 ? 1 : hash;
}

bool grammar_ready(const Worker& worker, const Request& request) {
  if (request.grammar == 0) return true;
  const auto told = worker.grammars.find(request.grammar);
  return told != worker.grammars.end() && told->second.ready;
}

bool grammar_asked(const Worker& worker, const Request& request) {
  const auto told = worker.grammars.find(request.grammar);
  return told != worker.grammars.end() && !told->second.ready;
}

void ask_grammar(Worker& worker, const Request& request, bool awaited, TimeNs now, Outbox& out) {
  if (grammar_ready(worker, request)) return;
  const auto told = worker.grammars.find(request.grammar);
  if (told != worker.grammars.end() && (!awaited || now - told->second.told < kAgain)) return;
  if (told == worker.grammars.end() && worker.grammars.size() >= kMaxTold) worker.grammars.clear();
  worker.grammars[request.grammar] = {false, now};
  out.to_workers.emplace_back(worker.link,
                              PrepareGrammar{worker.term, request.grammar, request.sampling.grammar_kind,
                                             request.sampling.grammar, awaited});
}

}  // namespace baton
