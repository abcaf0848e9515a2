#include "ipc/messages.h"

#include <algorithm>
#include <numeric>

namespace baton {

void Logprobs::clear() {
  items.clear();
  logprobs.clear();
  counts.clear();
  top_tokens.clear();
  top_logprobs.clear();
}

bool Logprobs::agrees() const {
  if (logprobs.size() != items.size() || counts.size() != items.size() ||
      top_logprobs.size() != top_tokens.size()) {
    return false;
  }
  return std::is_sorted(items.begin(), items.end()) &&
         std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}) == top_tokens.size();
}

void Logprobs::push(std::uint32_t item, float logprob, std::span<const Token> tops,
                    std::span<const float> top_values) {
  items.push_back(item);
  logprobs.push_back(logprob);
  counts.push_back(static_cast<std::uint32_t>(tops.size()));
  top_tokens.insert(top_tokens.end(), tops.begin(), tops.end());
  top_logprobs.insert(top_logprobs.end(), top_values.begin(), top_values.end());
}

bool LogprobReader::take(std::uint32_t item, Entry& entry) {
  if (done() || this->item() != item) return false;
  const std::size_t n = values_->counts[entry_];
  entry.logprob = values_->logprobs[entry_];
  entry.top_tokens = std::span(values_->top_tokens).subspan(top_, n);
  entry.top_logprobs = std::span(values_->top_logprobs).subspan(top_, n);
  ++entry_;
  top_ += n;
  return true;
}

void Logprobs::append(const Logprobs& other, std::size_t begin, std::size_t end,
                      std::uint32_t shift) {
  const auto sum = [&](std::size_t from, std::size_t to) {
    std::ptrdiff_t total = 0;
    for (std::size_t i = from; i < to; ++i) total += other.counts[i];
    return total;
  };
  const std::ptrdiff_t top_begin = sum(0, begin);
  const std::ptrdiff_t top_end = top_begin + sum(begin, end);
  for (std::size_t i = begin; i < end; ++i) {
    items.push_back(other.items[i] + shift);
    logprobs.push_back(other.logprobs[i]);
    counts.push_back(other.counts[i]);
  }
  top_tokens.insert(top_tokens.end(), other.top_tokens.begin() + top_begin,
                    other.top_tokens.begin() + top_end);
  top_logprobs.insert(top_logprobs.end(), other.top_logprobs.begin() + top_begin,
                      other.top_logprobs.begin() + top_end);
}

}  // namespace baton
