// One JSON object of tokenizer.json, read key by key. What is missing, of the wrong kind or unknown
// becomes one error that names where it stands; the first one counts.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"

namespace baton {

/// An error about something that is well-formed but not served.
inline Status unsupported(const std::string& where, const std::string& what) {
  return Status(ErrorCode::unavailable, where + ": " + what + " is not supported");
}

class SpecObject {
 public:
  using Json = nlohmann::json;

  /// `where` names the object in errors: "tokenizer.json: pre_tokenizer". Both must outlive it.
  SpecObject(const Json& object, std::string where);

  const std::string& where() const { return where_; }
  /// The key "type"; empty when there is none.
  std::string type() { return text("type", ""); }

  /// A value that must be there, or one that `otherwise` stands for.
  bool flag(const char* key);
  bool flag(const char* key, bool otherwise);
  std::string text(const char* key);
  std::string text(const char* key, std::string otherwise);
  std::int64_t number(const char* key);
  /// A list; empty (and an error) when it is no list.
  const Json& list(const char* key);
  /// Any value; null when there is none.
  const Json& value(const char* key);
  /// {"String": ...} or {"Regex": ...}.
  struct Pattern {
    bool regex = false;
    std::string text;
  };
  Pattern pattern(const char* key);

  void fail(Status status);
  /// The first error; a key that nobody asked for and that is not null is one.
  Status finish();
  bool ok() const { return status_.ok(); }

 private:
  const Json* find(const char* key, bool required);
  Status wrong(const char* key, const char* wanted) const;

  const Json* object_;
  std::string where_;
  std::vector<std::string> asked_;
  Status status_;
};

}  // namespace baton
