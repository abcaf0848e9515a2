// What Pistache's threads ask of the loop: every byte to a client is written by the loop alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "frontend/core/dialect.h"
#include "frontend/core/generation.h"
#include "frontend/core/reply_facts.h"
#include "frontend/http/client_connection.h"
#include "frontend/http/health.h"
#include "frontend/http/http_reply.h"
#include "ipc/process.h"
#include "ipc/types.h"

namespace baton {

/// Routes whose replies only the loop knows.
enum class LiveRoute : std::uint8_t { health, metrics, index, page };

/// A request to run. The parsed request owns the dialect's reply writer.
struct Generation {
  ParsedRequest request;
  ReplyFacts facts;  // all but the seed, if the request names none
  std::optional<std::string> chat_text;  // a chat as the model's template wrote it down
  std::size_t model = 0;                 // which of those that are served
};

struct LiveRequest {
  LiveRoute route = LiveRoute::health;
  std::string accept = {};  // header values that index_page() wants
  std::string host = {};
  const std::vector<const Dialect*>* dialects = nullptr;  // of the port; they outlive the loop
  MakePage page = nullptr;  // of a dialect, with the path that was asked for
  std::string path = {};
  std::optional<std::size_t> model = std::nullopt;  // health: of that one alone
  HealthOf health = HealthOf::able;                 // of several models together
};

/// `100 Continue`: not a reply; the turn stays with the reader.
struct Interim {};

/// The reply is being worked on elsewhere and comes in another job: from now on it shows whether
/// the client still waits for it.
struct Pending {};

/// The console's events, for as long as the client reads them.
struct Watch {
  std::size_t model = 0;  // whose scheduler is watched
};

/// Job::route of a request that no route took.
inline constexpr const char* kNoRoute = "none";

/// The caller that shares are counted for: its API key (-1: none is wanted), or its address.
inline std::string owner_name(std::int32_t api_key, const std::string& peer) {
  return api_key < 0 ? peer : "key " + std::to_string(api_key);
}

struct Job {
  std::shared_ptr<ClientConnection> connection;
  ReplyFrame frame;
  const char* route = "";  // for metrics and logs; a literal
  TimeNs received = 0;     // when the request was whole
  std::variant<Interim, Pending, HttpReply, LiveRequest, Watch, Generation> what;
};

/// Bounded by nature: a connection has one request at a time, and few jobs for each. The bound
/// catches faults of ours.
class JobQueue {
 public:
  explicit JobQueue(std::size_t limit) : limit_(limit) {}

  /// False when full: the caller closes the connection.
  bool push(Job job) {
    {
      const std::lock_guard lock(mutex_);
      if (jobs_.size() >= limit_) return false;
      jobs_.push_back(std::move(job));
    }
    waker_.wake();
    return true;
  }
  /// Everything that has come, in order, into `jobs` (cleared before).
  void take(std::vector<Job>& jobs) {
    jobs.clear();
    waker_.clear();
    const std::lock_guard lock(mutex_);
    jobs.swap(jobs_);
  }
  int fd() const { return waker_.fd(); }

 private:
  const std::size_t limit_;
  Waker waker_;
  std::mutex mutex_;
  std::vector<Job> jobs_;
};

}  // namespace baton
