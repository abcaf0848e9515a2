// What a request asks to change in a row of logits before a token is drawn from it: bias, masks and
// penalties. Torch-free; knows no batch.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ipc/types.h"

namespace baton {

/// Why a row has no token.
constexpr const char* kNothingToDraw =
    "the logits hold a NaN or an infinity, or every token is masked";

/// Edits one row in place and puts it back afterwards. Keeps scratch memory: one instance a thread.
///
/// Order: the end of a reasoning whose budget is used, and then nothing else; allowed_tokens;
/// bad_words; stop ids below min_tokens; logit_bias; repetition, frequency and presence penalty.
/// The order and the formulas are those of vLLM's sampler: repetition divides a positive logit and
/// multiplies a negative one (CTRL, https://arxiv.org/abs/1909.05858), for every token of prompt
/// and output; the other two count the output alone (OpenAI's API reference). A bad word is looked
/// for in the output alone.
class LogitEdits {
 public:
  /// `history`: prompt and output, as BatchRow has it; may be empty unless it is needed
  /// (BatchRow::needs_history()). Token ids outside of the row are passed over.
  void apply(std::span<float> logits, const SamplingParams& params, std::uint32_t n_generated,
             std::span<const Token> history, std::uint32_t n_prompt);
  /// The row of the last apply() gets its values back.
  void restore(std::span<float> logits);

 private:
  void keep_only(std::span<float> logits, std::span<const Token> allowed);
  void set(std::span<float> logits, Token token, float value);
  void mask_bad_words(std::span<float> logits, const std::vector<std::vector<Token>>& words,
                      std::span<const Token> output);
  void penalise(std::span<float> logits, const SamplingParams& params,
                std::span<const Token> history, std::uint32_t n_prompt);

  std::vector<std::pair<std::size_t, float>> changed_;  // where, and what was there
  std::vector<float> row_;           // the whole row, where only allowed tokens were left
  std::vector<std::uint32_t> seen_;  // times in the output + 1 for each token met; else 0
};

}  // namespace baton
