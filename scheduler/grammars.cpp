// Which worker can draw by which grammar (docs/adr/0007).
#include <functional>

#include "scheduler/lifecycle.h"

namespace baton {

namespace {

/// Grammars that a worker is remembered to have been told of. Told again, it answers at once.
constexpr std::size_t kMaxTold = 1024;
/// An answer may be lost: the question is repeated while somebody waits.
constexpr TimeNs kAgain = kSecond;

}  // namespace

std::uint64_t grammar_key(const SamplingParams& sampling) {
  if (sampling.grammar_kind == GrammarKind::none) return 0;
  const std::uint64_t hash = std::hash<std::string>()(sampling.grammar) + static_cast<std::uint64_t>(sampling.grammar_kind);
  return hash == 0 ? 1 : hash;
}

bool grammar_ready(Worker& worker, const Request& request, TimeNs now, Outbox& out) {
  if (request.grammar == 0) return true;
  const auto known = worker.grammars.find(request.grammar);
  if (known != worker.grammars.end()) {
    if (known->second.ready) return true;
    if (now - known->second.told < kAgain) return false;
  }
  if (worker.grammars.size() >= kMaxTold) worker.grammars.clear();
  worker.grammars[request.grammar] = {false, now};
  out.to_workers.emplace_back(worker.link, PrepareGrammar{worker.term, request.grammar, request.sampling.grammar_kind,
                                                          request.sampling.grammar});
  return false;
}

}  // namespace baton
