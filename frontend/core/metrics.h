// Counts and times of a front end as Prometheus text. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/core/request_table.h"
#include "frontend/core/scheduler_client.h"
#include "frontend/http/http_server.h"
#include "frontend/http/key_meter.h"
#include "frontend/http/otlp_exporter.h"
#include "frontend/http/stream_writer.h"
#include "ipc/process.h"
#include "ipc/timing.h"
#include "ipc/types.h"

namespace baton {

/// Cumulative histogram over fixed bounds, in the unit of what is observed.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  void observe(double value);
  std::uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  /// The lines of one exposed name; `labels` without braces.
  void expose(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;  // not cumulative; the last is above every bound
  std::uint64_t count_ = 0;
  double sum_ = 0;
};

/// What an API key has used since the start.
struct KeyUse {
  std::string name;
  KeyMeter::Totals totals;
};

/// Numbers that others own, at the time of a scrape.
struct MetricsView {
  double unix_time = 0;
  std::uint64_t replies_unkept = 0;  // that found no room in the journal
  std::uint64_t replies_taken_over = 0;
  std::uint64_t replies_lost = 0;  // of the predecessor
  std::string version;
  std::string scheduler_build;
  SchedulerView scheduler;
  bool scheduler_live = false;
  TableCounters table;
  SchedulerClientCounters link;
  WriterCounters writer;
  HttpServerCounters http;
  std::size_t open_streams = 0;
  std::size_t queued_bytes = 0;
  ProcessUsage process;
  std::optional<OtlpCounters> spans;  // nothing: none are sent
  std::vector<KeyUse> keys;           // those of the file; their number is bounded
};

/// When a request's phases began (monotonic; 0: not known, or it never came to that).
struct PhaseTimes {
  TimeNs received = 0;
  TimeNs begun = 0;  // its first prompt chunk was planned
  TimeNs first_token = 0;
};

class Metrics {
 public:
  /// Whose numbers stand in the text. The first of several models also has what is of the whole
  /// process: connections, keys, replies by route. Labels say so; alone, all has the model's.
  enum class Among : std::uint8_t { alone, first, further };

  explicit Metrics(std::string model_name, Among among = Among::alone);

  void reply_sent(const char* route, int status) { ++replies_[{route, status}]; }
  void client_dropped(DropReason reason) { ++drops_[static_cast<std::size_t>(reason)]; }
  void request_accepted(std::uint32_t prompt_tokens);
  /// Of a request that has got a token: what was asked of prefix caches, and found there.
  void prompt_looked_up(std::uint32_t tokens, std::uint32_t cached) {
    looked_up_prompt_tokens_ += tokens;
    cached_prompt_tokens_ += cached;
  }
  void first_token(TimeNs since_received);
  void next_token(TimeNs since_last_token);
  void tokens_delivered(std::uint64_t n) { generation_tokens_ += n; }
  /// Where the time of a request went that the scheduler has told of.
  void request_parts(const std::vector<TimeNs>& spent);
  void request_ended(FinishReason reason, std::uint32_t tokens, const PhaseTimes& times,
                     TimeNs now);

  std::uint64_t generation_tokens() const { return generation_tokens_; }
  std::string expose(const MetricsView& view) const;

 private:
  bool of_process() const { return among_ != Among::further; }
  void expose_gauges(std::string& out, const MetricsView& view) const;
  void expose_process_gauges(std::string& out, const MetricsView& view) const;
  void expose_pools(std::string& out, const SchedulerView& scheduler, double unix_time) const;
  void expose_counters(std::string& out, const MetricsView& view) const;
  static void expose_keys(std::string& out, const std::vector<KeyUse>& keys);
  void expose_histograms(std::string& out) const;

  std::string model_;    // as a label: model_name="..."
  std::string process_;  // label of what is of the process: the same, or none
  Among among_;
  std::map<std::pair<std::string_view, int>, std::uint64_t> replies_;  // routes are literals
  std::array<std::uint64_t, 3> drops_{};
  std::array<std::uint64_t, 5> ended_{};  // by FinishReason
  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t looked_up_prompt_tokens_ = 0;
  std::uint64_t cached_prompt_tokens_ = 0;
  std::uint64_t generation_tokens_ = 0;
  Histogram ttft_, itl_, tpot_, e2e_, queue_, prefill_, decode_, inference_, prompt_size_,
      reply_size_;
  std::vector<Histogram> parts_;  // by Part
};

}  // namespace baton
