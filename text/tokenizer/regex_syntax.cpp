// Oniguruma's syntax to PCRE2's, for the expressions that tokenizers use.
#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>

#include "text/tokenizer/regex.h"
#include "text/tokenizer/unicode.h"

namespace baton {
namespace {

constexpr std::string_view kNotSpaceMembers =
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}"
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}"
    "\\x{3001}-\\x{10FFFF}";

/// Oniguruma's word characters: in Latin-1, digits that are no decimal digits, too.
std::string word_members() {
  return std::string(kWordMembers) + "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
}

/// Letters that one character folds to: Oniguruma matches that character with them, PCRE2 does not.
constexpr std::array<std::string_view, 5> kFolded = {"ss", "ff", "fi", "fl", "st"};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern), whole_(pattern) {}

  Result<std::string> run() {
    if (rest_.substr(0, 4) == "(?i)") {
      rest_.remove_prefix(4);
      out_ += "(?i)";
      folds_ = true;
    }
    while (!rest_.empty() && problem_.empty()) step();
    if (folds_ && problem_.empty()) check_folding();
    if (!problem_.empty()) {
      return Status(ErrorCode::unavailable, "the expression " + std::string(whole_) + " holds " +
                                                problem_ + ", which is not supported");
    }
    return std::move(out_);
  }

 private:
  void refuse(std::string what) {
    if (problem_.empty()) problem_ = std::move(what);
  }

  void step() {
    const char c = rest_[0];
    switch (c) {
      case '\\':
        escape(false);
        return;
      case '[':
        character_class();
        return;
      case '(':
        group();
        return;
      case '*':
      case '+':
      case '?':
        take(1);
        quantifier_suffix(true);
        return;
      case '{':
        interval();
        return;
      default:
        take(1);
    }
  }

  void take(std::size_t bytes) {
    out_ += rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
  }

  /// What may follow a quantifier: one `?` or, where it means possessive in both, one `+`.
  void quantifier_suffix(bool may_be_possessive) {
    if (rest_.empty()) return;
    if (rest_[0] == '?' || (rest_[0] == '+' && may_be_possessive)) {
      take(1);
    } else if (rest_[0] == '+') {
      return refuse("a quantifier of a quantifier");
    }
    if (!rest_.empty() && std::string_view("*+?{").find(rest_[0]) != std::string_view::npos) {
      refuse("a quantifier of a quantifier");
    }
  }

  // {n}, {n,} and {n,m}; Oniguruma reads {,n}, {n}? and {n,m}+ otherwise than PCRE2.
  void interval() {
    const std::size_t end = rest_.find('}');
    const std::string_view inside = rest_.substr(1, end == std::string_view::npos ? 0 : end - 1);
    const bool digits = !inside.empty() && inside[0] != ',' &&
                        inside.find_first_not_of("0123456789,") == std::string_view::npos &&
                        std::count(inside.begin(), inside.end(), ',') <= 1;
    if (!digits) return refuse("an unusual '{'");
    const bool exact = inside.find(',') == std::string_view::npos;
    take(end + 1);
    if (exact && !rest_.empty() && rest_[0] == '?') return refuse("'{n}?'");
    quantifier_suffix(false);
  }

  void group() {
    if (rest_.substr(0, 2) == "(*") return refuse("'(*'");
    if (rest_.substr(0, 2) != "(?") return take(1);
    for (const std::string_view kind : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (rest_.substr(0, kind.size()) != kind) continue;
      folds_ = folds_ || kind == "(?i:";
      return take(kind.size());
    }
    refuse("the group '" + std::string(rest_.substr(0, 4)) + "'");
  }

  void character_class() {
    take(1);
    if (!rest_.empty() && rest_[0] == '^') take(1);
    if (!rest_.empty() && rest_[0] == ']') return refuse("an empty class");
    while (!rest_.empty() && rest_[0] != ']' && problem_.empty()) {
      if (rest_[0] == '\\') {
        escape(true);
      } else if (rest_[0] == '[') {
        return refuse("a class inside a class");
      } else if (rest_.substr(0, 2) == "&&") {
        return refuse("'&&' inside a class");
      } else {
        take(1);
      }
    }
    if (rest_.empty()) return refuse("a class without an end");
    take(1);
  }

  /// A set of characters: inside a class its members, outside a class of its own.
  void set(std::string_view members, bool in_class) {
    if (in_class) {
      const bool after_range = out_.back() == '-' && out_[out_.size() - 2] != '[' &&
                               out_[out_.size() - 2] != '^' && out_[out_.size() - 2] != '\\';
      if (after_range) refuse("a range to a class");
      out_ += members;
      if (rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']') refuse("a range from a class");
    } else {
      out_ += "[" + std::string(members) + "]";
    }
  }

  void escape(bool in_class) {
    if (rest_.size() < 2) return refuse("a '\\' at its end");
    const char c = rest_[1];
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 || std::ispunct(byte) != 0 || c == ' ') return take(2);
    rest_.remove_prefix(2);
    switch (c) {
      case 's':
        return set(kSpaceMembers, in_class);
      case 'S':
        return set(kNotSpaceMembers, in_class);
      case 'd':
        return set("\\p{Nd}", in_class);
      case 'D':
        return set("\\P{Nd}", in_class);
      case 'w':
        return set(word_members(), in_class);
      case 'W':
        if (in_class) return refuse("'\\W' inside a class");
        out_ += "[^" + word_members() + "]";
        return;
      case 'b':
      case 'B':
        if (in_class) return refuse(std::string("'\\") + c + "' inside a class");
        return word_boundary(c == 'b');
      case 'p':
      case 'P':
        return property(c);
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        out_ += {'\\', c};
        return;
      case 'v':
        out_ += "\\x{B}";
        return;
      case 'u':
      case 'x':
        return code_point(c);
      case 'A':
      case 'z':
        if (!in_class) {
          out_ += {'\\', c};
          return;
        }
        [[fallthrough]];
      default:
        refuse(std::string("'\\") + c + "'");
    }
  }

  // PCRE2's own \b goes by its own \w.
  void word_boundary(bool wanted) {
    const std::string word = "[" + word_members() + "]";
    const char* ahead_behind = wanted ? "!" : "=";
    const char* ahead_before = wanted ? "=" : "!";
    out_ += "(?:(?<=" + word + ")(?" + ahead_behind + word + ")|(?<!" + word + ")(?" +
            ahead_before + word + "))";
  }

  // Behind `\p`: a general category (one or two letters), or a script, which PCRE2 would otherwise
  // take for its extensions.
  void property(char p) {
    const std::size_t end = rest_.find('}');
    if (rest_.empty() || rest_[0] != '{' || end == std::string_view::npos) {
      return refuse(std::string("'\\") + p + "' without a name in braces");
    }
    std::string name(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    const std::string negation = !name.empty() && name[0] == '^' ? "^" : "";
    name.erase(0, negation.size());
    const bool letters = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
      return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
    });
    if (!letters) return refuse("the property '" + name + "'");
    out_ += std::string("\\") + p + "{" + negation + (name.size() > 2 ? "sc:" : "") + name + "}";
  }

  void code_point(char kind) {
    std::string_view digits = rest_.substr(0, kind == 'u' ? 4 : 2);
    std::size_t taken = digits.size();
    if (kind == 'x' && !rest_.empty() && rest_[0] == '{') {
      const std::size_t end = std::min(rest_.find('}'), rest_.size());
      digits = rest_.substr(1, end - 1);
      taken = end + 1;
    } else if (digits.size() != (kind == 'u' ? 4U : 2U) || (kind == 'x' && digits[0] > '7')) {
      return refuse(std::string("an unusual '\\") + kind + "'");  // \x80 would be a byte
    }
    const bool hex = !digits.empty() && digits.size() <= 6 &&
                     digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
    if (!hex || taken > rest_.size()) return refuse(std::string("an unusual '\\") + kind + "'");
    out_ += "\\x{" + std::string(digits) + "}";
    rest_.remove_prefix(taken);
  }

  void check_folding() {
    std::string small(whole_);
    std::transform(small.begin(), small.end(), small.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    for (const std::string_view letters : kFolded) {
      if (small.find(letters) != std::string::npos) {
        refuse("'" + std::string(letters) + "' beside (?i)");
      }
    }
  }

  std::string_view rest_;
  std::string_view whole_;
  std::string out_;
  std::string problem_;
  bool folds_ = false;
};

}  // namespace

Result<std::string> translate_regex(std::string_view pattern) {
  // Every start inside one run of spaces would look at the rest of the run again. A match that
  // begins inside of a run could as well begin where the run, or the search, does.
  if (pattern == "\\s+$") {
    const std::string space = "[" + std::string(kSpaceMembers) + "]";
    return "(?:(?<!" + space + ")|\\G)" + space + "+$";
  }
  return Translator(pattern).run();
}

std::string escape_regex(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const char32_t character = take_character(text);
    static constexpr char kDigits[] = "0123456789ABCDEF";
    out += "\\x{";
    for (int shift = 20; shift >= 0; shift -= 4) out += kDigits[character >> shift & 15U];
    out += "}";
  }
  return out;
}

}  // namespace baton
