#include "frontend/http/api_keys.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "configs/yaml_list.h"
#include "ipc/process.h"

namespace baton {
namespace {

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

template <typename T>
bool read_number(std::string_view text, T& value) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

Status read_secret(std::string_view text, ApiKey& key) {
  if (text.size() < kMinApiKeyBytes || text.size() > kMaxApiKeyBytes) {
    return invalid("a key must have " + std::to_string(kMinApiKeyBytes) + " to " +
                   std::to_string(kMaxApiKeyBytes) + " letters, not " +
                   std::to_string(text.size()));
  }
  if (!is_printable(text)) return invalid("a key must be printable ASCII");
  key.digest = digest_of(text);
  return {};
}

/// One field beside the key itself; both kinds of file have the same.
Status read_field(std::string_view name, std::string_view value, ApiKey& key) {
  const std::string field(name);
  if (name == "name") {
    const bool control = std::any_of(value.begin(), value.end(),
                                     [](char c) { return static_cast<unsigned char>(c) < ' '; });
    if (value.empty() || value.size() > kMaxTenantName || control)
      return invalid("name must be 1 to " + std::to_string(kMaxTenantName) + " letters");
    key.name = value;
    return {};
  }
  if (name == "weight") {
    if (read_number(value, key.weight) && std::isfinite(key.weight) &&
        key.weight >= kLeastTenantWeight && key.weight <= kMostTenantWeight)
      return {};
    return invalid("weight must be a number from 0.001 to 1000");
  }
  if (name == "priority") {
    if (read_number(value, key.priority) && std::abs(key.priority) <= kMaxPriority) return {};
    return invalid("priority must be a whole number from -100 to 100");
  }
  std::uint32_t* limit = name == "streams"               ? &key.streams
                         : name == "requests_per_minute" ? &key.requests_per_minute
                         : name == "tokens_per_minute"   ? &key.tokens_per_minute
                                                         : nullptr;
  if (limit != nullptr) {
    if (read_number(value, *limit) && *limit > 0) return {};
    return invalid(field + " must be a whole number above 0");
  }
  return invalid("'" + field.substr(0, 64) +
                 "' is not known; a key has name, weight, priority, streams, requests_per_minute "
                 "and tokens_per_minute");
}

/// Keys in the order of the file, each secret and name once.
class Collector {
 public:
  Status add(const std::string& where, ApiKey key) {
    if (keys_.size() == kMaxApiKeys)
      return invalid(where + ": more than " + std::to_string(kMaxApiKeys) + " keys");
    if (key.name.empty()) key.name = "key " + std::to_string(keys_.size() + 1);
    if (!digests_.insert(key.digest).second) return invalid(where + ": this key was there before");
    const auto [first, fresh] = names_.emplace(key.name, where);
    if (!fresh)
      return invalid(where + ": name '" + key.name + "' was there before, at " + first->second);
    key.slot = keys_.size();
    keys_.push_back(std::move(key));
    return {};
  }
  std::vector<ApiKey> take() { return std::move(keys_); }

 private:
  std::vector<ApiKey> keys_;
  std::set<KeyDigest> digests_;
  std::map<std::string, std::string> names_;
};

Status read_line(std::string_view line, ApiKey& key) {
  if (Status status = read_secret(next_word(line), key); !status.ok()) return status;
  for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
    if (!is_printable(word)) return invalid("only printable ASCII may follow a key");
    const std::size_t split = word.find('=');
    if (split == std::string_view::npos)
      return invalid("only fields such as name=alice may follow a key");
    Status status = read_field(word.substr(0, split), word.substr(split + 1), key);
    if (!status.ok()) return status;
  }
  return {};
}

Status read_lines(std::string_view text, const std::string& file, Collector& keys) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    const std::string where = file + ":" + std::to_string(number);
    ApiKey key;
    if (Status status = read_line(line, key); !status.ok())
      return invalid(where + ": " + status.message());
    if (Status status = keys.add(where, std::move(key)); !status.ok()) return status;
  }
  return {};
}

Status read_entry(const YamlEntry& entry, ApiKey& key) {
  bool secret = false;
  bool named = false;
  for (const YamlField& field : entry.fields) {
    Status status;
    if (field.key == "key" || field.key == "sha256") {
      if (secret) return invalid(field.where + ": an entry has a key or its sha256, not both");
      secret = true;
      if (field.key == "key") {
        status = read_secret(field.text, key);
      } else if (const auto digest = parse_digest(field.text)) {
        key.digest = *digest;
      } else {
        status = invalid("sha256 must be 64 hexadecimal digits");
      }
    } else {
      named = named || field.key == "name";
      status = read_field(field.key, field.text, key);
    }
    if (!status.ok()) return invalid(field.where + ": " + status.message());
  }
  if (!named) return invalid(entry.where + ": an entry wants a name");
  if (!secret) return invalid(entry.where + ": " + key.name + " wants a key or its sha256");
  return {};
}

Status read_entries(const std::string& text, const std::string& file, Collector& keys) {
  auto entries = read_yaml_list(text, file, "keys", kMaxApiKeys);
  if (!entries.ok()) return entries.status();
  for (const YamlEntry& entry : entries.value()) {
    ApiKey key;
    if (Status status = read_entry(entry, key); !status.ok()) return status;
    if (Status status = keys.add(entry.where, std::move(key)); !status.ok()) return status;
  }
  return {};
}

/// Its first line that is no comment begins so; no key could.
bool is_yaml(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    return line.starts_with("keys:") || line.starts_with("---");
  }
  return false;
}

/// In a time that tells nothing about where they differ.
bool same(const KeyDigest& a, const KeyDigest& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

Result<ApiKeys> ApiKeys::parse(const std::string& text, const std::string& file) {
  Collector collector;
  const Status status =
      is_yaml(text) ? read_entries(text, file, collector) : read_lines(text, file, collector);
  if (!status.ok()) return status;
  ApiKeys keys;
  keys.keys_ = collector.take();
  if (keys.keys_.empty()) return invalid(file + ": there is no key in it");
  return keys;
}

Result<ApiKeys> ApiKeys::load(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts {};
  if (!fd || ::fstat(fd.get(), &facts) != 0) return invalid(path + ": cannot be read");
  if (!S_ISREG(facts.st_mode)) return invalid(path + ": is no file");
  // Its writer decides who may use the API.
  if ((facts.st_mode & S_IWOTH) != 0)
    return invalid(path + ": every user may write it; run chmod o-w on it");
  std::string text(kMaxFileBytes + 1, '\0');
  std::size_t size = 0;
  for (ssize_t n = 1; n > 0 && size < text.size(); size += static_cast<std::size_t>(n)) {
    n = ::read(fd.get(), text.data() + size, text.size() - size);
    if (n < 0) return invalid(path + ": cannot be read");
  }
  text.resize(size);
  if (text.size() > kMaxFileBytes) return invalid(path + ": larger than 1 MiB");
  return parse(text, path);
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
  if (given.size() > kMaxApiKeyBytes) return std::nullopt;
  const KeyDigest digest = digest_of(given);
  std::optional<std::size_t> found;
  for (const ApiKey& key : keys_) {
    if (same(digest, key.digest)) found = key.slot;
  }
  return found;
}

}  // namespace baton
