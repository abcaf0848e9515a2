// ECMA-262's regular expressions to automata.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/schema/char_set.h"
#include "text/schema/regex_nfa.h"
#include "text/schema/schema_tables.h"

namespace baton::schema {

struct Piece {
  enum class Kind : std::uint8_t { chars, sequence, choice, repeat, begin, end, look };
  Kind kind = Kind::sequence;
  CharSet set;
  std::vector<Piece> inside;
  std::uint32_t least = 0;
  std::uint32_t most = 0;
  bool negated = false;
};

namespace {

constexpr std::uint32_t kNoMost = UINT32_MAX;
constexpr int kMaxNesting = 100;
constexpr std::uint32_t kMaxRepeat = 100'000;

struct Problem {
  std::string what;
};

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_letter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

int hex_value(char32_t c) {
  if (is_digit(c)) return static_cast<int>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<int>(c - 'a') + 10;
  if (c >= 'A' && c <= 'F') return static_cast<int>(c - 'A') + 10;
  return -1;
}

class Parser {
 public:
  explicit Parser(std::u32string text) : text_(std::move(text)) {}

  Piece run() {
    Piece choice = parse_choice(0);
    if (at_ < text_.size()) throw Problem{"an unmatched )"};
    return choice;
  }

 private:
  bool more() const { return at_ < text_.size(); }
  char32_t peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : U'\0';
  }
  bool take(char32_t c) {
    if (!more() || peek() != c) return false;
    ++at_;
    return true;
  }

  Piece parse_choice(int depth) {
    if (depth > kMaxNesting) throw Problem{"more than 100 nested groups"};
    Piece choice;
    choice.kind = Piece::Kind::choice;
    do choice.inside.push_back(parse_sequence(depth));
    while (take('|'));
    return choice;
  }

  Piece parse_sequence(int depth) {
    Piece sequence;
    while (more() && peek() != '|' && peek() != ')') {
      Piece piece = parse_atom(depth);
      sequence.inside.push_back(repeated(std::move(piece)));
    }
    return sequence;
  }

  Piece repeated(Piece piece) {
    std::uint32_t least = 0;
    std::uint32_t most = kNoMost;
    const std::size_t before = at_;
    if (take('*')) {
    } else if (take('+')) {
      least = 1;
    } else if (take('?')) {
      most = 1;
    } else if (!parse_braces(least, most)) {
      at_ = before;
      return piece;
    }
    take('?');
    if (more() && (peek() == '*' || peek() == '+' || peek() == '?')) {
      throw Problem{"a repetition of a repetition"};
    }
    if (piece.kind == Piece::Kind::begin || piece.kind == Piece::Kind::end ||
        piece.kind == Piece::Kind::look) {
      throw Problem{"a repeated assertion"};
    }
    Piece repeat;
    repeat.kind = Piece::Kind::repeat;
    repeat.least = least;
    repeat.most = most;
    repeat.inside.push_back(std::move(piece));
    return repeat;
  }

  std::optional<std::uint32_t> number() {
    if (!is_digit(peek())) return std::nullopt;
    std::uint64_t value = 0;
    while (is_digit(peek())) {
      value = std::min<std::uint64_t>(value * 10 + (text_[at_++] - '0'), kMaxRepeat + 1);
    }
    if (value > kMaxRepeat) throw Problem{"a repetition above 100000"};
    return static_cast<std::uint32_t>(value);
  }

  bool parse_braces(std::uint32_t& least, std::uint32_t& most) {
    if (!take('{')) return false;
    const auto first = number();
    if (!first) return false;
    least = *first;
    most = *first;
    if (take(',')) most = number().value_or(kNoMost);
    if (!take('}')) return false;
    if (least > most) throw Problem{"a repetition whose bounds are out of order"};
    return true;
  }

  static Piece of_set(CharSet set) {
    Piece piece;
    piece.kind = Piece::Kind::chars;
    piece.set = normal(std::move(set));
    return piece;
  }

  Piece parse_atom(int depth) {
    const char32_t c = text_[at_++];
    Piece piece;
    switch (c) {
      case '^':
        piece.kind = Piece::Kind::begin;
        return piece;
      case '$':
        piece.kind = Piece::Kind::end;
        return piece;
      case '.':
        return of_set(dot_chars());
      case '(':
        return parse_group(depth);
      case '[':
        return of_set(parse_class());
      case '\\':
        if (peek() == 'b' || peek() == 'B') throw Problem{"a word boundary"};
        if (peek() >= '1' && peek() <= '9') throw Problem{"a back reference"};
        if (peek() == 'k') throw Problem{"a back reference"};
        return of_set(parse_escape(false));
      case '*':
      case '+':
      case '?':
        throw Problem{"a repetition of nothing"};
      default:
        return of_set({{c, c}});
    }
  }

  Piece parse_group(int depth) {
    Piece look;
    bool is_look = false;
    if (take('?')) {
      if (take(':')) {
      } else if (peek() == '=' || peek() == '!') {
        is_look = true;
        look.kind = Piece::Kind::look;
        look.negated = text_[at_++] == '!';
      } else if (peek() == '<' && is_letter(peek(1))) {
        while (more() && peek() != '>') ++at_;
        take('>');
      } else if (peek() == '<') {
        throw Problem{"a lookbehind"};
      } else {
        throw Problem{"a group that starts with (?" +
                      std::string(1, peek() < 0x7F ? static_cast<char>(peek()) : '.')};
      }
    }
    Piece inside = parse_choice(depth + 1);
    if (!take(')')) throw Problem{"an unmatched ("};
    if (!is_look) return inside;
    look.inside.push_back(std::move(inside));
    return look;
  }

  char32_t hex(std::size_t digits) {
    char32_t value = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      const int digit = hex_value(peek());
      if (digit < 0) throw Problem{"an incomplete escape"};
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    return value;
  }

  char32_t unicode_escape() {
    if (take('{')) {
      char32_t value = 0;
      while (more() && peek() != '}') {
        const int digit = hex_value(peek());
        if (digit < 0) throw Problem{"an incomplete escape"};
        value = value * 16 + static_cast<char32_t>(digit);
        if (value > kMaxCodePoint) throw Problem{"an escape above U+10FFFF"};
        ++at_;
      }
      take('}');
      return value;
    }
    const char32_t high = hex(4);
    if (high < 0xD800 || high > 0xDBFF || peek() != '\\' || peek(1) != 'u') return high;
    at_ += 2;
    const char32_t low = hex(4);
    return 0x10000 + ((high - 0xD800) << 10U) + (low & 0x3FFU);
  }

  CharSet parse_escape(bool in_class) {
    if (!more()) throw Problem{"a \\ at its end"};
    const char32_t c = text_[at_++];
    const auto one = [](char32_t letter) { return CharSet{{letter, letter}}; };
    switch (c) {
      case 'd':
        return digit_chars();
      case 'D':
        return inverse(digit_chars());
      case 'w':
        return word_chars();
      case 'W':
        return inverse(word_chars());
      case 's':
        return space_chars();
      case 'S':
        return inverse(space_chars());
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'v':
        return one('\v');
      case 'f':
        return one('\f');
      case '0':
        return one(0);
      case 'x':
        return one(hex(2));
      case 'u':
        return one(unicode_escape());
      case 'c':
        if (!is_letter(peek())) throw Problem{"an incomplete escape"};
        return one(text_[at_++] % 32);
      case 'b':
        if (in_class) return one('\b');
        break;
      default:
        break;
    }
    if (c == 'p' || c == 'P') throw Problem{"a Unicode property"};
    if (is_letter(c) || is_digit(c)) {
      throw Problem{"the escape \\" + std::string(1, static_cast<char>(c))};
    }
    return one(c);
  }

  CharSet class_atom() {
    if (take('\\')) return parse_escape(true);
    const char32_t c = text_[at_++];
    return {{c, c}};
  }

  CharSet parse_class() {
    const bool inverted = take('^');
    CharSet set;
    while (more() && peek() != ']') {
      CharSet first = class_atom();
      const bool single = first.size() == 1 && first[0].first == first[0].last;
      if (peek() == '-' && at_ + 1 < text_.size() && peek(1) != ']' && single) {
        ++at_;
        const CharSet last = class_atom();
        if (last.size() != 1 || last[0].first != last[0].last) {
          set.push_back({'-', '-'});
          set.insert(set.end(), last.begin(), last.end());
        } else if (last[0].first < first[0].first) {
          throw Problem{"a range whose ends are out of order"};
        } else {
          first[0].last = last[0].first;
        }
      }
      set.insert(set.end(), first.begin(), first.end());
    }
    if (!take(']')) throw Problem{"an unmatched ["};
    return inverted ? inverse(set) : normal(std::move(set));
  }

  std::u32string text_;
  std::size_t at_ = 0;
};

}  // namespace

/// From the end to the start: each piece knows the state that follows it.
class PatternCompiler {
 public:
  std::uint32_t build(const Piece& piece, std::uint32_t out) {
    if (nfa_.size() > Nfa::kMaxStates) {
      throw Problem{"more than " + std::to_string(Nfa::kMaxStates) + " states"};
    }
    switch (piece.kind) {
      case Piece::Kind::chars:
        return nfa_.add_chars(piece.set, out);
      case Piece::Kind::sequence:
        for (std::size_t i = piece.inside.size(); i-- > 0;) out = build(piece.inside[i], out);
        return out;
      case Piece::Kind::choice: {
        std::uint32_t start = build(piece.inside.back(), out);
        for (std::size_t i = piece.inside.size() - 1; i-- > 0;) {
          start = nfa_.add({Nfa::Op::split, build(piece.inside[i], out), start});
        }
        return start;
      }
      case Piece::Kind::repeat:
        return build_repeat(piece, out);
      case Piece::Kind::begin:
        return nfa_.add({Nfa::Op::begin, out});
      case Piece::Kind::end:
        return nfa_.add({Nfa::Op::end, out});
      case Piece::Kind::look:
        break;
    }
    throw Problem{"a lookahead that is not at its start"};
  }

  std::shared_ptr<const Nfa> finish(const std::vector<const Piece*>& sequence) {
    const std::uint32_t accept = nfa_.add({Nfa::Op::accept});
    std::uint32_t start = accept;
    for (std::size_t i = sequence.size(); i-- > 0;) start = build(*sequence[i], start);
    // Anywhere in the text: any characters may come first.
    const std::uint32_t any = nfa_.add_chars(all_chars(), Nfa::kNone);
    const std::uint32_t loop = nfa_.add({Nfa::Op::split, start, any});
    nfa_.states_[any].out = loop;
    nfa_.finish(loop, true);
    return std::make_shared<const Nfa>(std::move(nfa_));
  }

 private:
  std::uint32_t build_repeat(const Piece& piece, std::uint32_t out) {
    const Piece& inside = piece.inside[0];
    std::uint32_t start = out;
    if (piece.most == kNoMost) {
      start = nfa_.add({Nfa::Op::split, Nfa::kNone, out});
      const std::uint32_t body = build(inside, start);
      nfa_.states_[start].out = body;
    } else {
      for (std::uint32_t i = piece.least; i < piece.most; ++i) {
        start = nfa_.add({Nfa::Op::split, build(inside, start), out});
      }
    }
    for (std::uint32_t i = 0; i < piece.least; ++i) start = build(inside, start);
    return start;
  }

  Nfa nfa_;
};

namespace {

void compile_alternative(const Piece& sequence, std::vector<Condition>& out) {
  std::vector<const Piece*> rest;
  bool anchored = false;
  Piece begin;
  begin.kind = Piece::Kind::begin;
  std::size_t i = 0;
  for (; i < sequence.inside.size(); ++i) {
    const Piece& piece = sequence.inside[i];
    if (piece.kind == Piece::Kind::begin) {
      anchored = true;
    } else if (piece.kind == Piece::Kind::look && anchored) {
      out.push_back({PatternCompiler().finish({&begin, &piece.inside[0]}), piece.negated});
    } else {
      break;
    }
  }
  if (anchored) rest.push_back(&begin);
  for (; i < sequence.inside.size(); ++i) rest.push_back(&sequence.inside[i]);
  out.push_back({PatternCompiler().finish(rest), false});
}

bool has_look(const Piece& piece) {
  if (piece.kind == Piece::Kind::look) return true;
  for (const Piece& inside : piece.inside) {
    if (has_look(inside)) return true;
  }
  return false;
}

}  // namespace

Result<Pattern> compile_pattern(std::string_view pattern) {
  try {
    const Piece choice = Parser(to_code_points(pattern)).run();
    Pattern out;
    if (!has_look(choice)) {
      out.push_back({{PatternCompiler().finish({&choice}), false}});
      return out;
    }
    for (const Piece& sequence : choice.inside) compile_alternative(sequence, out.emplace_back());
    return out;
  } catch (const Problem& problem) {
    return invalid("the pattern has " + problem.what + ", which is not supported");
  }
}

}  // namespace baton::schema
