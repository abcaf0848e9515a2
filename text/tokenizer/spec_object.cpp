#include "text/tokenizer/spec_object.h"

#include <algorithm>
#include <utility>

namespace baton {
namespace {

const nlohmann::json kNull;
const nlohmann::json kEmptyList = nlohmann::json::array();

}  // namespace

SpecObject::SpecObject(const Json& object, std::string where)
    : object_(&object), where_(std::move(where)) {
  if (!object.is_object()) fail(invalid(where_ + ": must be an object"));
}

const SpecObject::Json* SpecObject::find(const char* key, bool required) {
  if (!object_->is_object()) return nullptr;
  asked_.emplace_back(key);
  const auto found = object_->find(key);
  if (found != object_->end() && !found->is_null()) return &*found;
  if (required) fail(invalid(where_ + ": '" + key + "' is missing"));
  return nullptr;
}

Status SpecObject::wrong(const char* key, const char* wanted) const {
  return invalid(where_ + ": '" + key + "' must be " + wanted);
}

bool SpecObject::flag(const char* key) {
  const Json* value = find(key, true);
  if (value == nullptr) return false;
  if (!value->is_boolean()) fail(wrong(key, "true or false"));
  return value->is_boolean() && value->get<bool>();
}

bool SpecObject::flag(const char* key, bool otherwise) {
  return find(key, false) == nullptr ? otherwise : flag(key);
}

std::string SpecObject::text(const char* key) {
  const Json* value = find(key, true);
  if (value == nullptr) return {};
  if (!value->is_string()) fail(wrong(key, "a string"));
  return value->is_string() ? value->get<std::string>() : std::string();
}

std::string SpecObject::text(const char* key, std::string otherwise) {
  return find(key, false) == nullptr ? std::move(otherwise) : text(key);
}

std::int64_t SpecObject::number(const char* key) {
  const Json* value = find(key, true);
  if (value == nullptr) return 0;
  if (!value->is_number_integer()) fail(wrong(key, "a whole number"));
  return value->is_number_integer() ? value->get<std::int64_t>() : 0;
}

const SpecObject::Json& SpecObject::list(const char* key) {
  const Json* value = find(key, true);
  if (value != nullptr && value->is_array()) return *value;
  if (value != nullptr) fail(wrong(key, "a list"));
  return kEmptyList;
}

const SpecObject::Json& SpecObject::value(const char* key) {
  const Json* value = find(key, false);
  return value == nullptr ? kNull : *value;
}

SpecObject::Pattern SpecObject::pattern(const char* key) {
  const Json* value = find(key, true);
  if (value == nullptr) return {};
  if (value->is_object() && value->size() == 1 && value->begin()->is_string()) {
    const std::string& kind = value->begin().key();
    if (kind == "String" || kind == "Regex") {
      return {kind == "Regex", value->begin()->get<std::string>()};
    }
  }
  fail(wrong(key, "{\"String\": ...} or {\"Regex\": ...}"));
  return {};
}

void SpecObject::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

Status SpecObject::finish() {
  if (!status_.ok() || !object_->is_object()) return status_;
  for (const auto& [key, value] : object_->items()) {
    if (value.is_null() || std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
    fail(unsupported(where_, "the key '" + key + "'"));
  }
  return status_;
}

}  // namespace baton
