// How model families write tool calls: the marks of each published format, as data.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

/// What stands between the marks of one call.
enum class CallShape : std::uint8_t {
  object,    // {"name": ..., "arguments": {...}}
  list,      // [{"name": ..., "arguments": {...}}, ...]
  named,     // NAME, a mark, {...}
  either,    // a list, or named (Mistral's two formats behind one mark)
  xml,       // a header with NAME, then parameters: a header with KEY, raw text, a closing mark
  pairs,     // NAME, then keys and values, each between its marks
  pythonic,  // [name(key=value, ...), ...]: Python literals
  channels,  // a message to functions.NAME (harmony); see reply_channels.cpp
};

/// One format. Texts are empty where the format has none.
struct CallFormat {
  std::string_view name;  // the name of vLLM's parser of this format
  CallShape shape;
  /// The call, or the section of calls, begins with one of these. Empty: the reply begins with it.
  std::array<std::string_view, 2> opens = {};
  std::string_view open = {};        // of each call inside of a section
  std::string_view name_begin = {};  // in front of NAME
  std::string_view name_end = {};    // behind NAME; without one, NAME ends with "{" (named)
  /// Marks that may stand behind a call, and belong to none.
  std::array<std::string_view, 4> closes = {};
  std::string_view separator = {};  // between two calls without marks
  std::string_view name_key = "name";
  std::string_view arguments_key = "arguments";
  // Of xml and pairs.
  std::string_view key_begin = {};
  std::string_view key_end = {};
  std::string_view value_begin = {};  // pairs
  std::string_view value_end = {};
  std::string_view arguments_end = {};  // closes the parameters: "</function>"
  bool value_in_lines = false;          // a line break in front of each value, and one behind it

  /// The reply must begin with the call.
  bool whole_reply() const { return opens[0].empty(); }
};

/// All formats.
std::span<const CallFormat> call_formats();
/// By the name of vLLM's parser, aliases included; nullptr: not known.
const CallFormat* call_format(std::string_view name);
/// The names that call_format() knows, for error messages: "hermes, mistral, ...".
std::string call_format_names();
/// What a family's chat templates show; nullptr: no format that is known.
const CallFormat* call_format_of_templates(std::string_view text);
/// Texts that must reach the reader, special tokens or not.
std::vector<std::string> call_marks(const CallFormat& format);

}  // namespace baton
