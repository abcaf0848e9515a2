// Text to token ids and back, with a sentencepiece model in a Hugging Face model folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace baton {

struct SentencePieceFacts;

/// What one id means to the detokeniser.
enum class PieceKind : std::uint8_t {
  text,     // `piece_text` is its text
  byte,     // one byte of a character that has no piece of its own
  special,  // a control symbol or a turn marker: never part of the text
};

/// Everything is const and safe to use from several threads at once.
///
/// Special pieces are the model's control symbols and its turn markers: user-defined symbols that
/// look like `<...>` or `[...]`. Other user-defined symbols ("\n", digits) are ordinary text.
class Tokenizer {
 public:
  /// Reads tokenizer.model, and, where they exist, config.json, generation_config.json (vocab_size,
  /// eos_token_id: a number or a list) and tokenizer_config.json (add_bos_token, legacy) of `dir`.
  static Result<std::unique_ptr<Tokenizer>> load(const std::string& dir);
  ~Tokenizer();

  static constexpr std::size_t kNoLimit = SIZE_MAX;

  /// Ids of a whole prompt. Turn markers in `text` become their tokens, so that a client can render
  /// a chat by itself; control symbols do not (sentencepiece's own rule). Empty when there are more
  /// than `limit`: that is often known long before the end of a text, which bounds the work.
  std::optional<std::vector<Token>> encode_within(std::string_view text, bool add_bos,
                                                  std::size_t limit) const;

  /// Ids of text that may not hold special tokens: what a user says inside a chat. "<|end|>" in it
  /// becomes ordinary letters. `after_special`: the text follows a special token.
  std::optional<std::vector<Token>> encode_plain_within(std::string_view text, bool after_special,
                                                        std::size_t limit) const;

  std::vector<Token> encode(std::string_view text, bool add_bos) const {
    return *encode_within(text, add_bos, kNoLimit);
  }
  std::vector<Token> encode_plain(std::string_view text, bool after_special) const {
    return *encode_plain_within(text, after_special, kNoLimit);
  }

  /// The longest special piece that `text` begins with, or -1; its length in bytes in `*length`.
  Token special_at(std::string_view text, std::size_t* length) const;

  /// Ids that a model may be asked to read or to make: [0, vocab_size).
  std::uint32_t vocab_size() const { return vocab_size_; }
  /// -1: the model has none.
  Token bos() const { return bos_; }
  /// Whether a prompt of plain text begins with bos (tokenizer_config.json; true by default).
  bool add_bos() const { return add_bos_; }
  /// Ids that end a sequence; at least one.
  const std::vector<Token>& eos_ids() const { return eos_ids_; }

  PieceKind kind(Token id) const;
  bool is_special(Token id) const { return kind(id) == PieceKind::special; }
  /// Text of the piece in the middle of a sentence: "▁the" is " the". One raw byte for a byte
  /// piece, empty for a special one and for ids without a piece.
  std::string_view piece_text(Token id) const;
  /// The piece begins with sentencepiece's space symbol (U+2581).
  bool begins_with_space(Token id) const;

  /// How decoding treats spaces at the very start of a text.
  enum class LeadingSpace : std::uint8_t { keep, drop_one, drop_all };
  LeadingSpace leading_space() const { return leading_space_; }

  /// Text of a whole sequence, as TextStream gives it piece by piece.
  std::string decode(std::span<const Token> ids) const;

 private:
  Tokenizer();
  struct Entry {
    std::uint32_t offset = 0;  // into text_
    std::uint16_t length = 0;
    PieceKind kind = PieceKind::special;
    bool space = false;
  };
  Status load_model(const std::string& bytes, const std::string& path);
  Status load_settings(const std::string& dir);
  bool fill_table(const SentencePieceFacts& facts, const std::vector<bool>& marker);
  void find_bounds(const SentencePieceFacts& facts);

  /// `rest` is for text that does not begin a prompt: no dummy prefix. Null: as `first`.
  struct Encoder {
    std::unique_ptr<sentencepiece::SentencePieceProcessor> first;
    std::unique_ptr<sentencepiece::SentencePieceProcessor> rest;
  };
  Status load_encoder(const std::string& bytes, const std::string& path, Encoder& encoder) const;
  bool encode_into(const Encoder& encoder, bool begins, std::string_view text, std::size_t limit,
                   std::vector<Token>& ids) const;

  Encoder whole_;  // markers parse
  Encoder plain_;  // markers are letters; empty when the model has none
  std::vector<Entry> pieces_;
  std::string text_;
  std::vector<std::pair<std::string, Token>> specials_;  // longest first
  std::vector<Token> eos_ids_;
  std::uint32_t vocab_size_ = 0;
  Token bos_ = -1;
  bool add_bos_ = true;
  bool dummy_prefix_ = true;
  bool prefix_after_special_ = true;
  bool splits_at_spaces_ = false;    // no piece reaches over the space between two words
  std::size_t max_piece_bytes_ = 0;  // no token covers more of a text; 0: not known
  LeadingSpace leading_space_ = LeadingSpace::keep;
};

}  // namespace baton
