// Events from front ends: hello, submit, cancel, finish, acknowledge, heartbeat.
#include <algorithm>

#include "ipc/fault_points.h"
#include "scheduler/apply/apply_handlers.h"
#include "scheduler/apply/beams.h"
#include "scheduler/apply/grammars.h"
#include "scheduler/apply/membership.h"
#include "scheduler/apply/requests.h"
#include "scheduler/apply/sequences.h"
#include "scheduler/plan/admission.h"
#include "scheduler/plan/batch_limits.h"
#include "scheduler/plan/queue_order.h"

namespace baton {

namespace {

Request* find_request(State& state, const RequestId& name) {
  const auto it = state.by_name.find(name);
  return it == state.by_name.end() ? nullptr : state.requests.find(it->second);
}

bool same_process(const FrontendHello& a, const FrontendHello& b) {
  return a.pid == b.pid && a.pid_start == b.pid_start && a.generation == b.generation;
}

/// Ends requests without telling anybody, and what was to be told to the front end is dropped.
void cancel_unheard(State& state, FrontendIndex frontend,
                    const std::vector<std::uint64_t>& requests, const std::string& why,
                    Outbox& out) {
  for (const std::uint64_t id : requests) {
    Request* request = state.requests.find(id);
    end_request(state, *request, FinishReason::cancelled, ErrorCode::cancelled, why, out);
    forget(state, *request);
  }
  out.drop_events(frontend);
}

void refuse(State& state, const Submit& submit, FrontendIndex frontend, ErrorCode code,
            std::string message, std::uint32_t retry_after_s, Outbox& out) {
  ++state.counters.refused;
  Terminal terminal;
  terminal.counter = submit.request.counter;
  terminal.attempt = submit.attempt;
  terminal.n = {static_cast<std::uint32_t>(submit.generated.size())};
  terminal.reason = {static_cast<std::uint32_t>(FinishReason::error)};
  terminal.code = code;
  terminal.message = std::move(message);
  terminal.retry_after_s = retry_after_s;
  out.begin_in(frontend).terminals.push_back(std::move(terminal));
}

/// Seconds until the queue has probably moved; deliberately coarse.
std::uint32_t retry_after(const State& state) {
  return 1 + static_cast<std::uint32_t>(state.waiting.size() / 1000);
}

/// What the pools of the workers in term are used for.
void tell_pools(const State& state, FrontendWelcome& message) {
  for (const Worker& w : state.workers) {
    if (!w.ready()) continue;
    message.tokens_per_block = w.store.tokens_per_block();
    message.pools.push_back({w.name(), w.role(), w.store.pool.total(), w.store.pool.owned_blocks(),
                             w.store.pool.fenced_blocks(), w.store.pool.cached_blocks()});
  }
}

FrontendWelcome welcome_of(const State& state) {
  FrontendWelcome message;
  message.build = state.build;
  message.epoch = state.epoch;
  message.max_context = promised_context(state);
  for (const Worker& w : state.workers) {
    if (w.takes_work()) ++message.workers_ready;
    message.progress += w.compute.steps_total;
    message.host_blocks += w.store.pool.host_total();
    message.host_blocks_used += w.store.pool.host_total() - w.store.pool.host_free_blocks();
  }
  message.blocks_out = state.counters.blocks_out;
  message.blocks_in = state.counters.blocks_in;
  message.damaged_blocks = state.counters.damaged_blocks;
  message.preemptions = state.counters.preemptions;
  message.computed_tokens = state.counters.computed_tokens;
  message.resumed = state.counters.resumed;
  message.role_changes = state.counters.role_changes;
  message.handoffs = state.counters.handoffs;
  message.terms_ended = state.counters.terms_ended;
  message.worker_deaths = state.counters.worker_deaths;
  message.growths = state.counters.growths;
  tell_pools(state, message);
  message.waiting = static_cast<std::uint32_t>(state.waiting.size());
  message.running = static_cast<std::uint32_t>(state.deadlines.size());
  return message;
}

/// What the attempt before has been charged for, as Request has it.
struct Paid {
  std::uint32_t prompt = 0;
  std::uint32_t output = 0;
};

struct Handler {
  State& state;
  LinkId link;
  FrontendIndex frontend;
  TimeNs now;
  Outbox& out;

  void welcome() {
    FrontendWelcome message = welcome_of(state);
    if (frontend != kNobody) state.frontends[frontend].told_context = message.max_context;
    out.to_frontends.emplace_back(link, std::move(message));
  }

  void operator()(FrontendHello&& hello) {
    if (hello.protocol != kProtocolVersion) {
      out.to_frontends.emplace_back(
          link, Refused{"front end speaks protocol " + std::to_string(hello.protocol) +
                        ", scheduler " + std::to_string(kProtocolVersion)});
      return;
    }
    if (hello.build != state.build) {
      out.warn(hello.name + ": version " + hello.build + " differs from the scheduler's " +
               state.build);
    }
    if (superseded(hello)) {
      out.to_frontends.emplace_back(
          link, Refused{"a successor has taken over the requests of this front end"});
      return;
    }
    if (frontend == kNobody) frontend = entry_for(hello);
    Frontend& entry = state.frontends[frontend];
    // Of the process that is gone, a last hello may still come.
    if (!same_process(entry.identity, hello)) entry.away = 0;
    entry.identity = std::move(hello);
    entry.identity.inherited = {};  // it has been looked at
    entry.link = link;
    entry.alive = true;
    entry.heard = now;
    welcome();
  }

  /// A process that was taken for dead, and has woken up: another one has its clients now.
  bool superseded(const FrontendHello& hello) const {
    return std::any_of(state.frontends.begin(), state.frontends.end(), [&](const Frontend& entry) {
      return entry.identity.incarnation == hello.incarnation &&
             entry.identity.generation > hello.generation;
    });
  }

  /// The entry of a front end that is new, known by another link, or gone before its successor.
  FrontendIndex entry_for(const FrontendHello& hello) {
    auto index = static_cast<FrontendIndex>(state.frontends.size());
    bool known = false;
    for (FrontendIndex i = 0; i < state.frontends.size() && !known; ++i) {
      const Frontend& entry = state.frontends[i];
      known = entry.alive && entry.identity.incarnation == hello.incarnation;
      // Entries of the dead are reused: nothing refers to them.
      if (known || !entry.alive) index = i;
    }
    if (index == state.frontends.size()) state.frontends.emplace_back();
    if (!fault(Fault::replaced_link_heard)) {
      state.frontend_links.erase(state.frontends[index].link);
    }
    state.frontend_links[link] = index;
    if (known && !same_process(state.frontends[index].identity, hello)) {
      take_over(index, hello);
    } else {
      out.info(hello.name + ": front end joined, pid " + std::to_string(hello.pid));
    }
    give_up_namesakes(hello);
    return index;
  }

  /// Requests go on that the successor has inherited. Of the others the predecessor had known the
  /// end, or its client has left: nobody waits for them.
  void take_over(FrontendIndex index, const FrontendHello& hello) {
    std::size_t kept = 0;
    std::vector<std::uint64_t> orphans;
    state.requests.each([&](const Request& request) {
      if (request.frontend != index) return;
      if (std::binary_search(hello.inherited.begin(), hello.inherited.end(),
                             request.name.counter)) {
        ++kept;
      } else {
        orphans.push_back(request.id);
      }
    });
    if (!fault(Fault::orphans_decode_on)) {
      cancel_unheard(state, index, orphans, "its front end had ended it", out);
    }
    out.info(hello.name + ": its successor has taken over, pid " + std::to_string(hello.pid) +
             ", " + std::to_string(kept) + " requests");
  }

  /// Its name has come back as another incarnation: no successor will come for the one before.
  void give_up_namesakes(const FrontendHello& hello) {
    for (FrontendIndex i = 0; i < state.frontends.size(); ++i) {
      const Frontend& entry = state.frontends[i];
      if (entry.alive && entry.away != 0 && entry.identity.name == hello.name &&
          entry.identity.incarnation != hello.incarnation) {
        lose_frontend(state, i, "another one has its name", out);
      }
    }
  }

  void operator()(Submit&& submit) {
    if (submit.epoch != state.epoch) return;  // it has been or will be told to say hello
    if (submit.request.frontend != state.frontends[frontend].identity.incarnation) return;
    Paid paid;
    if (Request* known = find_request(state, submit.request)) {
      if (submit.attempt <= known->attempt) return;
      paid = {known->charged_prompt, known->charged_output};
      drop_obsolete(*known);
    }
    const std::uint32_t context = promised_context(state);
    if (!submit.again && state.waiting.size() >= state.settings.max_waiting) {
      refuse(state, submit, frontend, ErrorCode::queue_full,
             std::to_string(state.waiting.size()) + " requests are waiting already",
             retry_after(state), out);
      return;
    }
    if (submit.prompt.empty()) {
      refuse(state, submit, frontend, ErrorCode::invalid_argument, "the prompt is empty", 0, out);
      return;
    }
    if (context != 0 && submit.prompt.size() + 1 > context &&
        !awaits_pools(state, submit.again, now)) {
      refuse(state, submit, frontend, ErrorCode::too_long,
             "the prompt has " + std::to_string(submit.prompt.size()) +
                 " tokens; with one more it must fit " + std::to_string(context),
             0, out);
      return;
    }
    if (!submit.sampling.within_bounds()) {
      refuse(state, submit, frontend, ErrorCode::invalid_argument,
             "logprobs, logit_bias, allowed tokens, bad words, beams or pooling are out of bounds",
             0, out);
      return;
    }
    if (submit.share.tenant.size() > kMaxTenantName) {
      refuse(state, submit, frontend, ErrorCode::invalid_argument,
             "the tenant's name has more than " + std::to_string(kMaxTenantName) + " bytes", 0,
             out);
      return;
    }
    accept(std::move(submit), paid);
  }

  /// Its front end is at a later attempt.
  void drop_obsolete(Request& request) {
    release_places(state, request);
    leave_queue(state, request);
    if (request.phase != Phase::ended) state.tenants.close(request.tenant);
    state.handoffs.erase({request.place, request.id});
    state.deadlines.erase({request.deadline, request.id});
    forget(state, request);
  }

  void accept(Submit&& submit, const Paid& paid) {
    const bool resumed = !submit.generated.empty() && !submit.sampling.beams();
    Request& request = state.requests.create();
    request.name = submit.request;
    request.frontend = frontend;
    request.tenant = state.tenants.open(submit.share);
    request.attempt = submit.attempt;
    request.arrival = submit.arrival;
    request.place = queue_place(submit, state.settings);
    request.deadline = submit.deadline;
    request.again = submit.again;
    request.submitted = now;
    request.cache_salt = std::move(submit.cache_salt);
    if (submit.lifetime) request.lifetime.resize(kLifetimeMoments);
    request.progress = submit.progress;
    request.prompt = std::move(submit.prompt);
    if (resumed) request.generated = std::move(submit.generated);
    request.sampling = std::move(submit.sampling);
    request.grammar = grammar_key(request.sampling, state.grammar_secret);
    if (request.sampling.beams()) request.beams = std::make_unique<Beams>();
    request.charged_prompt = paid.prompt;
    request.charged_output =
        std::max(paid.output, static_cast<std::uint32_t>(request.generated.size()));
    const Request* first = first_waiting(state);
    request.times.tell(state.part_log.get(), request.name);
    request.times.begin(now, !request.generated.empty(),
                        static_cast<std::uint32_t>(state.waiting.size()),
                        first != nullptr ? first->name : RequestId{});
    state.by_name[request.name] = request.id;
    enter_queue(state, request);
    state.deadlines.insert({request.deadline, request.id});
    ++state.counters.accepted;
    const FinishReason reason = already_finished(request);
    if (reason != FinishReason::none) {
      end_request(state, request, reason, ErrorCode::ok, "", out);
    } else if (request.beams) {
      refuse_beams(request);
    } else if (request.grammar != 0) {
      announce_grammar(request);
    }
  }

  /// Whoever may run the request compiles its grammar while it waits, is prefilled and handed over.
  void announce_grammar(const Request& request) {
    for (Worker& w : state.workers) {
      if (w.takes_work()) ask_grammar(state, w, request, /*awaited=*/false, now, out);
    }
  }

  /// Those that no worker of today could run to their end.
  void refuse_beams(Request& request) {
    const std::uint32_t width = request.sampling.num_beams;
    if (width > most_beams(state.settings)) {
      end_request(state, request, FinishReason::error, ErrorCode::invalid_argument,
                  std::to_string(width) + " beams are more than the " +
                      std::to_string(most_beams(state.settings)) +
                      " sequences that a worker runs at once",
                  out);
      return;
    }
    const Worker* largest = nullptr;
    for (const Worker& w : state.workers) {
      if (!w.ready()) continue;
      if (can_hold(w, request, request.length() + 1)) return;
      if (largest == nullptr || w.store.pool.total() > largest->store.pool.total()) largest = &w;
    }
    if (largest == nullptr) return;  // it waits for one
    end_request(state, request, FinishReason::error, ErrorCode::too_long,
                cannot_hold(*largest, request, request.length() + 1), out);
  }

  void operator()(Cancel&& cancel) {
    if (Request* request = find_request(state, cancel.request)) {
      end_request(state, *request, FinishReason::cancelled, ErrorCode::cancelled, "the client left",
                  out);
    }
  }

  void operator()(Finish&& finish) {
    Request* request = find_request(state, finish.request);
    if (request == nullptr || request->attempt > finish.attempt) return;
    // The attempt that has ended was lost on its way here: nobody takes the tokens of the one
    // before it.
    if (request->attempt < finish.attempt) {
      if (!fault(Fault::orphan_after_finish)) drop_obsolete(*request);
      return;
    }
    if (request->phase == Phase::ended) return;  // its terminal crosses the Finish
    if (finish.n > request->generated.size()) return;
    request->generated.resize(finish.n);
    end_request(state, *request, FinishReason::stop, ErrorCode::ok, "", out);
  }

  void operator()(Ack&& ack) {
    Request* request = find_request(state, ack.request);
    if (request != nullptr && request->phase == Phase::ended) forget(state, *request);
  }

  void operator()(FrontendHeartbeat&& beat) {
    if (beat.epoch != state.epoch) {
      out.to_frontends.emplace_back(link, FrontendUnknown{state.epoch});
      return;
    }
    if (beat.counters.size() != beat.attempts.size() || beat.counters.size() != beat.next.size() ||
        (!beat.prompt_entries.empty() && beat.prompt_entries.size() != beat.counters.size())) {
      return;
    }
    Gone gone;
    gone.epoch = state.epoch;
    const Incarnation incarnation = state.frontends[frontend].identity.incarnation;
    for (std::size_t i = 0; i < beat.counters.size(); ++i) {
      Request* request = find_request(state, {incarnation, beat.counters[i]});
      if (request == nullptr || request->attempt != beat.attempts[i]) {
        if (request != nullptr && request->attempt < beat.attempts[i]) drop_obsolete(*request);
        gone.counters.push_back(beat.counters[i]);
        continue;
      }
      resend(*request, beat.next[i], beat.prompt_entries.empty() ? 0 : beat.prompt_entries[i]);
    }
    if (!gone.counters.empty()) out.to_frontends.emplace_back(link, std::move(gone));
    welcome();
  }

  /// The tokens from index `next`, and the terminal if the request has ended.
  void resend(Request& request, std::uint32_t next, std::uint32_t prompt_entries) {
    const auto end =
        std::min(static_cast<std::uint32_t>(request.generated.size()), request.client_tokens);
    if (next < end) resend_tokens(request, next, end, out, prompt_entries);
    if (request.terminal_sent) send_terminal(state, request, out);
  }

  void operator()(FrontendBye&& /*bye*/) { lose_frontend(state, frontend, "said goodbye", out); }
};

}  // namespace

void lose_frontend(State& state, FrontendIndex index, const std::string& why, Outbox& out) {
  Frontend& entry = state.frontends[index];
  if (!entry.alive) return;
  entry.alive = false;
  entry.away = 0;
  out.info(entry.identity.name + ": front end left: " + why);
  std::vector<std::uint64_t> requests;
  state.requests.each([&](const Request& request) {
    if (request.frontend == index) requests.push_back(request.id);
  });
  cancel_unheard(state, index, requests, "its front end is gone", out);
}

void frontend_gone(State& state, FrontendIndex index, TimeNs now, Outbox& out) {
  Frontend& entry = state.frontends[index];
  if (!entry.reachable()) return;
  if (!entry.identity.has_successor || state.settings.successor_wait == 0 ||
      fault(Fault::no_grace)) {
    lose_frontend(state, index, "process ended", out);
    return;
  }
  entry.away = now;
  const auto requests = std::count_if(
      state.by_name.begin(), state.by_name.end(),
      [&](const auto& known) { return state.requests.find(known.second)->frontend == index; });
  out.info(entry.identity.name + ": process ended; " + std::to_string(requests) +
           " requests go on and wait for its successor");
}

void apply_frontend(State& state, LinkId link, FrontendMessage&& message, TimeNs now, Outbox& out) {
  const auto it = state.frontend_links.find(link);
  const bool known = it != state.frontend_links.end() && state.frontends[it->second].alive;
  if (!known && !std::holds_alternative<FrontendHello>(message)) {
    if (!std::holds_alternative<FrontendBye>(message)) {
      out.to_frontends.emplace_back(link, FrontendUnknown{state.epoch});
    }
    return;
  }
  const FrontendIndex index = known ? it->second : kNobody;
  if (known) state.frontends[index].heard = now;
  std::visit(Handler{state, link, index, now, out}, std::move(message));
}

void tell_context(State& state, Outbox& out) {
  const std::uint32_t context = promised_context(state);
  for (Frontend& entry : state.frontends) {
    if (!entry.reachable() || entry.told_context == context) continue;
    entry.told_context = context;
    out.to_frontends.emplace_back(entry.link, welcome_of(state));
  }
}

}  // namespace baton
