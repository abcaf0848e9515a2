#include "workers/sampling/gpu_edits.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace baton {

namespace {

constexpr std::uint64_t kIdleSteps = 256;

bool penalised(const SamplingParams& p) {
  return p.repetition_penalty != 1.0F || p.frequency_penalty != 0.0F || p.presence_penalty != 0.0F;
}

template <typename Entry>
std::size_t words_of(const std::vector<Entry>& entries) {
  static_assert(sizeof(Entry) % sizeof(std::int32_t) == 0);
  return entries.size() * (sizeof(Entry) / sizeof(std::int32_t));
}

/// Appends the entries; `first` and `n` name them.
template <typename Entry>
void put(const std::vector<Entry>& entries, WordArea& area, std::int32_t& first, std::int32_t& n) {
  if (entries.empty()) return;
  first = static_cast<std::int32_t>(area.used);
  n = static_cast<std::int32_t>(entries.size());
  std::memcpy(area.words + area.used, entries.data(), entries.size() * sizeof(Entry));
  area.used += words_of(entries);
}

}  // namespace

void GpuEdits::begin_step() {
  if (++step_ % kIdleSteps != 0) return;
  std::erase_if(sequences_,
                [&](const auto& entry) { return entry.second.step + kIdleSteps <= step_; });
}

bool GpuEdits::write(const BatchRow& row, WordArea& area, cuda::SampleRow& sample, bool may_stop) {
  const SamplingParams& p = *row.sampling;
  static const Sequence kNone;
  const Sequence& known = penalised(p) || !p.bias_tokens.empty() ? remember(row) : kNone;
  find_masked(row, may_stop);
  const std::span<const Token> output =
      row.history.subspan(std::min<std::size_t>(row.n_prompt, row.history.size()));
  const Token forced = p.reasoning_ends_at(row.n_generated) ? p.forced_token(output) : kNoToken;
  if (forced >= 0) return write_forced(forced, area, sample);
  const std::size_t mask_words = p.allowed_tokens.empty() ? 0 : (vocab_ + 31U) / 32U;
  const std::size_t words =
      words_of(known.seen) + words_of(known.biases) + masked_.size() + mask_words;
  if (words > area.capacity - area.used) return false;
  put(known.seen, area, sample.first_seen, sample.n_seen);
  put(known.biases, area, sample.first_bias, sample.n_biases);
  put(masked_, area, sample.first_masked, sample.n_masked);
  if (mask_words > 0) {
    sample.allowed = static_cast<std::int32_t>(area.used);
    write_mask(p.allowed_tokens, area.words + area.used);
    area.used += mask_words;
  }
  sample.repetition_penalty = p.repetition_penalty;
  sample.frequency_penalty = p.frequency_penalty;
  sample.presence_penalty = p.presence_penalty;
  return true;
}

/// Nothing but `forced` may be drawn, whatever else the request asks for.
bool GpuEdits::write_forced(Token forced, WordArea& area, cuda::SampleRow& sample) const {
  const std::size_t words = (vocab_ + 31U) / 32U;
  if (words > area.capacity - area.used) return false;
  sample.allowed = static_cast<std::int32_t>(area.used);
  write_mask({&forced, 1}, area.words + area.used);
  area.used += words;
  return true;
}

const GpuEdits::Sequence& GpuEdits::remember(const BatchRow& row) {
  Sequence& sequence = sequences_[row.sequence];
  sequence.step = step_;
  if (penalised(*row.sampling)) {
    count(sequence, row);
  } else {
    sequence.counted.clear();
    sequence.seen.clear();
  }
  sort_biases(sequence, *row.sampling);
  return sequence;
}

void GpuEdits::count(Sequence& sequence, const BatchRow& row) {
  const auto before = [](const cuda::SeenToken& a, const cuda::SeenToken& b) {
    return a.token < b.token;
  };
  std::vector<cuda::SeenToken>& seen = sequence.seen;
  std::vector<Token>& counted = sequence.counted;
  const bool goes_on = !counted.empty() && counted.size() <= row.history.size() &&
                       sequence.n_prompt == row.n_prompt &&
                       std::equal(counted.begin(), counted.end(), row.history.begin());
  if (!goes_on) {
    // All of it: sorted, then entries of one token are made one.
    counted.assign(row.history.begin(), row.history.end());
    sequence.n_prompt = row.n_prompt;
    seen.clear();
    for (std::size_t i = 0; i < counted.size(); ++i) {
      seen.push_back({counted[i], i >= row.n_prompt ? 1 : 0});
    }
    std::sort(seen.begin(), seen.end(), before);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      if (kept > 0 && seen[kept - 1].token == seen[i].token) {
        seen[kept - 1].times += seen[i].times;
      } else {
        seen[kept++] = seen[i];
      }
    }
    seen.resize(kept);
  }
  while (counted.size() < row.history.size()) {
    const cuda::SeenToken fresh{row.history[counted.size()],
                                counted.size() >= row.n_prompt ? 1 : 0};
    counted.push_back(fresh.token);
    const auto at = std::lower_bound(seen.begin(), seen.end(), fresh, before);
    if (at != seen.end() && at->token == fresh.token) {
      at->times += fresh.times;
    } else {
      seen.insert(at, fresh);
    }
  }
}

void GpuEdits::sort_biases(Sequence& sequence, const SamplingParams& params) {
  if (sequence.bias_tokens == params.bias_tokens && sequence.bias_values == params.bias_values) {
    return;
  }
  sequence.bias_tokens = params.bias_tokens;
  sequence.bias_values = params.bias_values;
  sequence.biases.clear();
  for (std::size_t i = 0; i < params.bias_tokens.size(); ++i) {
    sequence.biases.push_back({params.bias_tokens[i], params.bias_values[i]});
  }
  std::stable_sort(sequence.biases.begin(), sequence.biases.end(),
                   [](const auto& a, const auto& b) { return a.token < b.token; });
}

/// Final tokens of bad words whose beginning the output ends with; stop ids below min_tokens.
void GpuEdits::find_masked(const BatchRow& row, bool may_stop) {
  const SamplingParams& p = *row.sampling;
  masked_.clear();
  const std::span<const Token> output =
      row.history.subspan(std::min<std::size_t>(row.n_prompt, row.history.size()));
  for (const std::vector<Token>& word : p.bad_words) {
    if (word.empty() || word.size() - 1 > output.size()) continue;
    if (std::equal(word.begin(), word.end() - 1,
                   output.end() - static_cast<std::ptrdiff_t>(word.size() - 1))) {
      masked_.push_back(word.back());
    }
  }
  if (row.n_generated < p.min_tokens && !may_stop) {
    masked_.insert(masked_.end(), p.stop_ids.begin(), p.stop_ids.end());
  }
}

void GpuEdits::write_mask(std::span<const Token> allowed, std::int32_t* mask) const {
  std::fill(mask, mask + (vocab_ + 31U) / 32U, 0);
  for (const Token token : allowed) {
    if (token < 0 || static_cast<std::uint32_t>(token) >= vocab_) continue;
    const auto at = static_cast<std::uint32_t>(token);
    mask[at / 32] =
        static_cast<std::int32_t>(static_cast<std::uint32_t>(mask[at / 32]) | 1U << at % 32);
  }
}

}  // namespace baton
