#include "text/schema/string_lexer.h"

namespace baton::schema {
namespace {

// A state: what comes next (4 bits), how many digits or bytes (4 bits), a value.
enum Mode : std::uint32_t { kEscape = 1, kHex, kBackslash, kLowU, kLowHex, kBytes };

constexpr std::uint32_t kValueBits = 24;

LexState pack(Mode mode, std::uint32_t count, std::uint32_t value) {
  return (static_cast<std::uint32_t>(mode) << 28U) | (count << kValueBits) | value;
}

LexStep inside(LexState state, char32_t first, char32_t last) {
  LexStep step;
  step.kind = LexStep::Kind::inside;
  step.state = state;
  step.first = first;
  step.last = last;
  return step;
}

LexStep character(char32_t c) {
  LexStep step;
  step.kind = LexStep::Kind::character;
  step.character = c;
  return step;
}

int hex_value(unsigned char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// Characters of the pairs whose first half is one of [high, last] (10 bits each).
LexStep pairs(LexState state, std::uint32_t high, std::uint32_t last) {
  return inside(state, 0x10000 + (high << 10U), 0x10000 + (last << 10U) + 0x3FF);
}

/// `count` hexadecimal digits of \uXXXX have come, as `value`.
LexStep code_unit(std::uint32_t count, std::uint32_t value) {
  const std::uint32_t open = 4 * (4 - count);
  const std::uint32_t first = value << open;
  const std::uint32_t last = first + (1U << open) - 1;
  if (count == 4) {
    if (first >= 0xDC00 && first <= 0xDFFF) return {};
    if (first < 0xD800 || first > 0xDFFF) return character(first);
    return pairs(pack(kBackslash, 0, first - 0xD800), first - 0xD800, first - 0xD800);
  }
  LexStep step = inside(pack(kHex, count, value), first, last);
  if (last < 0xD800 || first > 0xDFFF) return step;
  if (first >= 0xDC00) return {};  // no character starts with the second half of a pair
  const std::uint32_t high = first < 0xD800 ? 0 : first - 0xD800;
  const std::uint32_t high_last = last > 0xDBFF ? 0x3FF : last - 0xD800;
  const LexStep of_pairs = pairs(0, high, high_last);
  step.first_more = of_pairs.first;
  step.last_more = of_pairs.last;
  step.last = 0xD7FF;  // the other side of the surrogates is in no such range but all of them
  if (last > 0xDFFF) step.last = last;
  return step;
}

LexStep low_unit(std::uint32_t count, std::uint32_t value) {
  const std::uint32_t high = value >> 12U;
  const std::uint32_t digits = value & 0xFFFU;
  const std::uint32_t open = 4 * (4 - count);
  // `digits` leaves out the first one, which is D.
  const std::uint32_t first = ((0xD000U | (digits << open)) & 0xFFFFU);
  const std::uint32_t last = first + (1U << open) - 1;
  if (last < 0xDC00) return {};
  const std::uint32_t low = first < 0xDC00 ? 0 : first - 0xDC00;
  const char32_t base = 0x10000 + (high << 10U);
  if (count == 4) return character(base + low);
  return inside(pack(kLowHex, count, value), base + low, base + last - 0xDC00);
}

LexStep escape(unsigned char byte) {
  switch (byte) {
    case '"':
    case '\\':
    case '/':
      return character(byte);
    case 'b':
      return character('\b');
    case 'f':
      return character('\f');
    case 'n':
      return character('\n');
    case 'r':
      return character('\r');
    case 't':
      return character('\t');
    case 'u':
      return inside(pack(kHex, 0, 0), 0, 0x10FFFF);
    default:
      return {};
  }
}

LexStep utf8(std::uint32_t left, std::uint32_t value, bool first_byte, unsigned char lead) {
  if (left == 0) return character(value);
  char32_t first = value << (6 * left);
  char32_t last = first + (1U << (6 * left)) - 1;
  if (first_byte && lead == 0xE0) first = 0x800;
  if (first_byte && lead == 0xED) last = 0xD7FF;
  if (first_byte && lead == 0xF0) first = 0x10000;
  if (last > 0x10FFFF) last = 0x10FFFF;
  return inside(pack(kBytes, left, value), first, last);
}

LexStep first_byte(unsigned char byte) {
  LexStep step;
  if (byte == '"') step.kind = LexStep::Kind::quote;
  if (byte == '"' || byte < 0x20) return step;
  if (byte == '\\') return inside(pack(kEscape, 0, 0), 0, 0x10FFFF);
  if (byte < 0x80) return character(byte);
  if (byte < 0xC2 || byte > 0xF4) return {};
  if (byte < 0xE0) return utf8(1, byte & 0x1FU, true, byte);
  if (byte < 0xF0) return utf8(2, byte & 0x0FU, true, byte);
  return utf8(3, byte & 0x07U, true, byte);
}

}  // namespace

LexStep lex(LexState state, unsigned char byte) {
  if (state == 0) return first_byte(byte);
  const auto mode = static_cast<Mode>(state >> 28U);
  const std::uint32_t count = (state >> kValueBits) & 0xFU;
  const std::uint32_t value = state & ((1U << kValueBits) - 1);
  const int digit = hex_value(byte);
  switch (mode) {
    case kEscape:
      return escape(byte);
    case kHex:
      return digit < 0 ? LexStep()
                       : code_unit(count + 1, value * 16 + static_cast<unsigned>(digit));
    case kBackslash:
      return byte == '\\' ? pairs(pack(kLowU, 0, value), value, value) : LexStep();
    case kLowU:
      return byte == 'u' ? pairs(pack(kLowHex, 0, value << 12U), value, value) : LexStep();
    case kLowHex:
      if (digit < 0 || (count == 0 && digit != 0xD)) return {};
      return low_unit(count + 1, count == 0 ? value
                                            : (value & ~0xFFFU) | ((value & 0xFFFU) * 16 +
                                                                   static_cast<unsigned>(digit)));
    case kBytes: {
      if ((byte & 0xC0U) != 0x80) return {};
      const std::uint32_t next = (value << 6U) | (byte & 0x3FU);
      const std::uint32_t left = count - 1;
      const std::uint32_t first = next << (6 * left);
      const std::uint32_t last = first + (1U << (6 * left)) - 1;
      // Too long a form, a surrogate, or above all characters.
      if (count == 2 && value < 0x20 && last < 0x800) return {};
      if (count == 3 && last < 0x10000) return {};
      if (last >= 0xD800 && first <= 0xDFFF && first >= 0xD800) return {};
      if (first > 0x10FFFF) return {};
      return utf8(left, next, false, 0);
    }
  }
  return {};
}

}  // namespace baton::schema
