#include "text/tokenizer/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>

#include <cstring>

#include "ipc/utf8.h"

namespace baton {
namespace {

/// The bytes of `text` before the first that is not ASCII.
std::size_t ascii_prefix(std::string_view text) {
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080U) != 0) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

const icu::Normalizer2* normalizer_of(NormalForm form) {
  UErrorCode error = U_ZERO_ERROR;
  switch (form) {
    case NormalForm::nfc:
      return icu::Normalizer2::getNFCInstance(error);
    case NormalForm::nfd:
      return icu::Normalizer2::getNFDInstance(error);
    case NormalForm::nfkc:
      return icu::Normalizer2::getNFKCInstance(error);
    case NormalForm::nfkd:
      return icu::Normalizer2::getNFKDInstance(error);
  }
  return nullptr;
}

bool is_whitespace(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)) != 0; }

bool is_word(char32_t character) {
  const auto c = static_cast<UChar32>(character);
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) != 0 ||
         (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

/// Takes the last character off.
char32_t take_last(std::string_view& text) {
  std::size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  std::string_view last = text.substr(begin);
  text.remove_suffix(last.size());
  return take_character(last);
}

}  // namespace

void normalize(NormalForm form, std::string& text) {
  if (ascii_prefix(text) == text.size()) return;
  const icu::Normalizer2* normalizer = normalizer_of(form);
  if (normalizer == nullptr) return;  // ICU's data is compiled in: it is always there
  UErrorCode error = U_ZERO_ERROR;
  const icu::StringPiece whole(text.data(), static_cast<std::int32_t>(text.size()));
  if (normalizer->isNormalizedUTF8(whole, error) != 0) return;
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<std::int32_t>(text.size()));
  error = U_ZERO_ERROR;
  normalizer->normalizeUTF8(0, whole, sink, nullptr, error);
  if (U_SUCCESS(error)) text = std::move(out);
}

void lowercase(std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const char32_t character = take_character(rest);
    if (character == 0x130) {
      out += "i\xCC\x87";  // the one character whose small form is two
    } else {
      append_utf8(out, static_cast<char32_t>(u_tolower(static_cast<UChar32>(character))));
    }
  }
  text = std::move(out);
}

std::size_t leading_whitespace(std::string_view text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view after = rest;
    if (!is_whitespace(take_character(after))) break;
    rest = after;
  }
  return text.size() - rest.size();
}

std::size_t trailing_whitespace(std::string_view text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view before = rest;
    if (!is_whitespace(take_last(before))) break;
    rest = before;
  }
  return text.size() - rest.size();
}

bool begins_with_word_character(std::string_view text) {
  return !text.empty() && is_word(take_character(text));
}

bool ends_with_word_character(std::string_view text) {
  return !text.empty() && is_word(take_last(text));
}

bool repair_utf8(std::string_view text, std::string& out) {
  std::string_view rest = text;
  bool broken = false;
  while (!rest.empty()) {
    rest.remove_prefix(ascii_prefix(rest));
    const Utf8Scan scan = scan_utf8(rest);
    if (scan.state == Utf8State::valid) {
      rest.remove_prefix(scan.length);
      continue;
    }
    if (rest.empty()) break;
    if (!broken) out.clear();
    broken = true;
    out.append(text.substr(0, text.size() - rest.size()));
    out += kReplacementCharacter;
    rest.remove_prefix(scan.state == Utf8State::unfinished ? rest.size() : scan.length);
    text = rest;
  }
  if (broken) out += text;
  return broken;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 63));
    put(0x80 | (c & 63));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 63));
    put(0x80 | (c >> 6 & 63));
    put(0x80 | (c & 63));
  }
}

char32_t take_character(std::string_view& text) {
  const auto byte = [&text](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]) & 63U);
  };
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t character = lead;
  if (length > text.size()) {
    text = {};
    return 0xFFFD;
  }
  if (length == 2) character = (lead & 31U) << 6 | byte(1);
  if (length == 3) character = (lead & 15U) << 12 | byte(1) << 6 | byte(2);
  if (length == 4) character = (lead & 7U) << 18 | byte(1) << 12 | byte(2) << 6 | byte(3);
  text.remove_prefix(length);
  return character;
}

}  // namespace baton
