#include "frontend/chat/ordered_json.h"

#include <nlohmann/json.hpp>

#include "frontend/core/surrogates.h"
#include "frontend/http/sse.h"

namespace baton {
namespace {

using Json = nlohmann::json;

/// Writes down what the parser reports, numbers as they were spelled.
class Copier : public nlohmann::json_sax<Json> {
 public:
  /// Without names, the whole text is copied to "".
  Copier(const std::set<std::string>* names, const SpecialGuard& guard)
      : names_(names), guard_(guard) {
    if (names_ == nullptr) out_ = &copies[""];
  }

  std::map<std::string, std::string> copies;

  bool null() override { return value("null"); }
  bool boolean(bool value_) override { return value(value_ ? "true" : "false"); }
  bool number_integer(number_integer_t number) override { return value(std::to_string(number)); }
  bool number_unsigned(number_unsigned_t number) override { return value(std::to_string(number)); }
  bool number_float(number_float_t, const string_t& spelled) override { return value(spelled); }
  bool string(string_t& text) override {
    return value(out_ == nullptr ? "" : json_string(guard_.guard(text)));
  }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open('{'); }
  bool start_array(std::size_t) override { return open('['); }
  bool end_object() override { return close('}'); }
  bool end_array() override { return close(']'); }

  bool key(string_t& name) override {
    if (depth_ == 1 && names_ != nullptr) {
      out_ = names_->contains(name) ? &copies[name] : nullptr;
    } else if (out_ != nullptr) {
      separate();
      *out_ += json_string(guard_.guard(name)) + ':';
      after_key_ = true;
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

 private:
  /// A comma, unless this is the first of its kind.
  void separate() {
    if (!after_key_ && !out_->empty() && out_->back() != '{' && out_->back() != '[') *out_ += ',';
    after_key_ = false;
  }
  bool value(std::string_view text) {
    if (out_ != nullptr) {
      separate();
      *out_ += text;
    }
    return true;
  }
  bool open(char bracket) {
    if (depth_++ > 0 || names_ == nullptr) value(std::string_view(&bracket, 1));
    return true;
  }
  bool close(char bracket) {
    if (--depth_ > 0 || names_ == nullptr) {
      if (out_ != nullptr) *out_ += bracket;
    }
    after_key_ = false;
    return true;
  }

  const std::set<std::string>* names_;
  const SpecialGuard& guard_;
  std::string* out_ = nullptr;
  std::size_t depth_ = 0;
  bool after_key_ = false;
};

}  // namespace

std::map<std::string, std::string> copy_members(std::string_view json,
                                                const std::set<std::string>& names,
                                                const SpecialGuard& guard) {
  const auto mended = without_lone_surrogates(json);
  if (mended) json = *mended;
  Copier copier(&names, guard);
  Json::sax_parse(json.begin(), json.end(), &copier);
  return std::move(copier.copies);
}

std::string copy_json(std::string_view json, const SpecialGuard& guard) {
  const auto mended = without_lone_surrogates(json);
  if (mended) json = *mended;
  Copier copier(nullptr, guard);
  Json::sax_parse(json.begin(), json.end(), &copier);
  return std::move(copier.copies[""]);
}

}  // namespace baton
