#include "frontend/frontend_loop.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "frontend/http/http_error.h"
#include "ipc/spin.h"

namespace baton {
namespace {

constexpr int kMessagesARound = 64;
constexpr TimeNs kMessageTime = 20 * kMillisecond;
constexpr TimeNs kTurnInterval = 100 * kMillisecond;
constexpr TimeNs kGap = 2 * kSecond;  // a round that came this late: this process was frozen

double milliseconds(TimeNs time) { return static_cast<double>(time) * 1e-6; }

}  // namespace

FrontendLoop::FrontendLoop(LoopOptions options, std::unique_ptr<ClientChannel> channel,
                           HttpServers& http, JobQueue& jobs, SharedFacts& facts)
    : options_(std::move(options)),
      table_(options_.identity, options_.table),
      client_(std::move(channel)),
      http_(http),
      jobs_(jobs),
      facts_(facts),
      meter_(options_.keys->keys()->all()),
      writer_(options_.writer),
      metrics_(options_.model_name),
      seeds_(std::random_device{}() ^ options_.identity.incarnation),
      tracer_(options_.trace_dir, options_.identity.name),
      explainer_([this](ExplainedRequest request, std::unique_ptr<SpanFacts> span) {
        keep(std::move(request), std::move(span));
      }) {
  keep_times();
  if (options_.place.incarnation != 0) {
    table_.succeed(options_.place.epoch, options_.place.next_counter);
    // Its clients wait for the scheduler as they would have without a death.
    facts_.max_context.store(static_cast<std::uint32_t>(options_.place.max_context));
  }
  writer_.on_end = [this](const ClientConnection& connection) {
    explainer_.written(connection.id(), now_ns());
    if (options_.journal != nullptr) options_.journal->close(connection.kept.cookie());
  };
  if (options_.journal != nullptr) note_place();
}

int FrontendLoop::run(SignalFd& signals, AliveFile& alive) {
  Poller poller;
  poller.add(client_.channel());
  poller.add_fd(writer_.fd());
  poller.add_fd(jobs_.fd());
  if (options_.live != nullptr) poller.add_fd(options_.live->fd());
  const auto signal = poller.add_fd(signals.fd());
  now_ = last_second_ = now_ns();
  for (const auto& owed : std::exchange(at_start_, {})) owed();
  act(out_);
  while (true) {
    const TimeNs until = std::min(table_.next_tick(), last_second_ + kSecond);
    poller.wait(std::max<TimeNs>(0, until - now_ns()));
    now_ = now_ns();
    alive.touch(now_);
    look_for_trace();
    round();
    if (!refused_.empty()) {
      spdlog::critical("the scheduler refuses this front end: {}", refused_);
      break;
    }
    if (poller.ready(signal)) {
      const int requests = signals.poll();
      if (signals.handover_requested() && options_.journal != nullptr) {
        spdlog::info("leaving {} streams to the next process", replies_.size());
        return kHandedOver;
      }
      if (signals.take_reload()) reload_keys();
      if (requests > 0) begin_drain();
    }
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
  take_turn_of_trials();
  flush_replies();
  tell_watchers();
  writer_.poll(now_);
  take_turns();
  take_drops();
  if (!choices_.empty()) work_goes_on(now_);
  if (now_ - last_second_ >= kSecond) each_second();
}

/// The console's, if somebody reads it.
void FrontendLoop::tell_watchers() {
  if (options_.live == nullptr) return;
  options_.live->watch(!watchers_.empty());
  if (watchers_.empty()) return;
  if (const auto line = options_.live->take()) watchers_.tell(*line, now_);
}

/// The front ends of a run directory take turns with trials: the turn is a lock that its holder's
/// death gives back.
void FrontendLoop::take_turn_of_trials() {
  if (!table_.wants_turn()) {
    turn_.reset();
    return;
  }
  if (turn_) return table_.give_turn();
  if (now_ < next_turn_) return;
  next_turn_ = now_ + kTurnInterval;
  Result<LockFile> lock = LockFile::acquire(options_.turn_lock);
  if (lock.ok()) {
    turn_ = std::move(lock.value());
  } else if (lock.status().code() == ErrorCode::unavailable) {
    return;  // another front end has it
  } else {
    spdlog::warn("no turns with other front ends: {}", lock.status().message());
  }
  table_.give_turn();
}

void FrontendLoop::each_second() {
  // After a pause of our own (SIGSTOP) nobody else is to blame for the time.
  if (now_ - last_second_ < kGap) {
    writer_.check_stalls(now_);
    http_.reap(now_);
    take_drops();
  } else {
    spdlog::warn("this process stood still for {:.1f} s", milliseconds(now_ - last_second_) / 1000);
    writer_.restart_clocks(now_);
  }
  last_second_ = now_;
  keep_streams_alive();
  explainer_.tick(now_);
  if (options_.journal != nullptr && options_.journal->lost() != unkept_) {
    if (unkept_ == 0)
      spdlog::warn(
          "replies find no room in the journal: they would end with this process (said once; "
          "baton_replies_unkept_total counts them)");
    unkept_ = options_.journal->lost();
  }
  if (options_.each_second) options_.each_second();
}

// --------------------------------------------------------------------------- from the scheduler

void FrontendLoop::take_messages() {
  // A long backlog must not hold up heartbeats and new requests.
  const TimeNs until = now_ns() + kMessageTime;
  for (int i = 0; i < kMessagesARound && now_ns() < until; ++i) {
    const auto message = client_.receive();
    if (!message) break;
    const Epoch known = table_.scheduler().epoch;
    table_.apply(*message, now_, out_);
    if (options_.journal != nullptr && table_.scheduler().epoch != known) note_place();
    act(out_);
  }
  if (const std::string error = client_.take_error(); !error.empty()) {
    spdlog::error("dropped a message of the scheduler: {}", error);
  }
  // The last known limit stays while a scheduler is away: requests wait for it rather than fail.
  const std::uint32_t context = table_.scheduler().max_context;
  if (context == 0 || context == facts_.max_context.load(std::memory_order_relaxed)) return;
  facts_.max_context.store(context, std::memory_order_relaxed);
  if (options_.journal != nullptr) note_place();
}

void FrontendLoop::act(TableOutput& out) {
  if (options_.journal != nullptr) note_attempts(out);
  for (const FrontendMessage& message : out.messages) client_.send(message);
  for (const ProgressTold& told : out.progress) tell_progress(told);
  LogprobReader logprobs(out.logprobs);
  for (const Delivery& delivery : out.deliveries) deliver(delivery, out, logprobs);
  for (StreamEnd& end : out.endings) end_choice(end);
  for (const RequestTiming& timing : out.timings) explainer_.told(timing);
  for (const std::string& notice : out.notices) {
    spdlog::log(
        notice.find("DIFFER") != std::string::npos ? spdlog::level::err : spdlog::level::info,
        notice);
  }
  if (out.refused) refused_ = *out.refused;
  out.clear();
  if (&out != &follow_ && (!follow_.messages.empty() || !follow_.endings.empty())) act(follow_);
}

void FrontendLoop::deliver(const Delivery& delivery, const TableOutput& out,
                           LogprobReader& logprobs) {
  const auto found = choices_.find(delivery.counter);
  if (found == choices_.end()) return;
  Choice& choice = found->second;
  Reply& reply = replies_.at(choice.connection);
  note_token_times(reply, choice, delivery);
  const auto connection = reply.connection;  // it may end below
  const AtWork at_work(connection->kept);
  const std::uint32_t index = choice.index + delivery.choice;
  if (delivery.first_index == 0 && !reply.rendered.begun(index)) {
    const auto prompt = static_cast<std::size_t>(delivery.prompt_logprobs);
    apply(reply,
          ChoiceBegins{index, delivery.beginning.cached_tokens,
                       delivery.prompt_logprobs < 0 ? nullptr : &out.prompt_logprobs[prompt]});
  }
  // Beams come whole, and a predecessor may have noted some of them.
  const std::uint32_t known =
      std::min(delivery.count, reply.rendered.tokens(index) - std::min(delivery.first_index,
                                                                      reply.rendered.tokens(index)));
  bool stopped = false;
  for (std::uint32_t i = delivery.begin + known; i < delivery.begin + delivery.count && !stopped;
       ++i) {
    LogprobReader::Entry entry;
    while (!logprobs.done() && logprobs.item() < i) logprobs.take(logprobs.item(), entry);
    const bool told = !logprobs.done() && logprobs.take(i, entry);
    stopped = apply(reply, TokenCame{index, out.tokens[i], told ? &entry : nullptr});
    if (!told || entry.vector.empty()) metrics_.tokens_delivered(1);
  }
  if (reply.rendered.held() > options_.max_reply_bytes) {
    const auto at = replies_.find(choice.connection);
    abandon(reply, follow_);
    end_reply(at, FinishReason::error,
              invalid("the reply has more than " + std::to_string(options_.max_reply_bytes) +
                      " bytes; ask for fewer choices, tokens or log probabilities"),
              0);
    return;
  }
  if (reply.frame().api_key >= 0) {
    meter_.charge(static_cast<std::size_t>(reply.frame().api_key), delivery.count, now_);
  }
  if (stopped) {
    table_.finish(delivery.counter, reply.rendered.tokens(choice.index), now_, follow_);
  }
  mark_dirty(choice.connection, reply);
}

void FrontendLoop::tell_progress(const ProgressTold& told) {
  const auto found = choices_.find(told.counter);
  if (found == choices_.end()) return;
  Reply& reply = replies_.at(found->second.connection);
  const AtWork at_work(reply.connection->kept);
  apply(reply, PromptGotOn{found->second.index, told.done, told.cached, told.took});
  mark_dirty(found->second.connection, reply);
}

/// A stream's new bytes go out when this round has seen all of its news.
void FrontendLoop::mark_dirty(std::uint64_t connection, Reply& reply) {
  if (reply.dirty || !reply.rendered.streaming()) return;
  reply.dirty = true;
  dirty_.push_back(connection);
}

void FrontendLoop::note_token_times(Reply& reply, Choice& choice, const Delivery& delivery) {
  PhaseTimes& times = reply.times;
  if (times.first_token == 0) {
    times.begun = delivery.beginning.at;
    times.first_token = now_;
    metrics_.first_token(now_ - times.received);
    if (tracer_.on()) trace_first_token(reply);
  }
  for (std::uint32_t i = 0; i < delivery.count && choice.last_token != 0; ++i) {
    metrics_.next_token((now_ - choice.last_token) / delivery.count);
  }
  choice.last_token = now_;
}

void FrontendLoop::flush_replies() {
  for (const std::uint64_t connection : dirty_) {
    const auto at = replies_.find(connection);
    if (at == replies_.end()) continue;
    Reply& reply = at->second;
    writer_.send(connection, reply.rendered.take_bytes(), now_);
    reply.dirty = false;
    reply.sent = now_;
  }
  dirty_.clear();
}

/// Proxies, balancers and clients give up on a stream that says nothing. Of one whose client has
/// not read what it was sent, the network says enough.
void FrontendLoop::keep_streams_alive() {
  if (options_.sse_keepalive == 0) return;
  for (auto& [connection, reply] : replies_) {
    if (now_ - reply.sent < options_.sse_keepalive || !reply.rendered.takes_comments() ||
        writer_.queued(connection) != 0) {
      continue;
    }
    const AtWork at_work(reply.connection->kept);
    apply(reply, StreamIdled{});
    mark_dirty(connection, reply);
  }
  flush_replies();
}

/// The first choice that fails fails its reply.
void FrontendLoop::end_choice(StreamEnd& end) {
  const auto found = choices_.find(end.counter);
  if (found == choices_.end())
    return explainer_.abandoned(end);  // its reply failed, or nobody waits
  const Choice choice = found->second;
  choices_.erase(found);
  const auto at = replies_.find(choice.connection);
  Reply& reply = at->second;
  const auto connection = reply.connection;
  const AtWork at_work(connection->kept);
  const Status status = ending_status(end.reason, end.code, end.message);
  reply.last_end = LastEnd{end.counter,  end.n,    end.submitted,
                           end.attempts, end.told, std::exchange(end.timing, std::nullopt)};
  reply.marks.ended = now_;
  if (status.ok()) tell_timing(reply);
  if (status.ok()) {
    if (end.choices.empty()) apply(reply, ChoiceEnds{choice.index, end.reason, {}, end.lifetime});
    for (std::uint32_t i = 0; i < end.choices.size(); ++i) {
      if (reply.rendered.ended(choice.index + i)) continue;  // a predecessor noted it
      apply(reply, ChoiceEnds{choice.index + i, end.choices[i].reason, end.choices[i].score,
                              end.lifetime});
    }
    if (reply.rendered.over()) {
      end_reply(at, end.reason, {}, 0);
    } else {
      mark_dirty(choice.connection, reply);
    }
    return;
  }
  abandon(reply, follow_);
  end_reply(at, end.reason, status, end.retry_after_s);
}

/// Nobody waits for the reply's choices any more.
void FrontendLoop::abandon(Reply& reply, TableOutput& out) {
  for (const std::uint64_t counter : reply.counters) {
    if (choices_.erase(counter) != 0) table_.cancel(counter, now_, out);
  }
}

void FrontendLoop::end_reply(Replies::iterator at, FinishReason reason, const Status& status,
                             std::uint32_t retry_after_s) {
  Reply& reply = at->second;
  const Usage usage = reply.rendered.usage();
  if (!status.ok()) apply(reply, ReplyFails{status.code(), status.message(), retry_after_s});
  const int code = reply.rendered.status();
  if (reply.span) reply.span->error = status.message();
  explain_later(reply, status.ok() ? to_string(reason) : to_string(status.code()), code);
  writer_.finish(at->first, reply.rendered.take_bytes(), reply.rendered.keep_alive(), now_);
  metrics_.reply_sent(reply.route, code);
  if (reply.times.first_token != 0) {
    metrics_.prompt_looked_up(usage.prompt_tokens, usage.cached_tokens);
  }
  metrics_.request_ended(reason, usage.completion_tokens, reply.times, now_);
  spdlog::info(
      "{} {} {} client={} choices={} prompt={} tokens={} end={}{}{} ttft_ms={:.1f} ms={:.1f}{}",
      reply.frame().request_id, reply.frame().asked, code, reply.connection->address, reply.counters.size(),
      usage.prompt_tokens, usage.completion_tokens, to_string(reason), status.ok() ? "" : "/",
      status.ok() ? "" : to_string(status.code()),
      reply.times.first_token == 0 ? 0.0
                                   : milliseconds(reply.times.first_token - reply.times.received),
      milliseconds(now_ - reply.times.received),
      status.ok() ? "" : " reason=" + log_text(status.message()));
  forget(at);
}

void FrontendLoop::forget(Replies::iterator at) {
  const Reply& reply = at->second;
  if (reply.frame().api_key >= 0) {
    meter_.release(static_cast<std::size_t>(reply.frame().api_key),
                   static_cast<std::uint32_t>(reply.counters.size()));
  }
  replies_.erase(at);
}

/// Clients that left or never read: nobody waits for their requests any more.
void FrontendLoop::take_drops() {
  for (const DroppedClient& drop : writer_.take_drops()) {
    watchers_.left(drop.connection);
    const auto at = replies_.find(drop.connection);
    if (at == replies_.end()) continue;
    metrics_.client_dropped(drop.reason);
    Reply& reply = at->second;
    const std::uint32_t tokens = reply.rendered.usage().completion_tokens;
    spdlog::info("{} {} client={} {} after {} tokens", reply.frame().request_id,
                 reply.frame().asked, reply.connection->address, to_string(drop.reason), tokens);
    metrics_.request_ended(FinishReason::cancelled, tokens, reply.times, now_);
    explain_later(reply, std::string("client ") + to_string(drop.reason), 0);
    explainer_.written(drop.connection, now_);
    abandon(reply, out_);
    forget(at);
  }
  act(out_);
}

// ------------------------------------------------------------------------------------- the end

void FrontendLoop::begin_drain() {
  if (drain_until_ != 0) {
    drain_until_ = now_;  // a second signal: now
    return;
  }
  spdlog::info("stopping: {} streams may end within {:.1f} s", replies_.size(),
               milliseconds(options_.drain) / 1000);
  drain_until_ = now_ + options_.drain;
  facts_.draining.store(true, std::memory_order_relaxed);
  watchers_.end_all(now_);
  http_.stop();
}

/// True when nobody waits for a byte any more, or no longer may.
bool FrontendLoop::drained() {
  const bool rendering = facts_.rendering.load() > 0;
  if (replies_.empty() && writer_.open_count() == 0 && !rendering) return true;
  if (now_ < drain_until_) return false;
  if (gave_up_) return true;
  // Time is up: the rest is cancelled, and gets half a second to read so.
  gave_up_ = true;
  drain_until_ = now_ + kSecond / 2;
  while (!replies_.empty()) {
    const auto at = replies_.begin();
    abandon(at->second, follow_);
    end_reply(at, FinishReason::error,
              Status(ErrorCode::unavailable, "this front end is shutting down"), 1);
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
