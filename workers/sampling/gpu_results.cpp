#include "workers/sampling/gpu_results.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "workers/sampling/logit_edits.h"

namespace baton {

namespace {

/// As Sampler::log_probabilities() appends it.
void push(const cuda::TokenLogprobs& told, std::uint32_t item, Logprobs& out) {
  if (told.n_top < 0) return out.push(item, kLowestLogprob, {}, {});
  const auto n = static_cast<std::size_t>(std::min(told.n_top, cuda::TokenLogprobs::kMaxTop));
  std::array<float, cuda::TokenLogprobs::kMaxTop> tops{};
  for (std::size_t i = 0; i < n; ++i) tops[i] = std::max(kLowestLogprob, told.logprobs[i]);
  out.push(item, std::max(kLowestLogprob, told.logprob), std::span(told.tokens, n),
           std::span(tops).first(n));
}

}  // namespace

void take_results(const RunStep& step, const std::vector<bool>& on_host, const std::int32_t* tokens,
                  const cuda::TokenLogprobs* logprobs, const StepOutput& host, StepOutput& output) {
  output.failed.insert(output.failed.end(), host.failed.begin(), host.failed.end());
  output.candidates.append(host.candidates);
  LogprobReader host_logprobs(host.logprobs);
  std::size_t line = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const BatchRow& row = step.rows[i];
    if (row.logits == LogitsWanted::none) continue;
    const auto index = static_cast<std::uint32_t>(i);
    const std::size_t first_line = line;
    line += row.tokens.size() - row.first_logits();
    if (row.logits == LogitsWanted::all) {
      const auto first = static_cast<std::uint32_t>(row.tokens.data() - step.tokens.data());
      for (std::size_t t = 0; t < row.tokens.size(); ++t) {
        const bool last = t + 1 == row.tokens.size();
        if (last && row.next == kNoToken) continue;
        push(logprobs[first_line + t], first + static_cast<std::uint32_t>(t),
             output.prompt_logprobs);
      }
    }
    if (on_host[i]) {
      if (i < host.tokens.size()) output.tokens[i] = host.tokens[i];
      LogprobReader::Entry entry;
      if (host_logprobs.take(index, entry)) {
        output.logprobs.push(index, entry.logprob, entry.top_tokens, entry.top_logprobs,
                             entry.vector);
      }
    } else if (row.samples()) {
      if (tokens[i] == cuda::kNoSample) {
        const bool grammar = row.sampling->grammar_kind != GrammarKind::none;
        output.failed.push_back(
            {index, std::string(kNothingToDraw) + (grammar ? kGrammarLeavesNothing : "")});
        continue;
      }
      output.tokens[i] = tokens[i];
      if (row.sampling->logprobs >= 0) push(logprobs[line - 1], index, output.logprobs);
    }
  }
}

}  // namespace baton
