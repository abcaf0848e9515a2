#include "frontend/core/json_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxReason = 200;

/// Builds the value while nlohmann's parser (a loop, not a recursion) reports what it sees.
/// Returning false ends the parsing; `error` then says why.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Json root;
  std::string error;

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return add(value) != nullptr;
  }
  bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return fail("unexpected binary data"); }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (open_.back()->contains(name)) {
      return fail("ambiguous: the key '" + name.substr(0, kMaxReason) +
                  "' is written twice in one object");
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const Json::exception& problem) override {
    std::string reason = problem.what();
    // The library's own prefix, "[json.exception.parse_error.101] ", says nothing to a client.
    if (const auto end = reason.find("] "); reason.rfind("[json.", 0) == 0 && end != reason.npos) {
      reason.erase(0, end + 2);
    }
    if (reason.size() > kMaxReason) reason = reason.substr(0, kMaxReason) + "...";
    return fail("not valid JSON: " + reason);
  }

 private:
  bool fail(std::string reason) {
    error = std::move(reason);
    return false;
  }

  Json* add(Json value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    Json& slot = parent[key_];
    slot = std::move(value);
    return &slot;
  }

  // A parent is not touched while a child is open, so that these pointers stay good.
  bool open(Json container) {
    if (open_.size() == kMaxBodyDepth) {
      return fail("nested deeper than " + std::to_string(kMaxBodyDepth) + " levels");
    }
    open_.push_back(add(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<Json*> open_;
  std::string key_;
};

std::string plain_number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) {
    return std::to_string(static_cast<std::int64_t>(value));
  }
  return Json(value).dump();
}

}  // namespace

Result<Json> parse_json_object(std::string_view text) {
  if (text.empty()) return invalid("the body is empty; a JSON object is expected");
  Builder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return invalid("the body is " + (builder.error.empty() ? "not valid JSON" : builder.error));
  }
  if (!builder.root.is_object()) {
    return invalid(std::string("the body must be a JSON object, not ") + kind_of(builder.root));
  }
  return std::move(builder.root);
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 64;
  return "'" + std::string(text.substr(0, kMost)) + "'";
}

const char* kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a number";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::object:
      return "an object";
    default:
      return "something else";
  }
}

void IgnoredFields::add(std::string_view path) {
  std::string name;
  for (std::size_t i = 0; i < path.size() && name.size() < kMaxNameBytes; ++i) {
    const char c = path[i];
    const bool index = !name.empty() && name.back() == '[' && c >= '0' && c <= '9';
    if (index) continue;  // what one message has, others have, too
    name += c > ' ' && c < 0x7F && c != ',' ? c : '?';
  }
  if (names_.size() < kMost && std::find(names_.begin(), names_.end(), name) == names_.end()) {
    names_.push_back(std::move(name));
  }
}

std::string IgnoredFields::joined() const {
  std::string list;
  for (const std::string& name : names_) list += (list.empty() ? "" : ", ") + name;
  return list;
}

FieldReader::FieldReader(const Json& object, std::string path, IgnoredFields* ignored)
    : object_(object), path_(std::move(path)), ignored_(ignored) {}

const Json* FieldReader::take(const std::string& name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> FieldReader::boolean(const std::string& name) {
  const Json* value = take(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  fail(name, std::string("must be true or false, not ") + kind_of(*value));
  return std::nullopt;
}

std::optional<std::int64_t> FieldReader::integer(const std::string& name, std::int64_t low,
                                                 std::int64_t high) {
  const Json* value = take(name);
  if (value == nullptr) return std::nullopt;
  // Integers beyond 64 bits arrive as floating-point numbers.
  const bool huge = value->is_number_float() && std::abs(value->get<double>()) >= 0x1p63;
  if (!value->is_number_integer() && !huge) {
    fail(name, std::string("must be an integer, not ") + kind_of(*value));
    return std::nullopt;
  }
  const bool beyond = huge || (value->is_number_unsigned() &&
                               value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX));
  if (beyond || value->get<std::int64_t>() < low || value->get<std::int64_t>() > high) {
    fail(name, "must be between " + std::to_string(low) + " and " + std::to_string(high));
    return std::nullopt;
  }
  return value->get<std::int64_t>();
}

std::optional<double> FieldReader::number(const std::string& name, double low, double high,
                                          bool low_excluded) {
  const Json* value = take(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    fail(name, std::string("must be a number, not ") + kind_of(*value));
    return std::nullopt;
  }
  const double number = value->get<double>();
  const bool low_enough = low_excluded ? number > low : number >= low;
  if (!low_enough || !(number <= high)) {
    fail(name, (low_excluded ? "must be above " : "must be at least ") + plain_number(low) +
                   " and at most " + plain_number(high));
    return std::nullopt;
  }
  return number;
}

std::optional<std::string_view> FieldReader::string(const std::string& name) {
  const Json* value = take(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::string_view(value->get_ref<const std::string&>());
  fail(name, std::string("must be a string, not ") + kind_of(*value));
  return std::nullopt;
}

std::string FieldReader::path_of(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

void FieldReader::fail(const std::string& name, const std::string& message) {
  fail(FieldError{path_of(name), "'" + path_of(name) + "' " + message});
}

void FieldReader::fail(const FieldError& error) {
  if (!error_) error_ = error;
}

void FieldReader::ignore_or_fail(const std::string& name, const std::string& message) {
  if (ignored_ == nullptr) return fail(name, message);
  ignored_->add(path_of(name));
}

const std::optional<FieldError>& FieldReader::finish() {
  if (error_) return error_;
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    const std::string shown = path_of(name.substr(0, kMaxReason));
    if (ignored_ != nullptr) {
      if (!value.is_null()) ignored_->add(shown);
      continue;
    }
    fail(FieldError{shown, "unknown field '" + shown + "'"});
    break;
  }
  return error_;
}

}  // namespace baton
