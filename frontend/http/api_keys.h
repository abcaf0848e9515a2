// Who may use the API: keys out of a file, with what each of them is due and where its limits are.
// What they use: key_meter.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/http/key_digest.h"
#include "ipc/messages.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

inline constexpr std::size_t kMaxApiKeys = 1024;
inline constexpr std::size_t kMinApiKeyBytes = 16;
inline constexpr std::size_t kMaxApiKeyBytes = 256;

struct ApiKey {
  KeyDigest digest{};
  /// Of its tenant, and for the log and metrics. "key 1", ... unless the file says.
  std::string name;
  float weight = 1;           // of its share, with scheduler.queue_order: fair
  std::int32_t priority = 0;  // added to that of its requests; lower is earlier
  // Limits of each front end; 0: none.
  std::uint32_t streams = 0;  // choices at once
  std::uint32_t requests_per_minute = 0;
  std::uint32_t tokens_per_minute = 0;  // of prompts and replies
  /// Where it is counted. Keys of one name keep their slot when the file is read again.
  std::size_t slot = 0;

  TenantShare share() const { return {name, weight, priority}; }
};

/// Const and safe for several threads.
class ApiKeys {
 public:
  /// A YAML list, or one key a line (docs/api.md). Errors name the line, `file` before it, and the
  /// field. A file without a key is an error: everything would be refused.
  static Result<ApiKeys> parse(const std::string& text, const std::string& file = "keys");
  static Result<ApiKeys> load(const std::string& path);

  /// No key is wanted of anybody.
  bool open() const { return keys_.empty(); }
  /// The slot of an Authorization header's key ("Bearer <key>"). The time taken depends on the
  /// number of keys alone.
  std::optional<std::size_t> find(std::string_view authorization) const;
  /// Likewise, of the bare key.
  std::optional<std::size_t> find_secret(std::string_view given) const;
  const std::vector<ApiKey>& all() const { return keys_; }
  std::vector<ApiKey>& all() { return keys_; }

 private:
  std::vector<ApiKey> keys_;
};

}  // namespace baton
