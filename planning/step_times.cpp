#include "planning/step_times.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ipc/max_ranks.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using Points = std::vector<std::pair<std::uint32_t, double>>;

constexpr double kMaxUs = 3.6e9;  // an hour
constexpr std::size_t kMaxPoints = 1000;

/// What is wrong, or empty.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  double number(const char* key, double scale, bool required) {
    const auto at = object_.find(key);
    if (at == object_.end()) {
      if (required) fail(key, "is missing");
      return 0;
    }
    if (!at->is_number() || at->get<double>() < 0 || at->get<double>() > kMaxUs) {
      fail(key, "must be a number from 0 to 3.6e9");
      return 0;
    }
    return at->get<double>() * scale;
  }

  std::string text(const char* key) {
    const auto at = object_.find(key);
    if (at == object_.end()) return {};
    if (!at->is_string() || at->get_ref<const std::string&>().size() > 1024) {
      fail(key, "must be a text");
      return {};
    }
    return at->get<std::string>();
  }

  std::uint32_t count(const char* key, std::uint32_t low, std::uint32_t high,
                      std::uint32_t fallback) {
    const auto at = object_.find(key);
    if (at == object_.end()) return fallback;
    if (!at->is_number_unsigned() || at->get<std::uint64_t>() < low ||
        at->get<std::uint64_t>() > high) {
      fail(key, "must be an integer from " + std::to_string(low) + " to " + std::to_string(high));
      return fallback;
    }
    return at->get<std::uint32_t>();
  }

  /// [[count, microseconds], ...]
  TimeCurve curve(const char* key) {
    const auto at = object_.find(key);
    if (at == object_.end() || !at->is_array() || at->empty() || at->size() > kMaxPoints) {
      fail(key, "must be a list of 1 to 1000 pairs [count, microseconds]");
      return {};
    }
    Points points;
    for (const Json& pair : *at) {
      const bool right = pair.is_array() && pair.size() == 2 && pair[0].is_number_unsigned() &&
                         pair[1].is_number() && pair[0].get<std::uint64_t>() >= 1 &&
                         pair[0].get<std::uint64_t>() <= (1U << 24U) &&
                         pair[1].get<double>() >= 0 && pair[1].get<double>() <= kMaxUs;
      if (!right || (!points.empty() && pair[0].get<std::uint32_t>() <= points.back().first)) {
        fail(key, "has " + pair.dump().substr(0, 80) +
                      " where a pair [count, microseconds] with a higher count is expected");
        return {};
      }
      points.emplace_back(pair[0].get<std::uint32_t>(), pair[1].get<double>() * 1e3);
    }
    return TimeCurve(std::move(points));
  }

  const std::string& error() const { return error_; }

 private:
  void fail(const char* key, const std::string& what) {
    if (error_.empty()) error_ = "'" + std::string(key) + "' " + what;
  }

  const Json& object_;
  std::string error_;
};

Json points_json(const TimeCurve& curve) {
  Json list = Json::array();
  for (const auto& [count, ns] : curve.points()) {
    list.push_back({count, std::round(ns / 10) / 100});
  }
  return list;
}

}  // namespace

double TimeCurve::at(std::uint32_t count) const {
  if (points_.empty()) return 0;
  if (points_.size() == 1 || count <= points_.front().first) return points_.front().second;
  auto high = std::lower_bound(points_.begin(), points_.end(), count,
                               [](const auto& point, std::uint32_t n) { return point.first < n; });
  if (high == points_.end()) --high;
  const auto low = high - 1;
  const double share = (static_cast<double>(count) - low->first) / (high->first - low->first);
  return std::max(0.0, low->second + share * (high->second - low->second));
}

TimeNs StepTimes::of(const StepLoad& load) const {
  double time = decode_context * static_cast<double>(load.decode_context) +
                link_token * static_cast<double>(load.link_tokens);
  if (load.prompt_tokens == 0) {
    time += load.decode_rows > 0 ? decode.at(load.decode_rows) : 0;
  } else {
    time += prompt.at(load.prompt_tokens + load.decode_rows) +
            prompt_pair * static_cast<double>(load.prompt_pairs) +
            sample * static_cast<double>(load.prompt_ends + load.decode_rows);
  }
  return host + static_cast<TimeNs>(time);
}

Result<MeasuredDevice> parse_device(const std::string& json) {
  const Json object = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return invalid("a JSON object of step times is expected");
  Reader reader(object);
  MeasuredDevice device;
  StepTimes& times = device.times;
  device.model = reader.text("model");
  device.device = reader.text("device");
  device.ranks = reader.count("ranks", 1, kMaxRanks, 1);
  device.tokens_per_block = reader.count("tokens_per_block", 1, 4096, device.tokens_per_block);
  device.pool_blocks = reader.count("pool_blocks", 0, 1U << 26U, 0);
  device.max_context = reader.count("max_context", 1, 1U << 27U, device.max_context);
  times.decode = reader.curve("decode_us");
  times.prompt = reader.curve("prompt_us");
  times.decode_context = reader.number("decode_context_ns", 1, true);
  times.prompt_pair = reader.number("prompt_pair_ns", 1, true);
  times.sample = reader.number("sample_us", 1e3, true);
  times.link_token = reader.number("link_token_ns", 1, false);
  times.host = static_cast<TimeNs>(reader.number("host_us", 1e3, false));
  times.pull = static_cast<TimeNs>(reader.number("pull_us", 1e3, true));
  times.pull_block = static_cast<TimeNs>(reader.number("pull_block_us", 1e3, true));
  times.host_block = static_cast<TimeNs>(reader.number("host_block_us", 1e3, false));
  times.message = static_cast<TimeNs>(reader.number("message_us", 1e3, false));
  times.request = static_cast<TimeNs>(reader.number("request_us", 1e3, false));
  if (!reader.error().empty()) return invalid(reader.error());
  return device;
}

std::string device_json(const MeasuredDevice& device) {
  const StepTimes& times = device.times;
  const auto us = [](double ns) { return std::round(ns) / 1000; };
  nlohmann::ordered_json object;
  object["model"] = device.model;
  object["device"] = device.device;
  object["ranks"] = device.ranks;
  object["tokens_per_block"] = device.tokens_per_block;
  object["pool_blocks"] = device.pool_blocks;
  object["max_context"] = device.max_context;
  object["decode_us"] = points_json(times.decode);
  object["decode_context_ns"] = std::round(times.decode_context * 1000) / 1000;
  object["prompt_us"] = points_json(times.prompt);
  object["prompt_pair_ns"] = std::round(times.prompt_pair * 1000) / 1000;
  object["sample_us"] = us(times.sample);
  object["link_token_ns"] = std::round(times.link_token * 1000) / 1000;
  object["host_us"] = us(static_cast<double>(times.host));
  object["pull_us"] = us(static_cast<double>(times.pull));
  object["pull_block_us"] = us(static_cast<double>(times.pull_block));
  object["host_block_us"] = us(static_cast<double>(times.host_block));
  object["message_us"] = us(static_cast<double>(times.message));
  object["request_us"] = us(static_cast<double>(times.request));
  return object.dump(1) + "\n";
}

}  // namespace baton
