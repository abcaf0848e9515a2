#include "tests/sim/role_checks.h"

#include <algorithm>
#include <utility>

#include "scheduler/plan/policy.h"

namespace baton::sim {

namespace {
/// Changes of all workers together within `role_dwell`, but for those that mend what a death broke.
constexpr std::size_t kMostTurns = 4;
constexpr TimeNs kLongestTick = kSecond / 2;
}  // namespace

RoleChecks::Able RoleChecks::able(const State& state) {
  Able able;
  for (const Worker& w : state.workers) {
    if (!w.takes_work()) continue;
    able.prefill = able.prefill || w.role() != Role::decode;
    able.decode = able.decode || w.role() != Role::prefill;
  }
  return able;
}

/// A role set at this scheduler is that of all processes of the name, whatever they were started
/// with. Until one is set, that counts which processes bring from earlier schedulers.
void RoleChecks::note_word(const State& state, const Event& event) {
  if (std::exchange(words_epoch_, state.epoch) != state.epoch) words_.clear();
  const auto known = [&](const std::string& name) {
    return std::any_of(state.workers.begin(), state.workers.end(),
                       [&](const Worker& w) { return w.name() == name; });
  };
  if (const auto* set = std::get_if<SetRole>(&event)) {
    if (!known(set->worker)) return;
    words_[set->worker] = {set->role, /*here=*/true};
  } else if (const auto* from = std::get_if<FromWorker>(&event)) {
    const auto* m = std::get_if<Register>(&from->message);
    if (m == nullptr || !m->held) return;
    const auto before = std::find_if(state.workers.begin(), state.workers.end(),
                                     [&](const Worker& w) { return w.name() == m->name; });
    const bool fresh = before == state.workers.end();
    const bool younger = fresh || m->incarnation > before->peer.identity.incarnation;
    if (!younger && before->peer.state != WorkerState::gone) return;  // superseded, or known
    const auto word = words_.find(m->name);
    const bool said = word != words_.end() && word->second.here;
    // The younger of two processes has the later role of those that earlier schedulers were told.
    if (!said && (younger || word == words_.end())) words_[m->name] = {m->role, /*here=*/false};
  }
}

std::string RoleChecks::check_words(const State& state) {
  for (const Worker& w : state.workers) {
    const auto word = words_.find(w.name());
    if (word == words_.end() || !word->second.role) continue;
    if (w.role() != *word->second.role || !w.held)
      return w.name() + " has lost the role that an operator gave it";
  }
  return "";
}

void RoleChecks::before(const State& state, const Event& event) {
  note_word(state, event);
  if (!std::holds_alternative<Tick>(event)) return;
  roles_.clear();
  for (const Worker& w : state.workers) roles_.push_back(w.role());
  able_ = able(state);
}

std::string RoleChecks::after(const State& state, bool tick, TimeNs now) {
  if (std::string what = check_words(state); !what.empty()) return what;
  if (tick) {
    const bool mends = !able_.prefill || !able_.decode;
    bool any = false;
    for (WorkerIndex i = 0; i < roles_.size(); ++i) {
      if (state.workers[i].role() == roles_[i]) continue;
      if (std::exchange(any, true)) return "two workers are turned at once";
      if (std::string what = turned(state, i, mends, now); !what.empty()) return what;
    }
    if (std::string what = left_alone(state, now); !what.empty()) return what;
  }
  for (const Worker& w : state.workers) {
    const auto [it, fresh] = known_.try_emplace(w.name(), w.role());
    if (!fresh && std::exchange(it->second, w.role()) != w.role()) changed_[w.name()] = now;
  }
  return "";
}

std::string RoleChecks::turned(const State& state, WorkerIndex index, bool mends, TimeNs now) {
  const Worker& w = state.workers[index];
  const TimeNs dwell = state.settings.role_dwell;
  if (state.settings.roles == Roles::fixed) return w.name() + " is turned, and roles are fixed";
  if (w.held) return w.name() + " is turned against an operator's word";
  if (!w.takes_work()) return w.name() + " is turned and takes no work";
  const Able left = able(state);
  if (able_.decode && !left.decode) return w.name() + " is turned and nobody is left who decodes";
  // Who decodes prefills as well, where nobody else does. The other way round an operator may
  // forbid.
  if (able_.prefill && !left.prefill && able_.decode)
    return w.name() + " is turned and nobody is left who prefills";
  if (mends) return "";
  const auto last = changed_.find(w.name());
  if (last != changed_.end() && now - last->second < dwell)
    return w.name() + " is turned to and fro";
  turns_.push_back(now);
  while (now - turns_.front() >= dwell) turns_.pop_front();
  return turns_.size() > kMostTurns ? "too many roles change" : "";
}

/// Whoever was lent away from a side that nobody is left for goes home before long.
std::string RoleChecks::left_alone(const State& state, TimeNs now) {
  const Able able = RoleChecks::able(state);
  const auto decoders =
      std::count_if(state.workers.begin(), state.workers.end(),
                    [](const Worker& w) { return w.takes_work() && w.decodes(); });
  const bool could = std::any_of(state.workers.begin(), state.workers.end(), [&](const Worker& w) {
    return accepts(w, now) && !w.held &&
           ((!able.decode && w.home() == Role::decode) ||
            (!able.prefill && decoders > 1 && w.home() == Role::prefill));
  });
  const bool alone = state.settings.roles == Roles::automatic && could && state.epoch == epoch_;
  epoch_ = state.epoch;
  // A scheduler that was frozen in between could turn nobody.
  const bool frozen = now - std::exchange(last_tick_, now) > kLongestTick;
  if (!alone || frozen) alone_since_ = 0;
  if (!alone) return "";
  if (alone_since_ == 0) alone_since_ = now;
  if (now - alone_since_ <= state.settings.role_dwell / 10 + kSecond) return "";
  return std::string("nobody ") + (able.decode ? "prefills" : "decodes") +
         ", and nobody is turned who could";
}

}  // namespace baton::sim
