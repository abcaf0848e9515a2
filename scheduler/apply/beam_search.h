// Beam search as an algorithm: which continuations run on, which have ended, and when no better one
// can come. Values in, values out: no request, no sequence, no block is known here.
//
// It finds what transformers' GenerationMixin finds for one prompt (generation/utils.py,
// _beam_search, of the version named in tests/golden/beams.json): the same sequences with the same
// scores. Where masks leave fewer continuations than beams, fewer beams run on; transformers fills
// up with masked ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ipc/types.h"

namespace baton {

class BeamSearch {
 public:
  /// What may follow one running beam, best first; StepResult::candidates says which ones are
  /// needed.
  struct Row {
    std::span<const Token> tokens;
    std::span<const float> logprobs;
  };
  /// A beam that runs on: `token` after the beam that was the `parent`-th.
  struct Child {
    std::uint32_t parent = 0;
    Token token = 0;
  };
  struct Hypothesis {
    std::vector<Token> tokens;                 // what ended it included
    float score = 0;                           // sum of log probabilities / length ^ length_penalty
    FinishReason reason = FinishReason::none;  // stop or length
  };

  /// Begins with one beam, the prompt. Of `params` only what concerns beams, stop ids and lengths
  /// counts.
  explicit BeamSearch(const SamplingParams& params);

  /// One more token: `rows[i]` is what may follow the i-th running beam. Not after done().
  void advance(std::span<const Row> rows);

  /// The beams that run on since the last advance(), best first.
  const std::vector<Child>& children() const { return children_; }
  std::uint32_t running() const { return static_cast<std::uint32_t>(running_.size()); }
  std::uint32_t length() const { return length_; }
  bool done() const { return done_; }
  /// The best `n` of those that have ended, best first; fewer if fewer have.
  std::vector<Hypothesis> best(std::uint32_t n) const;

 private:
  /// A token of the tree of all beams; its path to the root is a beam.
  struct Node {
    std::int32_t parent;
    Token token;
  };
  struct Beam {
    std::int32_t node = -1;
    float score = 0;  // sum of log probabilities
  };
  struct Candidate {
    float score;
    std::uint32_t beam;
    Token token;
  };
  struct Ended {
    std::int32_t node;
    float score;
    FinishReason reason;
  };

  void rank(std::span<const Row> rows);
  std::int32_t add_node(std::int32_t parent, Token token);
  void end(std::int32_t node, float sum, FinishReason reason);
  bool is_stop(Token token) const;
  bool can_improve() const;
  float by_length(float score, std::uint32_t length) const;

  std::uint32_t width_;
  std::uint32_t max_tokens_;
  std::uint32_t min_tokens_;
  float length_penalty_;
  EarlyStopping early_stopping_;
  std::vector<Token> stop_ids_;

  std::uint32_t length_ = 0;  // tokens of every running beam
  bool done_ = false;
  std::vector<Node> nodes_;
  std::vector<Beam> running_;  // best first
  std::vector<Ended> ended_;   // best first, at most width_
  std::vector<Child> children_;
  std::vector<Candidate> ranked_;  // scratch
};

}  // namespace baton
