#include "frontend/core/request_table.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "ipc/codec.h"
#include "ipc/fault_points.h"

namespace baton {

namespace {

/// Tokens of a prompt: half of a message. The rest of a Submit is bounded apart, and a scheduler
/// lets no sequence grow longer (scheduler/state/message_size.h).
constexpr std::size_t kMaxPrompt = kMaxMessageBytes / 2 / sizeof(Token);

}  // namespace

void TableOutput::clear() {
  messages.clear();
  tokens.clear();
  logprobs.clear();
  prompt_logprobs.clear();
  progress.clear();
  deliveries.clear();
  endings.clear();
  timings.clear();
  notices.clear();
  refused.reset();
}

RequestTable::RequestTable(FrontendIdentity identity, RequestTableLimits limits)
    : identity_(std::move(identity)), limits_(limits) {}

Result<RequestId> RequestTable::open(NewRequest request, TimeNs now, TableOutput& out) {
  if (room() == 0) {
    return Status(ErrorCode::queue_full, "this front end already serves " + std::to_string(open_) +
                                             " requests; try again later");
  }
  if (request.prompt.size() > kMaxPrompt) {
    return Status(ErrorCode::too_long, "the prompt has " + std::to_string(request.prompt.size()) +
                                           " tokens; a message to the scheduler has room for " +
                                           std::to_string(kMaxPrompt));
  }
  const std::uint64_t counter = next_counter_++;
  Entry& entry = entries_[counter];
  entry.arrival = now;
  entry.request = std::move(request);
  ++open_;
  ++counters_.opened;
  if (view_.welcomed && !must_wait(entry)) submit(counter, entry, now, out);
  return id_of(counter);
}

void RequestTable::succeed(Epoch epoch, std::uint64_t next_counter) {
  inherited_epoch_ = epoch;
  next_counter_ = inherited_below_ = std::max<std::uint64_t>(next_counter, 1);
}

void RequestTable::adopt(AdoptedRequest request, TimeNs now) {
  const auto [at, fresh] = entries_.try_emplace(request.counter);
  if (!fresh) return;
  // A counter that is used twice would get another request's tokens.
  inherited_below_ = std::max(inherited_below_, request.counter + 1);
  next_counter_ = std::max(next_counter_, inherited_below_);
  Entry& entry = at->second;
  entry.arrival = request.arrival;
  entry.news = now;
  entry.request = std::move(request.request);
  if (!entry.request.sampling.beams()) entry.generated = std::move(request.generated);
  if (fault(Fault::inherited_one_short) && !entry.generated.empty()) entry.generated.pop_back();
  if (request.attempt != 0) {
    entry.attempt = fault(Fault::attempt_reset) ? 1 : request.attempt;
    entry.ever_sent = true;
    entry.sent = entry.adopted = inherited_epoch_ != 0;
  }
  ++open_;
  ++counters_.adopted;
}

std::size_t RequestTable::room() const {
  // Entries that only wait for the scheduler's answer to a Finish or Cancel are bounded as well.
  return std::min(limits_.max_open - std::min(open_, limits_.max_open),
                  2 * limits_.max_open - std::min(entries_.size(), 2 * limits_.max_open));
}

void RequestTable::finish(std::uint64_t counter, std::uint32_t n, TimeNs now, TableOutput& out) {
  const auto at = entries_.find(counter);
  if (at == entries_.end() || at->second.state != State::open) return;
  end(counter, at->second, {counter, FinishReason::stop, n, ErrorCode::ok, {}, 0}, out);
  at->second.next = n;
  close(at, State::finishing, now, out);
}

void RequestTable::cancel(std::uint64_t counter, TimeNs now, TableOutput& out) {
  const auto at = entries_.find(counter);
  if (at == entries_.end() || at->second.state != State::open) return;
  const auto n = static_cast<std::uint32_t>(at->second.generated.size());
  end(counter, at->second,
      {counter, FinishReason::cancelled, n, ErrorCode::cancelled, "cancelled", 0}, out);
  close(at, State::cancelling, now, out);
}

void RequestTable::apply(const ToFrontend& message, TimeNs now, TableOutput& out) {
  view_.heard_at = now;
  if (const auto* welcome = std::get_if<FrontendWelcome>(&message)) {
    apply_welcome(*welcome, now, out);
  } else if (const auto* events = std::get_if<Events>(&message)) {
    apply_events(*events, now, out);
  } else if (const auto* gone = std::get_if<Gone>(&message)) {
    apply_gone(*gone, now, out);
  } else if (std::holds_alternative<FrontendUnknown>(message)) {
    apply_unknown(now, out);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    out.refused = refused->reason;
  }
}

void RequestTable::apply_welcome(const FrontendWelcome& message, TimeNs now, TableOutput& out) {
  if (message.protocol != kProtocolVersion) {
    out.refused = "the scheduler (" + message.build + ") speaks protocol " +
                  std::to_string(message.protocol) + ", this front end speaks " +
                  std::to_string(kProtocolVersion);
    return;
  }
  const bool first = view_.epoch == 0;
  const Epoch before = first ? inherited_epoch_ : view_.epoch;
  const bool new_scheduler = message.epoch != before;
  const bool submit_again = new_scheduler || !view_.welcomed;
  const bool lost_one = new_scheduler && before != 0;
  if (new_scheduler || first) {
    out.notices.push_back("scheduler epoch " + std::to_string(message.epoch) + ", build " +
                          message.build);
    if (message.build != identity_.build) {
      out.notices.push_back("BUILDS DIFFER: scheduler " + message.build + ", this front end " +
                            identity_.build);
    }
  }
  if (new_scheduler || first || message.progress != view_.progress || message.running == 0) {
    view_.progress_at = now;
  }
  view_.welcomed = true;
  view_.epoch = message.epoch;
  view_.build = message.build;
  view_.workers_ready = message.workers_ready;
  if (new_scheduler || first) view_.epoch_at = now;
  if (message.max_context >= view_.max_context || now - view_.epoch_at >= limits_.pools_settle) {
    view_.max_context = message.max_context;
  }
  view_.progress = message.progress;
  view_.running = message.running;
  view_.waiting = message.waiting;
  view_.host_blocks = message.host_blocks;
  view_.host_blocks_used = message.host_blocks_used;
  view_.blocks_out = message.blocks_out;
  view_.blocks_in = message.blocks_in;
  view_.damaged_blocks = message.damaged_blocks;
  view_.preemptions = message.preemptions;
  view_.computed_tokens = message.computed_tokens;
  view_.resumed = message.resumed;
  view_.role_changes = message.role_changes;
  view_.handoffs = message.handoffs;
  view_.growths = message.growths;
  view_.terms_ended = message.terms_ended;
  view_.worker_deaths = message.worker_deaths;
  view_.tokens_per_block = message.tokens_per_block;
  view_.pools = message.pools;
  if (lost_one) scheduler_lost(now, out);
  if (submit_again) submit_all(new_scheduler, now, out);
  go_on_with_trials(now, out);
}

void RequestTable::apply_unknown(TimeNs now, TableOutput& out) {
  // One hello an occasion: the next ones come from tick() until a Welcome answers.
  if (!view_.welcomed) return;
  view_.welcomed = false;
  next_beat_ = now + limits_.hello_interval;
  say_hello(out);
}

void RequestTable::submit_all(bool new_scheduler, TimeNs now, TableOutput& out) {
  std::vector<std::uint64_t> order;
  order.reserve(entries_.size());
  for (const auto& [counter, entry] : entries_) order.push_back(counter);
  std::sort(order.begin(), order.end());  // counters grow with the arrival
  for (const std::uint64_t counter : order) {
    const auto at = entries_.find(counter);
    Entry& entry = at->second;
    if (entry.state != State::open) {
      if (new_scheduler) {
        entries_.erase(at);  // a scheduler that never heard of it has nothing to end
      } else {
        repeat_closing(counter, entry, now, out);
      }
      continue;
    }
    if (entry.adopted && !new_scheduler) {
      entry.adopted = false;
      entry.news = now;
      want_resend(counter, entry, now);
      continue;
    }
    if (must_wait(entry)) {
      entry.sent = false;
      continue;
    }
    submit(counter, entry, now, out);
  }
  ask_for_gaps(out);
}

void RequestTable::submit(std::uint64_t counter, Entry& entry, TimeNs now, TableOutput& out) {
  if (entry.ever_sent) {
    ++entry.attempt;
    ++counters_.resubmitted;
  }
  if (entry.request.sampling.beams()) entry.generated.clear();  // it begins again
  Submit message;
  message.epoch = view_.epoch;
  message.request = id_of(counter);
  message.attempt = entry.attempt;
  message.arrival = entry.arrival;
  message.deadline = entry.request.deadline;
  message.priority = entry.request.priority;
  message.lifetime = entry.request.lifetime;
  message.progress = entry.request.progress;
  message.again = entry.ever_sent;
  message.cache_salt = entry.request.cache_salt;
  message.prompt = entry.request.prompt;
  message.generated = entry.generated;
  message.sampling = entry.request.sampling;
  message.share = entry.request.share;
  entry.submitted = now;
  entry.timing.reset();
  // Whatever ended the earlier attempt ends this one again: the scheduler sees the generated ids.
  entry.terminal.reset();
  entry.prompt_logprobs.clear();
  entry.prompt_whole = false;
  entry.sent = true;
  entry.ever_sent = true;
  entry.adopted = false;
  entry.news = now;
  entry.asked = 0;
  out.messages.emplace_back(std::move(message));
}

void RequestTable::apply_gone(const Gone& message, TimeNs now, TableOutput& out) {
  if (!view_.welcomed || message.epoch != view_.epoch) return;
  for (const std::uint64_t counter : message.counters) {
    const auto at = entries_.find(counter);
    if (at == entries_.end()) continue;
    if (at->second.state != State::open) {
      entries_.erase(at);
      continue;
    }
    submit(counter, at->second, now, out);
  }
}

void RequestTable::tick(TimeNs now, TableOutput& out) {
  if (now < next_beat_) return;
  next_beat_ = now + (view_.welcomed ? limits_.heartbeat_interval : limits_.hello_interval);
  check_deadlines(now, out);
  if (!view_.welcomed) {
    say_hello(out);
    return;
  }
  const std::vector<std::uint64_t> about = stale_entries(now);
  for (const std::uint64_t counter : about) {
    Entry& entry = entries_.at(counter);
    if (entry.state != State::open) repeat_closing(counter, entry, now, out);
  }
  heartbeat(about, out);
  go_on_with_trials(now, out);
}

/// Whoever is not welcome yet says it anyway.
void RequestTable::describe(ModelSources sources, TableOutput& out) {
  identity_.model = std::move(sources);
  if (view_.welcomed) say_hello(out);
}

void RequestTable::say_hello(TableOutput& out) {
  FrontendHello hello;
  hello.build = identity_.build;
  hello.name = identity_.name;
  hello.incarnation = identity_.incarnation;
  hello.pid = identity_.pid;
  hello.pid_start = identity_.pid_start;
  hello.tokenizer = identity_.model.tokenizer;
  hello.chat_template = identity_.model.chat_template;
  hello.task = identity_.model.task;
  hello.has_successor = identity_.has_successor;
  hello.generation = identity_.generation;
  for (const auto& [counter, entry] : entries_) {
    if (counter < inherited_below_) hello.inherited.push_back(counter);
  }
  std::sort(hello.inherited.begin(), hello.inherited.end());
  out.messages.emplace_back(std::move(hello));
}

void RequestTable::heartbeat(const std::vector<std::uint64_t>& about, TableOutput& out) {
  FrontendHeartbeat beat;
  beat.epoch = view_.epoch;
  bool some = false;
  for (const std::uint64_t counter : about) {
    const auto at = entries_.find(counter);
    if (at == entries_.end()) continue;
    const Entry& entry = at->second;
    beat.counters.push_back(counter);
    beat.attempts.push_back(entry.attempt);
    beat.next.push_back(entry.state == State::open
                            ? static_cast<std::uint32_t>(entry.generated.size())
                            : entry.next);
    const auto entries = static_cast<std::uint32_t>(entry.prompt_logprobs.items.size());
    some = some || entries != 0;
    beat.prompt_entries.push_back(entries);
  }
  if (!some) beat.prompt_entries.clear();
  out.messages.emplace_back(std::move(beat));
}

void RequestTable::repeat_closing(std::uint64_t counter, Entry& entry, TimeNs now,
                                  TableOutput& out) {
  entry.news = now;
  if (entry.state == State::finishing) {
    out.messages.emplace_back(Finish{id_of(counter), entry.attempt, entry.next});
  } else {
    out.messages.emplace_back(Cancel{id_of(counter)});
  }
}

/// Requests to ask about now: at most max_asked, and another part of them each time.
std::vector<std::uint64_t> RequestTable::stale_entries(TimeNs now) {
  std::vector<std::uint64_t> stale;
  for (const auto& [counter, entry] : entries_) {
    const TimeNs age = now - entry.news;
    const bool open = entry.state == State::open;
    if (open ? (entry.sent && age >= limits_.stale_after) : age >= limits_.heartbeat_interval) {
      stale.push_back(counter);
    }
  }
  std::sort(stale.begin(), stale.end());
  if (stale.size() > limits_.max_asked) {
    const auto from = std::upper_bound(stale.begin(), stale.end(), turn_);
    std::rotate(stale.begin(), from, stale.end());
    stale.resize(limits_.max_asked);
  }
  turn_ = stale.empty() ? 0 : stale.back();
  return stale;
}

void RequestTable::check_deadlines(TimeNs now, TableOutput& out) {
  std::vector<std::uint64_t> late;
  for (const auto& [counter, entry] : entries_) {
    const TimeNs grace = entry.ever_sent ? limits_.deadline_grace : 0;
    const TimeNs limit = entry.state == State::open ? entry.request.deadline + grace
                                                    : entry.closing_since + limits_.closing_timeout;
    if (now >= limit) late.push_back(counter);
  }
  std::sort(late.begin(), late.end());
  for (const std::uint64_t counter : late) {
    const auto at = entries_.find(counter);
    Entry& entry = at->second;
    if (entry.state != State::open) {
      entries_.erase(at);
      continue;
    }
    const auto n = static_cast<std::uint32_t>(entry.generated.size());
    end(counter, entry,
        {counter, FinishReason::error, n, ErrorCode::deadline_exceeded,
         "the request's timeout_s passed", 0},
        out);
    close(at, State::cancelling, now, out);
  }
}

/// Tells the client's side that the stream is over; the entry itself is closed or erased by the
/// caller.
void RequestTable::end(std::uint64_t counter, Entry& entry, StreamEnd ending, TableOutput& out) {
  ending.counter = counter;
  entry.next = ending.n;
  ending.timing = std::exchange(entry.timing, std::nullopt);
  ending.submitted = entry.submitted;
  ending.attempts = entry.ever_sent ? entry.attempt : 0;
  ending.told = !entry.ever_sent || (ending.timing && ending.timing->ended);
  --open_;
  out.endings.push_back(std::move(ending));
}

/// From open to closing: repeats Finish or Cancel until a terminal answers, unless nobody knows it.
void RequestTable::close(Entries::iterator at, State state, TimeNs now, TableOutput& out) {
  Entry& entry = at->second;
  if (!entry.ever_sent) {
    entries_.erase(at);
    return;
  }
  entry.state = state;
  entry.closing_since = now;
  entry.request = NewRequest{};
  entry.generated = {};
  entry.prompt_logprobs = {};
  entry.terminal.reset();
  if (view_.welcomed) repeat_closing(at->first, entry, now, out);
}

const std::vector<Token>* RequestTable::delivered(std::uint64_t counter) const {
  const auto at = entries_.find(counter);
  if (at == entries_.end() || at->second.state != State::open) return nullptr;
  return &at->second.generated;
}

}  // namespace baton
