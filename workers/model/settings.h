// Settings of one JSON object, read by name; config.cpp and its parts share this. Inside of the
// model loader only: it brings the JSON library along.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "workers/model/config.h"
#include "workers/model/error.h"

namespace baton {

using Json = nlohmann::json;

/// Settings of one JSON object, read by name with their type and bounds checked. What is refused
/// throws ModelError with the file and the key. The object outlives it.
class Settings {
 public:
  Settings(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw ModelError(where_ + ": " + key + ": " + why);
  }

  /// Absent and null are the same: Hugging Face writes null for "not set".
  bool has(const std::string& key) const {
    const auto it = object_.find(key);
    return it != object_.end() && !it->is_null();
  }

  /// Some keys mean something by null.
  bool says_null(const std::string& key) const {
    const auto it = object_.find(key);
    return it != object_.end() && it->is_null();
  }

  const Json& at(const std::string& key) const {
    if (!has(key)) refuse(key, "is missing");
    return object_.at(key);
  }

  int integer(const std::string& key, int low, int high) const {
    const Json& value = at(key);
    if (!value.is_number_integer()) refuse(key, "is not a whole number");
    // An unsigned value beyond the signed range would wrap in get<int64>.
    const bool huge = value.is_number_unsigned() && value.get<std::uint64_t>() > INT32_MAX;
    const std::int64_t number = huge ? INT64_MAX : value.get<std::int64_t>();
    if (number < low || number > high) {
      refuse(key, value.dump() + " is not in [" + std::to_string(low) + ", " +
                      std::to_string(high) + "]");
    }
    return static_cast<int>(number);
  }

  /// Of a number with several names, of which at least one is there and all say the same.
  int integer(const std::vector<std::string>& names, int low, int high) const {
    const std::string* said = nullptr;
    for (const std::string& name : names) {
      if (!has(name)) continue;
      if (said == nullptr) said = &name;
      if (integer(name, low, high) != integer(*said, low, high)) {
        refuse(name, at(name).dump() + " is not what " + *said + " says");
      }
    }
    return integer(said == nullptr ? names.back() : *said, low, high);
  }

  int integer_or(const std::string& key, int low, int high, int otherwise) const {
    return has(key) ? integer(key, low, high) : otherwise;
  }

  /// Finite.
  double number(const std::string& key) const {
    const Json& value = at(key);
    // Python's NaN and infinities arrive as strings (ipc/files.h).
    if (value == "NaN" || value == "Infinity" || value == "-Infinity") {
      refuse(key, value.get<std::string>() + " is not a finite number");
    }
    if (!value.is_number()) refuse(key, "is not a number");
    const auto number = value.get<double>();
    if (!std::isfinite(number)) refuse(key, value.dump() + " is not a finite number");
    return number;
  }

  /// Finite and > 0.
  double positive(const std::string& key) const {
    const double value = number(key);
    if (value <= 0) refuse(key, at(key).dump() + " is not above 0");
    return value;
  }

  /// Finite and >= 0.
  double not_negative(const std::string& key) const {
    const double value = number(key);
    if (value < 0) refuse(key, at(key).dump() + " is below 0");
    return value;
  }

  double positive_or(const std::string& key, double otherwise) const {
    return has(key) ? positive(key) : otherwise;
  }

  bool flag_or(const std::string& key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!at(key).is_boolean()) refuse(key, "is not true or false");
    return at(key).get<bool>();
  }

  std::string text(const std::string& key) const {
    if (!at(key).is_string()) refuse(key, "is not a string");
    return at(key).get<std::string>();
  }

  std::string text_or(const std::string& key, const std::string& otherwise) const {
    return has(key) ? text(key) : otherwise;
  }

  Settings object(const std::string& key) const {
    if (!at(key).is_object()) refuse(key, "is not an object");
    return {at(key), where_ + ": " + key};
  }

  /// One number or a list of numbers, all of them in [0, end).
  std::vector<Token> ids(const std::string& key, int end) const {
    std::vector<Token> found;
    if (!has(key)) return found;
    const Json& value = at(key);
    const Json list = value.is_array() ? value : Json::array({value});
    if (list.size() > 1024) refuse(key, "has more than 1024 entries");
    for (const Json& id : list) {
      if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= end) {
        refuse(key, id.dump() + " is not in [0, " + std::to_string(end) + ")");
      }
      found.push_back(id.get<Token>());
    }
    return found;
  }

  /// A list of `size` texts.
  std::vector<std::string> texts(const std::string& key, int size) const {
    const Json& list = at(key);
    if (!list.is_array()) refuse(key, "is not a list");
    if (static_cast<int>(list.size()) != size) {
      refuse(key, "has " + std::to_string(list.size()) + " entries where " + std::to_string(size) +
                      " are expected");
    }
    std::vector<std::string> found;
    for (const Json& text : list) {
      if (!text.is_string()) refuse(key, text.dump() + " is not a string");
      found.push_back(text.get<std::string>());
    }
    return found;
  }

  const Json& json() const { return object_; }
  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
};

struct Family;

/// The angles: theta, and the scaling of `rope_scaling` (transformers 4) or `rope_parameters` (5),
/// one for all layers or one for each kind of them: ropes[0], and ropes[1] of the layers with a
/// window. Wants the sizes read; raises max_context where the scaling says how far it reaches.
void read_ropes(const Settings& s, const Family& family, ModelConfig& config);

/// What yarn multiplies by: 0.1 m ln(factor) + 1, from the paper's section 3.4, where m is 1.
double yarn_magnitude(double factor, double m);

/// The layers. Wants the sizes and the angles read.
void read_layers(const Settings& s, const Family& family, ModelConfig& config);

/// What is in front of the layers and behind them: embedding and logits.
void read_head(const Settings& s, const Family& family, ModelConfig& config);

/// `s` is quantization_config, or the whole of quantize_config.json, which may leave the method
/// out: then it is `default_method`. Every method, width or layout that is not read is refused.
/// `mxfp4`: the family's experts may be stored so.
Quantization read_quantization(const Settings& s, const std::string& default_method,
                               bool mxfp4 = false);

}  // namespace baton
