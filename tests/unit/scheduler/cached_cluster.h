// A cluster with a prefix cache, for tests of what it finds.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "tests/unit/scheduler/cluster.h"

namespace baton::test {

inline std::vector<Token> words(std::size_t n, Token first = 10) {
  std::vector<Token> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// Blocks of 4 tokens; every worker answers with kWord.
struct Cached : Cluster {
  explicit Cached(const Settings& settings = {}) : Cluster(settings, /*prefix_cache=*/true) {}

  void ask(std::uint64_t counter, std::vector<Token> prompt, std::uint32_t max_tokens = 4,
           const std::string& salt = "") {
    Submit m = request(counter, 0, max_tokens);
    m.prompt = std::move(prompt);
    m.cache_salt = salt;
    from_frontend(frontend, m);
  }
  /// The nth sequence that a worker was given.
  AddSequence added(LinkId link, std::size_t nth) const {
    std::vector<AddSequence> adds;
    for (const StepPlan& plan : sent<StepPlan>(link)) {
      adds.insert(adds.end(), plan.add.begin(), plan.add.end());
    }
    EXPECT_LT(nth, adds.size());
    return nth < adds.size() ? adds[nth] : AddSequence{};
  }
};

}  // namespace baton::test
