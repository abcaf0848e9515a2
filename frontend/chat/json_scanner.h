// Checks JSON letter by letter, as it arrives, and says where in it one stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

/// A value. Reads one object or array. Unlike the body's reader it lets lone surrogates ("\ud800")
/// pass: they only show when the text is whole.
class JsonScanner {
 public:
  static constexpr std::size_t kMaxDepth = 64;
  /// Control characters inside of strings, which JSON wants as escapes.
  enum class Controls : std::uint8_t { refused, allowed };

  explicit JsonScanner(Controls controls = Controls::refused) : controls_(controls) {}

  /// False: `c` cannot follow, and the scanner stays as it was.
  bool feed(char c);
  /// Brackets that are open.
  std::size_t depth() const { return open_.size(); }
  /// The value has ended; nothing may follow.
  bool done() const { return mode_ == Mode::done; }
  /// Inside a string, its first quote included, its last one not.
  bool in_string() const {
    return mode_ == Mode::string || mode_ == Mode::escape || mode_ == Mode::hex;
  }
  /// That string, or the one that has just ended, is the key of a member.
  bool is_key() const { return key_; }

 private:
  enum class Mode : std::uint8_t {
    value,
    first_value,  // or the end of an array
    key,
    first_key,  // or the end of an object
    colon,
    after_value,
    string,
    escape,
    hex,
    word,  // true, false, null
    number,
    done,
  };
  /// What a number has had, and so what may follow.
  enum class Digits : std::uint8_t { minus, zero, whole, point, fraction, e, sign, exponent };

  bool begin_value(char c);
  bool begin_string(bool key);
  bool close(char bracket);
  bool feed_string(char c);
  bool feed_number(char c);
  bool number_may_end() const;

  Controls controls_;
  std::string open_;  // brackets
  Mode mode_ = Mode::value;
  Digits digits_ = Digits::minus;
  std::string_view word_;  // what is left of it
  int hex_left_ = 0;
  bool key_ = false;
};

}  // namespace baton
