#include "scheduler/admin/admin_commands.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "scheduler/admin/admin_views.h"
#include "scheduler/plan/elastic.h"
#include "scheduler/state/audit.h"

namespace baton {

namespace {

constexpr const char* kHelp =
    "show info|workers|roles|frontends|setup|requests|kv|queue|tenants|errors|live [json]\n"
    "                                                    what the scheduler knows\n"
    "set worker NAME drain|ready                         stop or resume giving it work\n"
    "set worker NAME role prefill|decode|mixed|auto      what new work it gets; what it has, "
    "stays.\n"
    "                                                    auto: scheduler.roles says it again\n"
    "cancel FRONTEND-COUNTER                             end one request (ids: show requests)\n"
    "wait worker NAME ready|drained|gone SECONDSs        answer when it is so, or at the time-out\n"
    "audit                                               recount every pool, compare with the "
    "workers\n"
    "help                                                this text\n"
    "One command a line; an empty line ends an answer.\n";

std::vector<std::string> split(std::string_view line) {
  std::istringstream in{std::string(line)};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

AdminAnswer answer(std::string text) { return {std::move(text), nullptr}; }
AdminAnswer error(const std::string& what) { return answer("error: " + what + "\n"); }

const Worker* find_worker(const State& state, const std::string& name) {
  for (const Worker& w : state.workers) {
    if (w.name() == name) return &w;
  }
  return nullptr;
}

std::string known_workers(const State& state) {
  std::string names;
  for (const Worker& w : state.workers) names += " " + w.name();
  return names.empty() ? " none" : names;
}

/// "60s", "500ms" or plain seconds.
std::optional<TimeNs> parse_duration(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc() || value < 0 || value > 86400) return std::nullopt;
  const std::string unit(rest, end);
  if (unit == "ms") return static_cast<TimeNs>(value * 1e6);
  if (unit.empty() || unit == "s") return static_cast<TimeNs>(value * 1e9);
  return std::nullopt;
}

class WaitWorker : public PendingAnswer {
 public:
  WaitWorker(std::string name, std::string goal, TimeNs until)
      : name_(std::move(name)), goal_(std::move(goal)), until_(until) {}

  std::optional<std::string> poll(AdminBackend& backend, TimeNs now) override {
    const Worker* w = find_worker(backend.state(), name_);
    if (w != nullptr && reached(backend.state(), *w)) return "ok\n";
    if (now < until_) return std::nullopt;
    return "error: timed out; " + name_ + " is " + (w == nullptr ? "unknown" : describe_state(*w)) +
           "\n";
  }

 private:
  bool reached(const State& state, const Worker& w) const {
    if (goal_ == "ready") return w.takes_work();
    if (goal_ == "gone") return w.peer.state == WorkerState::gone;
    const auto index = static_cast<StoreIndex>(&w - state.workers.data());
    return w.peer.draining && w.compute.sequences == 0 && w.compute.steps.empty() &&
           !holds_for_others(state, index);  // drained
  }
  std::string name_;
  std::string goal_;
  TimeNs until_;
};

/// Compares every ready worker's own tables with the books, once all have answered.
class Audit : public PendingAnswer {
 public:
  explicit Audit(TimeNs until) : until_(until) {}

  std::optional<std::string> poll(AdminBackend& backend, TimeNs now) override {
    const State& state = backend.state();
    const auto ready = static_cast<std::size_t>(std::count_if(
        state.workers.begin(), state.workers.end(), [](const Worker& w) { return w.ready(); }));
    const auto answered = static_cast<std::size_t>(
        std::count_if(backend.tables().begin(), backend.tables().end(),
                      [](const auto& entry) { return !entry.second.more; }));
    if (answered < ready && now < until_) return std::nullopt;
    std::vector<std::string> faults = audit_state(state);
    for (const auto& [index, tables] : backend.tables()) {
      compare_tables(state, index, tables, faults);
    }
    if (answered < ready) faults.emplace_back("not every worker sent its tables");
    if (faults.empty()) return "ok\n";
    std::string text = "error: " + std::to_string(faults.size()) + " faults\n";
    for (const std::string& fault : faults) text += fault + "\n";
    return text;
  }

 private:
  TimeNs until_;
};

std::optional<Role> parse_role(const std::string& word) {
  for (const Role role : {Role::prefill, Role::decode, Role::mixed}) {
    if (word == to_string(role)) return role;
  }
  return std::nullopt;
}

AdminAnswer set_worker(const std::vector<std::string>& words, AdminBackend& backend) {
  const bool drain = words.size() == 4 && (words[3] == "drain" || words[3] == "ready");
  const bool sets_role = words.size() == 5 && words[3] == "role";
  const std::optional<Role> role = sets_role ? parse_role(words[4]) : std::nullopt;
  const bool release = sets_role && words[4] == "auto";
  if (words.size() < 2 || words[1] != "worker" || (!drain && !role && !release)) {
    return error(
        "usage: set worker NAME drain|ready, or set worker NAME role prefill|decode|mixed|auto");
  }
  if (find_worker(backend.state(), words[2]) == nullptr) {
    return error("no worker is called '" + words[2] + "'; known:" + known_workers(backend.state()));
  }
  if (release && backend.state().settings.roles == Roles::fixed) {
    return error("roles do not change by themselves here: scheduler.roles is fixed");
  }
  if (sets_role) {
    backend.inject(SetRole{words[2], role});
  } else {
    backend.inject(SetDraining{words[2], words[3] == "drain"});
  }
  return answer("ok\n");
}

AdminAnswer cancel(const std::vector<std::string>& words, AdminBackend& backend) {
  const std::optional<RequestId> id =
      words.size() == 2 ? parse_request_name(words[1]) : std::nullopt;
  if (!id) return error("usage: cancel ID (as 'show requests' prints it)");
  if (backend.state().by_name.count(*id) == 0) return error("no request is called " + words[1]);
  backend.inject(AdminCancel{*id});
  return answer("ok\n");
}

AdminAnswer wait_worker(const std::vector<std::string>& words, TimeNs now) {
  const bool goal_ok = words.size() == 5 && words[1] == "worker" &&
                       (words[3] == "ready" || words[3] == "drained" || words[3] == "gone");
  const std::optional<TimeNs> duration = goal_ok ? parse_duration(words[4]) : std::nullopt;
  if (!duration) return error("usage: wait worker NAME ready|drained|gone 60s");
  return {"", std::make_unique<WaitWorker>(words[2], words[3], now + *duration)};
}

}  // namespace

AdminAnswer run_admin_command(std::string_view line, AdminBackend& backend, TimeNs now) {
  const std::vector<std::string> words = split(line);
  if (words.empty()) return answer("");
  if (words[0] == "help") return answer(kHelp);
  if (words[0] == "show") {
    const bool json = words.size() == 3 && words[2] == "json";
    if (words.size() == 2 || json) {
      const PullWatch* pulls = words[1] == "live" ? backend.watch_pulls(now) : nullptr;
      if (auto text = show(words[1], json, backend.state(), backend.stats(), now, pulls)) {
        return answer(*text);
      }
    }
    return error(
        "usage: show info|workers|roles|frontends|setup|requests|kv|queue|tenants|errors|live "
        "[json]");
  }
  if (words[0] == "set") return set_worker(words, backend);
  if (words[0] == "cancel") return cancel(words, backend);
  if (words[0] == "wait") return wait_worker(words, now);
  if (words[0] == "audit" && words.size() == 1) {
    backend.request_tables();
    return {"", std::make_unique<Audit>(now + 2 * kSecond)};
  }
  return error("unknown command '" + words[0] + "'; try help");
}

}  // namespace baton
