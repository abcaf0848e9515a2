#include "frontend/frontend_loop.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "frontend/http_error.h"
#include "frontend/index_page.h"

namespace baton {
namespace {

constexpr int kMessagesARound = 64;
constexpr TimeNs kMessageTime = 20 * kMillisecond;
constexpr TimeNs kGap = 2 * kSecond;  // a round that came this late: this process was frozen
constexpr const char* kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

double milliseconds(TimeNs time) { return static_cast<double>(time) * 1e-6; }

}  // namespace

FrontendLoop::FrontendLoop(LoopOptions options, std::unique_ptr<ClientChannel> channel,
                           HttpServer& http, JobQueue& jobs, SharedFacts& facts,
                           std::shared_ptr<const Tokenizer> tokenizer)
    : options_(std::move(options)),
      table_(options_.identity, options_.table),
      client_(std::move(channel)),
      http_(http),
      jobs_(jobs),
      facts_(facts),
      tokenizer_(std::move(tokenizer)),
      writer_(options_.writer),
      metrics_(options_.model_name),
      seeds_(std::random_device{}() ^ options_.identity.incarnation) {}

int FrontendLoop::run(SignalFd& signals, AliveFile& alive) {
  Poller poller;
  poller.add(client_.channel());
  poller.add_fd(writer_.fd());
  poller.add_fd(jobs_.fd());
  const auto signal = poller.add_fd(signals.fd());
  now_ = last_second_ = now_ns();
  while (true) {
    const TimeNs until = std::min(table_.next_tick(), last_second_ + kSecond);
    poller.wait(std::max<TimeNs>(0, until - now_ns()));
    now_ = now_ns();
    alive.touch(now_);
    round();
    if (!refused_.empty()) {
      spdlog::critical("the scheduler refuses this front end: {}", refused_);
      break;
    }
    if (poller.ready(signal) && signals.requested()) begin_drain();
    if (drain_until_ != 0 && drained()) break;
  }
  leave();
  return refused_.empty() ? 0 : 1;
}

void FrontendLoop::round() {
  take_jobs();
  take_messages();
  table_.tick(now_, out_);
  act(out_);
  flush_streams();
  writer_.poll(now_);
  take_drops();
  if (now_ - last_second_ >= kSecond) each_second();
}

void FrontendLoop::each_second() {
  // After a pause of our own (SIGSTOP) nobody else is to blame for the time.
  if (now_ - last_second_ < kGap) {
    writer_.check_stalls(now_);
    http_.reap(now_);
    take_drops();
  } else {
    spdlog::warn("this process stood still for {:.1f} s",
                 milliseconds(now_ - last_second_) / 1000);
    writer_.restart_clocks(now_);
  }
  last_second_ = now_;
}

// --------------------------------------------------------------------------- from the scheduler

void FrontendLoop::take_messages() {
  // A long backlog must not hold up heartbeats and new requests.
  const TimeNs until = now_ns() + kMessageTime;
  for (int i = 0; i < kMessagesARound && now_ns() < until; ++i) {
    const auto message = client_.receive();
    if (!message) break;
    table_.apply(*message, now_, out_);
    act(out_);
  }
  if (const std::string error = client_.take_error(); !error.empty()) {
    spdlog::error("dropped a message of the scheduler: {}", error);
  }
  // The last known limit stays while a scheduler is away: requests wait for it rather than fail.
  const std::uint32_t context = table_.scheduler().max_context;
  if (context != 0) facts_.max_context.store(context, std::memory_order_relaxed);
}

void FrontendLoop::act(TableOutput& out) {
  for (const FrontendMessage& message : out.messages) client_.send(message);
  for (const Delivery& delivery : out.deliveries) deliver(delivery, out.tokens);
  for (const StreamEnd& end : out.endings) {
    const auto at = streams_.find(end.counter);
    if (at == streams_.end()) continue;  // a stop string or the client ended it before
    Ending ending;
    ending.reason = end.reason;
    ending.code = end.code;
    ending.message = end.message;
    end_stream(at, ending, end.retry_after_s);
  }
  for (const std::string& notice : out.notices) {
    spdlog::log(notice.find("DIFFER") != std::string::npos ? spdlog::level::err
                                                           : spdlog::level::info,
                notice);
  }
  if (out.refused) refused_ = *out.refused;
  out.clear();
  if (&out != &follow_ && (!follow_.messages.empty() || !follow_.endings.empty())) act(follow_);
}

void FrontendLoop::deliver(const Delivery& delivery, const std::vector<Token>& tokens) {
  const auto at = streams_.find(delivery.counter);
  if (at == streams_.end()) return;
  Stream& stream = at->second;
  if (stream.first_token == 0) {
    stream.first_token = now_;
    metrics_.first_token(now_ - stream.received);
  } else {
    for (std::uint32_t i = 0; i < delivery.count; ++i) {
      metrics_.next_token((now_ - stream.last_token) / delivery.count);
    }
  }
  stream.last_token = now_;
  if (stream.streaming && !stream.begun) {
    stream.begun = true;
    stream.head = format_stream_head(stream.headers, stream.frame);
    stream.events = stream.reply->begin();
  }
  bool stopped = false;
  for (std::uint32_t i = 0; i < delivery.count && !stopped; ++i) {
    const auto output = stream.text.feed({&tokens[delivery.begin + i], 1});
    stream.events += stream.reply->text(output.text, 1);
    stream.tokens = output.n;
    metrics_.tokens_delivered(1);
    stopped = output.stopped;
  }
  if (stopped) {
    Ending ending;
    ending.reason = FinishReason::stop;
    ending.stop_string = true;
    table_.finish(delivery.counter, stream.tokens, now_, follow_);
    end_stream(at, ending, 0);
  } else if (!stream.dirty && stream.streaming) {
    stream.dirty = true;
    dirty_.push_back(delivery.counter);
  }
}

void FrontendLoop::flush_streams() {
  for (const std::uint64_t counter : dirty_) {
    const auto at = streams_.find(counter);
    if (at == streams_.end()) continue;
    Stream& stream = at->second;
    scratch_ = std::move(stream.head);
    append_chunk(scratch_, stream.events, stream.frame);
    writer_.send(stream.connection, scratch_, now_);
    stream.head.clear();
    stream.events.clear();
    stream.dirty = false;
  }
  dirty_.clear();
}

void FrontendLoop::end_stream(Streams::iterator at, const Ending& given,
                              std::uint32_t retry_after_s) {
  Stream& stream = at->second;
  Ending ending = given;
  ending.prompt_tokens = stream.prompt_tokens;
  ending.completion_tokens = stream.tokens;
  int status = 200;
  const std::string bytes = final_bytes(stream, ending, retry_after_s, &status);
  const bool keep_alive = stream.frame.keep_alive && status == 200;
  writer_.finish(stream.connection, bytes, keep_alive, now_);
  metrics_.reply_sent(stream.route, status);
  metrics_.request_ended(ending.reason, stream.tokens, stream.received, stream.first_token, now_);
  spdlog::info("{} {} {} prompt={} tokens={} end={}{}{} ttft_ms={:.1f} ms={:.1f}",
               stream.frame.request_id, stream.route, status, stream.prompt_tokens, stream.tokens,
               to_string(ending.reason), ending.code == ErrorCode::ok ? "" : "/",
               ending.code == ErrorCode::ok ? "" : to_string(ending.code),
               stream.first_token == 0 ? 0.0 : milliseconds(stream.first_token - stream.received),
               milliseconds(now_ - stream.received));
  by_connection_.erase(stream.connection);
  streams_.erase(at);
}

/// Everything that the client still has to get.
std::string FrontendLoop::final_bytes(Stream& stream, const Ending& ending,
                                      std::uint32_t retry_after_s, int* status) {
  const bool failed = ending.code != ErrorCode::ok;
  if (failed && !stream.begun) {
    const HttpError error = http_error(Status(ending.code, ending.message), {}, retry_after_s);
    HttpReply reply;
    reply.status = *status = error.status;
    reply.body = error.body;
    reply.headers = stream.headers;
    if (error.retry_after_s > 0) {
      reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
    }
    ReplyFrame frame = stream.frame;
    frame.keep_alive = false;
    return format_reply(reply, frame);
  }
  std::string bytes = std::move(stream.head);
  std::string events = std::move(stream.events);
  if (stream.streaming && !stream.begun) {
    bytes = format_stream_head(stream.headers, stream.frame);
    events = stream.reply->begin();
  }
  if (!ending.stop_string) {
    const auto rest = stream.text.flush();
    if (!rest.text.empty()) events += stream.reply->text(rest.text, 0);
  }
  std::string end = stream.reply->end(ending);
  if (stream.streaming) {
    events += end;
    append_chunk(bytes, events, stream.frame);
    append_last_chunk(bytes, stream.frame);
    return bytes;
  }
  HttpReply reply;
  reply.body = std::move(end);
  reply.headers = std::move(stream.headers);
  return format_reply(reply, stream.frame);
}

/// Clients that left or never read: nobody waits for their requests any more.
void FrontendLoop::take_drops() {
  for (const DroppedClient& drop : writer_.take_drops()) {
    const auto found = by_connection_.find(drop.connection);
    if (found == by_connection_.end()) continue;
    metrics_.client_dropped(drop.reason);
    const std::uint64_t counter = found->second;
    const auto at = streams_.find(counter);
    const Stream& stream = at->second;
    spdlog::info("{} {} client {} after {} tokens", stream.frame.request_id, stream.route,
                 to_string(drop.reason), stream.tokens);
    metrics_.request_ended(FinishReason::cancelled, stream.tokens, stream.received,
                           stream.first_token, now_);
    by_connection_.erase(found);
    streams_.erase(at);
    table_.cancel(counter, now_, out_);
  }
  act(out_);
}

// --------------------------------------------------------------------------------- from clients

void FrontendLoop::take_jobs() {
  jobs_.take(batch_);
  for (Job& job : batch_) {
    writer_.open(job.connection, now_);
    std::visit([&](auto& what) { handle(job, what); }, job.what);
  }
  batch_.clear();
}

void FrontendLoop::handle(Job& job, Interim& /*what*/) {
  writer_.send(job.connection->id(), kContinue, now_);
}

void FrontendLoop::handle(Job& job, HttpReply& reply) { reply_now(job, std::move(reply)); }

void FrontendLoop::handle(Job& job, LiveRequest& request) { reply_now(job, live_reply(request)); }

void FrontendLoop::reply_now(Job& job, HttpReply reply) {
  if (drain_until_ != 0) job.frame.keep_alive = false;
  writer_.finish(job.connection->id(), format_reply(reply, job.frame), job.frame.keep_alive, now_);
  metrics_.reply_sent(job.route, reply.status);
  if (reply.status >= 400) {
    spdlog::info("{} {} {}", job.frame.request_id, job.route, reply.status);
  }
}

void FrontendLoop::refuse(Job& job, const Status& status) {
  const HttpError error = http_error(status);
  HttpReply reply;
  reply.status = error.status;
  reply.body = error.body;
  if (error.retry_after_s > 0) {
    reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  job.frame.keep_alive = false;
  reply_now(job, std::move(reply));
}

void FrontendLoop::handle(Job& job, Generation& generation) {
  if (drain_until_ != 0) {
    refuse(job, Status(ErrorCode::unavailable, "this front end is shutting down"));
    return;
  }
  ParsedRequest& parsed = generation.request;
  // Only the end of the connection tells an HTTP/1.0 client where a stream ends.
  if (parsed.stream && job.frame.minor == 0) job.frame.keep_alive = false;
  TextStreamOptions text = text_stream_options(*tokenizer_, parsed);
  NewRequest request;
  request.model = parsed.model;
  request.prompt = std::move(parsed.prompt);
  request.sampling = std::move(parsed.sampling);
  if (!parsed.seed_given) request.sampling.seed = seeds_();
  request.deadline = job.received + parsed.timeout;
  const auto prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  const Result<RequestId> id = table_.open(std::move(request), now_, out_);
  if (!id.ok()) {
    refuse(job, id.status());
    return;
  }
  act(out_);
  metrics_.request_accepted(prompt_tokens);
  const std::uint64_t counter = id.value().counter;
  Stream stream{.connection = job.connection->id(),
                .frame = std::move(job.frame),
                .route = job.route,
                .reply = std::move(parsed.reply),
                .text = TextStream(*tokenizer_, std::move(text)),
                .headers = std::move(parsed.headers),
                .streaming = parsed.stream,
                .prompt_tokens = prompt_tokens,
                .received = job.received,
                .head = {},
                .events = {}};
  spdlog::debug("{} {} request={} prompt={}", stream.frame.request_id, stream.route, counter,
                prompt_tokens);
  by_connection_[stream.connection] = counter;
  streams_.emplace(counter, std::move(stream));
}

HttpReply FrontendLoop::live_reply(const LiveRequest& request) {
  HttpReply reply;
  const Health health = judge_health(table_.scheduler(), drain_until_ != 0, now_);
  switch (request.route) {
    case LiveRoute::health:
      reply.status = health.ok ? 200 : 503;
      reply.body = health_body(health, table_.scheduler(), options_.model_name,
                               options_.identity.build);
      break;
    case LiveRoute::metrics:
      reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
      reply.body = metrics_.expose(metrics_view());
      break;
    case LiveRoute::index: {
      IndexFacts facts;
      facts.model = options_.model_name;
      facts.version = options_.identity.build;
      facts.address = request.host.empty() ? options_.address : request.host;
      facts.ready = health.ok;
      facts.state = health.reason;
      facts.max_context = facts_.max_context.load(std::memory_order_relaxed);
      IndexPage page = index_page(facts, request.accept);
      reply.content_type = std::move(page.content_type);
      reply.body = std::move(page.body);
      break;
    }
  }
  return reply;
}

MetricsView FrontendLoop::metrics_view() const {
  MetricsView view;
  view.version = options_.identity.build;
  view.scheduler_build = table_.scheduler().build;
  view.scheduler = table_.scheduler();
  view.scheduler_live = scheduler_live(table_.scheduler(), now_);
  view.table = table_.counters();
  view.link = client_.counters();
  view.writer = writer_.counters();
  view.http = http_.counters();
  view.open_streams = streams_.size();
  view.queued_bytes = writer_.queued_bytes();
  return view;
}

// ------------------------------------------------------------------------------------- the end

void FrontendLoop::begin_drain() {
  if (drain_until_ != 0) {
    drain_until_ = now_;  // a second signal: now
    return;
  }
  spdlog::info("stopping: {} streams may end within {:.1f} s", streams_.size(),
               milliseconds(options_.drain) / 1000);
  drain_until_ = now_ + options_.drain;
  facts_.draining.store(true, std::memory_order_relaxed);
  http_.stop();
}

/// True when nobody waits for a byte any more, or no longer may.
bool FrontendLoop::drained() {
  if (streams_.empty() && writer_.open_count() == 0) return true;
  if (now_ < drain_until_) return false;
  if (gave_up_) return true;
  // Time is up: the rest is cancelled, and gets half a second to read so.
  gave_up_ = true;
  drain_until_ = now_ + kSecond / 2;
  while (!streams_.empty()) {
    const auto at = streams_.begin();
    table_.cancel(at->first, now_, follow_);
    Ending ending;
    ending.reason = FinishReason::error;
    ending.code = ErrorCode::unavailable;
    ending.message = "this front end is shutting down";
    end_stream(at, ending, 1);
  }
  act(follow_);
  return false;
}

void FrontendLoop::leave() {
  client_.send(FrontendBye{options_.identity.incarnation});
  usleep(50'000);  // the channel does not linger: let the farewell out
  spdlog::info("left: {} tokens delivered", metrics_.generation_tokens());
}

}  // namespace baton
