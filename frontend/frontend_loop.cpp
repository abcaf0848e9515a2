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

FrontendLoop::FrontendLoop(LoopOptions options, std::vector<LinkOptions> models, HttpServers& http,
                           JobQueue& jobs, SharedFacts& facts)
    : options_(std::move(options)),
      http_(http),
      jobs_(jobs),
      facts_(facts),
      meter_(options_.keys->meter()),
      writer_(options_.writer),
      seeds_(std::random_device{}() ^ options_.identity.incarnation),
      tracer_(options_.trace_dir, options_.identity.name),
      explainer_([this](EndedRequest ended) { keep(std::move(ended)); }) {
  keep_times();
  for (LinkOptions& model : models) {
    const std::size_t index = links_.size();
    const auto among = models.size() == 1 ? Metrics::Among::alone
                       : index == 0       ? Metrics::Among::first
                                          : Metrics::Among::further;
    links_.push_back(std::make_unique<ModelLink>(std::move(model), options_.identity,
                                                 options_.table, among, writer_));
    if (options_.place.incarnation == 0) continue;
    const SchedulerPlace place = options_.place.of(links_.back()->options.served.identity);
    links_.back()->table.succeed(place.epoch, options_.place.next_counter);
    // Its clients wait for the scheduler as they would have without a death.
    facts_.max_context[index].store(static_cast<std::uint32_t>(place.max_context));
  }
  writer_.on_end = [this](const ClientConnection& connection) {
    explainer_.written(connection.id(), now_ns());
    if (options_.journal != nullptr) options_.journal->close(connection.kept.cookie());
  };
  if (options_.journal != nullptr) note_place();
}

int FrontendLoop::run(SignalFd& signals, AliveFile& alive) {
  Poller poller;
  for (const auto& link : links_) poller.add(link->client.channel());
  poller.add_fd(writer_.fd());
  poller.add_fd(jobs_.fd());
  for (const auto& link : links_) {
    if (link->options.live != nullptr) poller.add_fd(link->options.live->fd());
  }
  const auto signal = poller.add_fd(signals.fd());
  now_ = last_second_ = now_ns();
  for (const auto& owed : std::exchange(at_start_, {})) owed();
  for (const auto& link : links_) act(*link);
  while (true) {
    TimeNs until = last_second_ + kSecond;
    for (const auto& link : links_) until = std::min(until, link->table.next_tick());
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
  for (const auto& link : links_) {
    link->table.tick(now_, link->out);
    act(*link);
    take_turn_of_trials(*link);
  }
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
  for (const auto& link : links_) {
    LiveFeed* live = link->options.live;
    if (live == nullptr) continue;
    live->watch(!link->watchers.empty());
    if (link->watchers.empty()) continue;
    if (const auto line = live->take()) link->watchers.tell(*line, now_);
  }
}

/// The front ends of a run directory take turns with trials: the turn is a lock that its holder's
/// death gives back.
void FrontendLoop::take_turn_of_trials(ModelLink& link) {
  if (!link.table.wants_turn()) {
    link.turn.reset();
    return;
  }
  if (link.turn) return link.table.give_turn();
  if (now_ < link.next_turn) return;
  link.next_turn = now_ + kTurnInterval;
  Result<LockFile> lock = LockFile::acquire(link.options.turn_lock);
  if (lock.ok()) {
    link.turn = std::move(lock.value());
  } else if (lock.status().code() == ErrorCode::unavailable) {
    return;  // another front end has it
  } else {
    spdlog::warn("no turns with other front ends: {}", lock.status().message());
  }
  link.table.give_turn();
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
  for (std::size_t i = 0; i < links_.size(); ++i) look_after(i);
  load_late();
  keep_streams_alive();
  explainer_.tick(now_);
  if (options_.journal != nullptr && options_.journal->lost() != unkept_) {
    if (unkept_ == 0)
      spdlog::warn(
          "replies find no room in the journal: they would end with this process (said once; "
          "baton_replies_unkept_total counts them)");
    unkept_ = options_.journal->lost();
  }
  const bool rendering = facts_.rendering.load() > 0;
  if (heap_.due(facts_.large_bytes.load(), rendering, open_count(), now_) && options_.trim_heap) {
    options_.trim_heap();
  }
  if (options_.each_second) options_.each_second();
}

// --------------------------------------------------------------------------- from the scheduler

void FrontendLoop::take_messages() {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    take_messages(*links_[i]);
    learn_context(i);
  }
}

void FrontendLoop::take_messages(ModelLink& link) {
  // A long backlog must not hold up heartbeats and new requests.
  const TimeNs until = now_ns() + kMessageTime;
  for (int i = 0; i < kMessagesARound && now_ns() < until; ++i) {
    const auto message = link.client.receive();
    if (!message) break;
    const Epoch known = link.table.scheduler().epoch;
    link.table.apply(*message, now_, link.out);
    if (options_.journal != nullptr && link.table.scheduler().epoch != known) note_place();
    act(link);
  }
  if (const std::string error = link.client.take_error(); !error.empty()) {
    spdlog::error("{}dropped a message of the scheduler: {}", link.prefix(), error);
  }
}

/// The last known limit stays while a scheduler is away: requests wait for it rather than fail.
void FrontendLoop::learn_context(std::size_t model) {
  const std::uint32_t context = links_[model]->table.scheduler().max_context;
  if (context == 0 || context == max_context(model)) return;
  facts_.max_context[model].store(context, std::memory_order_relaxed);
  if (options_.journal != nullptr) note_place();
}

void FrontendLoop::act(ModelLink& link) {
  act(link, link.out);
  while (!link.follow.messages.empty() || !link.follow.endings.empty()) {
    std::swap(link.follow, link.carried);
    act(link, link.carried);
  }
}

void FrontendLoop::act(ModelLink& link, TableOutput& out) {
  if (options_.journal != nullptr) note_attempts(out);
  for (const FrontendMessage& message : out.messages) link.client.send(message);
  for (const ProgressTold& told : out.progress) tell_progress(told);
  LogprobReader logprobs(out.logprobs);
  for (const Delivery& delivery : out.deliveries) deliver(delivery, out, logprobs);
  for (StreamEnd& end : out.endings) end_choice(end);
  for (const RequestTiming& timing : out.timings) explainer_.told(timing);
  for (const std::string& notice : out.notices) {
    spdlog::log(
        notice.find("DIFFER") != std::string::npos ? spdlog::level::err : spdlog::level::info,
        "{}{}", link.prefix(), notice);
  }
  if (out.refused) refused_ = link.prefix() + *out.refused;
  out.clear();
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
  ModelLink& link = link_of(reply);
  bool stopped = false;
  for (std::uint32_t i = delivery.begin + known; i < delivery.begin + delivery.count && !stopped;
       ++i) {
    LogprobReader::Entry entry;
    while (!logprobs.done() && logprobs.item() < i) logprobs.take(logprobs.item(), entry);
    const bool told = !logprobs.done() && logprobs.take(i, entry);
    stopped = apply(reply, TokenCame{index, out.tokens[i], told ? &entry : nullptr});
    if (!told || entry.vector.empty()) link.metrics.tokens_delivered(1);
  }
  if (reply.rendered.held() > options_.max_reply_bytes) {
    const auto at = replies_.find(choice.connection);
    abandon(reply, link.follow);
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
    link.table.finish(delivery.counter, reply.rendered.tokens(choice.index), now_, link.follow);
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
  Metrics& metrics = link_of(reply).metrics;
  if (times.first_token == 0) {
    times.begun = delivery.beginning.at;
    times.first_token = now_;
    metrics.first_token(now_ - times.received);
    if (tracer_.on()) trace_first_token(reply);
  }
  for (std::uint32_t i = 0; i < delivery.count && choice.last_token != 0; ++i) {
    metrics.next_token((now_ - choice.last_token) / delivery.count);
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
  abandon(reply, link_of(reply).follow);
  end_reply(at, end.reason, status, end.retry_after_s);
}

/// Nobody waits for the reply's choices any more.
void FrontendLoop::abandon(Reply& reply, TableOutput& out) {
  for (const std::uint64_t counter : reply.counters) {
    if (choices_.erase(counter) != 0) link_of(reply).table.cancel(counter, now_, out);
  }
}

void FrontendLoop::end_reply(Replies::iterator at, FinishReason reason, const Status& status,
                             std::uint32_t retry_after_s) {
  Reply& reply = at->second;
  const Usage usage = reply.rendered.usage();
  if (!status.ok()) apply(reply, ReplyFails{status.code(), status.message(), retry_after_s});
  const int code = reply.rendered.status();
  const std::string why = status.ok() ? "" : logged_reason(status);
  if (reply.span) reply.span->error = why;
  explain_later(reply, status.ok() ? to_string(reason) : to_string(status.code()), code);
  writer_.finish(at->first, reply.rendered.take_bytes(), reply.rendered.keep_alive(), now_);
  process_metrics().reply_sent(reply.route, code);
  Metrics& metrics = link_of(reply).metrics;
  if (reply.times.first_token != 0) {
    metrics.prompt_looked_up(usage.prompt_tokens, usage.cached_tokens);
  }
  metrics.request_ended(reason, usage.completion_tokens, reply.times, now_);
  spdlog::info(
      "{} {} {}{} client={} choices={} prompt={} tokens={} end={}{}{} ttft_ms={:.1f} ms={:.1f}{}",
      reply.frame().request_id, reply.frame().asked, code,
      links_.size() == 1 ? "" : " model=" + log_text(link_of(reply).options.served.name),
      reply.connection->address, reply.counters.size(), usage.prompt_tokens,
      usage.completion_tokens, to_string(reason), status.ok() ? "" : "/",
      status.ok() ? "" : to_string(status.code()),
      reply.times.first_token == 0 ? 0.0
                                   : milliseconds(reply.times.first_token - reply.times.received),
      milliseconds(now_ - reply.times.received), status.ok() ? "" : " reason=" + log_text(why));
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
    for (const auto& link : links_) link->watchers.left(drop.connection);
    const auto at = replies_.find(drop.connection);
    if (at == replies_.end()) continue;
    process_metrics().client_dropped(drop.reason);
    Reply& reply = at->second;
    const std::uint32_t tokens = reply.rendered.usage().completion_tokens;
    spdlog::info("{} {} client={} {} after {} tokens", reply.frame().request_id,
                 reply.frame().asked, reply.connection->address, to_string(drop.reason), tokens);
    link_of(reply).metrics.request_ended(FinishReason::cancelled, tokens, reply.times, now_);
    explain_later(reply, std::string("client ") + to_string(drop.reason), 0);
    explainer_.written(drop.connection, now_);
    abandon(reply, link_of(reply).out);
    forget(at);
  }
  for (const auto& link : links_) act(*link);
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
  for (const auto& link : links_) link->watchers.end_all(now_);
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
    abandon(at->second, link_of(at->second).follow);
    end_reply(at, FinishReason::error,
              Status(ErrorCode::unavailable, "this front end is shutting down"), 1);
  }
  for (const auto& link : links_) act(*link);
  return false;
}

void FrontendLoop::leave() {
  std::uint64_t tokens = 0;
  for (const auto& link : links_) {
    link->client.send(FrontendBye{options_.identity.incarnation});
    tokens += link->metrics.generation_tokens();
  }
  usleep(50'000);  // the channels do not linger: let the farewells out
  spdlog::info("left: {} tokens delivered", tokens);
}

}  // namespace baton
