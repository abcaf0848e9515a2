#include "tests/sim/describe.h"

#include "ipc/codec.h"

namespace baton::sim {

namespace {

template <typename T>
std::string list(const std::vector<T>& items) {
  std::string text = "[";
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i != 0) text += ' ';
    text += std::to_string(items[i]);
  }
  return text + "]";
}

/// Slot and generation, shorter than the number.
std::string name(std::uint64_t id) {
  return std::to_string(id & 0xFFFFFFFFU) + "." + std::to_string(id >> 32U);
}

std::string names(const std::vector<std::uint64_t>& ids) {
  std::string text = "[";
  for (std::size_t i = 0; i < ids.size(); ++i) text += (i == 0 ? "" : " ") + name(ids[i]);
  return text + "]";
}

std::string body(const StepPlan& m) {
  std::string text = " term " + std::to_string(m.term) + " step " + std::to_string(m.step);
  if (m.decode) text += " decode";
  if (!m.drop.empty()) text += " drop " + names(m.drop);
  for (const AddSequence& add : m.add) {
    text += " add " + name(add.sequence) + "(" + std::to_string(add.prompt.size()) + "+" +
            std::to_string(add.generated.size()) + " tokens, computed " +
            std::to_string(add.computed) + (add.decode ? ", decode" : "") + ", blocks " +
            list(add.blocks) + ")";
  }
  for (std::size_t i = 0; i < m.grow_blocks.size(); ++i) {
    text += " grow " + name(m.grow_sequences[i]) + "+" + std::to_string(m.grow_blocks[i]);
  }
  for (const PromptRow& row : m.rows) {
    text += " row " + name(row.sequence) + "x" + std::to_string(row.n_tokens) +
            (row.logits == LogitsWanted::none ? "" : " logits") +
            (row.then_decode ? " then_decode" : "");
  }
  if (!m.ops.empty()) text += " copies " + std::to_string(m.ops.size());
  if (!m.beams.empty()) text += " beams " + std::to_string(m.beams.size());
  if (!m.singles.empty()) text += " singles " + names(m.singles);
  return text;
}

std::string body(const Pull& m) {
  return " term " + std::to_string(m.term) + " pull " + name(m.pull_id) + " allocation " +
         std::to_string(m.allocation) + " from " + list(m.from) + " to " + list(m.to);
}

std::string body(const StepResult& m) {
  return " term " + std::to_string(m.term) + " step " + std::to_string(m.step) + " " +
         names(m.sequences) + " tokens " + list(m.tokens) +
         (m.failed.empty() ? "" : ", failed " + std::to_string(m.failed.size()));
}

std::string body(const WorkerHeartbeat& m) {
  return " term " + std::to_string(m.term) + " plans " + std::to_string(m.plans_received) +
         " steps " + std::to_string(m.steps_done) + " pulls " + std::to_string(m.pulls_received) +
         "/" + std::to_string(m.pulls_done) + (m.draining ? " draining" : "");
}

std::string body(const Events& m) {
  std::string text;
  std::size_t at = 0;
  for (std::size_t i = 0; i < m.counters.size(); ++i) {
    text += " #" + std::to_string(m.counters[i]) + "." + std::to_string(m.attempts[i]) + " from " +
            std::to_string(m.first_index[i]) + ":";
    for (std::uint32_t n = 0; n < m.counts[i]; ++n) text += " " + std::to_string(m.tokens[at++]);
  }
  for (const Terminal& t : m.terminals) {
    text += " TERMINAL #" + std::to_string(t.counter) + "." + std::to_string(t.attempt) + " n " +
            std::to_string(t.n[0]) + " " + to_string(t.code) + " " + t.message;
  }
  return text;
}

std::string body(const Submit& m) {
  return " #" + std::to_string(m.request.counter) + "." + std::to_string(m.attempt) + " prompt " +
         std::to_string(m.prompt.size()) + " generated " + std::to_string(m.generated.size()) +
         " max " + std::to_string(m.sampling.max_tokens) + (m.again ? " again" : "");
}

std::string body(const FrontendHello& m) {
  if (m.generation == 0) return "";
  return " generation " + std::to_string(m.generation) + " inherits " + list(m.inherited);
}

std::string body(const FrontendHeartbeat& m) {
  return " asks " + list(m.counters) + " attempts " + list(m.attempts) + " next " + list(m.next);
}

std::string body(const Finish& m) {
  return " #" + std::to_string(m.request.counter) + "." + std::to_string(m.attempt) + " n " +
         std::to_string(m.n);
}
std::string body(const Cancel& m) { return " #" + std::to_string(m.request.counter); }
std::string body(const Ack& m) { return " #" + std::to_string(m.request.counter); }
std::string body(const Gone& m) { return " " + list(m.counters); }
std::string body(const PullDone& m) {
  return " term " + std::to_string(m.term) + " pull " + name(m.pull_id);
}
std::string body(const PullFailed& m) {
  return " term " + std::to_string(m.term) + " pull " + name(m.pull_id) + " " + m.reason;
}
std::string body(const PrepareGrammar& m) {
  return " " + m.grammar + ", key " + std::to_string(m.key);
}
std::string body(const GrammarState& m) {
  return " key " + std::to_string(m.key) + (m.ready ? " ready" : " forgotten");
}
std::string body(const Closed& m) { return " " + std::to_string(m.allocation); }
std::string body(const Close& m) { return " " + std::to_string(m.allocation); }
std::string body(const Hello& m) {
  return " id " + std::to_string(m.hello_id) + " allocation " + std::to_string(m.allocation);
}
std::string body(const Welcome& m) {
  return " term " + std::to_string(m.term) + " hello " + std::to_string(m.hello_id);
}
std::string body(const Fenced& m) { return " term " + std::to_string(m.term); }
template <typename M>
std::string body(const M& /*other*/) {
  return "";
}

template <typename Variant>
std::string text_of(const Variant& message) {
  return std::visit(
      [](const auto& m) {
        return std::string(MessageTag<std::decay_t<decltype(m)>>::name) + body(m);
      },
      message);
}

}  // namespace

std::string describe(const ToScheduler& message) {
  return std::visit([](const auto& m) { return text_of(m); }, message);
}
std::string describe(const ToPeer& message) {
  return std::visit([](const auto& m) { return text_of(m); }, message);
}

std::string describe(const Event& event) {
  if (const auto* e = std::get_if<FromWorker>(&event)) {
    return text_of(e->message) + " (link " + std::to_string(e->link) + ")";
  }
  if (const auto* e = std::get_if<FromFrontend>(&event)) {
    return text_of(e->message) + " (link " + std::to_string(e->link) + ")";
  }
  if (const auto* e = std::get_if<ProcessGone>(&event)) {
    return "that the process of link " + std::to_string(e->link) + " is gone";
  }
  if (const auto* e = std::get_if<PoolFaulted>(&event)) {
    return "that the process of link " + std::to_string(e->link) + " dies of a fault";
  }
  if (const auto* e = std::get_if<SendFailed>(&event)) {
    return "that link " + std::to_string(e->link) + " takes nothing";
  }
  if (const auto* e = std::get_if<SetDraining>(&event)) {
    return "set " + e->worker + (e->draining ? " drain" : " ready");
  }
  if (const auto* e = std::get_if<SetRole>(&event)) {
    return "set " + e->worker + " role " + (e->role ? to_string(*e->role) : "auto");
  }
  if (const auto* e = std::get_if<AdminCancel>(&event)) {
    return "cancel #" + std::to_string(e->request.counter);
  }
  return "tick";
}

}  // namespace baton::sim
