// Events from workers: joining, results, pulls, heartbeats.
#include <algorithm>
#include <numeric>
#include <utility>

#include "ipc/fault_points.h"
#include "ipc/kv_layout.h"
#include "scheduler/apply/apply_handlers.h"
#include "scheduler/apply/beams.h"
#include "scheduler/apply/blame.h"
#include "scheduler/apply/grammars.h"
#include "scheduler/apply/handoff.h"
#include "scheduler/apply/membership.h"
#include "scheduler/apply/reachability.h"
#include "scheduler/apply/requests.h"
#include "scheduler/apply/roles.h"
#include "scheduler/apply/sequences.h"
#include "scheduler/plan/elastic.h"
#include "scheduler/plan/gather.h"
#include "scheduler/plan/spread.h"
#include "scheduler/prefix/prefix_cache.h"
#include "scheduler/prefix/prefix_pull.h"

namespace baton {

namespace {

/// Rows in a row of one request that its worker had no compiled grammar for: then the request ends.
constexpr std::uint32_t kMaxGrammarFailures = 16;

/// Names the first difference that forbids moving KV (or a request) between two workers.
std::string difference(const Hello& a, const Hello& b) {
  const auto differs = [](const char* field, std::uint64_t x, std::uint64_t y) {
    return std::string(field) + " " + std::to_string(x) + " against " + std::to_string(y);
  };
  if (a.model_fingerprint != b.model_fingerprint) {
    return differs("model fingerprint", a.model_fingerprint, b.model_fingerprint);
  }
  if (a.dtype != b.dtype) return differs("KV dtype", a.dtype, b.dtype);
  if (a.layers != b.layers) return differs("layers", a.layers, b.layers);
  // Of pools with a part of the heads, numbers say nothing of the model; the fingerprint says all.
  const bool whole = parts_of_heads(a) == 1 && parts_of_heads(b) == 1;
  if (whole && a.kv_heads != b.kv_heads) return differs("KV heads", a.kv_heads, b.kv_heads);
  if (a.head_dim != b.head_dim) return differs("head_dim", a.head_dim, b.head_dim);
  if (a.tokens_per_block != b.tokens_per_block) {
    return differs("tokens_per_block", a.tokens_per_block, b.tokens_per_block);
  }
  if (a.windows != b.windows) {
    const auto sum = [](const Hello& hello) {
      return std::accumulate(hello.windows.begin(), hello.windows.end(), std::uint64_t{0});
    };
    return differs("groups of layers", a.windows.size(), b.windows.size()) + ", " +
           differs("their windows together", sum(a), sum(b));
  }
  if (whole && a.block_bytes != b.block_bytes)
    return differs("block bytes", a.block_bytes, b.block_bytes);
  return "";
}

std::uint32_t prompt_tokens(const InFlightStep& step) {
  std::uint32_t tokens = 0;
  for (const auto& [id, n] : step.rows) tokens += n;
  return tokens;
}

/// Numbers from a Hello are used in divisions and allocations: nothing absurd may pass.
bool sane(const Hello& hello) {
  return hello.blocks > 0 && hello.blocks <= (1U << 26U) && hello.host_blocks <= (1U << 26U) &&
         hello.host_block_us >= 0 && hello.tokens_per_block > 0 && hello.tokens_per_block <= 4096 &&
         hello.max_context > 0 && hello.facts.weights.size() <= 256 &&
         hello.windows.size() <= kMaxKvGroups && hello.layer_groups.size() <= kMaxLayers;
}

struct WorkerHandler {
  State& state;
  LinkId link;
  WorkerIndex index;  // kNobody before Register
  TimeNs now;
  Outbox& out;
  std::uint32_t step_us = 0;  // of the result at hand

  Worker& worker() { return state.workers[index]; }

  /// True if the message belongs to the current term. A stale one is answered Fenced, at most once
  /// a second for each term: the worker may have missed the first answer.
  bool in_term(Term term) {
    Worker& w = worker();
    if (w.ready() && (term == w.peer.term || fault(Fault::no_term_check))) return true;
    if (term != w.peer.fenced_term || now - w.peer.fenced_at >= kSecond) {
      w.peer.fenced_term = term;
      w.peer.fenced_at = now;
      out.to_workers.emplace_back(link, Fenced{state.epoch, term});
    }
    return false;
  }

  void operator()(Register&& identity) {
    if (identity.protocol != kProtocolVersion) {
      out.to_workers.emplace_back(
          link, Refused{"worker speaks protocol " + std::to_string(identity.protocol) +
                        ", scheduler " + std::to_string(kProtocolVersion)});
      return;
    }
    for (index = 0; index < state.workers.size(); ++index) {
      if (worker().name() == identity.name) break;
    }
    if (index == state.workers.size()) {
      state.workers.emplace_back();
    } else if (worker().peer.state != WorkerState::gone &&
               worker().peer.identity.incarnation > identity.incarnation) {
      out.to_workers.emplace_back(link, Superseded{identity.incarnation});
      return;
    } else if (worker().peer.identity.incarnation == identity.incarnation) {
      re_register(identity);
      return;
    } else {
      if (worker().peer.link != kNoLink && worker().peer.state != WorkerState::gone) {
        out.to_workers.emplace_back(worker().peer.link,
                                    Superseded{worker().peer.identity.incarnation});
      }
      lose_worker(state, index, /*blamed=*/true,
                  "superseded by pid " + std::to_string(identity.pid), now, out);
      state.worker_links.erase(worker().peer.link);
    }
    Worker& w = worker();
    Worker before = std::exchange(w, Worker{});
    w.compute.steps_total = before.compute.steps_total;
    w.compute.tokens_total = before.compute.tokens_total;
    if (before.store.kept) {
      w.store = std::move(before.store);
      w.compute.sequences = before.compute.sequences;  // those that are parked there
    } else {
      w.store.predecessors = std::move(before.store.predecessors);
      if (before.store.allocation() != 0) w.store.predecessors.insert(before.store.allocation());
      w.store.last_context = before.store.last_context;
      w.store.last_positions = before.store.last_positions;
      w.store.log = std::move(before.store.log);
    }
    if (!brings_later_role(identity, before) && !fault(Fault::given_role_forgotten)) {
      w.given_role = before.given_role;
      w.held = before.held;
      w.role_set_here = before.role_set_here;
    }
    w.role_since = now;
    if (!w.given_role && !w.held) {  // what an earlier scheduler has told it
      w.held = identity.held;
      // One that was lent and not given goes home where roles do not change by themselves any more.
      const bool stays = w.held || state.settings.roles == Roles::automatic;
      if (identity.role != identity.home) w.given_role = stays ? identity.role : identity.home;
    }
    w.peer.identity = std::move(identity);
    w.peer.link = link;
    w.peer.registered = w.peer.heard = now;
    state.worker_links[link] = index;
    take_mapped(w);
    if (w.peer.identity.build != state.build) {
      out.warn(w.name() + ": version " + w.peer.identity.build + " differs from the scheduler's " +
               state.build);
    }
    out.info(w.name() + ": registering, role " + to_string(w.role()) + ", pid " +
             std::to_string(w.peer.identity.pid));
    tell_role(w, out);
    try_admit_worker(state, index, now, out);
  }

  /// The process brings a role that an operator set at an earlier scheduler, later than the one
  /// that is known. A role set at this scheduler is later still. Of two processes of a name, the
  /// younger one has the later role: a scheduler tells the older one nothing more.
  bool brings_later_role(const Register& identity, const Worker& before) const {
    if (!identity.held || before.role_set_here) return false;
    const bool younger = identity.incarnation > before.peer.identity.incarnation;
    return !before.held || (younger && !fault(Fault::older_role_kept));
  }

  /// What it mapped under an earlier scheduler. A pool whose process has ended since is to be
  /// closed.
  void take_mapped(Worker& w) {
    w.peer.imports.insert(w.peer.identity.mapped.begin(), w.peer.identity.mapped.end());
    for (const AllocationId allocation : w.peer.identity.mapped) {
      const bool over = std::any_of(
          state.workers.begin(), state.workers.end(),
          [&](const Worker& other) { return other.store.predecessors.count(allocation) != 0; });
      if (!over) continue;
      w.peer.work.add(Work::close, 0, allocation, now);
      w.peer.closes_repeated = now;
      out.to_workers.emplace_back(w.peer.link, Close{allocation});
    }
    w.peer.identity.mapped.clear();
  }

  /// The same process again: its first Register, or our answer, was lost, or its link is new.
  void re_register(const Register& identity) {
    Worker& w = worker();
    if (w.peer.state == WorkerState::gone) return;
    if (w.peer.link != link) {
      end_term(state, index, kBlameLater, Places::wait, "its link is new", out);
      state.worker_links.erase(w.peer.link);
      w.peer.link = link;
      state.worker_links[link] = index;
    }
    w.peer.heard = now;
    w.peer.identity.held = identity.held;  // it may not have been told
    if (w.given_role) w.peer.identity.role = identity.role;
    tell_role(w, out);
    if (w.peer.state != WorkerState::registering) {
      out.to_workers.emplace_back(link, Registered{state.epoch, w.peer.identity.incarnation});
    }
  }

  void operator()(Hello&& hello) {
    Worker& w = worker();
    if (hello.incarnation != w.peer.identity.incarnation ||
        w.peer.state == WorkerState::registering)
      return;
    if (w.store.faulted && hello.allocation == w.store.allocation()) return;  // said before it died
    if (!sane(hello)) {
      out.to_workers.emplace_back(link, Refused{"impossible pool geometry in Hello"});
      return;
    }
    // A longer sequence would make a plan that nobody can send.
    hello.max_context =
        std::min(hello.max_context, context_in_a_message(hello, state.settings.message_bytes));
    if (w.ready()) {
      if (hello.hello_id == w.store.offer.hello_id) {  // our Welcome was lost
        out.to_workers.emplace_back(link, Welcome{state.epoch, w.peer.term, hello.hello_id});
        return;
      }
      end_term(state, index, kBlameLater, Places::wait, "the worker ended it", out);
    }
    for (const Worker& other : state.workers) {
      if (&other == &w || !other.ready()) continue;
      const std::string what = difference(hello, other.store.offer);
      if (what.empty()) continue;
      out.warn(w.name() + ": refused: its pool differs from " + other.name() + "'s: " + what);
      out.to_workers.emplace_back(link,
                                  Refused{"pool differs from " + other.name() + "'s: " + what});
      return;
    }
    const bool same_pool =
        w.store.offer.allocation == hello.allocation && w.store.pool.total() == hello.blocks &&
        w.store.pool.host_total() == hello.host_blocks && w.store.offer.windows == hello.windows;
    if (!same_pool && w.store.kept) {
      out.warn(w.name() + ": comes back without its pool");
      give_up_pool(state, index, now, out);
    }
    w.store.shape = {hello.tokens_per_block, groups_of(hello)};
    if (!same_pool) {
      if (w.store.log) w.store.log->cleared();
      if (state.settings.kv_events && !w.store.log) w.store.log = std::make_unique<CacheLog>();
      w.store.pool = BlockPool(hello.blocks, hello.host_blocks, w.store.shape.groups);
      w.store.pool.tell(w.store.log.get());
      state.pulls.each([&](OpenPull& pull) {
        if (pull.from_worker == index) pull.from_worker = kNobody;  // they read the old one
      });
      forget_reads(state, index);
    }
    w.store.offer = std::move(hello);
    w.peer.state = WorkerState::ready;
    const bool smaller = w.store.context() < w.store.last_context;
    w.store.last_context = w.store.context();
    w.store.last_positions = w.store.offer.max_context;
    w.peer.term = state.last_term = std::max(state.last_term + 1, state.epoch + 1);
    w.compute.sent = w.compute.done = 0;
    w.compute.pulls_answered = 0;
    w.peer.work.begin_term(now);
    w.peer.unblamed.clear();
    w.peer.heartbeat = WorkerHeartbeat{};
    w.peer.heard = now;
    out.info(w.name() + ": ready, " + std::to_string(w.store.offer.blocks) + " blocks");
    warn_of_small_steps(state.settings, w, out);
    prove_context(state, /*anew=*/smaller);
    if (w.store.kept) resume_pool(state, index, out);
    out.to_workers.emplace_back(link, Welcome{state.epoch, w.peer.term, w.store.offer.hello_id});
    probe_peers(state, index, now, out);
    tell_context(state, out);
  }

  void operator()(StepResult&& result) {
    if (!in_term(result.term)) return;
    Worker& w = worker();
    if (result.step != w.compute.done + 1 || w.compute.steps.empty() ||
        w.compute.steps.front().step != result.step ||
        result.tokens.size() != result.sequences.size() || !logprobs_agree(result) ||
        !candidates_agree(result) || !sums_agree(result) ||
        !complete(w.compute.steps.front(), result)) {
      end_term(state, index, kBlameLater, Places::wait, "unexpected step result", out);
      out.to_workers.emplace_back(link, Fenced{state.epoch, result.term});
      return;
    }
    InFlightStep step = std::move(w.compute.steps.front());
    w.compute.steps.pop_front();
    w.compute.done = result.step;
    w.peer.work.answered(Work::step, result.step, now);
    // It began when it was sent, or when the one before it had ended.
    const TimeNs began = std::max(step.sent, w.compute.answered);
    if (prompt_tokens(step) > 0) note_prompts(step, began);
    // Its copies ran before its rows.
    const double copies_us = static_cast<double>(step.copies.size()) * w.store.offer.host_block_us;
    const double own_us = result.duration_us - std::min(result.duration_us, result.waited_us);
    w.compute.costs.take(std::max(0.0, own_us - copies_us), prompt_tokens(step),
                         !step.decode.empty() || !step.beams.empty(), step.pairs);
    w.compute.answered = now;
    for (std::size_t i = 0; i < result.summed.size(); ++i)
      w.store.sums[result.summed[i]] = result.sums[i];
    ++w.compute.steps_total;
    w.compute.tokens_total += result.tokens.size();
    retire_rows(step, result, began);
    step_us = result.duration_us;
    for (const PromptLogprobs& part : result.prompt_logprobs) take_prompt_logprobs(part);
    LogprobReader logprobs(result.logprobs);
    for (std::size_t i = 0; i < result.sequences.size(); ++i) {
      LogprobReader::Entry entry;
      const bool given = logprobs.take(static_cast<std::uint32_t>(i), entry);
      sampled(result.sequences[i], result.tokens[i], stage_of(step, result.sequences[i]),
              given ? &entry : nullptr);
    }
    for (const RowFailure& failure : result.failed) fail_row(failure);
    take_candidates(state, index, result, out);
    for (const auto& [id, n] : step.rows) prompt_progress(id);
    finish_retiring(step);
    give_back(step);
    w.store.pool.copied(step.copies);
    w.store.pool.retire(w.compute.done);
    if (!w.compute.reads.empty()) end_reads(state, index, w.compute.done);
  }

  /// One token (or candidates) for every row that was to sample and whose sequence still lives,
  /// unless it has failed.
  bool complete(const InFlightStep& step, const StepResult& result) const {
    if (result.sequences.size() + result.beam_sequences.size() > step.samples) return false;
    const auto failed = [&](SequenceId id) { return failed_in(result, id); };
    std::size_t expected = 0;
    for (const std::vector<SequenceId>* rows : {&step.decode, &step.beams}) {
      for (const SequenceId id : *rows) {
        expected += state.sequences.find(id) != nullptr && !failed(id) ? 1 : 0;
      }
    }
    for (const auto& [id, n] : step.rows) {
      const Sequence* sequence = state.sequences.find(id);
      if (sequence == nullptr || sequence->computed + n != sequence->prefill_length) continue;
      expected += failed(id) ? 0 : 1;
    }
    for (const bool beams : {false, true}) {
      for (const SequenceId id : beams ? result.beam_sequences : result.sequences) {
        const Sequence* sequence = state.sequences.find(id);
        if (sequence == nullptr) continue;
        const Request* request = state.requests.find(sequence->request);
        if (request != nullptr && (request->beams != nullptr) != beams) return false;
        --expected;
      }
    }
    return expected == 0;
  }

  void note_prompts(const InFlightStep& step, TimeNs began) {
    Compute& compute = worker().compute;
    compute.prompt_latency = now - began;
    compute.lately.prompt_tokens = 0;
    compute.lately.prompt_at = now;
    for (const auto& [id, n] : step.rows) {
      if (n <= compute.lately.prompt_tokens) continue;
      compute.lately.prompt_tokens = n;
      const Sequence* sequence = state.sequences.find(id);
      const Request* request = sequence == nullptr ? nullptr : state.request_of(*sequence);
      compute.lately.prompt = request == nullptr ? RequestId{} : request->name;
    }
  }

  static bool failed_in(const StepResult& result, SequenceId id) {
    return std::any_of(result.failed.begin(), result.failed.end(),
                       [&](const RowFailure& f) { return f.sequence == id; });
  }

  void retire_rows(const InFlightStep& step, const StepResult& result, TimeNs began) {
    for (const SequenceId id : step.decode) {
      if (Sequence* sequence = state.sequences.find(id)) {
        --sequence->inflight;
        --sequence->sampling;
        ++sequence->computed;
      }
    }
    for (const SequenceId id : step.beams) {
      if (Sequence* sequence = state.sequences.find(id)) {
        --sequence->inflight;
        ++sequence->computed;
      }
    }
    for (const auto& [id, n] : step.rows) {
      if (Sequence* sequence = state.sequences.find(id)) {
        --sequence->inflight;
        if (sequence->spread) {
          // With one that failed all of it is given up, by fail_row().
          const bool counts = !failed_in(result, id) || fault(Fault::failed_chunk_counts);
          spread_row_done(state, *sequence, index, counts ? n : 0);
          if (!counts) continue;
        } else {
          sequence->computed += n;
        }
        Request* owner = n == 0 ? nullptr : state.request_of(*sequence);
        if (owner != nullptr) {
          owner->times.chunk(index, began, now, n);
          tell_progress(state, *owner, *sequence, out);
        }
        if (sequence->computed != sequence->prefill_length) continue;
        --sequence->sampling;
        if (Request* request = state.request_of(*sequence))
          note(*request, LifetimeMoment::context_end, now);
      }
    }
  }

  void give_back(const InFlightStep& step) {
    if (worker().store.shape.plain()) return;
    const auto behind = [&](SequenceId id) {
      if (Sequence* sequence = state.sequences.find(id)) give_back_behind(state, *sequence);
    };
    for (const SequenceId id : step.decode) behind(id);
    for (const SequenceId id : step.beams) behind(id);
    for (const auto& [id, n] : step.rows) behind(id);
  }

  static bool logprobs_agree(const StepResult& result) {
    return result.logprobs.agrees() &&
           std::all_of(result.prompt_logprobs.begin(), result.prompt_logprobs.end(),
                       [](const PromptLogprobs& part) { return part.values.agrees(); });
  }

  bool sums_agree(const StepResult& result) {
    const std::uint64_t blocks =
        std::uint64_t{worker().store.offer.blocks} + worker().store.offer.host_blocks;
    return result.summed.size() == result.sums.size() &&
           std::all_of(result.summed.begin(), result.summed.end(),
                       [&](BlockId block) { return block < blocks; });
  }

  static bool candidates_agree(const StepResult& result) {
    const Logprobs& values = result.candidates;
    if (!values.agrees() || values.items.size() != result.beam_sequences.size()) return false;
    for (std::uint32_t i = 0; i < values.items.size(); ++i) {
      if (values.items[i] != i) return false;
    }
    return true;
  }

  /// Chunks come in order; what an earlier try computed went when this one started.
  void take_prompt_logprobs(const PromptLogprobs& part) {
    const Sequence* sequence = state.sequences.find(part.owner);
    if (sequence == nullptr || sequence->worker != index) return;
    Request* request = state.request_of(*sequence);
    if (request == nullptr || request->phase == Phase::ended || request->source != part.owner)
      return;
    request->prompt_logprobs.append(part.values);
  }

  /// Prompts' rows are few beside those of the decode set.
  static Stage stage_of(const InFlightStep& step, SequenceId id) {
    const bool prompt = std::any_of(step.rows.begin(), step.rows.end(),
                                    [&](const auto& row) { return row.first == id; });
    return prompt ? Stage::prefill : Stage::decode;
  }

  void sampled(SequenceId id, Token token, Stage stage, const LogprobReader::Entry* logprobs) {
    Sequence* sequence = state.sequences.find(id);
    if (sequence == nullptr || sequence->worker != index) return;  // a void row
    Request* request = state.request_of(*sequence);
    if (request == nullptr || request->phase == Phase::ended) return;
    request->deaths.got_on(stage);
    if (request->grammar != 0) {
      request->deaths.got_on(Stage::compile);
      state.grammar_deaths.erase(request->grammar);
    }
    request->grammar_failures = 0;
    if (request->times.token(now)) tell_gap(*request);
    take_token(state, *request, token, logprobs, out);
    leave_singles(*request, id);
  }

  /// What ran while it waited for its token.
  void tell_gap(Request& request) {
    const Compute& compute = worker().compute;
    const TimeNs since = request.times.token_before();
    const TimeNs gap = now - since;
    if (compute.lately.prompt_at > since && compute.lately.prompt != request.name) {
      request.times.gap(index, now, GapCause::prompt, compute.lately.prompt_tokens,
                        compute.lately.prompt);
    } else if (compute.lately.pull_at > since) {
      request.times.gap(index, now, GapCause::pull, 0, compute.lately.pull);
    } else if (compute.makes_way || is_suspect(state, request)) {
      request.times.gap(index, now, GapCause::suspect, 0, {});
    } else {
      const bool slow = TimeNs{step_us} * 2000 >= gap;
      request.times.gap(index, now, slow ? GapCause::step : GapCause::unknown, 0, {});
    }
  }

  /// A suspect that has decoded a token is none any more, and decodes with the others.
  void leave_singles(const Request& request, SequenceId id) {
    Worker& w = worker();
    if (w.compute.singles.empty() || request.phase == Phase::ended || is_suspect(state, request))
      return;
    if (std::erase(w.compute.singles, id) != 0) w.compute.joins.push_back(id);
  }

  void fail_row(const RowFailure& failure) {
    const Sequence* sequence = state.sequences.find(failure.sequence);
    if (sequence == nullptr || !runs_here(*sequence)) return;
    if (Request* request = state.requests.find(sequence->request)) {
      if (failure.unmapped) return lose_mapping(*request, *sequence);
      if (failure.waited && sequence->spread)
        return lose_chunk(*request, *sequence, failure.reason);
      if (failure.grammar_missing && ++request->grammar_failures <= kMaxGrammarFailures)
        return draw_later(*request);
      end_request(state, *request, FinishReason::error, ErrorCode::internal, failure.reason, out);
    }
  }

  bool runs_here(const Sequence& sequence) const {
    return sequence.worker == index || (sequence.spread && sequence.spread->lane_of(index));
  }

  /// It has waited in vain for what another worker was to compute: nobody's fault, and whether that
  /// one lives is found out elsewhere. The prompt is computed again.
  void lose_chunk(Request& request, const Sequence& sequence, const std::string& why) {
    if (fault(Fault::failed_chunk_counts)) return;
    for (const SpreadLane& lane : sequence.spread->lanes) {
      if (lane.worker != index && lane.inflight != 0) note_given_up(state, lane.worker, request);
    }
    out.warn(worker().name() + ": request " + std::to_string(request.name.frontend) + "-" +
             std::to_string(request.name.counter) + ": " + why);
    ++request.spread_failures;
    ++state.counters.spread_failures;
    request.times.lost_place(MoveCause::pull, index, now);
    requeue(state, request);
  }

  /// The worker forgot the grammar while the plan was on its way. The request waits for the grammar
  /// like a new one; the prefix cache has most of what it computed.
  void draw_later(Request& request) {
    lose_grammar(worker(), request);
    request.times.lost_place(MoveCause::grammar, index, now);
    requeue(state, request);
  }

  /// It could not read a pool that it could read before. Until it has said that it can again,
  /// nothing more is put there; the request is computed again.
  void lose_mapping(Request& request, const Sequence& sequence) {
    std::vector<StoreIndex> stores;
    for (const Extent& extent : sequence.extents) stores.push_back(extent.store);
    out.warn(worker().name() + ": " + "cannot read a pool that request " +
             std::to_string(request.name.frontend) + "-" + std::to_string(request.name.counter) +
             " lies in");
    ++request.handoff_failures;
    request.times.lost_place(MoveCause::pull, index, now);
    requeue(state, request);
    for (const StoreIndex store : stores) {
      if (store == index) continue;
      worker().peer.readable.erase(state.store(store).allocation());
      if (state.workers[store].ready()) probe(state, store, index, now, out);
    }
  }

  /// After a chunk: its full blocks may be pulled; after the last one the phase changes.
  void prompt_progress(SequenceId id) {
    Sequence* sequence = state.sequences.find(id);
    if (sequence == nullptr || sequence->retiring) return;
    Request* request = state.request_of(*sequence);
    if (request == nullptr || request->phase != Phase::prefill) return;
    remember_prefix(state, *sequence);
    if (sequence->spread || sequence->worker != index) return;  // its last row comes later
    const bool whole = sequence->computed >= sequence->prefill_length;
    // Not on its worker any more: it has all its tokens in flight, and its drop is on the way.
    if (sequence->decode_slot != kNobody || !sequence->on_worker) {
      request->phase = Phase::decode;
      request->times.decodes_on(index, now, /*news=*/false);
      return;
    }
    const bool stays = request->beams ? !needs_handoff(state, *request, worker()) : sequence->stays;
    if (whole && stays && request->target == 0) {
      state.handoffs.erase({request->place, request->id});
      begin_decode(state, *request, *sequence);
      return;
    }
    if (whole) {
      request->phase = Phase::handoff;
      request->times.enter(request->target != 0 ? Part::handoff : Part::decode_wait, now);
    }
    if (!whole && !needs_handoff(state, *request, worker())) return;  // it may stay here
    if (request->target == 0) {
      state.handoffs.insert({request->place, request->id});
    } else {
      advance_handoff(state, *request, now, out);
    }
  }

  void finish_retiring(const InFlightStep& step) {
    const auto finish = [&](SequenceId id) {
      Sequence* sequence = state.sequences.find(id);
      if (sequence == nullptr || !sequence->retiring || sequence->inflight != 0) return;
      Request* request = state.request_of(*sequence);
      if (request != nullptr && request->phase == Phase::preempting) requeue(state, *request);
    };
    for (const SequenceId id : step.decode) finish(id);
    for (const auto& [id, n] : step.rows) finish(id);
  }

  void operator()(PullDone&& done) {
    if (!in_term(done.term)) return;
    const OpenPull* pull = state.pulls.find(done.pull_id);
    const bool doubted = pull != nullptr && pull->doubted;
    pull_answered(done.pull_id, doubted ? "the source's process died of a fault" : "", {});
  }
  void operator()(PullFailed&& failed) {
    if (!in_term(failed.term)) return;
    pull_answered(failed.pull_id, failed.reason.empty() ? "no reason given" : failed.reason,
                  failed.damaged);
  }

  /// What a pull has written has its source's checksums; what one that failed has left there,
  /// nobody knows.
  void take_sums(const OpenPull& pull, bool good) {
    Worker& w = worker();
    if (!w.store.offer.tells_sums) return;
    for (std::size_t i = 0; i < pull.to.size(); ++i) {
      const std::uint64_t sum = good && !pull.sums.empty() ? pull.sums[i] : 0;
      if (sum != 0) {
        w.store.sums[pull.to[i]] = sum;
      } else {
        w.store.sums.erase(pull.to[i]);
      }
    }
  }

  void note_pull(const OpenPull& pull) {
    Worker& w = worker();
    if (pull.is_probe()) return;
    Request* request = state.requests.find(pull.request);
    const auto& open = w.peer.work.of(Work::pull);
    const auto record = open.find(pull.number);
    if (request == nullptr || record == open.end()) return;
    w.compute.lately.pull = request->name;
    w.compute.lately.pull_at = now;
    request->times.pull(index, record->second.sent, now,
                        static_cast<std::uint32_t>(pull.to.size()));
  }

  void pull_answered(PullId id, const std::string& failure, const std::vector<BlockId>& damaged) {
    Worker& w = worker();
    const OpenPull* pull = state.pulls.find(id);
    if (pull == nullptr || pull->to_worker != index) return;
    ++w.compute.pulls_answered;
    note_pull(*pull);
    w.peer.work.answered(Work::pull, pull->number, now);
    const bool is_probe = pull->is_probe();
    const std::uint64_t request_id = pull->request;
    const SequenceId target = pull->target;
    const WorkerIndex exporter = pull->from_worker;
    if (is_probe) probe_answered(state, *pull, failure, now, out);
    take_sums(*pull, failure.empty());
    if (!damaged.empty() && !is_probe) {
      const OpenPull answered = *pull;
      settle_pull(state, id);
      return take_damage(state, answered, damaged, out);
    }
    settle_pull(state, id);
    if (is_probe) return;
    // The pool may have become unreadable: the answer decides about later hand-offs.
    if (!failure.empty() && exporter != kNobody) probe(state, exporter, index, now, out);
    Request* request = state.requests.find(request_id);
    if (request == nullptr || target == 0 || target != pulled_into(state, *request))
      return;  // given up before
    if (!failure.empty()) {
      ++state.counters.pull_failures;
      out.warn(w.name() + ": pull failed: " + failure);
    }
    Sequence* sequence = state.sequences.find(target);
    if (sequence != nullptr && sequence->gather)
      return gather_pulled(state, *request, *sequence, !failure.empty());
    if (request->phase == Phase::pull) return prefix_pulled(state, *request, !failure.empty());
    if (failure.empty()) return advance_handoff(state, *request, now, out);
    request->handoff_not_before = now + 200 * kMillisecond;
    if (++request->handoff_failures >= 3) {
      request->local = true;
      const Sequence* source = state.sequences.find(request->source);
      request->times.lost_place(MoveCause::pull, source != nullptr ? source->worker : kNobody, now);
      requeue(state, *request);
    } else {
      drop_target(state, *request);
    }
  }

  void operator()(Closed&& closed) {
    // Its term is over for us, and not yet for itself: over a link that broke and came back, a Pull
    // of that term may reach it behind our Close. It is told again; once it has said Hello it
    // believes no such Pull.
    if (worker().peer.state == WorkerState::fenced) return;
    worker().peer.readable.erase(closed.allocation);
    // It closes only what no pull names, so this was said before a pull that is on its way: the
    // pull will map the pool again, and what it wants closed is said once more.
    bool stale = false;
    state.pulls.each([&](const OpenPull& t) {
      stale = stale || (t.to_worker == index && t.from_allocation == closed.allocation);
    });
    if (stale) return;
    worker().peer.work.answered_key(Work::close, closed.allocation, now);
    worker().peer.imports.erase(closed.allocation);
    for (WorkerIndex i = 0; i < state.workers.size(); ++i) try_admit_worker(state, i, now, out);
  }

  void operator()(WorkerHeartbeat&& beat) {
    Worker& w = worker();
    if (beat.incarnation != w.peer.identity.incarnation) return;
    if (beat.draining && !w.peer.leaving)
      set_draining(state, index, true, /*leave=*/true, now, out);
    if (beat.term == 0) {  // out of term by its own account: Hello follows, or it is loading
      w.peer.heartbeat = std::move(beat);
      return;
    }
    if (!in_term(beat.term)) return;
    w.store.offer.leased = beat.leased;
    if (beat.steps_done > w.compute.done) {
      end_term(state, index, kBlameLater, Places::wait, "a step result was lost", out);
    } else if (beat.pulls_done > w.compute.pulls_answered) {
      end_term(state, index, kBlameLater, Places::wait, "a pull's answer was lost", out);
    } else {
      w.peer.work.acknowledge(Work::step, beat.plans_received, now);
      w.peer.work.acknowledge(Work::pull, beat.pulls_received, now);
    }
    if (!w.ready()) out.to_workers.emplace_back(link, Fenced{state.epoch, beat.term});
    w.peer.heartbeat = std::move(beat);
  }

  void operator()(Tables&& /*tables*/) {}  // compared by the admin's audit

  void operator()(GrammarState&& grammar) {
    if (!in_term(grammar.term)) return;
    Worker& w = worker();
    const auto known = w.compute.grammars.find(grammar.key);
    if (known == w.compute.grammars.end()) {  // we have forgotten it as well
      w.peer.work.answered_key(Work::compile, grammar.key, now);
    } else if (grammar.ready) {
      known->second.ready = true;
      known->second.text.clear();
      w.peer.work.answered(Work::compile, known->second.number, now);
    } else if (known->second.ready || !known->second.awaited) {
      // Forgotten, or passed over. One that is awaited has been told of again meanwhile, and will
      // be answered.
      w.peer.work.answered(Work::compile, known->second.number, now);
      w.compute.grammars.erase(known);
    }
    w.compute.compiles_alone = w.compute.compiles_alone && w.peer.work.open(Work::compile) != 0;
  }

  void operator()(WorkerBye&& bye) {
    if (bye.incarnation == worker().peer.identity.incarnation) {
      lose_worker(state, index, /*blamed=*/false, "said goodbye", now, out);
    }
  }
};

Term term_of(const WorkerMessage& message) {
  return std::visit(
      [](const auto& m) -> Term {
        if constexpr (requires { m.term; }) {
          return m.term;
        } else {
          return 0;
        }
      },
      message);
}

}  // namespace

void try_admit_worker(State& state, WorkerIndex index, TimeNs now, Outbox& out) {
  Worker& w = state.workers[index];
  if (w.peer.state != WorkerState::registering) return;
  std::string holders;
  const auto is_mapped = [&](AllocationId allocation) {
    bool mapped = false;
    for (const Worker& importer : state.workers) {
      if (importer.peer.state == WorkerState::gone ||
          !importer.peer.work.has(Work::close, allocation))
        continue;
      holders += (holders.empty() ? "" : ", ") + importer.name();
      mapped = true;
    }
    return mapped;
  };
  std::erase_if(w.store.predecessors,
                [&](AllocationId allocation) { return !is_mapped(allocation); });
  if (!holders.empty()) {
    if (now - w.peer.registered < state.settings.close_timeout) return;
    out.warn(w.name() + ": admitted although its predecessor's pool is still mapped by " + holders);
  }
  w.peer.state = WorkerState::loading;
  out.to_workers.emplace_back(w.peer.link, Registered{state.epoch, w.peer.identity.incarnation});
}

void set_draining(State& state, WorkerIndex index, bool draining, bool leave, TimeNs now,
                  Outbox& out) {
  Worker& w = state.workers[index];
  if (w.peer.state == WorkerState::gone) return;
  if (draining && !w.peer.draining) w.peer.drain_since = now;
  w.peer.leaving = w.peer.leaving || leave;
  w.peer.draining = draining || w.peer.leaving;  // nobody brings back a process that ends
  out.info(w.name() + (w.peer.draining ? ": draining" : ": takes work again"));
}

void apply_worker(State& state, LinkId link, WorkerMessage&& message, TimeNs now, Outbox& out) {
  if (std::holds_alternative<Register>(message)) {
    std::visit(WorkerHandler{state, link, kNobody, now, out}, std::move(message));
    return;
  }
  const auto it = state.worker_links.find(link);
  const bool known = it != state.worker_links.end() &&
                     state.workers[it->second].peer.link == link &&
                     state.workers[it->second].peer.state != WorkerState::gone;
  if (!known) {
    // An older scheduler's worker: the other epoch makes it register. One of this epoch (its link
    // is new, or it was superseded) ends the term that it names.
    out.to_workers.emplace_back(link, Fenced{state.epoch, term_of(message)});
    return;
  }
  state.workers[it->second].peer.heard = now;
  std::visit(WorkerHandler{state, link, it->second, now, out}, std::move(message));
}

}  // namespace baton
