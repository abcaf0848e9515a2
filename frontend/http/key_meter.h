// What every API key uses at the moment, against its limits, and has used since the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "frontend/core/request_table.h"
#include "frontend/http/api_keys.h"
#include "frontend/http/http_error.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// Names that files have had since the start: beyond, a file with new ones is refused.
inline constexpr std::size_t kMaxKeySlots = 16 * kMaxApiKeys;

enum class KeyLimit : std::uint8_t { none, streams, requests_per_minute, tokens_per_minute };
inline constexpr std::size_t kKeyLimits = 4;
const char* to_string(KeyLimit limit);

/// What a request is told that asks for more than its key may have.
struct KeyAnswer {
  Status status;  // ok: it may go on. invalid_argument: it asks for more than there will ever be
  KeyLimit limit = KeyLimit::none;
  std::uint32_t retry_after_s = 0;
};

/// The request is its tenant's, and as urgent as that is. `salted`: it shares cached blocks with
/// requests of the same key alone (and of the same cache_salt, as ever).
void belongs_to(const ApiKey& key, bool salted, NewRequest& request);

/// Thread-safe; each front end counts alone.
///
/// A limit a minute is a bucket of that size, full at the start, that fills up within a minute. A
/// request of any route that costs work takes one out of the bucket of requests, however it ends.
/// Of the tokens' it needs one that is not empty; one that generates takes its prompt out of it,
/// and its reply as it comes, which may leave a debt.
class KeyMeter {
 public:
  struct Totals {
    std::uint64_t requests = 0;  // that their limits a minute let in, however they ended
    std::uint64_t prompt_tokens = 0;
    std::uint64_t reply_tokens = 0;
    std::uint64_t refused[kKeyLimits] = {};  // by KeyLimit
    std::uint32_t streams = 0;               // open
  };

  explicit KeyMeter(std::vector<ApiKey> keys);

  /// A file that was read again: its keys get the slots that their names have had. Not ok: nothing
  /// has changed.
  Status replace(ApiKeys& keys);

  /// A request begins, of which no more is known than its key.
  KeyAnswer begin(std::size_t slot, TimeNs now);
  /// The same request generates so many choices.
  KeyAnswer admit(std::size_t slot, std::uint32_t streams, std::uint32_t prompt_tokens, TimeNs now);
  /// A predecessor has admitted it.
  void inherit(std::size_t slot, std::uint32_t streams);
  /// Tokens of a reply.
  void charge(std::size_t slot, std::uint32_t tokens, TimeNs now);
  /// A request that was admitted is over.
  void release(std::size_t slot, std::uint32_t streams);

  ApiKey key(std::size_t slot) const;
  Totals totals(std::size_t slot) const;
  /// Those of the file, as it was read last.
  std::vector<std::size_t> slots() const;
  /// The lines x-ratelimit-... of a reply's head, as OpenAI's API has them, each with its line end;
  /// "" without such limits.
  std::string headers(std::size_t slot, TimeNs now);

 private:
  struct Bucket {
    double level = 0;
    TimeNs filled = 0;
    bool begun = false;
    double at(std::uint32_t size, TimeNs now);
  };
  struct Used {
    Bucket requests;
    Bucket tokens;
    Totals totals;
  };

  KeyAnswer refuse(std::size_t slot, KeyLimit limit, Status status, std::uint32_t retry_after_s);
  KeyAnswer refuse_used_up(std::size_t slot, KeyLimit limit, std::uint32_t size, double level);

  mutable std::mutex mutex_;  // guards what follows
  std::vector<ApiKey> keys_;  // by slot; those of earlier files too
  std::vector<Used> used_;    // likewise
  std::vector<std::size_t> slots_;
  std::map<std::string, std::size_t> by_name_;
};

/// Why a request is refused that a limit stands against.
HttpError limit_error(const KeyAnswer& answer);

/// The keys in force, and what each has used. Thread-safe.
class KeyBook {
 public:
  explicit KeyBook(ApiKeys keys = {})
      : meter_(keys.all()), keys_(std::make_shared<const ApiKeys>(std::move(keys))) {}

  std::shared_ptr<const ApiKeys> keys() const {
    const std::lock_guard lock(mutex_);
    return keys_;
  }
  KeyMeter& meter() { return meter_; }
  /// As KeyMeter::replace() says.
  Status replace(ApiKeys keys) {
    if (Status status = meter_.replace(keys); !status.ok()) return status;
    auto fresh = std::make_shared<const ApiKeys>(std::move(keys));
    const std::lock_guard lock(mutex_);
    keys_.swap(fresh);
    return {};
  }

 private:
  KeyMeter meter_;
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<const ApiKeys> keys_;
};

}  // namespace baton
