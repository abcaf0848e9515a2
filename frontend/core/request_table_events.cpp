// The part of RequestTable that takes tokens and terminals: each token once, in order, to its end.
#include <algorithm>
#include <numeric>
#include <utility>

#include "frontend/core/request_table.h"
#include "ipc/fault_points.h"

namespace baton {
namespace {

constexpr TimeNs kResendPause =
    100 * kMillisecond;  // between two resends asked for about one stream

bool agrees(const RequestTiming& t) {
  return t.spent.size() == kParts && t.part < kParts &&
         std::all_of(t.moves.begin(), t.moves.end(),
                     [&](const Move& move) {
                       return move.cause < kMoveCauses && move.from < t.workers.size() &&
                              move.to < t.workers.size();
                     }) &&
         std::all_of(t.moments.begin(), t.moments.end(), [&](const Moment& moment) {
           return moment.kind < kMomentKinds && moment.cause < kGapCauses &&
                  moment.worker < t.workers.size();
         });
}

bool columns_agree(const Events& m) {
  const std::size_t rows = m.counters.size();
  if (m.attempts.size() != rows || m.first_index.size() != rows || m.counts.size() != rows ||
      m.begun_counters.size() != m.begun_cached.size() ||
      m.begun_counters.size() != m.begun_at.size() ||
      m.progress_counters.size() != m.progress_attempts.size() ||
      m.progress_counters.size() != m.progress_done.size() ||
      m.progress_counters.size() != m.progress_cached.size() ||
      m.progress_counters.size() != m.progress_took.size()) {
    return false;
  }
  std::uint64_t total = 0;
  for (const std::uint32_t count : m.counts) total += count;
  if (!m.logprobs.agrees() ||
      (!m.logprobs.items.empty() && m.logprobs.items.back() >= m.tokens.size())) {
    return false;
  }
  if (!std::all_of(m.timings.begin(), m.timings.end(), agrees)) return false;
  return total == m.tokens.size() &&
         std::all_of(m.prompt_logprobs.begin(), m.prompt_logprobs.end(),
                     [](const PromptLogprobs& prompt) { return prompt.values.agrees(); });
}

/// Entries about tokens [begin, begin + count) go to `to`, as about tokens from `at` on; earlier
/// ones are passed over.
void move_logprobs(LogprobReader& from, std::uint32_t begin, std::uint32_t count, std::uint32_t at,
                   Logprobs& to) {
  LogprobReader::Entry entry;
  while (!from.done() && from.item() < begin + count) {
    const std::uint32_t item = from.item();
    from.take(item, entry);
    if (item < begin) continue;
    to.push(at + (item - begin), entry.logprob, entry.top_tokens, entry.top_logprobs, entry.vector);
  }
}

Beginning beginning_of(const Events& message, std::uint64_t counter) {
  const auto& counters = message.begun_counters;
  const auto at = std::find(counters.begin(), counters.end(), counter);
  if (at == counters.end()) return {};
  const auto i = static_cast<std::size_t>(at - counters.begin());
  return {message.begun_cached[i], message.begun_at[i]};
}

FinishReason reason_of(const Terminal& terminal, std::size_t choice = 0) {
  if (terminal.code == ErrorCode::cancelled) return FinishReason::cancelled;
  if (terminal.code != ErrorCode::ok) return FinishReason::error;
  const std::uint32_t raw = terminal.reason.size() <= choice ? 0 : terminal.reason[choice];
  return raw <= static_cast<std::uint32_t>(FinishReason::error) ? static_cast<FinishReason>(raw)
                                                                : FinishReason::error;
}

}  // namespace

/// Tokens of one request in one message.
struct RequestTable::TokenRow {
  const Events& message;
  std::uint64_t counter = 0;
  std::uint32_t attempt = 0;
  std::uint32_t first = 0;  // index of the first of them in the reply
  std::uint32_t begin = 0;  // in message.tokens
  std::uint32_t count = 0;
};

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
  for (const RequestTiming& timing : message.timings) take_timing(timing, out);
  take_progress(message, now, out);
  LogprobReader logprobs(message.logprobs);
  std::uint32_t begin = 0;
  for (std::size_t row = 0; row < message.counters.size(); ++row) {
    const std::uint32_t count = message.counts[row];
    take_tokens({message, message.counters[row], message.attempts[row], message.first_index[row],
                 begin, count},
                logprobs, now, out);
    begin += count;
  }
  for (const Terminal& terminal : message.terminals) apply_terminal(terminal, now, out);
  ask_for_gaps(out);
}

void RequestTable::take_timing(const RequestTiming& timing, TableOutput& out) {
  const auto at = entries_.find(timing.counter);
  if (at == entries_.end() || at->second.attempt != timing.attempt) return;
  if (at->second.state == State::open) {
    at->second.timing = timing;
  } else {
    out.timings.push_back(timing);
  }
}

/// Whoever has a token has its prompt.
void RequestTable::take_progress(const Events& message, TimeNs now, TableOutput& out) {
  for (std::size_t i = 0; i < message.progress_counters.size(); ++i) {
    const std::uint64_t counter = message.progress_counters[i];
    const auto at = entries_.find(counter);
    if (at == entries_.end()) continue;
    Entry& entry = at->second;
    if (entry.state != State::open || entry.attempt != message.progress_attempts[i] ||
        !entry.request.progress || !entry.generated.empty()) {
      continue;
    }
    entry.news = now;
    const auto total = static_cast<std::uint32_t>(entry.request.prompt.size());
    const std::uint32_t done = std::min(message.progress_done[i], total);
    out.progress.push_back({counter, done, std::min(message.progress_cached[i], done),
                            std::max<TimeNs>(0, message.progress_took[i])});
  }
}

void RequestTable::take_tokens(const TokenRow& row, LogprobReader& logprobs, TimeNs now,
                               TableOutput& out) {
  const auto at = entries_.find(row.counter);
  if (at == entries_.end() || at->second.state != State::open ||
      at->second.attempt != row.attempt) {
    counters_.stale += row.count;
    return;
  }
  Entry& entry = at->second;
  const auto next = static_cast<std::uint32_t>(entry.generated.size());
  if (row.first > next) {
    want_resend(row.counter, entry, now);
    return;
  }
  entry.news = now;
  if (next == 0 && !take_prompt(row, entry, now)) return;
  const std::uint32_t known =
      fault(Fault::token_sent_twice) ? 0 : std::min(next - row.first, row.count);
  counters_.duplicates += known;
  append(row, entry, known, logprobs, out);
  settle(at, out);
}

/// What comes of the log probabilities of its prompt. False: some are missing, and the first token
/// is not taken before them.
bool RequestTable::take_prompt(const TokenRow& row, Entry& entry, TimeNs now) {
  Logprobs& have = entry.prompt_logprobs;
  for (const PromptLogprobs& part : row.message.prompt_logprobs) {
    if (part.owner != row.counter || entry.prompt_whole) continue;
    const std::size_t before = have.items.size();
    if (part.first > before) break;
    LogprobReader reader(part.values);
    for (std::size_t i = part.first; !reader.done(); ++i) {
      LogprobReader::Entry values;
      const std::uint32_t item = reader.item();
      reader.take(item, values);
      if (i >= before) have.push(item, values.logprob, values.top_tokens, values.top_logprobs);
    }
    entry.prompt_whole = !part.more;
    if (have.items.size() > before) entry.asked = 0;  // the next part is asked for at once
  }
  if (entry.prompt_whole || (have.items.empty() && row.count != 0)) return true;
  want_resend(row.counter, entry, now);
  return false;
}

/// Hands out what is new in the row: all but its first `known` tokens.
void RequestTable::append(const TokenRow& row, Entry& entry, std::uint32_t known,
                          LogprobReader& logprobs, TableOutput& out) {
  const auto first = static_cast<std::uint32_t>(entry.generated.size());
  const SamplingParams& sampling = entry.request.sampling;
  const std::uint32_t limit = sampling.max_tokens * sampling.num_return_sequences;
  const std::uint32_t room = limit > first ? limit - first : 0;
  std::uint32_t count = row.count - known;
  if (count > room) {
    ++counters_.malformed;
    out.notices.push_back("request " + std::to_string(row.counter) + ": tokens beyond max_tokens " +
                          std::to_string(limit) + " dropped");
    count = room;
  }
  if (count == 0) return;
  entry.schedulers_lost = 0;
  const std::uint32_t from = row.begin + known;
  if (first == 0) entry.beginning = beginning_of(row.message, row.counter);
  if (sampling.beams()) {
    const auto begin = row.message.tokens.begin() + from;
    entry.generated.insert(entry.generated.end(), begin, begin + count);
    return;
  }
  const Token* tokens = row.message.tokens.data() + from;
  Delivery delivery{row.counter, first, static_cast<std::uint32_t>(out.tokens.size()), count};
  move_logprobs(logprobs, from, count, delivery.begin, out.logprobs);
  out.tokens.insert(out.tokens.end(), tokens, tokens + count);
  entry.generated.insert(entry.generated.end(), tokens, tokens + count);
  if (first == 0) {
    delivery.beginning = entry.beginning;
    if (entry.prompt_whole) {
      delivery.prompt_logprobs = static_cast<std::int32_t>(out.prompt_logprobs.size());
      out.prompt_logprobs.push_back(std::exchange(entry.prompt_logprobs, {}));
    }
  }
  out.deliveries.push_back(delivery);
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
  const std::uint32_t n =
      terminal.n.empty() ? have : std::accumulate(terminal.n.begin(), terminal.n.end(), 0U);
  if (have < n) return false;
  if (have > n) {
    ++counters_.malformed;
    out.notices.push_back("request " + std::to_string(counter) + ": the terminal counts " +
                          std::to_string(n) + " tokens, the client has " + std::to_string(have));
  }
  StreamEnd ending{counter,       reason_of(terminal), have,
                   terminal.code, terminal.message,    terminal.retry_after_s};
  if (entry.request.sampling.beams()) ending = found_beams(counter, entry, out);
  if (terminal.lifetime.size() == kLifetimeMoments) ending.lifetime = terminal.lifetime;
  end(counter, entry, std::move(ending), out);
  out.messages.emplace_back(Ack{id_of(counter)});
  entries_.erase(at);
  return true;
}

/// Delivers what a beam search has found, now that all of it is here.
StreamEnd RequestTable::found_beams(std::uint64_t counter, const Entry& entry, TableOutput& out) {
  const Terminal& terminal = *entry.terminal;
  const auto have = static_cast<std::uint32_t>(entry.generated.size());
  StreamEnd ending{counter,       reason_of(terminal), have,
                   terminal.code, terminal.message,    terminal.retry_after_s};
  if (terminal.code != ErrorCode::ok) return ending;
  if (terminal.n.size() != entry.request.sampling.num_return_sequences ||
      terminal.scores.size() != terminal.n.size() ||
      std::accumulate(terminal.n.begin(), terminal.n.end(), 0U) != have) {
    ++counters_.malformed;
    ending.reason = FinishReason::error;
    ending.code = ErrorCode::internal;
    ending.message = "the scheduler's beams contradict each other";
    return ending;
  }
  std::uint32_t begin = static_cast<std::uint32_t>(out.tokens.size());
  out.tokens.insert(out.tokens.end(), entry.generated.begin(), entry.generated.end());
  for (std::uint32_t choice = 0; choice < terminal.n.size(); ++choice) {
    out.deliveries.push_back({counter, 0, begin, terminal.n[choice], -1, choice, entry.beginning});
    ending.choices.push_back({reason_of(terminal, choice), terminal.scores[choice]});
    begin += terminal.n[choice];
  }
  counters_.tokens += have;
  return ending;
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

}  // namespace baton
