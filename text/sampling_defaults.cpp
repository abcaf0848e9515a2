#include "text/sampling_defaults.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "text/gguf/gguf_folder.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr double kMostTemperature = 100;
constexpr double kMostPenalty = 100;
constexpr double kMostTopK = 1e9;

struct Range {
  double low = 0;
  double high = 1;
  bool low_excluded = false;
};

/// A number under `key`; null counts as absent.
Status read_number(const Json& object, const char* key, Range range, const std::string& path,
                   std::optional<double>& value) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return {};
  const double number = found->is_number() ? found->get<double>() : range.low - 1;
  const bool low = range.low_excluded ? number <= range.low : number < range.low;
  if (low || !(number <= range.high)) {
    char bounds[96];
    std::snprintf(bounds, sizeof bounds, "must be a number %s %g, at most %g",
                  range.low_excluded ? "above" : "of at least", range.low, range.high);
    return invalid(path + ": " + key + " " + bounds +
                   "; --frontend.generation_config none leaves the file's sampling values out");
  }
  value = number;
  return {};
}

void describe(std::string& text, const char* name, double value) {
  char one[64];
  std::snprintf(one, sizeof one, "%s%s %g", text.empty() ? "" : ", ", name, value);
  text += one;
}

}  // namespace

std::string SamplingDefaults::described() const {
  std::string text;
  if (temperature) describe(text, "temperature", double{*temperature});
  if (top_p) describe(text, "top_p", double{*top_p});
  if (top_k) describe(text, "top_k", *top_k);
  if (min_p) describe(text, "min_p", double{*min_p});
  if (repetition_penalty) describe(text, "repetition_penalty", double{*repetition_penalty});
  return text;
}

Result<SamplingDefaults> read_sampling_defaults(const std::string& folder) {
  const std::string path = folder + "/generation_config.json";
  const auto text = read_model_json(path, kMaxBytes);
  if (!text.ok()) return text.status();
  SamplingDefaults defaults;
  if (!text.value()) return defaults;
  const Json object = Json::parse(*text.value(), nullptr, false);
  if (!object.is_object()) return invalid(path + ": not a JSON object");
  std::optional<double> temperature, top_p, top_k, min_p, penalty;
  for (Status status :
       {read_number(object, "temperature", {0, kMostTemperature}, path, temperature),
        read_number(object, "top_p", {0, 1, true}, path, top_p),
        read_number(object, "top_k", {-1, kMostTopK}, path, top_k),
        read_number(object, "min_p", {0, 1}, path, min_p),
        read_number(object, "repetition_penalty", {0, kMostPenalty, true}, path, penalty)}) {
    if (!status.ok()) return status;
  }
  if (temperature) defaults.temperature = static_cast<float>(*temperature);
  if (top_p) defaults.top_p = static_cast<float>(*top_p);
  if (top_k) defaults.top_k = *top_k < 0 ? 0 : static_cast<std::int32_t>(*top_k);
  if (min_p) defaults.min_p = static_cast<float>(*min_p);
  if (penalty) defaults.repetition_penalty = static_cast<float>(*penalty);
  return defaults;
}

}  // namespace baton
