// Texts drawn at random under a grammar, with the demo model's vocabulary.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "text/grammar/grammar_engine.h"
#include "text/tokenizer/tokenizer.h"

namespace baton::testing {

inline const Tokenizer& demo_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto loaded = Tokenizer::load("demo/model");
    if (!loaded.ok()) throw std::runtime_error(loaded.status().message());
    return std::move(loaded).value();
  }();
  return *tokenizer;
}

inline GrammarEngine& engine() {
  static GrammarEngine made(demo_tokenizer(), demo_tokenizer().vocab_size());
  return made;
}

inline CompiledGrammar compiled(GrammarKind kind, const std::string& text) {
  auto made = engine().compile(kind, text);
  if (!made.ok()) throw std::runtime_error(made.status().message());
  return std::move(made).value();
}

inline bool allows(const std::vector<std::uint32_t>& mask, Token id) {
  const auto at = static_cast<std::size_t>(id);
  return (mask[at / 32] >> (at % 32) & 1U) != 0;
}

inline std::vector<Token> allowed(const GrammarMatcher& matcher) {
  std::vector<std::uint32_t> mask(engine().mask_words());
  matcher.fill(mask);
  std::vector<Token> ids;
  for (Token id = 0; id < static_cast<Token>(engine().vocab_size()); ++id) {
    if (allows(mask, id)) ids.push_back(id);
  }
  return ids;
}

inline bool is_eos(Token id) {
  const auto& eos = demo_tokenizer().eos_ids();
  return std::find(eos.begin(), eos.end(), id) != eos.end();
}

/// A model without a taste: any allowed token, the shorter ones and the end rather more often, so
/// that the text ends. Nothing: it did not within `limit` tokens.
inline std::optional<std::string> random_text(GrammarMatcher& matcher, unsigned seed,
                                              std::size_t limit = 2000) {
  std::mt19937 random(seed);
  std::string text;
  for (std::size_t n = 0; n < limit; ++n) {
    const std::vector<Token> ids = allowed(matcher);
    if (ids.empty()) {
      ADD_FAILURE() << "nothing may follow '" << text << "'";
      return std::nullopt;
    }
    std::vector<double> weights;
    for (const Token id : ids) {
      const auto bytes = demo_tokenizer().piece_text(id);
      const bool closes = bytes == "\"" || bytes == "}" || bytes == "]";
      weights.push_back(is_eos(id) || closes                               ? 40.0
                        : bytes.find_first_not_of(" \n\t\r") == bytes.npos ? 0.05
                                                                           : 1.0);
    }
    const Token id =
        ids[std::discrete_distribution<std::size_t>(weights.begin(), weights.end())(random)];
    EXPECT_TRUE(matcher.accept(id)) << "the mask allowed token " << id;
    if (is_eos(id)) return text;
    text += demo_tokenizer().piece_text(id);
  }
  return std::nullopt;
}

inline std::optional<std::string> random_text(const CompiledGrammar& grammar, unsigned seed,
                                              std::size_t limit = 2000) {
  GrammarMatcher matcher(grammar, demo_tokenizer().eos_ids());
  return random_text(matcher, seed, limit);
}

}  // namespace baton::testing
