// Reading JSON that strangers wrote: bounded, strict, and with errors that name the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"

namespace baton {

/// Objects and arrays may be nested this deep: a schema of 64 levels, each an object inside of
/// "properties", fits into every API.
inline constexpr std::size_t kMaxBodyDepth = 256;

/// Parses a body that must be one JSON object. Refused: bad UTF-8, numbers beyond a double, a key
/// written twice, too deep nesting, anything after the object. Parsing does not recurse. A lone
/// surrogate ("\ud83d") becomes U+FFFD, here and in parse_ordered_json().
Result<nlohmann::json> parse_json_object(std::string_view text);

/// JSON with the keys in the order of the text; discarded where the text is no JSON, is nested too
/// deep or has a key twice in one object. Linear, unlike ordered_json::parse(), which looks for
/// each key among all before it. A look-up in the value still passes its keys: find a member once,
/// not in a loop.
nlohmann::ordered_json parse_ordered_json(std::string_view text);

/// "line 1, column 9": where an error of parse_json_object() says that the text is no JSON; empty
/// for any other message.
std::string_view json_place(std::string_view message);

/// What is wrong with a body, and with which of its fields.
struct FieldError {
  std::string field;  // path such as "messages[0].content"
  std::string message;
};

/// Names of fields that a body has and that do nothing, for whoever wrote it: "messages[].colour".
/// Every name once; a body cannot make it long.
class IgnoredFields {
 public:
  static constexpr std::size_t kMost = 16;
  static constexpr std::size_t kMaxNameBytes = 64;

  void add(std::string_view path);
  /// Unknown fields are errors. Only FieldReader::note() adds names then.
  void set_strict(bool strict) { strict_ = strict; }
  bool strict() const { return strict_; }
  const std::vector<std::string>& names() const { return names_; }
  /// "a, b[].c", printable ASCII; empty: there are none.
  std::string joined() const;

 private:
  std::vector<std::string> names_;
  bool strict_ = false;
};

/// Takes known fields out of an object, one call each, and remembers the first thing that was
/// wrong. null counts as absent. finish() complains about fields that nobody took, or, with an
/// `ignored` that is not strict, notes them there. Object and list must outlive the reader.
class FieldReader {
 public:
  explicit FieldReader(const nlohmann::json& object, std::string path = {},
                       IgnoredFields* ignored = nullptr);
  /// An object inside the one that `outer` reads, as lenient as that.
  FieldReader(const FieldReader& outer, const nlohmann::json& object, const std::string& name)
      : FieldReader(object, outer.path_of(name), outer.ignored_) {}

  /// The raw value; nullptr when absent or null.
  const nlohmann::json* take(const std::string& name);

  std::optional<bool> boolean(const std::string& name);
  std::optional<std::int64_t> integer(const std::string& name, std::int64_t low, std::int64_t high);
  std::optional<double> number(const std::string& name, double low, double high,
                               bool low_excluded = false);
  /// A view into the object.
  std::optional<std::string_view> string(const std::string& name);

  /// Notes that `name` (a field of this object, perhaps with an index behind it) is wrong.
  void fail(const std::string& name, const std::string& message);
  /// An error of an object inside this one.
  void fail(const FieldError& error);
  /// What is asked for in `name` cannot be had: it is ignored, or, of a strict reader, wrong.
  void ignore_or_fail(const std::string& name, const std::string& message);
  /// Names something that is left out or replaced, of a strict reader too.
  void note(const std::string& name);
  /// Unknown fields are errors.
  bool strict() const { return ignored_ == nullptr || ignored_->strict(); }

  bool ok() const { return !error_.has_value(); }
  /// The first error; unknown fields are looked for when there was none.
  const std::optional<FieldError>& finish();

  /// The fields taken so far.
  const std::set<std::string, std::less<>>& known() const { return known_; }
  const nlohmann::json& object() const { return object_; }
  std::string path_of(const std::string& name) const;

 private:
  const nlohmann::json& object_;
  std::string path_;
  IgnoredFields* ignored_;  // null or strict: unknown fields are errors
  std::set<std::string, std::less<>> known_;
  std::optional<FieldError> error_;
};

/// "a string", "an array", ... for error messages.
const char* kind_of(const nlohmann::json& value);

/// A client's text in quotes for an error message, cut to its first 64 bytes.
std::string shown(std::string_view text);

}  // namespace baton
