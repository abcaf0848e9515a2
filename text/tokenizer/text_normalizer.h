// The "normalizer" of a tokenizer.json: how a text is rewritten before it is cut into words.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ipc/status.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/unicode.h"

namespace baton {

/// NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip and Sequence. Const and safe for
/// several threads.
class TextNormalizer {
 public:
  /// Null is a normalizer that changes nothing. `where` names the object in errors.
  static Result<TextNormalizer> parse(const nlohmann::json& spec, const std::string& where);

  bool changes_nothing() const { return steps_.empty(); }
  /// Whether a text's first character may go away, so that its beginning is no longer the text's.
  bool may_strip() const;
  /// No text becomes shorter.
  bool never_shortens() const;
  /// Rewrites valid UTF-8. False: an expression gave up.
  bool apply(std::string& text) const;

 private:
  enum class Kind : std::uint8_t { form, lowercase, prepend, replace, strip };
  struct Step {
    Kind kind = Kind::form;
    NormalForm form = NormalForm::nfc;
    std::string text;     // prepended, or put in place of a match
    std::string literal;  // what is replaced, when it is no expression
    std::optional<Regex> regex;
    bool left = false;
    bool right = false;
  };
  Status add(const nlohmann::json& spec, const std::string& where, int depth);
  static bool replace(const Step& step, std::string& text);

  std::vector<Step> steps_;
};

}  // namespace baton
