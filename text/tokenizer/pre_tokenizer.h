// The "pre_tokenizer" of a tokenizer.json: how a text is cut into words, each of which is encoded
// by itself.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"
#include "text/tokenizer/regex.h"

namespace baton {

class SpecObject;

/// ByteLevel, Split, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit and Sequence.
/// Const and safe for several threads.
class PreTokenizer {
 public:
  /// Null cuts nothing. `where` names the object in errors.
  static Result<PreTokenizer> parse(const nlohmann::json& spec, const std::string& where);

  /// The words are to be encoded byte by byte (the last step is ByteLevel).
  bool byte_level() const { return byte_level_; }
  /// Every byte of a text is in some word.
  bool keeps_everything() const;
  /// Text at the very beginning is treated otherwise than text behind a special token.
  bool minds_the_beginning() const;

  enum class Outcome : std::uint8_t { done, stopped, gave_up };
  /// Takes a word; false stops.
  using Sink = std::function<bool(std::string_view word)>;
  /// Words of `text` (valid UTF-8, not empty) in order. `at_beginning`: nothing stands before it in
  /// the prompt. `gave_up`: an expression reached its limits.
  Outcome split(std::string_view text, bool at_beginning, const Sink& sink) const;

 private:
  enum class Behavior : std::uint8_t {
    isolated,
    removed,
    merged_with_previous,
    merged_with_next,
    contiguous,
  };
  enum class Edit : std::uint8_t { none, prefix_space, metaspace };
  enum class Prepend : std::uint8_t { never, first, always };
  struct Step {
    Edit edit = Edit::none;
    Prepend prepend = Prepend::never;  // of metaspace
    std::string symbol;                // of metaspace
    std::optional<Regex> regex;
    Behavior behavior = Behavior::isolated;
    bool invert = false;
  };
  class Cutter;

  static std::string read_metaspace(SpecObject& object, Step& step);
  Status add(const nlohmann::json& spec, const std::string& where, int depth);
  Outcome run(std::size_t step, std::string_view text, bool at_beginning, const Sink& sink) const;
  Outcome cut(std::size_t step, std::string_view text, bool at_beginning, const Sink& sink) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace baton
