#include "scheduler/apply/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace baton {

BeamSearch::BeamSearch(const SamplingParams& params)
    : width_(params.num_beams),
      max_tokens_(params.max_tokens),
      min_tokens_(params.min_tokens),
      length_penalty_(params.length_penalty),
      early_stopping_(params.early_stopping),
      stop_ids_(params.stop_ids),
      running_(1) {}

void BeamSearch::advance(std::span<const Row> rows) {
  rank(rows);
  ++length_;
  const bool last = length_ >= max_tokens_;
  const std::vector<Beam> parents = std::exchange(running_, {});
  children_.clear();
  for (std::size_t place = 0; place < ranked_.size(); ++place) {
    const Candidate& candidate = ranked_[place];
    const std::int32_t parent = parents[candidate.beam].node;
    const bool stops = length_ > min_tokens_ && is_stop(candidate.token);
    if (stops || last) {
      // Those behind the first `width` are there only so that enough are left to run on.
      if (place < width_) {
        end(add_node(parent, candidate.token), candidate.score,
            stops ? FinishReason::stop : FinishReason::length);
      }
    } else if (children_.size() < width_) {
      running_.push_back({add_node(parent, candidate.token), candidate.score});
      children_.push_back({candidate.beam, candidate.token});
    }
  }
  done_ = running_.empty() || (ended_.size() == width_ && !can_improve());
}

/// Every continuation with its score, best first.
void BeamSearch::rank(std::span<const Row> rows) {
  ranked_.clear();
  for (std::uint32_t beam = 0; beam < rows.size(); ++beam) {
    for (std::size_t i = 0; i < rows[beam].tokens.size(); ++i) {
      const float score = running_[beam].score + rows[beam].logprobs[i];
      if (std::isfinite(score)) ranked_.push_back({score, beam, rows[beam].tokens[i]});
    }
  }
  std::sort(ranked_.begin(), ranked_.end(), [](const Candidate& a, const Candidate& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::pair(a.beam, a.token) < std::pair(b.beam, b.token);
  });
}

std::int32_t BeamSearch::add_node(std::int32_t parent, Token token) {
  nodes_.push_back({parent, token});
  return static_cast<std::int32_t>(nodes_.size()) - 1;
}

void BeamSearch::end(std::int32_t node, float sum, FinishReason reason) {
  const float score = by_length(sum, length_);
  const auto worse = std::find_if(ended_.begin(), ended_.end(),
                                  [&](const Ended& other) { return other.score < score; });
  ended_.insert(worse, {node, score, reason});
  if (ended_.size() > width_) ended_.pop_back();
}

bool BeamSearch::is_stop(Token token) const {
  return std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end();
}

/// Whether the search goes on although enough beams have ended.
bool BeamSearch::can_improve() const {
  if (early_stopping_ == EarlyStopping::at_once) return false;
  // With a positive penalty a longer sequence may still gain from its length; the heuristic does
  // not look that far.
  const bool far = early_stopping_ == EarlyStopping::never && length_penalty_ > 0;
  return by_length(running_.front().score, far ? max_tokens_ : length_) > ended_.back().score;
}

float BeamSearch::by_length(float score, std::uint32_t length) const {
  return static_cast<float>(static_cast<double>(score) /
                            std::pow(static_cast<double>(length), double{length_penalty_}));
}

std::vector<BeamSearch::Hypothesis> BeamSearch::best(std::uint32_t n) const {
  std::vector<Hypothesis> found;
  for (const Ended& ended : ended_) {
    if (found.size() == n) break;
    Hypothesis& hypothesis = found.emplace_back();
    hypothesis.score = ended.score;
    hypothesis.reason = ended.reason;
    for (std::int32_t at = ended.node; at >= 0; at = nodes_[static_cast<std::size_t>(at)].parent) {
      hypothesis.tokens.push_back(nodes_[static_cast<std::size_t>(at)].token);
    }
    std::reverse(hypothesis.tokens.begin(), hypothesis.tokens.end());
  }
  return found;
}

}  // namespace baton
