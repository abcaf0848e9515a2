#include "workers/sampling/logit_edits.h"

#include <algorithm>
#include <limits>

namespace baton {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

bool inside(std::span<const float> logits, Token token) {
  return token >= 0 && static_cast<std::size_t>(token) < logits.size();
}

}  // namespace

void LogitEdits::apply(std::span<float> logits, const SamplingParams& params,
                       std::uint32_t n_generated, std::span<const Token> history,
                       std::uint32_t n_prompt) {
  changed_.clear();
  row_.clear();
  const auto output = history.subspan(std::min<std::size_t>(n_prompt, history.size()));
  if (params.reasoning_ends_at(n_generated)) {
    const Token forced = params.forced_token(output);
    if (forced >= 0) return keep_only(logits, {&forced, 1});
  }
  if (!params.allowed_tokens.empty()) keep_only(logits, params.allowed_tokens);
  if (!params.bad_words.empty()) {
    mask_bad_words(logits, params.bad_words, output);
  }
  if (n_generated < params.min_tokens) {
    for (const Token id : params.stop_ids) set(logits, id, kMasked);
  }
  for (std::size_t i = 0; i < params.bias_tokens.size(); ++i) {
    const Token id = params.bias_tokens[i];
    if (inside(logits, id)) {
      set(logits, id, logits[static_cast<std::size_t>(id)] + params.bias_values[i]);
    }
  }
  if (params.repetition_penalty != 1.0F || params.frequency_penalty != 0.0F ||
      params.presence_penalty != 0.0F) {
    penalise(logits, params, history, n_prompt);
  }
}

void LogitEdits::restore(std::span<float> logits) {
  // Backwards, so that an id that was changed twice gets its first value back.
  for (auto it = changed_.rbegin(); it != changed_.rend(); ++it) logits[it->first] = it->second;
  if (!row_.empty()) std::copy(row_.begin(), row_.end(), logits.begin());
  changed_.clear();
  row_.clear();
}

void LogitEdits::set(std::span<float> logits, Token token, float value) {
  if (!inside(logits, token)) return;
  const auto at = static_cast<std::size_t>(token);
  changed_.emplace_back(at, logits[at]);
  logits[at] = value;
}

void LogitEdits::keep_only(std::span<float> logits, std::span<const Token> allowed) {
  row_.assign(logits.begin(), logits.end());
  std::fill(logits.begin(), logits.end(), kMasked);
  for (const Token id : allowed) {
    if (inside(logits, id))
      logits[static_cast<std::size_t>(id)] = row_[static_cast<std::size_t>(id)];
  }
}

void LogitEdits::mask_bad_words(std::span<float> logits,
                                const std::vector<std::vector<Token>>& words,
                                std::span<const Token> output) {
  for (const std::vector<Token>& word : words) {
    if (word.empty()) continue;
    const std::size_t before = word.size() - 1;
    if (before > output.size()) continue;
    if (std::equal(word.begin(), word.end() - 1,
                   output.end() - static_cast<std::ptrdiff_t>(before))) {
      set(logits, word.back(), kMasked);
    }
  }
}

void LogitEdits::penalise(std::span<float> logits, const SamplingParams& params,
                          std::span<const Token> history, std::uint32_t n_prompt) {
  seen_.resize(std::max(seen_.size(), logits.size()));
  for (std::size_t i = 0; i < history.size(); ++i) {
    if (!inside(logits, history[i])) continue;
    std::uint32_t& seen = seen_[static_cast<std::size_t>(history[i])];
    seen = std::max(seen, 1U) + (i >= n_prompt ? 1U : 0U);
  }
  for (const Token id : history) {
    if (!inside(logits, id)) continue;
    std::uint32_t& seen = seen_[static_cast<std::size_t>(id)];
    if (seen == 0) continue;  // done: it stands there several times
    const std::uint32_t times = seen - 1;
    seen = 0;
    float value = logits[static_cast<std::size_t>(id)];
    value = value > 0 ? value / params.repetition_penalty : value * params.repetition_penalty;
    value -= params.frequency_penalty * static_cast<float>(times);
    if (times > 0) value -= params.presence_penalty;
    set(logits, id, value);
  }
}

}  // namespace baton
