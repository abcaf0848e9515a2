#include "frontend/core/json_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "frontend/core/surrogates.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr std::size_t kMaxReason = 200;

/// " at line 1, column 9: syntax error ... last read: '...'": the place, then what the library says
/// of it, which quotes the text.
std::string parse_problem(std::string_view said) {
  // The library's prefix, "[json.exception.parse_error.101] parse error", says nothing to a client.
  constexpr std::string_view kPrefix = "parse error";
  if (const auto end = said.find("] "); said.starts_with("[json.") && end != said.npos) {
    said.remove_prefix(end + 2);
  }
  const bool placed = said.starts_with("parse error at line ");
  if (placed) said.remove_prefix(kPrefix.size());
  std::string reason(said.substr(0, kMaxReason));
  if (reason.size() < said.size()) reason += "...";
  return (placed ? "" : ": ") + reason;
}

/// Adds members to an object, whatever keeps them. A key that is already there is reported: by
/// add_key() where that is known at once, by has_twins() at the object's end.
struct SortedMembers {
  static bool add_key(const Json& object, const std::string& name) {
    return !object.contains(name);
  }
  static Json& add(Json& object, std::string key, Json value) {
    Json& slot = object[key];
    slot = std::move(value);
    return slot;
  }
  static bool has_twins(const Json& /*object*/) { return false; }
};

/// An ordered object is a vector, in which a look-up passes all keys.
struct OrderedMembers {
  static bool add_key(const Ordered& /*object*/, const std::string& /*name*/) { return true; }
  static Ordered& add(Ordered& object, std::string key, Ordered value) {
    auto& members = object.get_ref<Ordered::object_t&>();
    members.emplace_back(std::move(key), std::move(value));
    return members.back().second;
  }
  static bool has_twins(const Ordered& object) {
    std::vector<std::string_view> names;
    names.reserve(object.size());
    for (const auto& member : object.get_ref<const Ordered::object_t&>())
      names.emplace_back(member.first);
    std::sort(names.begin(), names.end());
    return std::adjacent_find(names.begin(), names.end()) != names.end();
  }
};

/// Builds the value while nlohmann's parser (a loop, not a recursion) reports what it sees.
/// Returning false ends the parsing; `error` then says why.
template <class Value, class Members>
class Builder : public nlohmann::json_sax<Value> {
 public:
  using Base = nlohmann::json_sax<Value>;
  Value root;
  std::string error;

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(typename Base::number_integer_t value) override {
    return add(value) != nullptr;
  }
  bool number_unsigned(typename Base::number_unsigned_t value) override {
    return add(value) != nullptr;
  }
  bool number_float(typename Base::number_float_t value, const typename Base::string_t&) override {
    return add(value) != nullptr;
  }
  bool string(typename Base::string_t& value) override { return add(std::move(value)) != nullptr; }
  bool binary(typename Base::binary_t&) override { return fail("unexpected binary data"); }

  bool start_object(std::size_t) override { return open(Value::object()); }
  bool start_array(std::size_t) override { return open(Value::array()); }
  bool end_object() override {
    if (Members::has_twins(*open_.back())) return fail("ambiguous: a key is written twice");
    return close();
  }
  bool end_array() override { return close(); }

  bool key(typename Base::string_t& name) override {
    if (!Members::add_key(*open_.back(), name)) {
      return fail("ambiguous: the key '" + name.substr(0, kMaxReason) +
                  "' is written twice in one object");
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& problem) override {
    return fail("not valid JSON" + parse_problem(problem.what()));
  }

 private:
  bool fail(std::string reason) {
    error = std::move(reason);
    return false;
  }

  Value* add(Value value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    Value& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &Members::add(parent, std::move(key_), std::move(value));
  }

  // A parent is not touched while a child is open, so that these pointers stay good.
  bool open(Value container) {
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

  std::vector<Value*> open_;
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
  const auto mended = without_lone_surrogates(text);
  if (mended) text = *mended;
  Builder<Json, SortedMembers> builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return invalid("the body is " + (builder.error.empty() ? "not valid JSON" : builder.error));
  }
  if (!builder.root.is_object()) {
    return invalid(std::string("the body must be a JSON object, not ") + kind_of(builder.root));
  }
  return std::move(builder.root);
}

Ordered parse_ordered_json(std::string_view text) {
  const auto mended = without_lone_surrogates(text);
  if (mended) text = *mended;
  Builder<Ordered, OrderedMembers> builder;
  if (!Ordered::sax_parse(text.begin(), text.end(), &builder)) return Ordered::value_t::discarded;
  return std::move(builder.root);
}

std::string_view json_place(std::string_view message) {
  constexpr std::string_view kBefore = "the body is not valid JSON at ";
  if (!message.starts_with(kBefore)) return {};
  message.remove_prefix(kBefore.size());
  return message.substr(0, std::min(message.find(':'), message.size()));
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
  if (strict()) return fail(name, message);
  note(name);
}

void FieldReader::note(const std::string& name) {
  if (ignored_ != nullptr) ignored_->add(path_of(name));
}

const std::optional<FieldError>& FieldReader::finish() {
  if (error_) return error_;
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    const std::string shown = path_of(name.substr(0, kMaxReason));
    if (!strict()) {
      if (!value.is_null()) ignored_->add(shown);
      continue;
    }
    fail(FieldError{shown, "unknown field '" + shown + "'"});
    break;
  }
  return error_;
}

}  // namespace baton
