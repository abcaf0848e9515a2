// Byte-pair encoding: the "model" of a tokenizer.json of type BPE.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// The character that stands for a byte in a byte-level vocabulary (GPT-2's table).
char32_t byte_level_character(unsigned char byte);
/// The bytes that a token of such a vocabulary stands for; false when it holds another character.
bool byte_level_bytes(std::string_view token, std::string& bytes);

/// Const and safe for several threads. Merges as Sennrich et al. (2016): of all neighbouring pairs
/// the one with the lowest rank first, of equal ones the leftmost.
class Bpe {
 public:
  /// `byte_level`: words are encoded byte by byte; otherwise character by character, with byte
  /// fallback or an unknown token for what has no piece. dropout, continuing_subword_prefix and
  /// end_of_word_suffix are refused.
  static Result<Bpe> parse(const nlohmann::json& spec, bool byte_level, const std::string& where);

  /// Token strings by id; empty where an id is not taken.
  const std::vector<std::string>& tokens() const { return tokens_; }
  /// Number of tokens; less than tokens().size() when ids are missing.
  std::size_t vocab_size() const { return ids_.size(); }
  /// -1: no token.
  Token id_of(std::string_view token) const;
  /// No token covers more bytes of a word; 0: not known, since bytes may get lost or fuse.
  std::size_t max_token_bytes() const { return max_token_bytes_; }

  Bpe(Bpe&&) = default;
  Bpe& operator=(Bpe&&) = default;

  /// Appends the ids of a word (valid UTF-8). The work is n log n in its length.
  void encode(std::string_view word, std::vector<Token>& ids) const;

 private:
  Bpe() = default;
  struct ViewHash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  static constexpr std::uint32_t kNoRank = UINT32_MAX;
  static constexpr std::uint64_t kNoPair = UINT64_MAX;
  struct Merge {
    std::uint64_t pair = kNoPair;
    std::uint32_t rank = kNoRank;
  };
  static std::uint64_t pair_of(Token left, Token right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t pair) const {
    return (pair * 0x9E3779B97F4A7C15U >> 32) & (merges_.size() - 1);
  }

  Status read_vocab(const nlohmann::json& vocab, const std::string& where);
  Status read_merges(const nlohmann::json& merges, const std::string& where);
  void index_characters();
  void find_bounds();
  void add_merge(std::uint64_t pair, std::uint32_t rank);
  std::uint32_t rank_of(Token left, Token right) const;
  Token word_id(std::string_view word) const;
  Token character_id(char32_t character, std::string_view bytes) const;

  void encode_part(std::string_view part, std::vector<Token>& ids) const;
  void first_symbols(std::string_view part, std::vector<Token>& symbols) const;
  void merge_short(std::vector<Token>& symbols) const;
  void merge_long(const std::vector<Token>& symbols, std::vector<Token>& ids) const;

  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;
  bool cuts_before_spaces_ = false;  // no token holds U+2581 behind something else
  Token unk_ = -1;
  std::size_t max_token_bytes_ = 0;
  std::uint64_t instance_ = 0;  // names this model in the caches of threads
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, Token> ids_;  // of tokens_
  // Bytes of a word -> its token; for ignore_merges.
  std::unordered_map<std::string, Token, ViewHash, std::equal_to<>> byte_words_;
  std::array<Token, 256> byte_ids_{};  // of single bytes (byte level or fallback)
  std::vector<Token> character_ids_;   // below U+10000
  std::vector<Merge> merges_;          // open addressing, a power of two
  std::vector<Token> merged_;          // by rank
};

}  // namespace baton
