#include "frontend/request_table.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "ipc/fault_points.h"

namespace baton {
namespace {

constexpr TimeNs kResendPause = 100 * kMillisecond;  // between two resends asked for about one stream

bool columns_agree(const Events& m) {
  const std::size_t rows = m.counters.size();
  if (m.attempts.size() != rows || m.choices.size() != rows || m.first_index.size() != rows ||
      m.counts.size() != rows) {
    return false;
  }
  std::uint64_t total = 0;
  for (const std::uint32_t count : m.counts) total += count;
  return total == m.tokens.size();
}

FinishReason reason_of(const Terminal& terminal) {
  if (terminal.code == ErrorCode::cancelled) return FinishReason::cancelled;
  if (terminal.code != ErrorCode::ok) return FinishReason::error;
  const std::uint32_t raw = terminal.reason.empty() ? 0 : terminal.reason[0];
  return raw <= static_cast<std::uint32_t>(FinishReason::error) ? static_cast<FinishReason>(raw)
                                                                : FinishReason::error;
}

}  // namespace

void TableOutput::clear() {
  messages.clear();
  tokens.clear();
  deliveries.clear();
  endings.clear();
  notices.clear();
  refused.reset();
}

RequestTable::RequestTable(FrontendIdentity identity, RequestTableLimits limits)
    : identity_(std::move(identity)), limits_(limits) {}

Result<RequestId> RequestTable::open(NewRequest request, TimeNs now, TableOutput& out) {
  // Entries that only wait for the scheduler's answer to a Finish or Cancel are bounded as well.
  if (open_ >= limits_.max_open || entries_.size() >= 2 * limits_.max_open) {
    return Status(ErrorCode::queue_full, "this front end already serves " +
                                             std::to_string(open_) + " requests; try again later");
  }
  const std::uint64_t counter = next_counter_++;
  Entry& entry = entries_[counter];
  entry.arrival = now;
  entry.request = std::move(request);
  ++open_;
  ++counters_.opened;
  if (view_.welcomed) submit(counter, entry, now, out);
  return id_of(counter);
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
  const bool new_scheduler = message.epoch != view_.epoch;
  const bool submit_again = new_scheduler || !view_.welcomed;
  if (new_scheduler) {
    out.notices.push_back("scheduler epoch " + std::to_string(message.epoch) + ", build " +
                          message.build);
    if (message.build != identity_.build) {
      out.notices.push_back("BUILDS DIFFER: scheduler " + message.build + ", this front end " +
                            identity_.build);
    }
  }
  if (new_scheduler || message.progress != view_.progress || message.running == 0) {
    view_.progress_at = now;
  }
  view_.welcomed = true;
  view_.epoch = message.epoch;
  view_.build = message.build;
  view_.workers_ready = message.workers_ready;
  view_.max_context = message.max_context;
  view_.progress = message.progress;
  view_.running = message.running;
  view_.waiting = message.waiting;
  if (submit_again) submit_all(new_scheduler, now, out);
}

void RequestTable::apply_unknown(TimeNs now, TableOutput& out) {
  // One hello an occasion: the next ones come from tick() until a Welcome answers.
  if (!view_.welcomed) return;
  view_.welcomed = false;
  next_beat_ = now + limits_.heartbeat_interval;
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
    if (entry.ever_sent) {
      ++entry.attempt;
      ++counters_.resubmitted;
    }
    submit(counter, entry, now, out);
  }
}

void RequestTable::submit(std::uint64_t counter, Entry& entry, TimeNs now, TableOutput& out) {
  Submit message;
  message.epoch = view_.epoch;
  message.request = id_of(counter);
  message.attempt = entry.attempt;
  message.arrival = entry.arrival;
  message.deadline = entry.request.deadline;
  message.again = entry.ever_sent;
  message.model = entry.request.model;
  message.adapter = entry.request.adapter;
  message.cache_salt = entry.request.cache_salt;
  message.prompt = entry.request.prompt;
  message.generated = {entry.generated};
  message.sampling = entry.request.sampling;
  // Whatever ended the earlier attempt ends this one again: the scheduler sees the generated ids.
  entry.terminal.reset();
  entry.sent = true;
  entry.ever_sent = true;
  entry.news = now;
  entry.asked = 0;
  out.messages.emplace_back(std::move(message));
}

void RequestTable::apply_events(const Events& message, TimeNs now, TableOutput& out) {
  if (!columns_agree(message)) {
    ++counters_.malformed;
    out.notices.push_back("dropped an Events message whose columns disagree");
    return;
  }
  if (!view_.welcomed || message.epoch != view_.epoch) {
    counters_.stale += message.tokens.size() + message.terminals.size();
    return;
  }
  const Token* tokens = message.tokens.data();
  for (std::size_t row = 0; row < message.counters.size(); ++row) {
    const std::uint32_t count = message.counts[row];
    if (message.choices[row] == 0) {
      take_tokens(message.counters[row], message.attempts[row], message.first_index[row], tokens,
                  count, now, out);
    } else {
      ++counters_.malformed;  // one choice a request in this protocol version
    }
    tokens += count;
  }
  for (const Terminal& terminal : message.terminals) apply_terminal(terminal, now, out);
  ask_for_gaps(out);
}

void RequestTable::take_tokens(std::uint64_t counter, std::uint32_t attempt, std::uint32_t first,
                               const Token* tokens, std::uint32_t count, TimeNs now,
                               TableOutput& out) {
  const auto at = entries_.find(counter);
  if (at == entries_.end() || at->second.state != State::open || at->second.attempt != attempt) {
    counters_.stale += count;
    return;
  }
  Entry& entry = at->second;
  const auto next = static_cast<std::uint32_t>(entry.generated.size());
  if (first > next) {
    want_resend(counter, entry, now);
    return;
  }
  entry.news = now;
  const std::uint32_t known = fault(Fault::token_sent_twice) ? 0 : std::min(next - first, count);
  counters_.duplicates += known;
  append(counter, entry, next, tokens + known, count - known, out);
  settle(at, out);
}

void RequestTable::append(std::uint64_t counter, Entry& entry, std::uint32_t first,
                          const Token* tokens, std::uint32_t count, TableOutput& out) {
  const std::uint32_t limit = entry.request.sampling.max_tokens;
  const std::uint32_t room = limit > first ? limit - first : 0;
  if (count > room) {
    ++counters_.malformed;
    out.notices.push_back("request " + std::to_string(counter) + ": tokens beyond max_tokens " +
                          std::to_string(limit) + " dropped");
    count = room;
  }
  if (count == 0) return;
  const auto begin = static_cast<std::uint32_t>(out.tokens.size());
  out.tokens.insert(out.tokens.end(), tokens, tokens + count);
  out.deliveries.push_back({counter, first, begin, count});
  entry.generated.insert(entry.generated.end(), tokens, tokens + count);
  counters_.tokens += count;
}

void RequestTable::apply_terminal(const Terminal& terminal, TimeNs now, TableOutput& out) {
  const auto at = entries_.find(terminal.counter);
  if (at == entries_.end()) {  // a late duplicate: its first Ack was lost, or has crossed it
    out.messages.emplace_back(Ack{id_of(terminal.counter)});
    return;
  }
  Entry& entry = at->second;
  if (entry.state != State::open) {
    out.messages.emplace_back(Ack{id_of(terminal.counter)});
    entries_.erase(at);
    return;
  }
  if (terminal.attempt != entry.attempt) {
    // No Ack: it would make the scheduler forget the newer attempt as well.
    ++counters_.stale;
    return;
  }
  entry.terminal = terminal;
  if (!settle(at, out)) want_resend(terminal.counter, entry, now);
}

/// Ends the stream if its terminal is here and every token that it counts. True if it ended.
bool RequestTable::settle(Entries::iterator at, TableOutput& out) {
  const std::uint64_t counter = at->first;
  Entry& entry = at->second;
  if (!entry.terminal) return false;
  const Terminal& terminal = *entry.terminal;
  const auto have = static_cast<std::uint32_t>(entry.generated.size());
  const std::uint32_t n = terminal.n.empty() ? have : terminal.n[0];
  if (have < n) return false;
  if (have > n) {
    ++counters_.malformed;
    out.notices.push_back("request " + std::to_string(counter) + ": the terminal counts " +
                          std::to_string(n) + " tokens, the client has " + std::to_string(have));
  }
  end(counter, entry,
      {counter, reason_of(terminal), have, terminal.code, terminal.message,
       terminal.retry_after_s},
      out);
  out.messages.emplace_back(Ack{id_of(counter)});
  entries_.erase(at);
  return true;
}

void RequestTable::want_resend(std::uint64_t counter, Entry& entry, TimeNs now) {
  if (entry.asked != 0 && now - entry.asked < kResendPause) return;
  entry.asked = now;
  gaps_.push_back(counter);
}

void RequestTable::ask_for_gaps(TableOutput& out) {
  for (std::size_t begin = 0; begin < gaps_.size(); begin += limits_.max_asked) {
    const std::size_t end = std::min(gaps_.size(), begin + limits_.max_asked);
    scratch_.assign(gaps_.begin() + static_cast<std::ptrdiff_t>(begin),
                    gaps_.begin() + static_cast<std::ptrdiff_t>(end));
    heartbeat(scratch_, out);
    counters_.gaps += end - begin;
  }
  gaps_.clear();
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
    ++at->second.attempt;
    ++counters_.resubmitted;
    submit(counter, at->second, now, out);
  }
}

void RequestTable::tick(TimeNs now, TableOutput& out) {
  if (now < next_beat_) return;
  next_beat_ = now + limits_.heartbeat_interval;
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
}

void RequestTable::say_hello(TableOutput& out) {
  FrontendHello hello;
  hello.build = identity_.build;
  hello.name = identity_.name;
  hello.incarnation = identity_.incarnation;
  hello.pid = identity_.pid;
  hello.pid_start = identity_.pid_start;
  out.messages.emplace_back(std::move(hello));
}

void RequestTable::heartbeat(const std::vector<std::uint64_t>& about, TableOutput& out) {
  FrontendHeartbeat beat;
  beat.epoch = view_.epoch;
  beat.beat = ++beat_;
  beat.open = static_cast<std::uint32_t>(entries_.size());
  for (const std::uint64_t counter : about) {
    const auto at = entries_.find(counter);
    if (at == entries_.end()) continue;
    const Entry& entry = at->second;
    beat.counters.push_back(counter);
    beat.attempts.push_back(entry.attempt);
    beat.next.push_back(entry.state == State::open
                            ? static_cast<std::uint32_t>(entry.generated.size())
                            : entry.next);
  }
  out.messages.emplace_back(std::move(beat));
}

void RequestTable::repeat_closing(std::uint64_t counter, Entry& entry, TimeNs now,
                                  TableOutput& out) {
  entry.news = now;
  if (entry.state == State::finishing) {
    out.messages.emplace_back(Finish{id_of(counter), entry.attempt, 0, entry.next});
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
    const TimeNs limit = entry.state == State::open
                             ? entry.request.deadline + grace
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

/// Tells the client's side that the stream is over; the entry itself is closed or erased by the caller.
void RequestTable::end(std::uint64_t counter, Entry& entry, StreamEnd ending, TableOutput& out) {
  ending.counter = counter;
  entry.next = ending.n;
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
  entry.terminal.reset();
  if (view_.welcomed) repeat_closing(at->first, entry, now, out);
}

const std::vector<Token>* RequestTable::delivered(std::uint64_t counter) const {
  const auto at = entries_.find(counter);
  if (at == entries_.end() || at->second.state != State::open) return nullptr;
  return &at->second.generated;
}

}  // namespace baton
