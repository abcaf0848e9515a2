// Text to token ids and back, for the tokenizer of a Hugging Face model folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"
#include "text/tokenizer/piece_table.h"

namespace baton {

/// A stretch of a prompt.
struct PromptPart {
  std::string_view text;
  /// Special tokens written in it become their ids: text of a chat template. False: what somebody
  /// says, in which they are ordinary letters.
  bool trusted = false;
};

/// What a model folder says about its tokens besides their texts.
struct TokenFacts {
  std::vector<Token> eos_ids;    // at least one
  std::uint32_t vocab_size = 0;  // at least the number of pieces
  Token bos = -1;
  bool add_bos = true;
};

/// Everything is const and safe to use from several threads at once.
///
/// Special tokens are what a conversation is marked up with. Of a sentencepiece model: the control
/// symbols and the user-defined symbols that look like `<...>` or `[...]`. Of a tokenizer.json:
/// the added tokens with `"special": true`; its other added tokens are found in any text, and are
/// text when decoded.
class Tokenizer {
 public:
  /// Reads the tokenizer of `dir`, and, where they exist, config.json, generation_config.json
  /// (vocab_size, eos_token_id: a number or a list) and tokenizer_config.json (add_bos_token,
  /// legacy).
  ///
  /// `which`: "tokenizer.json" or "tokenizer.model" takes that file alone, "auto" what suits.
  static Result<std::unique_ptr<Tokenizer>> load(const std::string& dir,
                                                 const std::string& which = "auto");
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  static constexpr std::size_t kNoLimit = SIZE_MAX;

  /// Ids of a whole prompt. Special tokens in `text` become their ids, so that a client can render
  /// a chat by itself (of a sentencepiece model only the user-defined ones: that library's own
  /// rule). `add_bos`: with what the model wants around a prompt. Empty when there are more than
  /// `limit`: that is often known long before the end of a text, which bounds the work. Empty, too,
  /// when an expression of tokenizer.json reaches PCRE2's limits.
  virtual std::optional<std::vector<Token>> encode_within(std::string_view text, bool add_bos,
                                                          std::size_t limit) const = 0;

  /// Ids of text that may not hold special tokens: what a user says inside a chat. "<|end|>" in it
  /// becomes ordinary letters. `after_special`: the text follows a special token.
  virtual std::optional<std::vector<Token>> encode_plain_within(std::string_view text,
                                                                bool after_special,
                                                                std::size_t limit) const = 0;

  /// Ids of a prompt put together from `parts`, as of one text: letters on both sides of a border
  /// may share a token. A special token parses where all of it is trusted. No bos is added.
  virtual std::optional<std::vector<Token>> encode_parts_within(std::span<const PromptPart> parts,
                                                                std::size_t limit) const;

  std::vector<Token> encode(std::string_view text, bool add_bos) const {
    return *encode_within(text, add_bos, kNoLimit);
  }
  std::vector<Token> encode_plain(std::string_view text, bool after_special) const {
    return *encode_plain_within(text, after_special, kNoLimit);
  }

  /// The longest special token that `text` begins with, or -1; its length in bytes in `*length`.
  Token special_at(std::string_view text, std::size_t* length) const {
    return pieces_.special_at(text, length);
  }

  /// The file that it was read from: tokenizer.json or tokenizer.model.
  const std::string& source() const { return source_; }
  /// Ids that a model may be asked to read or to make: [0, vocab_size).
  std::uint32_t vocab_size() const { return facts_.vocab_size; }
  /// Ids that have a text: [0, piece_count), at most vocab_size.
  std::size_t piece_count() const { return pieces_.size(); }
  /// -1: the model has none.
  Token bos() const { return facts_.bos; }
  /// Whether a prompt of plain text is put between such tokens: of a sentencepiece model, whether
  /// it begins with bos (tokenizer_config.json; true by default).
  bool add_bos() const { return facts_.add_bos; }
  /// Ids that end a sequence; at least one.
  const std::vector<Token>& eos_ids() const { return facts_.eos_ids; }

  PieceKind kind(Token id) const { return pieces_.kind(id); }
  bool is_special(Token id) const { return kind(id) == PieceKind::special; }
  /// Bytes of the piece in the middle of a sentence: "▁the" is " the". Empty for a special one and
  /// for ids without a piece. May hold parts of characters for PieceKind::bytes.
  std::string_view piece_text(Token id) const {
    return is_special(id) ? std::string_view() : pieces_.bytes(id);
  }
  /// As piece_text, but a special token's own letters too: what a list of probabilities shows.
  std::string_view token_bytes(Token id) const { return pieces_.bytes(id); }
  /// token_bytes as text: U+FFFD for bytes that are no character by themselves.
  std::string token_text(Token id) const;
  /// The piece begins with a space that decoding may drop at the start of a text.
  bool begins_with_space(Token id) const { return pieces_.begins_with_space(id); }

  const DecodingRule& decoding() const { return pieces_.decoding(); }

  /// Text of a whole sequence, as TextStream gives it piece by piece.
  std::string decode(std::span<const Token> ids, bool skip_special_tokens = true) const;

 protected:
  Tokenizer(PieceTable pieces, TokenFacts facts)
      : pieces_(std::move(pieces)), facts_(std::move(facts)) {}

 private:
  PieceTable pieces_;
  TokenFacts facts_;
  std::string source_;
};

}  // namespace baton
