// Sends spans of requests to a collector (OTLP over HTTP, as JSON), on a thread of its own: whoever
// has a request to tell of never waits. What the collector does not take in time is dropped and
// counted.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "frontend/core/otlp_spans.h"
#include "frontend/core/trace_context.h"
#include "ipc/types.h"

namespace baton {

/// What a collector answered.
struct PostOutcome {
  int status = 0;          // of HTTP; 0: there was no answer
  std::string error;       // then why
  TimeNs retry_after = 0;  // it asked for that; 0: it did not
};

/// One POST of a body of JSON. Blocks for a bounded time, less once `stop` is set.
using PostJson = std::function<PostOutcome(const std::string& body, const std::atomic<bool>& stop)>;

/// By libcurl, with `timeout` for all of it; http and https, proxies as the environment names them.
PostJson curl_post(const std::string& url, TimeNs timeout);

struct OtlpOptions {
  SpanSource source;
  double sample_ratio = 1;        // of requests whose clients do not say
  std::size_t queue = 2048;       // requests that wait
  std::size_t batch = 128;        // requests in one body
  TimeNs interval = kSecond;      // a batch waits so long for more
  TimeNs backoff = kSecond;       // after a failure; doubled each time
  int attempts = 5;               // of one batch
  TimeNs farewell = 2 * kSecond;  // what stop() may take
  std::function<void(const std::string&)> log;
};

struct OtlpCounters {
  std::uint64_t exported = 0;  // spans that the collector took
  std::uint64_t failed = 0;    // requests whose spans it did not take
  std::uint64_t dropped = 0;   // requests that found no room
};

class OtlpExporter {
 public:
  OtlpExporter(OtlpOptions options, PostJson post);
  ~OtlpExporter() { stop(); }
  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

  /// Whether a request is to be told of: what its client says, if it does, else by chance. Null: it
  /// is not.
  std::unique_ptr<SpanFacts> open(const TraceContext* client);
  /// Never blocks.
  void add(ExplainedRequest request, SpanFacts facts);
  OtlpCounters counters() const;
  /// Sends what waits, for as long as options.farewell allows.
  void stop();

 private:
  void run();
  void send(std::vector<FinishedRequest>& batch);
  bool pause(TimeNs time);
  void complain(const std::string& why);

  const OtlpOptions options_;
  const PostJson post_;
  std::mt19937_64 ids_;     // of traces; the loop's
  std::mt19937_64 random_;  // the thread's
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<FinishedRequest> waiting_;
  std::atomic<bool> stop_{false};
  TimeNs give_up_ = 0;  // once stopped
  std::atomic<std::uint64_t> exported_{0};
  std::atomic<std::uint64_t> failed_{0};
  std::atomic<std::uint64_t> dropped_{0};
  TimeNs complained_ = 0;
  std::thread thread_;
};

}  // namespace baton
