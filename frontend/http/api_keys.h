// Who may use the API, and how much of it: keys out of a file, and what each of them uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

inline constexpr std::size_t kMaxApiKeys = 1024;
inline constexpr std::size_t kMinApiKeyBytes = 16;
inline constexpr std::size_t kMaxApiKeyBytes = 256;

struct ApiKey {
  std::string secret;
  std::string name;                     // for the log; "key 1", ... unless the file says
  std::uint32_t streams = 0;            // choices at once; 0: no limit
  std::uint32_t tokens_per_minute = 0;  // of prompts and replies; 0: no limit
};

/// Const and safe for several threads.
class ApiKeys {
 public:
  /// One key a line: its letters (16 to 256 printable ones), then any of name=, streams=,
  /// tokens_per_minute=. Empty lines and lines that begin with # are passed over. The error names
  /// the line. A file without a key is an error: everything would be refused.
  static Result<ApiKeys> parse(std::string_view text);
  static Result<ApiKeys> load(const std::string& path);

  /// No key is wanted of anybody.
  bool open() const { return keys_.empty(); }
  /// The key of an Authorization header ("Bearer <key>"). The time taken depends on the number of
  /// keys alone.
  std::optional<std::size_t> find(std::string_view authorization) const;
  /// Likewise, of the bare key.
  std::optional<std::size_t> find_secret(std::string_view given) const;
  const std::vector<ApiKey>& all() const { return keys_; }

 private:
  std::vector<ApiKey> keys_;
};

/// What every key uses at the moment, against its limits. One thread; each front end counts alone.
///
/// tokens_per_minute is a bucket of that size, full at the start, that fills up within a minute. A
/// request needs a bucket that is not empty, and takes its prompt out of it; its reply is taken out
/// as it comes, which may leave a debt.
class KeyMeter {
 public:
  explicit KeyMeter(std::vector<ApiKey> keys) : keys_(std::move(keys)), used_(keys_.size()) {}

  /// Takes a request of so many choices on; not ok: too much, come back in `*retry_after_s`.
  Status admit(std::size_t key, std::uint32_t streams, std::uint32_t prompt_tokens, TimeNs now,
               std::uint32_t* retry_after_s);
  /// A predecessor has admitted it.
  void inherit(std::size_t key, std::uint32_t streams) { used_[key].streams += streams; }
  /// Tokens of a reply.
  void charge(std::size_t key, std::uint32_t tokens, TimeNs now);
  /// A request that was admitted is over.
  void release(std::size_t key, std::uint32_t streams) { used_[key].streams -= streams; }

 private:
  struct Used {
    std::uint32_t streams = 0;
    double level = 0;  // tokens in the bucket
    TimeNs filled = 0;
    bool begun = false;
  };
  double level(std::size_t key, TimeNs now);

  std::vector<ApiKey> keys_;
  std::vector<Used> used_;
};

}  // namespace baton
