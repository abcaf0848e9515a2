#include "frontend/http/key_meter.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace baton {
namespace {

constexpr double kMinute = 60.0 * kSecond;

/// Seconds until a bucket of `size` that holds `level` holds one.
std::uint32_t until_one(double level, std::uint32_t size) {
  return static_cast<std::uint32_t>(std::max(1.0, std::ceil((1 - level) * 60 / size)));
}

void append_header(std::string& out, const char* what, const char* of, const std::string& value) {
  out.append("x-ratelimit-")
      .append(what)
      .append("-")
      .append(of)
      .append(": ")
      .append(value)
      .append("\r\n");
}

void append_bucket(std::string& out, const char* of, double level, std::uint32_t size) {
  const double left = std::clamp(level, 0.0, static_cast<double>(size));
  append_header(out, "limit", of, std::to_string(size));
  append_header(out, "remaining", of, std::to_string(static_cast<std::uint64_t>(left)));
  const auto full_ms = static_cast<std::uint64_t>((size - level) * 60'000 / size);
  append_header(out, "reset", of, std::to_string(full_ms) + "ms");
}

}  // namespace

const char* to_string(KeyLimit limit) {
  switch (limit) {
    case KeyLimit::none:
      return "";
    case KeyLimit::streams:
      return "streams";
    case KeyLimit::requests_per_minute:
      return "requests_per_minute";
    case KeyLimit::tokens_per_minute:
      return "tokens_per_minute";
  }
  return "";
}

void belongs_to(const ApiKey& key, bool salted, NewRequest& request) {
  request.share = key.share();
  if (salted) {
    // By the secret: a name may be another one's tomorrow. Its digest itself stays here.
    std::string secret("cache_salt");
    secret.append(reinterpret_cast<const char*>(key.digest.data()), key.digest.size());
    const KeyDigest salt = digest_of(secret += request.cache_salt);
    request.cache_salt.assign(reinterpret_cast<const char*>(salt.data()), salt.size());
  }
  request.priority = std::clamp(request.priority + key.priority, -kMaxPriority, kMaxPriority);
}

double KeyMeter::Bucket::at(std::uint32_t size, TimeNs now) {
  const double full = size;
  const double gained = static_cast<double>(now - filled) / kMinute * full;
  level = begun ? std::min(full, level + gained) : full;
  begun = true;
  filled = now;
  return level;
}

KeyMeter::KeyMeter(std::vector<ApiKey> keys) : keys_(std::move(keys)), used_(keys_.size()) {
  for (const ApiKey& key : keys_) {
    slots_.push_back(key.slot);
    by_name_[key.name] = key.slot;
  }
}

Status KeyMeter::replace(ApiKeys& keys) {
  const std::lock_guard lock(mutex_);
  const auto fresh = std::count_if(keys.all().begin(), keys.all().end(),
                                   [&](const ApiKey& key) { return !by_name_.contains(key.name); });
  if (keys_.size() + static_cast<std::size_t>(fresh) > kMaxKeySlots) {
    return invalid("more than " + std::to_string(kMaxKeySlots) +
                   " names of keys since this front end has started; start it again");
  }
  slots_.clear();
  for (ApiKey& key : keys.all()) {
    const auto [known, is_new] = by_name_.try_emplace(key.name, keys_.size());
    key.slot = known->second;
    if (is_new) {
      keys_.emplace_back();
      used_.emplace_back();
    }
    ApiKey& old = keys_[key.slot];
    Used& used = used_[key.slot];
    // A bucket of another size begins full: what is left of the old one says nothing.
    if (old.requests_per_minute != key.requests_per_minute) used.requests = {};
    if (old.tokens_per_minute != key.tokens_per_minute) used.tokens = {};
    old = key;
    slots_.push_back(key.slot);
  }
  return {};
}

KeyAnswer KeyMeter::refuse(std::size_t slot, KeyLimit limit, Status status,
                           std::uint32_t retry_after_s) {
  ++used_[slot].totals.refused[static_cast<std::size_t>(limit)];
  return {std::move(status), limit, retry_after_s};
}

KeyAnswer KeyMeter::refuse_used_up(std::size_t slot, KeyLimit limit, std::uint32_t size,
                                   double level) {
  return refuse(slot, limit,
                Status(ErrorCode::queue_full, "this API key has used its " + std::to_string(size) +
                                                  " " + to_string(limit) + "; try again later"),
                until_one(level, size));
}

KeyAnswer KeyMeter::begin(std::size_t slot, TimeNs now) {
  const std::lock_guard lock(mutex_);
  const ApiKey& key = keys_[slot];
  Used& used = used_[slot];
  for (const auto& [limit, size, bucket] :
       {std::tuple(KeyLimit::requests_per_minute, key.requests_per_minute, &used.requests),
        std::tuple(KeyLimit::tokens_per_minute, key.tokens_per_minute, &used.tokens)}) {
    if (size == 0 || bucket->at(size, now) >= 1) continue;
    return refuse_used_up(slot, limit, size, bucket->level);
  }
  if (key.requests_per_minute != 0) used.requests.level -= 1;
  ++used.totals.requests;
  return {};
}

KeyAnswer KeyMeter::admit(std::size_t slot, std::uint32_t streams, std::uint32_t prompt_tokens,
                          TimeNs now) {
  const std::lock_guard lock(mutex_);
  const ApiKey& key = keys_[slot];
  Used& used = used_[slot];
  if (key.streams != 0 && streams > key.streams) {
    return refuse(
        slot, KeyLimit::streams,
        invalid("this request asks for " + std::to_string(streams) +
                " choices; this API key may have " + std::to_string(key.streams) + " (streams)"),
        0);
  }
  if (key.streams != 0 && used.totals.streams + streams > key.streams) {
    return refuse(slot, KeyLimit::streams,
                  Status(ErrorCode::queue_full,
                         "this API key has " + std::to_string(used.totals.streams) + " of its " +
                             std::to_string(key.streams) + " streams open; try again later"),
                  1);
  }
  if (key.tokens_per_minute != 0) {
    const double level = used.tokens.at(key.tokens_per_minute, now);
    if (level < 1) {
      return refuse_used_up(slot, KeyLimit::tokens_per_minute, key.tokens_per_minute, level);
    }
    used.tokens.level -= prompt_tokens;
  }
  used.totals.streams += streams;
  used.totals.prompt_tokens += prompt_tokens;
  return {};
}

void KeyMeter::inherit(std::size_t slot, std::uint32_t streams) {
  const std::lock_guard lock(mutex_);
  used_[slot].totals.streams += streams;
}

void KeyMeter::release(std::size_t slot, std::uint32_t streams) {
  const std::lock_guard lock(mutex_);
  used_[slot].totals.streams -= streams;
}

void KeyMeter::charge(std::size_t slot, std::uint32_t tokens, TimeNs now) {
  const std::lock_guard lock(mutex_);
  Used& used = used_[slot];
  used.totals.reply_tokens += tokens;
  const std::uint32_t size = keys_[slot].tokens_per_minute;
  if (size == 0) return;
  used.tokens.at(size, now);
  used.tokens.level -= tokens;
}

ApiKey KeyMeter::key(std::size_t slot) const {
  const std::lock_guard lock(mutex_);
  return keys_[slot];
}

KeyMeter::Totals KeyMeter::totals(std::size_t slot) const {
  const std::lock_guard lock(mutex_);
  return used_[slot].totals;
}

std::vector<std::size_t> KeyMeter::slots() const {
  const std::lock_guard lock(mutex_);
  return slots_;
}

std::string KeyMeter::headers(std::size_t slot, TimeNs now) {
  const std::lock_guard lock(mutex_);
  const ApiKey& key = keys_[slot];
  Used& used = used_[slot];
  std::string out;
  if (key.requests_per_minute != 0) {
    const double level = used.requests.at(key.requests_per_minute, now);
    append_bucket(out, "requests", level, key.requests_per_minute);
  }
  if (key.tokens_per_minute != 0) {
    const double level = used.tokens.at(key.tokens_per_minute, now);
    append_bucket(out, "tokens", level, key.tokens_per_minute);
  }
  return out;
}

HttpError limit_error(const KeyAnswer& answer) {
  if (answer.status.code() != ErrorCode::queue_full) return http_error(answer.status);
  HttpError error =
      http_error(429, answer.status.message(), "rate_limit_exceeded", to_string(answer.limit));
  error.retry_after_s = answer.retry_after_s;
  return error;
}

}  // namespace baton
