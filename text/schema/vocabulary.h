// A model's tokens as tries, and what of them may stand in any JSON string.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace baton::schema {

using Mask = std::vector<std::uint32_t>;

inline void set_bit(std::uint32_t* mask, std::uint32_t i) { mask[i / 32] |= 1U << (i % 32); }
inline void clear_bit(std::uint32_t* mask, std::uint32_t i) { mask[i / 32] &= ~(1U << (i % 32)); }

/// Texts of tokens, in an order in which what starts alike is together.
struct TokenTrie {
  struct Node {
    std::uint32_t skip = 0;   // the next node that is not below this one
    std::uint32_t token = 0;  // the first of its tokens, and of those below it
    std::uint16_t depth = 0;  // from 1 on
    unsigned char byte = 0;
  };
  std::vector<Node> nodes;  // and one that ends them
  std::vector<std::uint32_t> tokens;
  std::size_t deepest = 0;

  void build(const std::vector<std::string>& texts, std::vector<std::uint32_t> ids);
};

/// Immutable but for a cache of its own. Thread-safe.
class Vocabulary {
 public:
  /// `texts` by token; an empty one never matches. `specials`: tokens without a text that a
  /// structural tag may name.
  Vocabulary(std::vector<std::string> texts, std::uint32_t size,
             std::map<std::string, std::uint32_t, std::less<>> specials = {});

  std::uint32_t size() const { return size_; }
  std::size_t mask_words() const { return (size_ + 31U) / 32U; }
  std::string_view text(std::uint32_t token) const {
    return token < texts_.size() ? std::string_view(texts_[token]) : std::string_view();
  }
  const TokenTrie& all() const { return all_; }
  const TokenTrie& with_quote() const { return with_quote_; }
  const TokenTrie& without_quote() const { return without_quote_; }
  /// All tokens with a text.
  const Mask& with_text() const { return with_text_; }
  /// Of these, the ones that hold the byte.
  const std::vector<std::uint32_t>& all_holding(unsigned char byte) const {
    return all_holding_[byte];
  }
  /// The id of a special token, by its text. Valid as long as this.
  std::function<std::optional<std::uint32_t>(std::string_view)> special_ids() const;
  const std::map<std::string, std::uint32_t, std::less<>>& specials() const { return specials_; }
  bool is_special(std::uint32_t token) const { return special_tokens_.contains(token); }
  /// Tokens that may come between two characters of any string and do not end it.
  const Mask& free() const { return free_; }
  /// Of those, the ones that hold the byte.
  const std::vector<std::uint32_t>& holding(unsigned char byte) const { return holding_[byte]; }
  std::size_t free_count() const { return free_count_; }
  /// Characters of the longest token.
  std::uint32_t longest() const { return longest_; }
  /// Of those, the ones of at most so many characters; `characters` < longest().
  const Mask& of_at_most(std::uint32_t characters) const;

 private:
  const std::uint32_t size_;
  std::vector<std::string> texts_;
  TokenTrie all_;
  TokenTrie with_quote_;
  TokenTrie without_quote_;
  std::map<std::string, std::uint32_t, std::less<>> specials_;
  std::unordered_set<std::uint32_t> special_tokens_;
  Mask with_text_;
  std::array<std::vector<std::uint32_t>, 256> all_holding_;
  Mask free_;
  std::size_t free_count_ = 0;
  std::uint32_t longest_ = 1;
  std::vector<std::uint16_t> lengths_;  // in characters of a JSON string; 0: not free
  std::array<std::vector<std::uint32_t>, 256> holding_;
  mutable std::mutex mutex_;
  mutable std::map<std::uint32_t, Mask> short_;
};

}  // namespace baton::schema
