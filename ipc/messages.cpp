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
  vector_sizes.clear();
  vectors.clear();
}

bool Logprobs::agrees() const {
  if (logprobs.size() != items.size() || counts.size() != items.size() ||
      top_logprobs.size() != top_tokens.size()) {
    return false;
  }
  if (vector_sizes.empty() ? !vectors.empty() : vector_sizes.size() != items.size()) return false;
  std::uint64_t values = 0;
  for (const std::uint32_t size : vector_sizes) {
    if (size > SamplingParams::kMaxPooled) return false;
    values += size;
  }
  if (values != vectors.size()) return false;
  return std::is_sorted(items.begin(), items.end()) &&
         std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}) == top_tokens.size();
}

void Logprobs::push(std::uint32_t item, float logprob, std::span<const Token> tops,
                    std::span<const float> top_values, std::span<const float> vector) {
  if (!vector.empty() || !vector_sizes.empty()) {
    vector_sizes.resize(items.size());  // those before it have none
    vector_sizes.push_back(static_cast<std::uint32_t>(vector.size()));
    vectors.insert(vectors.end(), vector.begin(), vector.end());
  }
  items.push_back(item);
  logprobs.push_back(logprob);
  counts.push_back(static_cast<std::uint32_t>(tops.size()));
  top_tokens.insert(top_tokens.end(), tops.begin(), tops.end());
  top_logprobs.insert(top_logprobs.end(), top_values.begin(), top_values.end());
}

void Logprobs::append(const Logprobs& other) {
  const auto add = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  if (!vector_sizes.empty() || !other.vector_sizes.empty()) {
    vector_sizes.resize(items.size());
    add(vector_sizes, other.vector_sizes);
    vector_sizes.resize(items.size() + other.items.size());
    add(vectors, other.vectors);
  }
  add(items, other.items);
  add(logprobs, other.logprobs);
  add(counts, other.counts);
  add(top_tokens, other.top_tokens);
  add(top_logprobs, other.top_logprobs);
}

bool LogprobReader::take(std::uint32_t item, Entry& entry) {
  if (done() || this->item() != item) return false;
  const std::size_t n = values_->counts[entry_];
  entry.logprob = values_->logprobs[entry_];
  entry.top_tokens = std::span(values_->top_tokens).subspan(top_, n);
  entry.top_logprobs = std::span(values_->top_logprobs).subspan(top_, n);
  const std::size_t size = values_->vector_sizes.empty() ? 0 : values_->vector_sizes[entry_];
  entry.vector = std::span(values_->vectors).subspan(value_, size);
  ++entry_;
  top_ += n;
  value_ += size;
  return true;
}

KvGroups groups_of(const Hello& hello) {
  KvGroups groups;
  const std::size_t count = std::min<std::size_t>(hello.windows.size(), kMaxKvGroups);
  groups.count = static_cast<std::uint32_t>(std::max<std::size_t>(1, count));
  std::copy_n(hello.windows.begin(), count, groups.windows.begin());
  return groups;
}

}  // namespace baton
