// Requests that have ended, until all is known of where their time went: their last byte is out,
// and the scheduler has said its last word of them, or is not waited for any more. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "frontend/core/otlp_spans.h"
#include "frontend/core/request_table.h"
#include "ipc/timing.h"

namespace baton {

/// One that has ended for its client.
struct EndedRequest {
  ExplainedRequest request;  // all but its times
  FrontendMarks marks;
  std::optional<RequestTiming> timing;  // the last word so far
  std::uint64_t awaited = 0;            // counter of a request whose last word is to come; 0: none
  TimeNs wall_offset = 0;               // of unix time above monotonic time
  std::unique_ptr<SpanFacts> span = {};  // it is told of in a trace; null: it is not
  std::size_t model = 0;                 // which of those that are served
};

class RequestExplainer {
 public:
  /// Gets `request` with its times.
  using Sink = std::function<void(EndedRequest)>;
  explicit RequestExplainer(Sink sink) : sink_(std::move(sink)) {}

  /// Its last bytes are made. A connection has one at a time.
  void ended(std::uint64_t connection, EndedRequest request);
  /// They are out, or its client is gone.
  void written(std::uint64_t connection, TimeNs now);
  /// The end of a stream that nobody waited for any more.
  void abandoned(const StreamEnd& end);
  /// The scheduler's last word of a request, which came later.
  void told(const RequestTiming& timing);
  /// Gives up waiting for last words.
  void tick(TimeNs now);

 private:
  static constexpr TimeNs kWait = 2 * kSecond;
  static constexpr std::size_t kMostWaiting = 4096;

  EndedRequest* waiting_for(std::uint64_t counter);
  void finish(EndedRequest& request);

  Sink sink_;
  std::unordered_map<std::uint64_t, EndedRequest> unwritten_;  // by connection
  std::unordered_map<std::uint64_t, EndedRequest> awaiting_;   // written, by counter
};

}  // namespace baton
