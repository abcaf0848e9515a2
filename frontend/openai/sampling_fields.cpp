// The sampling fields beyond temperature, top_p and top_k.
#include <algorithm>
#include <charconv>
#include <string_view>

#include "frontend/openai/request_fields.h"

namespace baton {
namespace {

using Json = nlohmann::json;

void read_numbers(FieldReader& fields, SamplingParams& sampling) {
  const auto read = [&](const char* name, float& value, double low, double high,
                        bool low_excluded) {
    const auto given = fields.number(name, low, high, low_excluded);
    // A value that is above the lowest one stays so as a float.
    if (given) value = std::max(static_cast<float>(*given), low_excluded ? 1e-6F : -1e30F);
  };
  read("min_p", sampling.min_p, 0, 1, false);
  read("typical_p", sampling.typical_p, 0, 1, true);
  read("repeat_penalty", sampling.repetition_penalty, 0, kMaxRepetitionPenalty,
       true);  // llama.cpp's name
  read("repetition_penalty", sampling.repetition_penalty, 0, kMaxRepetitionPenalty, true);
  read("presence_penalty", sampling.presence_penalty, -kMaxPenalty, kMaxPenalty, false);
  read("frequency_penalty", sampling.frequency_penalty, -kMaxPenalty, kMaxPenalty, false);
}

void read_logit_bias(FieldReader& fields, const ServedModel& model, SamplingParams& sampling) {
  const Json* bias = fields.take("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object() || bias->size() > kMaxBiasedTokens) {
    fields.fail("logit_bias", "must be an object of at most " + std::to_string(kMaxBiasedTokens) +
                                  " token ids, each with a number");
    return;
  }
  const auto vocab = static_cast<Token>(model.tokenizer->vocab_size());
  for (const auto& [key, value] : bias->items()) {
    Token id = -1;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    if (read.ec != std::errc() || read.ptr != key.data() + key.size() || id < 0 || id >= vocab) {
      fields.fail("logit_bias", "has the key '" + key.substr(0, 64) +
                                    "', which is no token id between 0 and " +
                                    std::to_string(vocab - 1));
      return;
    }
    if (!value.is_number() || value.get<double>() < -kMaxBias || value.get<double>() > kMaxBias) {
      fields.fail("logit_bias", "must give token " + key + " a number between -100 and 100");
      return;
    }
    sampling.bias_tokens.push_back(id);
    sampling.bias_values.push_back(value.get<float>());
  }
}

/// The tokens of the word where a text begins with it, and of the word behind another one; often
/// they are the same.
void add_bad_word(const std::string& word, const Tokenizer& tokenizer,
                  std::vector<std::vector<Token>>& words) {
  const std::size_t begin = std::min(word.find_first_not_of(' '), word.size());
  const std::string bare = word.substr(begin);
  for (const std::string& form : {bare, " " + bare}) {
    std::vector<Token> ids = tokenizer.encode_plain(form, false);
    if (ids.empty() || std::find(words.begin(), words.end(), ids) != words.end()) continue;
    words.push_back(std::move(ids));
  }
}

void read_bad_words(FieldReader& fields, const ServedModel& model, SamplingParams& sampling) {
  const Json* words = fields.take("bad_words");
  if (words == nullptr) return;
  if (!words->is_array() || words->size() > kMaxBadWords) {
    fields.fail("bad_words",
                "must be an array of at most " + std::to_string(kMaxBadWords) + " strings");
    return;
  }
  for (std::size_t i = 0; i < words->size() && fields.ok(); ++i) {
    const Json& word = (*words)[i];
    const bool right =
        word.is_string() && word.get_ref<const std::string&>().size() <= kMaxBadWordBytes;
    if (!right || word.get_ref<const std::string&>().find_first_not_of(' ') == std::string::npos) {
      fields.fail("bad_words[" + std::to_string(i) + "]", "must be a string of at most " +
                                                              std::to_string(kMaxBadWordBytes) +
                                                              " bytes that is not blank");
      return;
    }
    add_bad_word(word.get_ref<const std::string&>(), *model.tokenizer, sampling.bad_words);
  }
}

}  // namespace

void read_allowed_tokens(FieldReader& fields, const ServedModel& model, SamplingParams& sampling) {
  const Json* ids = fields.take("allowed_token_ids");
  if (ids == nullptr) return;
  if (!ids->is_array() || ids->empty() || ids->size() > kMaxAllowedTokens) {
    fields.fail("allowed_token_ids",
                "must be an array of 1 to " + std::to_string(kMaxAllowedTokens) + " token ids");
    return;
  }
  auto& allowed = sampling.allowed_tokens =
      read_token_ids(fields, *ids, "allowed_token_ids", model);
  std::sort(allowed.begin(), allowed.end());
  allowed.erase(std::unique(allowed.begin(), allowed.end()), allowed.end());
}

void read_further_sampling(FieldReader& fields, const ServedModel& model, ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  read_numbers(fields, sampling);
  read_logit_bias(fields, model, sampling);
  read_allowed_tokens(fields, model, sampling);
  read_bad_words(fields, model, sampling);
}

}  // namespace baton
