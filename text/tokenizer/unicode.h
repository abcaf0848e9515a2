// The few facts about Unicode that tokenizers need. ICU stays inside unicode.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

enum class NormalForm : std::uint8_t { nfc, nfd, nfkc, nfkd };

/// All of these take valid UTF-8.
void normalize(NormalForm form, std::string& text);

/// Each character by itself: the final sigma is not looked for.
void lowercase(std::string& text);

/// White_Space at the beginning and at the end, in bytes.
std::size_t leading_whitespace(std::string_view text);
std::size_t trailing_whitespace(std::string_view text);

/// A letter, mark, decimal digit, connector or joiner (the \w of regular expressions).
bool begins_with_word_character(std::string_view text);
bool ends_with_word_character(std::string_view text);

/// Replaces what is not UTF-8 by U+FFFD; false when nothing had to be replaced, and `out` is as it
/// was.
bool repair_utf8(std::string_view text, std::string& out);

/// Appends a character.
void append_utf8(std::string& out, char32_t character);

/// Takes the first character off a text that is valid UTF-8 and not empty.
char32_t take_character(std::string_view& text);

}  // namespace baton
