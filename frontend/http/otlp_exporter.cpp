#include "frontend/http/otlp_exporter.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "ipc/process.h"

namespace baton {
namespace {

constexpr TimeNs kComplainEvery = 60 * kSecond;
constexpr TimeNs kLongestPause = 30 * kSecond;

std::uint64_t seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32U | device();
}

/// The protocol's: any other answer would be the same the next time.
bool worth_another_try(int status) {
  return status == 0 || status == 429 || status == 502 || status == 503 || status == 504;
}

void put(std::uint64_t bits, std::uint8_t* to) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<std::uint8_t>(bits >> (8 * (7 - i)));
}

}  // namespace

OtlpExporter::OtlpExporter(OtlpOptions options, PostJson post)
    : options_(std::move(options)),
      post_(std::move(post)),
      ids_(seed()),
      random_(seed()),
      thread_([this] { run(); }) {}

std::unique_ptr<SpanFacts> OtlpExporter::open(const TraceContext* client) {
  if (client != nullptr) {
    if (!client->sampled) return nullptr;
    auto facts = std::make_unique<SpanFacts>();
    facts->trace = client->trace;
    facts->parent = client->span;
    facts->state = client->state;
    return facts;
  }
  // By the trace's id, as OpenTelemetry's samplers do it, so that others may decide the same.
  const std::uint64_t low = ids_();
  const double share = static_cast<double>(low >> 11U) * 0x1p-53;
  if (share >= options_.sample_ratio) return nullptr;
  auto facts = std::make_unique<SpanFacts>();
  put(ids_() | 1U, facts->trace.data());
  put(low, facts->trace.data() + 8);
  return facts;
}

void OtlpExporter::add(ExplainedRequest request, SpanFacts facts) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= options_.queue) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    waiting_.push_back({std::move(request), std::move(facts)});
    wake = waiting_.size() == 1 || waiting_.size() == options_.batch;
  }
  if (wake) ready_.notify_one();
}

OtlpCounters OtlpExporter::counters() const {
  return {exported_.load(std::memory_order_relaxed), failed_.load(std::memory_order_relaxed),
          dropped_.load(std::memory_order_relaxed)};
}

void OtlpExporter::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    give_up_ = now_ns() + options_.farewell;
    stop_ = true;
  }
  ready_.notify_one();
  thread_.join();
}

void OtlpExporter::run() {
  std::vector<FinishedRequest> batch;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      ready_.wait_for(lock, std::chrono::nanoseconds(options_.interval),
                      [this] { return stop_ || waiting_.size() >= options_.batch; });
      const std::size_t count = std::min(waiting_.size(), options_.batch);
      const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(count);
      batch.assign(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(end));
      waiting_.erase(waiting_.begin(), end);
    }
    send(batch);
    batch.clear();
  }
}

void OtlpExporter::send(std::vector<FinishedRequest>& batch) {
  std::size_t spans = 0;
  const std::string body = otlp_json(
      batch, options_.source, [this] { return random_(); }, &spans);
  TimeNs pause_for = options_.backoff;
  std::string why;
  for (int attempt = 1; attempt <= options_.attempts; ++attempt) {
    if (stop_ && now_ns() >= give_up_) {
      why = "this front end stops";
      break;
    }
    const PostOutcome outcome = post_(body, stop_);
    if (outcome.status >= 200 && outcome.status < 300) {
      exported_.fetch_add(spans, std::memory_order_relaxed);
      return;
    }
    why = outcome.status == 0 ? outcome.error : "status " + std::to_string(outcome.status);
    if (!worth_another_try(outcome.status) || attempt == options_.attempts) break;
    if (!pause(std::min(std::max(pause_for, outcome.retry_after), kLongestPause))) break;
    pause_for *= 2;
  }
  failed_.fetch_add(batch.size(), std::memory_order_relaxed);
  complain(why);
}

/// False: this is to end, and there is no time left. Nobody waits for a full batch meanwhile, so
/// that what finds no room is dropped by add().
bool OtlpExporter::pause(TimeNs time) {
  std::unique_lock lock(mutex_);
  const bool stopping =
      ready_.wait_for(lock, std::chrono::nanoseconds(time), [this] { return stop_.load(); });
  if (!stopping) return true;
  const TimeNs left = give_up_ - now_ns();
  if (left <= 0) return false;
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(left, kSecond / 5)));
  return true;
}

void OtlpExporter::complain(const std::string& why) {
  const TimeNs now = now_ns();
  if (!options_.log || (complained_ != 0 && now - complained_ < kComplainEvery)) return;
  complained_ = now;
  options_.log(why);
}

}  // namespace baton
