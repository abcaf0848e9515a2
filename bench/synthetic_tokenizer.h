// A tokenizer of made-up words, as many as large models have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace baton {

/// All bytes, the punctuation of JSON in runs, digits, and words of random syllables with and
/// without a space in front. Token 0 ends a sequence.
class SyntheticTokenizer final : public Tokenizer {
 public:
  static std::unique_ptr<Tokenizer> make(std::size_t size) {
    PieceTable pieces{DecodingRule{}};
    pieces.add(PieceKind::special, "<eos>", false);
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      pieces.add(byte < 128 ? PieceKind::text : PieceKind::bytes, std::string_view(&c, 1), false);
    }
    std::mt19937_64 random(7);
    const auto pick = [&](std::string_view from) { return from[random() % from.size()]; };
    while (pieces.size() < size) {
      std::string text;
      const std::uint64_t kind = random() % 20;
      if (kind == 0) {
        for (std::uint64_t n = 2 + random() % 4; n > 0; --n) text += pick("{}[]\",: \n");
      } else if (kind == 1) {
        for (std::uint64_t n = 2 + random() % 2; n > 0; --n) text += pick("0123456789");
      } else {
        if (kind < 12) text += ' ';
        for (std::uint64_t n = 1 + random() % 4; n > 0; --n) {
          text += pick("bcdfghklmnprstvwz");
          text += pick("aeiouy");
          if (random() % 3 == 0) text += pick("nrst");
        }
      }
      pieces.add(PieceKind::text, text, false);
    }
    TokenFacts facts;
    facts.eos_ids = {0};
    facts.vocab_size = static_cast<std::uint32_t>(size);
    return std::unique_ptr<Tokenizer>(new SyntheticTokenizer(std::move(pieces), std::move(facts)));
  }

  std::optional<std::vector<Token>> encode_within(std::string_view, bool,
                                                  std::size_t) const override {
    return std::nullopt;
  }
  std::optional<std::vector<Token>> encode_plain_within(std::string_view, bool,
                                                        std::size_t) const override {
    return std::nullopt;
  }

 private:
  using Tokenizer::Tokenizer;
};

}  // namespace baton
