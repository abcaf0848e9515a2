#include "workers/sampling/row_sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace baton {

void RowSampling::finish(const RunStep& step, LogitsLine line, std::span<float> logits,
                         StepOutput& output) {
  const BatchRow& row = step.rows[line.row];
  const auto index = static_cast<std::uint32_t>(line.row);
  const bool last = line.token + 1 == row.tokens.size();
  if (row.logits == LogitsWanted::all) {
    const Token next = last ? row.next : row.tokens[line.token + 1];
    if (next != kNoToken) {
      const auto first = static_cast<std::size_t>(row.tokens.data() - step.tokens.data());
      sampler_.log_probabilities(logits, next, row.sampling->prompt_logprobs,
                                 static_cast<std::uint32_t>(first + line.token),
                                 output.prompt_logprobs);
    }
  }
  if (!last) return;
  if (row.ranks) {
    const Status status = sampler_.rank(logits, *row.sampling, {row.n_generated},
                                        {row.history, row.n_prompt}, index, output.candidates);
    if (!status.ok()) output.failed.push_back({index, status.message()});
    return;
  }
  if (!row.samples()) return;
  if (row.sampling->pools()) return pool(row, index, logits, output);
  const Result<Token> token = draw(row, line.row, logits);
  if (!token.ok()) {
    output.failed.push_back(failed_draw(index, token.status()));
    return;
  }
  output.tokens[line.row] = token.value();
  if (row.sampling->logprobs >= 0) {
    sampler_.log_probabilities(logits, token.value(), row.sampling->logprobs, index,
                               output.logprobs);
  }
}

void tell_vector(std::uint32_t row, std::span<const float> vector, StepOutput& output) {
  const bool finite =
      std::all_of(vector.begin(), vector.end(), [](float value) { return std::isfinite(value); });
  if (!finite || vector.empty() || vector.size() > SamplingParams::kMaxPooled) {
    output.failed.push_back({row, finite ? "the vector has an impossible size"
                                         : "the model gave a value that is not a number"});
    return;
  }
  output.tokens[row] = 0;
  output.logprobs.push(row, 0, {}, {}, vector);
}

/// Those of a hidden state do not come here: they need no logits.
void RowSampling::pool(const BatchRow& row, std::uint32_t index, std::span<const float> logits,
                       StepOutput& output) {
  vector_.clear();
  for (const Token token : row.sampling->allowed_tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= logits.size()) {
      output.failed.push_back({index, "a token whose logit is wanted is not in the vocabulary"});
      return;
    }
    vector_.push_back(logits[static_cast<std::size_t>(token)]);
  }
  if (row.sampling->pooling == Pooling::last_hidden) {
    output.failed.push_back({index, "this device does not give hidden states"});
    return;
  }
  tell_vector(index, vector_, output);
}

Result<Token> RowSampling::draw(const BatchRow& row, std::size_t index, std::span<float> logits) {
  const SampleKey key{row.n_generated};
  const SampleHistory history{row.history, row.n_prompt};
  if (row.sampling->grammar_kind == GrammarKind::none) {
    return sampler_.sample(logits, *row.sampling, key, history);
  }
  const Result<RowMask> mask = mask_(index);
  if (!mask.ok()) return mask.status();
  mask_logits(logits, mask.value().allowed);
  Result<Token> token = Status();
  if (mask.value().must_end && row.n_generated < row.sampling->min_tokens) {
    SamplingParams ending = *row.sampling;
    ending.min_tokens = 0;  // there is nothing more to say
    token = sampler_.sample(logits, ending, key, history);
  } else {
    token = sampler_.sample(logits, *row.sampling, key, history);
  }
  if (token.ok()) return token;
  return Status(token.status().code(), token.status().message() + kGrammarLeavesNothing);
}

RowSamplingPool::RowSamplingPool(int threads, const MaskOfRow& mask)
    : pool_(threads), samplings_(static_cast<std::size_t>(pool_.threads()), RowSampling(mask)) {}

void RowSamplingPool::finish(const RunStep& step, std::span<const LogitsLine> lines,
                             std::span<float> logits, StepOutput& output) {
  if (lines.empty()) return;
  const std::size_t vocab = logits.size() / lines.size();
  // Several pieces a thread: one that is put aside holds up little.
  const std::size_t pieces = std::min(lines.size(), 4 * samplings_.size());
  const auto begin_of = [&](std::size_t piece) { return piece * lines.size() / pieces; };
  if (parts_.size() < pieces) parts_.resize(pieces);
  pool_.run(static_cast<int>(pieces), [&](int chunk, int thread) {
    const auto piece = static_cast<std::size_t>(chunk);
    StepOutput& part = parts_[piece];
    part.failed.clear();
    part.logprobs.clear();
    part.prompt_logprobs.clear();
    part.candidates.clear();
    part.tokens.assign(step.rows.size(), kNoToken);
    for (std::size_t i = begin_of(piece); i < begin_of(piece + 1); ++i) {
      samplings_[static_cast<std::size_t>(thread)].finish(step, lines[i],
                                                          logits.subspan(i * vocab, vocab), part);
    }
  });
  for (std::size_t piece = 0; piece < pieces; ++piece) append(output, parts_[piece]);
}

void append(StepOutput& to, const StepOutput& part) {
  for (std::size_t i = 0; i < part.tokens.size(); ++i) {
    if (part.tokens[i] != kNoToken) to.tokens[i] = part.tokens[i];
  }
  to.failed.insert(to.failed.end(), part.failed.begin(), part.failed.end());
  to.logprobs.append(part.logprobs);
  to.prompt_logprobs.append(part.prompt_logprobs);
  to.candidates.append(part.candidates);
}

}  // namespace baton
