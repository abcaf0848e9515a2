#include "frontend/http/api_keys.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>

namespace baton {
namespace {

constexpr double kMinute = 60.0 * kSecond;
constexpr std::size_t kMaxFileBytes = 1 << 20;

/// Takes the next word off `line`.
std::string_view next_word(std::string_view& line) {
  const std::size_t begin = std::min(line.find_first_not_of(" \t\r"), line.size());
  line.remove_prefix(begin);
  const std::string_view word = line.substr(0, line.find_first_of(" \t\r"));
  line.remove_prefix(word.size());
  return word;
}

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

bool read_limit(std::string_view text, std::uint32_t& value) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() && read.ptr == text.data() + text.size() && value > 0;
}

Status read_setting(std::string_view word, ApiKey& key) {
  const std::size_t split = word.find('=');
  const std::string_view name = word.substr(0, split);
  const std::string_view value =
      split == std::string_view::npos ? std::string_view() : word.substr(split + 1);
  if (name == "name") {
    if (value.empty() || value.size() > 64) return invalid("name= must be 1 to 64 letters");
    key.name = value;
    return {};
  }
  if (name == "streams" || name == "tokens_per_minute") {
    if (read_limit(value, name == "streams" ? key.streams : key.tokens_per_minute)) return {};
    return invalid(std::string(name) + "= must be a whole number above 0");
  }
  return invalid("only name=, streams= and tokens_per_minute= may follow a key");
}

Status read_line(std::string_view line, ApiKey& key) {
  key.secret = next_word(line);
  if (key.secret.size() < kMinApiKeyBytes || key.secret.size() > kMaxApiKeyBytes) {
    return invalid("a key must have " + std::to_string(kMinApiKeyBytes) + " to " +
                   std::to_string(kMaxApiKeyBytes) + " letters, not " +
                   std::to_string(key.secret.size()));
  }
  if (!is_printable(key.secret)) return invalid("a key must be printable ASCII");
  for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
    if (!is_printable(word)) return invalid("only printable ASCII may follow a key");
    if (Status status = read_setting(word, key); !status.ok()) return status;
  }
  return {};
}

/// Whether the two are equal, in a time that tells nothing about where they differ or how long the
/// second one is.
bool same(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < kMaxApiKeyBytes; ++i) {
    const auto a = static_cast<unsigned char>(i < given.size() ? given[i] : 0);
    const auto b = static_cast<unsigned char>(i < secret.size() ? secret[i] : 0);
    difference |= static_cast<unsigned>(a ^ b);
  }
  return difference == 0;
}

}  // namespace

Result<ApiKeys> ApiKeys::parse(std::string_view text) {
  ApiKeys keys;
  std::set<std::string> seen;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    const std::string where = "line " + std::to_string(number) + ": ";
    ApiKey key;
    key.name = "key " + std::to_string(keys.keys_.size() + 1);
    if (Status status = read_line(line, key); !status.ok())
      return invalid(where + status.message());
    if (!seen.insert(key.secret).second) return invalid(where + "this key was there before");
    if (keys.keys_.size() == kMaxApiKeys) {
      return invalid(where + "more than " + std::to_string(kMaxApiKeys) + " keys");
    }
    keys.keys_.push_back(std::move(key));
  }
  if (keys.keys_.empty()) return invalid("there is no key in it");
  return keys;
}

Result<ApiKeys> ApiKeys::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) return invalid(path + ": cannot be read");
  if (text.size() > kMaxFileBytes) return invalid(path + ": larger than 1 MiB");
  auto keys = parse(text);
  if (!keys.ok()) return invalid(path + ": " + keys.status().message());
  return keys;
}

std::optional<std::size_t> ApiKeys::find(std::string_view authorization) const {
  // The scheme is not case-sensitive (RFC 9110, 11.1).
  constexpr std::string_view kScheme = "bearer ";
  bool bearer = authorization.size() > kScheme.size();
  for (std::size_t i = 0; bearer && i < kScheme.size(); ++i) {
    bearer = (authorization[i] | 0x20) == kScheme[i];
  }
  if (!bearer) return std::nullopt;
  std::string_view given = authorization.substr(kScheme.size());
  given.remove_prefix(std::min(given.find_first_not_of(' '), given.size()));
  return find_secret(given);
}

std::optional<std::size_t> ApiKeys::find_secret(std::string_view given) const {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (same(given, keys_[i].secret)) found = i;
  }
  return found;
}

double KeyMeter::level(std::size_t key, TimeNs now) {
  Used& used = used_[key];
  const double full = keys_[key].tokens_per_minute;
  const double gained = static_cast<double>(now - used.filled) / kMinute * full;
  used.level = used.begun ? std::min(full, used.level + gained) : full;
  used.begun = true;
  used.filled = now;
  return used.level;
}

Status KeyMeter::admit(std::size_t key, std::uint32_t streams, std::uint32_t prompt_tokens,
                       TimeNs now, std::uint32_t* retry_after_s) {
  const ApiKey& limits = keys_[key];
  Used& used = used_[key];
  *retry_after_s = 1;
  if (limits.streams != 0 && streams > limits.streams) {
    return invalid("this request asks for " + std::to_string(streams) +
                   " choices; this API key may have " + std::to_string(limits.streams));
  }
  if (limits.streams != 0 && used.streams + streams > limits.streams) {
    return Status(ErrorCode::queue_full, "this API key has " + std::to_string(used.streams) +
                                             " of its " + std::to_string(limits.streams) +
                                             " streams open; try again later");
  }
  if (limits.tokens_per_minute != 0) {
    const double now_in = level(key, now);
    if (now_in < 1) {
      *retry_after_s =
          static_cast<std::uint32_t>(std::ceil((1 - now_in) * 60 / limits.tokens_per_minute));
      return Status(ErrorCode::queue_full, "this API key has used its " +
                                               std::to_string(limits.tokens_per_minute) +
                                               " tokens a minute; try again later");
    }
    used.level -= prompt_tokens;
  }
  used.streams += streams;
  return {};
}

void KeyMeter::charge(std::size_t key, std::uint32_t tokens, TimeNs now) {
  if (keys_[key].tokens_per_minute == 0) return;
  level(key, now);
  used_[key].level -= tokens;
}

}  // namespace baton
