// What every API key uses at the moment, against its limits, and has used since the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "frontend/core/request_table.h"
#include "frontend/http/api_keys.h"
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

/// One thread; each front end counts alone.
///
/// A limit a minute is a bucket of that size, full at the start, that fills up within a minute. A
/// request takes one out of the bucket of requests. Of the tokens' it needs one that is not empty,
/// and takes its prompt out of it; its reply is taken out as it comes, which may leave a debt.
class KeyMeter {
 public:
  struct Totals {
    std::uint64_t requests = 0;  // admitted
    std::uint64_t prompt_tokens = 0;
    std::uint64_t reply_tokens = 0;
    std::uint64_t refused[kKeyLimits] = {};  // by KeyLimit
    std::uint32_t streams = 0;               // open
  };

  explicit KeyMeter(std::vector<ApiKey> keys);

  /// A file that was read again: its keys get the slots that their names have had. Not ok: nothing
  /// has changed.
  Status replace(ApiKeys& keys);

  /// Takes a request of so many choices on.
  KeyAnswer admit(std::size_t slot, std::uint32_t streams, std::uint32_t prompt_tokens, TimeNs now);
  /// A predecessor has admitted it.
  void inherit(std::size_t slot, std::uint32_t streams) { used_[slot].totals.streams += streams; }
  /// Tokens of a reply.
  void charge(std::size_t slot, std::uint32_t tokens, TimeNs now);
  /// A request that was admitted is over.
  void release(std::size_t slot, std::uint32_t streams) { used_[slot].totals.streams -= streams; }

  const ApiKey& key(std::size_t slot) const { return keys_[slot]; }
  const Totals& totals(std::size_t slot) const { return used_[slot].totals; }
  /// Those of the file, as it was read last.
  const std::vector<std::size_t>& slots() const { return slots_; }
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

  std::vector<ApiKey> keys_;  // by slot; those of earlier files too
  std::vector<Used> used_;    // likewise
  std::vector<std::size_t> slots_;
  std::map<std::string, std::size_t> by_name_;
};

}  // namespace baton
