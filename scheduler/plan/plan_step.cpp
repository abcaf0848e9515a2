#include "scheduler/plan/plan_step.h"

#include <algorithm>
#include <utility>

#include "ipc/fault_points.h"
#include "scheduler/apply/beams.h"
#include "scheduler/apply/blame.h"
#include "scheduler/apply/grammars.h"
#include "scheduler/apply/handoff.h"
#include "scheduler/apply/requests.h"
#include "scheduler/apply/sequences.h"
#include "scheduler/plan/admission.h"
#include "scheduler/plan/admission_rules.h"
#include "scheduler/plan/batch_limits.h"
#include "scheduler/plan/elastic.h"
#include "scheduler/plan/gather.h"
#include "scheduler/plan/place_handoffs.h"
#include "scheduler/plan/policy.h"
#include "scheduler/plan/queue_order.h"
#include "scheduler/plan/spread.h"
#include "scheduler/plan/static_batching.h"
#include "scheduler/plan/swap.h"
#include "scheduler/prefix/prefix_cache.h"
#include "scheduler/prefix/prefix_pull.h"
#include "scheduler/state/message_size.h"

namespace baton {

namespace {

/// Builds one step for one worker. A step touches each list of the worker once.
class StepBuilder {
 public:
  StepBuilder(State& state, WorkerIndex index, TimeNs now, Outbox& out)
      : state_(state), w_(state.workers[index]), index_(index), now_(now), out_(out) {}

  /// Sends the plan and returns true, or returns false if there is nothing to do now.
  bool build() {
    if (w_.compute.runs_alone()) return false;
    // Steps of the others go on until the pulls and grammars that began before are answered.
    const bool turn = w_.compute.makes_way && w_.only_steps();
    if (turn && !w_.compute.steps.empty()) return false;
    retire_full_members();
    budget_ = step_tokens(state_.settings, w_);
    prompt_rows_ = most_prompt_rows(state_);
    if (turn) take_suspect();
    if (!step_.alone && !w_.compute.compiles_alone) fill();
    if (!has_work() && w_.compute.steps.empty() && w_.compute.makes_way && w_.only_steps())
      take_suspect();
    if (w_.compute.compiles_alone) return false;
    if (!has_work() && (w_.compute.drops.empty() || !w_.compute.steps.empty())) return false;
    send();
    return true;
  }
  /// A chunk of a prompt has left: somebody else may have the next one.
  bool passed_on() const { return passed_on_; }

 private:
  bool has_work() const {
    return plan_.decode || !plan_.rows.empty() || !plan_.add.empty() || !plan_.beams.empty() ||
           !plan_.singles.empty() || !w_.store.copies.empty();
  }

  /// The plan has room for `bytes` more that tell of a sequence. A plan that tells of none has:
  /// what one of them takes is bounded (context_in_a_message).
  bool fits_message(std::size_t bytes) const {
    return told_bytes_ == 0 || told_bytes_ + bytes <= state_.settings.message_bytes / 2 ||
           fault(Fault::plan_without_limit);
  }
  /// ... for the whole of one that the worker does not know.
  bool add_fits_message(const Request& request) const {
    const std::size_t blocks =
        std::size_t{w_.store.columns_for(request.length() + 1)} * w_.store.shape.groups.count;
    return w_.store.copies.size() < kMostCopies &&
           fits_message(bytes_of_add(request.length(), request.sampling, blocks));
  }

  /// A step is filled with decoding first, or, if prompts pause it, with prompts alone while there
  /// are any. A suspect found on the way has its turn behind this step, which is the others' own:
  /// they are admitted, and their grammars asked for, as if it were not there.
  void fill() {
    const bool pause = state_.settings.prompts_pause_decode;
    const bool waited = w_.compute.short_of_blocks;
    if (pause) take_prompts();
    if (plan_.rows.empty()) take_decode();
    take_joins();
    // Prompts that waited for blocks, which decode has found: whoever plans next may take them.
    if (!pause || (waited && !w_.compute.short_of_blocks && !has_work())) take_prompts();
    w_.compute.makes_way = w_.compute.makes_way || suspect_found_;
  }

  void take_decode() {
    w_.compute.short_of_blocks = !make_room_to_grow();
    if (w_.compute.short_of_blocks) return;
    suspect_found_ = suspect_found_ || !w_.compute.singles.empty();
    take_adds();
    grow();
    take_beams();
    plan_.decode = !w_.compute.decode_set.empty();
    if (plan_.decode) step_.decode = w_.compute.decode_set;
    budget_ -=
        std::min(budget_, static_cast<std::uint32_t>(step_.decode.size() + step_.beams.size()));
  }

  /// Searches that found their way here as prompts may have more beams together than a step has
  /// room for: those that do not fit are the first ones of the next.
  void take_beams() {
    const std::size_t room =
        w_.step_room() - std::min<std::size_t>(w_.step_room(), w_.compute.decode_set.size());
    std::vector<std::uint64_t> first;
    std::vector<std::uint64_t> others;
    for (const std::uint64_t id : w_.compute.beams) {
      Request& request = *state_.requests.find(id);
      const bool passes = makes_way_for(request, request.beams->due);
      const bool fits = step_.beams.size() + due_beams(request) <= room;
      (passes || fits ? others : first).push_back(id);
      if (!passes && fits) plan_beams(state_, request, plan_, step_);
    }
    if (first.empty()) return;
    first.insert(first.end(), others.begin(), others.end());
    w_.compute.beams = std::move(first);
  }

  void take_prompts() {
    for (const SequenceId id : w_.compute.spreads) spread_row(*state_.sequences.find(id));
    if (state_.settings.queue_order == QueueOrder::fair) {
      continue_by_tenants();
    } else {
      continue_prefills();
    }
    if (!w_.compute.makes_way) admit(/*suspects=*/false);
  }

  /// Prompts that are under way, the least tenant's first; before each of them those who wait and
  /// whose tenants are served before its own. So nobody waits for the rest of another's long
  /// prompt.
  void continue_by_tenants() {
    std::vector<SequenceId>& prefills = w_.compute.prefills;
    const auto request_of = [&](SequenceId id) -> const Request& {
      return *state_.request_of(*state_.sequences.find(id));
    };
    std::stable_sort(prefills.begin(), prefills.end(), [&](SequenceId a, SequenceId b) {
      return tenant_goes_first(state_, request_of(a), request_of(b));
    });
    const std::vector<SequenceId> under_way = prefills;  // those admitted have their row already
    for (const SequenceId id : under_way) {
      const Request& request = request_of(id);
      if (!w_.compute.makes_way && !state_.waiting.empty()) admit(/*suspects=*/false, &request);
      if (budget_ == 0 || prompt_rows_ == 0) return;
      const auto at = std::find(prefills.begin(), prefills.end(), id);
      if (at == prefills.end()) continue;
      continue_or_pass(static_cast<std::size_t>(at - prefills.begin()));
    }
  }

  /// Whoever shared a step with a suspect would be blamed for its next death: a step of its own
  /// comes next, between two of the others', if it has something to `run`.
  bool makes_way_for(const Request& request, bool run) {
    if (!is_suspect(state_, request)) return false;
    suspect_found_ = suspect_found_ || run;
    return true;
  }

  /// One suspect's step, or grammar; nothing if none can run now. Nothing is outstanding but
  /// closes.
  void take_suspect() {
    w_.compute.makes_way = false;
    if (compile_suspect()) return;
    in_turn_ = true;
    // Whoever waits goes first, once: behind one that decodes it would wait for that one's end.
    admit(/*suspects=*/true);
    if (plan_.rows.empty()) continue_suspect();
    in_turn_ = false;
    step_.alone = !plan_.rows.empty() || !plan_.beams.empty() || !plan_.singles.empty();
    if (step_.alone) return;
    for (const SequenceId id : w_.compute.prefills)
      await_grammar(*state_.request_of(*state_.sequences.find(id)));
  }

  /// A suspect's row; its prompt, its beams, or one token.
  bool continue_suspect() {
    for (std::size_t i = 0; i < w_.compute.prefills.size(); ++i) {
      const Request& request = *state_.request_of(*state_.sequences.find(w_.compute.prefills[i]));
      if (!is_suspect(state_, request) || !may_draw(w_, request)) continue;
      continue_prefill(i);
      return true;
    }
    if (due_suspect() == nullptr && w_.compute.singles.empty()) return false;
    w_.compute.short_of_blocks = !make_room_to_grow();
    if (w_.compute.short_of_blocks) return false;
    if (Request* request = due_suspect()) {  // it may have been preempted
      plan_beams(state_, *request, plan_, step_);
      return true;
    }
    return take_single();
  }

  /// The next of the suspects that decode, in turns.
  bool take_single() {
    if (w_.compute.singles.empty()) return false;
    const SequenceId id = w_.compute.singles.front();
    std::rotate(w_.compute.singles.begin(), w_.compute.singles.begin() + 1,
                w_.compute.singles.end());
    Sequence& sequence = *state_.sequences.find(id);
    grow(sequence);
    plan_.singles.push_back(id);
    step_.decode.push_back(id);
    return true;
  }

  /// Whose grammar has killed workers, and is needed here now, has it compiled with nothing beside
  /// it.
  bool compile_suspect() {
    for (const std::vector<SequenceId>* list : {&w_.compute.prefills, &w_.compute.adds}) {
      for (const SequenceId id : *list) {
        const Request& request = *state_.request_of(*state_.sequences.find(id));
        if (may_draw(w_, request) || !is_suspect(state_, request, Stage::compile)) continue;
        compile_alone(w_, request, now_, out_);
        return true;
      }
    }
    return false;
  }

  /// It is needed: asked for, or, if it has killed workers, its turn is. Not beside a suspect's
  /// step: then the next step of the others asks.
  void await_grammar(const Request& request) {
    if (may_draw(w_, request) || in_turn_) return;
    w_.compute.makes_way = w_.compute.makes_way || is_suspect(state_, request, Stage::compile);
    ask_grammar(state_, w_, request, /*awaited=*/true, now_, out_);
  }

  /// One whose beams have something to run.
  Request* due_suspect() {
    for (const std::uint64_t id : w_.compute.beams) {
      Request& request = *state_.requests.find(id);
      if (is_suspect(state_, request) && request.beams->due) return &request;
    }
    return nullptr;
  }

  /// A member whose last token is already being sampled leaves before this step.
  void retire_full_members() {
    for (std::size_t i = 0; i < w_.compute.decode_set.size();) {
      Sequence& sequence = *state_.sequences.find(w_.compute.decode_set[i]);
      const Request& request = *state_.request_of(sequence);
      if (request.generated.size() + sequence.sampling < request.sampling.max_tokens) {
        ++i;
        continue;
      }
      leave_decode_set(state_, sequence);  // its result ends the request
      if (sequence.on_worker) w_.compute.drops.push_back(sequence.id);
      sequence.on_worker = false;
    }
  }

  /// Collects who needs a block for this step and preempts until they can have it. False: decode
  /// waits for blocks that were released and are still named by steps in flight. What somebody's
  /// pull reads is not waited for while anybody can be preempted: it may take long.
  bool make_room_to_grow() {
    if (state_.settings.elastic) leave_planned();
    for (std::uint32_t needed = blocks_needed(); needed > w_.store.pool.available_blocks();
         needed = blocks_needed()) {
      if (needed <= w_.store.pool.available_blocks() + blocks_to_come()) return false;
      if (state_.settings.elastic) {
        if (is_read_by_others(state_, index_)) return false;  // free when their steps have ended
        if (outgrow_one()) continue;
        if (give_up_gathers(state_, index_)) return false;
      }
      if (Request* victim = choose_victim(state_, index_)) {
        const Sequence* target = state_.sequences.find(victim->target);
        if (target != nullptr && target->worker == index_) {
          drop_target(state_, *victim);
        } else {
          preempt(state_, *victim);
        }
      } else if (w_.store.pool.fenced_blocks() > 0 || gives_back()) {
        return false;
      } else if (state_.settings.elastic && (!w_.compute.steps.empty() || one_may_outgrow_soon())) {
        return false;  // its last token is on its way, and perhaps somebody has room then
      } else {
        end_for_want_of_blocks();
      }
    }
    return true;
  }

  /// Those that have blocks for their next tokens at another worker.
  void leave_planned() {
    for (std::size_t i = 0; i < w_.compute.decode_set.size();) {
      Sequence& sequence = *state_.sequences.find(w_.compute.decode_set[i]);
      if (sequence.ahead.empty() || growth(w_.store, sequence) == 0) {
        ++i;
      } else {
        leave_for_next(state_, sequence);  // another one takes its place
      }
    }
  }

  /// One of those that need a block goes on where there is one.
  bool outgrow_one() {
    for (const SequenceId id : growing_) {
      Sequence& sequence = *state_.sequences.find(id);
      if (may_span(state_, *state_.request_of(sequence)) && outgrow(state_, sequence, now_))
        return true;
    }
    return false;
  }

  bool one_may_outgrow_soon() const {
    return std::any_of(growing_.begin(), growing_.end(), [&](SequenceId id) {
      const Sequence& sequence = *state_.sequences.find(id);
      return may_span(state_, *state_.request_of(sequence)) && may_outgrow_soon(state_, sequence);
    });
  }

  /// Blocks that the steps in flight still name, and those that they will leave behind.
  std::uint32_t blocks_to_come() const {
    std::uint32_t blocks = w_.store.pool.retiring_blocks();
    if (!gives_back()) return blocks;
    state_.sequences.each([&](const Sequence& sequence) {
      if (sequence.worker == index_) blocks += promised_blocks(w_.store, sequence);
    });
    return blocks;
  }
  /// Steps in flight may leave blocks behind.
  bool gives_back() const { return !w_.store.shape.plain() && !w_.compute.steps.empty(); }

  /// Fills growing_; with it, what beams need, also of those that this plan adds.
  std::uint32_t blocks_needed() {
    growing_.clear();
    std::uint32_t needed = 0;
    const auto grows = [&](SequenceId id) {
      const std::uint32_t blocks = growth(w_.store, *state_.sequences.find(id));
      needed += blocks;
      return blocks != 0;
    };
    for (const SequenceId id : w_.compute.decode_set) {
      if (grows(id)) growing_.push_back(id);
    }
    for (const SequenceId id : w_.compute.singles) grows(id);
    for (const std::uint64_t id : w_.compute.beams)
      needed += beam_growth(state_, *state_.requests.find(id));
    for (const SequenceId id : w_.compute.adds) {
      const Request& request = *state_.request_of(*state_.sequences.find(id));
      if (request.beams) {
        needed += beam_growth(state_, request);
      } else {
        grows(id);
      }
    }
    // A prompt has all its blocks from the start, here or ahead, but those that windows leave
    // behind on the way.
    for (const SequenceId id : w_.compute.prefills) {
      if (state_.sequences.find(id)->ahead.empty()) grows(id);
    }
    return needed;
  }

  /// Only one request is here, and the pool is too small for it.
  void end_for_want_of_blocks() {
    const SequenceId id = !growing_.empty()             ? growing_.front()
                          : !w_.compute.singles.empty() ? w_.compute.singles.front()
                          : !w_.compute.adds.empty()    ? w_.compute.adds.front()
                          : w_.compute.beams.empty()    ? w_.compute.prefills.front()
                                                        : 0;
    Request& request = id != 0 ? *state_.request_of(*state_.sequences.find(id))
                               : *state_.requests.find(w_.compute.beams.front());
    const bool beams = request.beams != nullptr;
    // The pool of another worker is larger.
    if (!beams && may_fit_later(state_, request, request.length() + 1, now_))
      return preempt(state_, request);
    if (may_span(state_, request) && w_.store.shape.plain() && !request.generated.empty())
      return end_request(state_, request, FinishReason::length, ErrorCode::ok, "", out_);
    end_request(state_, request, FinishReason::error, ErrorCode::kv_exhausted,
                beams ? cannot_hold(w_, request, request.length() + 1)
                      : "the sequence alone does not fit the KV pool of " + w_.name(),
                out_);
  }

  void grow() {
    for (const SequenceId id : growing_) grow(*state_.sequences.find(id));
  }
  void grow(Sequence& sequence) { grow_table(state_, sequence, sequence.scheduled + 1, &plan_); }

  void add(Sequence& sequence, const Request& request, bool decode) {
    add(sequence, request, decode, sequence.extents.size());
    sequence.on_worker = true;
    sequence.untold = 0;
  }

  /// With the first `extents` of its extents, of which this worker writes to the last one.
  void add(const Sequence& sequence, const Request& request, bool decode, std::size_t extents) {
    AddSequence add;
    add.sequence = sequence.id;
    add.prompt = request.prompt;
    add.generated = request.generated;
    add.sampling = request.sampling;
    add.blocks = sequence.extents[extents - 1].blocks;
    for (std::size_t i = 0; i + 1 < extents; ++i) {
      const Extent& extent = sequence.extents[i];
      add.before.push_back({state_.store(extent.store).allocation(), extent.blocks});
    }
    add.computed = sequence.scheduled;
    add.decode = decode;
    told_bytes_ += bytes_of(add);
    plan_.add.push_back(std::move(add));
  }

  /// Finished hand-offs, whose first block was reserved with them, and what goes on in a pool that
  /// outlived its worker: they decode from this step on. Those whose grammar is still compiled come
  /// later, and those that the message has no room for.
  void take_adds() {
    std::vector<SequenceId> later;
    for (const SequenceId id : w_.compute.adds) {
      Sequence& sequence = *state_.sequences.find(id);
      Request& request = *state_.request_of(sequence);
      if (!may_draw(w_, request)) {
        await_grammar(request);
        request.times.enter(Part::grammar, now_);
        later.push_back(id);
        continue;
      }
      if (!add_fits_message(request)) {
        later.push_back(id);
        continue;
      }
      note(request, LifetimeMoment::decoding_begin, now_);
      request.times.decodes_on(index_, now_, /*news=*/true);
      const bool single = !request.beams && is_suspect(state_, request);
      if (!request.beams) grow_table(state_, sequence, sequence.scheduled + 1, nullptr);
      add(sequence, request, /*decode=*/!request.beams && !single);
      if (request.beams) {
        w_.compute.beams.push_back(request.id);
      } else if (single) {
        w_.compute.singles.push_back(id);
        suspect_found_ = true;
      } else {
        join_decode_set(state_, sequence);
      }
    }
    w_.compute.adds = std::move(later);
  }

  /// Prompts that stay after all: an empty row moves them into the decode set.
  void take_joins() {
    for (const SequenceId id : w_.compute.joins) {
      Sequence& sequence = *state_.sequences.find(id);
      plan_.rows.push_back({id, 0, LogitsWanted::none, /*then_decode=*/true});
      join_decode_set(state_, sequence);
    }
    w_.compute.joins.clear();
  }

  void continue_prefills() {
    for (std::size_t i = 0; i < w_.compute.prefills.size() && budget_ > 0 && prompt_rows_ > 0;) {
      if (!continue_or_pass(i)) ++i;
    }
  }

  /// True if the i-th prompt has left the list.
  bool continue_or_pass(std::size_t i) {
    const Request& request = *state_.request_of(*state_.sequences.find(w_.compute.prefills[i]));
    if (!makes_way_for(request, may_draw(w_, request))) return continue_prefill(i);
    await_grammar(request);
    return false;
  }

  /// The next chunk of the i-th prompt; true if it was the last one, and the prompt has left the
  /// list.
  bool continue_prefill(std::size_t i) {
    Sequence& sequence = *state_.sequences.find(w_.compute.prefills[i]);
    prompt_row(sequence);
    if (sequence.scheduled < sequence.prefill_length && !sequence.outgrown) return false;
    w_.compute.prefills.erase(w_.compute.prefills.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  }

  /// As many of the next `n` tokens as there are blocks for. Those that decode grow before that,
  /// and for their next steps something is left, but for the one block that a prompt gets on with.
  std::uint32_t tokens_with_room(const Sequence& sequence, std::uint32_t n) const {
    const std::uint32_t per_block = w_.store.tokens_per_block();
    // Those that decode wait for blocks: it gets on with what it has.
    const std::uint32_t available =
        w_.compute.short_of_blocks ? 0 : w_.store.pool.available_blocks();
    const std::uint32_t left = watermark(state_.settings, w_);
    const std::uint32_t least = per_block - sequence.scheduled % per_block;
    while (n > 0) {
      const std::uint32_t missing = missing_blocks(w_.store, sequence, sequence.scheduled + n);
      const std::uint32_t kept = n > least ? left : 0;
      if (missing == 0 || missing + kept <= available) return n;
      const std::uint32_t over = (sequence.scheduled + n) % per_block;
      n -= std::min(n, over != 0 ? over : per_block);
    }
    return 0;
  }

  /// Its next chunk, if that is this worker's: as much of it as there is room for in the step.
  void spread_row(Sequence& sequence) {
    Spread& spread = *sequence.spread;
    if (spread.next == spread.chunks.size() || prompt_rows_ == 0) return;
    SpreadChunk& chunk = spread.chunks[spread.next];
    const std::uint32_t n =
        std::min({state_.settings.prompt_chunk, budget_, chunk.tokens - chunk.sent});
    if (chunk.worker != index_ || n == 0) return;
    Request& request = *state_.request_of(sequence);
    SpreadLane& lane = *spread.lane_of(index_);
    if (!lane.on_worker ? !add_fits_message(request)
                        : !fits_message(extent_bytes(sequence, lane.told, spread.next + 1)))
      return;
    if (!lane.on_worker) {
      note(request, LifetimeMoment::context_begin, now_);
      add(sequence, request, /*decode=*/false, spread.next + 1);
      lane.on_worker = true;
      lane.told = spread.next + 1;
      sequence.on_worker = sequence.on_worker || index_ == sequence.worker;
    }
    tell(sequence, lane.told, spread.next + 1);
    if (const SpreadChunk* before = awaited_chunk(spread)) {
      const Worker& w = state_.workers[before->worker];
      plan_.waits.push_back(
          {sequence.id, w.store.offer.progress_handle, w.peer.term, before->step});
    }
    note_writes(sequence.extents[spread.next], sequence.scheduled, n);
    plan_.rows.push_back({sequence.id, n, LogitsWanted::none, false});
    step_.rows.emplace_back(sequence.id, n);
    sequence.scheduled += n;
    chunk.sent += n;
    ++sequence.inflight;
    ++lane.inflight;
    budget_ -= n;
    --prompt_rows_;
    if (!chunk.all_sent()) return;
    chunk.step = w_.compute.sent + 1;
    ++spread.next;
    passed_on_ = true;
  }

  /// Bytes of what tell() says.
  static std::size_t extent_bytes(const Sequence& sequence, std::size_t told, std::size_t end) {
    std::size_t bytes = 0;
    for (; told < end; ++told)  // of its own store it names the sequence with each block
      bytes += 32 + (sizeof(SequenceId) + sizeof(BlockId)) * sequence.extents[told].blocks.size();
    return bytes;
  }
  /// Its extents from `told` on.
  void tell(const Sequence& sequence, std::size_t& told, std::size_t end) {
    told_bytes_ += extent_bytes(sequence, told, end);
    tell_extents(state_, sequence, index_, told, end, plan_);
  }

  /// What the step's result says of the request has room in a message.
  bool fits_result(const Request& request) const {
    return vector_bytes_ == 0 ||
           vector_bytes_ + vector_bytes(request) <= state_.settings.message_bytes / 2;
  }
  static std::size_t vector_bytes(const Request& request) {
    if (!request.sampling.pools()) return 0;
    const std::size_t allowed = request.sampling.allowed_tokens.size();
    return sizeof(float) * (allowed != 0 ? allowed : SamplingParams::kMaxPooled);
  }

  void prompt_row(Sequence& sequence) {
    Request& request = *state_.request_of(sequence);
    if (sequence.on_worker
            ? !fits_message(extent_bytes(sequence, sequence.extents.size() - sequence.untold,
                                         sequence.extents.size()))
            : !add_fits_message(request))
      return;
    const bool ready = may_draw(w_, request);
    if (!ready) await_grammar(request);
    const bool all = wants_prompt_logprobs(request);
    std::uint32_t n = std::min(
        {state_.settings.prompt_chunk, budget_, sequence.prefill_length - sequence.scheduled});
    if (all) n = std::min(n, logprob_budget_);
    if (!w_.store.shape.plain()) n = tokens_with_room(sequence, n);
    const std::uint32_t room = sequence.capacity(w_.store.tokens_per_block()) - sequence.scheduled;
    if (!sequence.ahead.empty() && room == 0)  // all that it would compute here was found
      return leave_for_next(state_, sequence);
    if (!sequence.ahead.empty()) n = std::min(n, room);
    if (n == 0) return;  // another prompt has the lines of logits of this step, or the blocks
    const bool last = sequence.scheduled + n == sequence.prefill_length;
    if (last && !fits_result(request)) return;
    if (last && !ready) return request.times.enter(Part::grammar, now_);
    request.times.enter(computing(request), now_);
    if (sequence.on_worker && sequence.untold != 0) {
      std::size_t told = sequence.extents.size() - std::exchange(sequence.untold, 0);
      tell(sequence, told, sequence.extents.size());
    }
    // With its first row, not before: a plan that has no rows may still preempt it.
    grow_table(state_, sequence, sequence.scheduled + n, sequence.on_worker ? &plan_ : nullptr);
    if (!sequence.on_worker) {
      note(request, LifetimeMoment::context_begin, now_);
      add(sequence, request, /*decode=*/false);
    }
    if (all) logprob_budget_ -= n;
    PromptRow row{sequence.id, n, last ? LogitsWanted::last : LogitsWanted::none, false};
    if (all) row.logits = LogitsWanted::all;
    sequence.scheduled += n;
    ++sequence.inflight;
    budget_ -= n;
    --prompt_rows_;
    if (last) {
      vector_bytes_ += vector_bytes(request);
      ++sequence.sampling;
      ++step_.samples;
      const bool stays =
          !request.beams && request.target == 0 && !needs_handoff(state_, request, w_);
      sequence.stays =
          stays && is_suspect(state_, request);  // it decodes alone, outside the decode set
      row.then_decode = stays && !sequence.stays;
      if (row.then_decode) {
        // Also when nothing is left to decode: the next plan drops it again.
        join_decode_set(state_, sequence);
        state_.handoffs.erase({request.place, request.id});
      }
    }
    step_.rows.emplace_back(sequence.id, n);
    plan_.rows.push_back(row);
    if (!last && !sequence.ahead.empty() && n == room) leave_for_next(state_, sequence);
  }

  /// Takes new requests in: one suspect, or the others up to the first suspect that could come,
  /// whose turn is next. `before`: only those whose tenants are served before that one's.
  void admit(bool suspects, const Request* before = nullptr) {
    if (state_.waiting.empty()) return;
    if (w_.compute.short_of_blocks) return first_waits("those that decode need the blocks");
    if (!accepts(w_, now_)) return first_waits("the worker takes no more of them now");
    const double delay = state_.settings.delay_factor;
    if (delay > 0 && !delay_passed(delay, oldest_wait(state_, now_), w_.compute.prompt_latency,
                                   /*idle=*/w_.compute.sequences == 0)) {
      return first_waits("more are waited for (delay_factor)");
    }
    if (budget_ == 0 || prompt_rows_ == 0) return first_waits("the step is full");
    AdmissionRules rules(state_, index_, now_, out_, suspects, logprob_budget_, reserved_blocks());
    QueueWalk walk(state_);
    while (budget_ > 0 && prompt_rows_ > 0) {
      Request* next = state_.requests.find(walk.next());
      if (next == nullptr || (before != nullptr && !tenant_goes_first(state_, *next, *before)))
        return;
      if (!add_fits_message(*next)) return first_waits("the message of the step is full");
      Candidate candidate{*next};
      const QueueRuling answer = rules.judge(candidate);
      if (answer == QueueRuling::stop) return;
      if (answer == QueueRuling::pass_over) continue;
      rules.admitted(candidate);
      start(candidate);
      if (suspects) return;
    }
  }

  /// What those who wait for their turn, or for a grammar, will grow into, prompts whose windows
  /// give blocks back on the way, and in a suspect's turn the others too. Whoever was admitted into
  /// these blocks would be preempted for them at once, and admitted again, with nobody getting on.
  std::uint32_t reserved_blocks() {
    const Compute& c = w_.compute;
    const bool grown = w_.store.shape.plain() && !in_turn_ && c.singles.empty() &&
                       c.beams.empty() && c.adds.empty();
    return grown ? 0 : blocks_needed();
  }

  /// So the queue's first one waits, if this worker may have it; the others wait for that one.
  void first_waits(const char* why) {
    Request& first = *first_waiting(state_);
    if (may_prefill(state_, first, w_, now_)) first.times.waits_for(why, now_);
  }

  void start(Candidate& candidate) {
    Request& request = candidate.request;
    const PrefixSource& elsewhere = candidate.elsewhere;
    const Writer writer = elsewhere.worker != kNobody ? Writer::pull : Writer::steps;
    Sequence& sequence =
        *place_sequence(state_, request, index_, candidate.span, candidate.prefix, writer);
    sequence.scheduled = sequence.computed = sequence.remembered * w_.store.tokens_per_block();
    state_.counters.prefill_tokens += sequence.prefill_length;
    state_.counters.cached_tokens += sequence.computed;
    if (request.generated.empty()) request.cached_tokens = sequence.computed;
    reserve(state_, sequence, candidate.ahead);
    if (!candidate.spread.chunks.empty())
      begin_spread(state_, sequence, std::move(candidate.spread));
    leave_queue(state_, request);
    request.source = sequence.id;
    request.phase = Phase::prefill;
    request.times.enter(computing(request), now_);
    clamp_output(state_, request);
    if (request.beams) request.beams->search = std::make_unique<BeamSearch>(request.sampling);
    if (request.generated.empty()) request.prompt_logprobs.clear();  // else they are complete
    ++(needs_handoff(state_, request, w_) ? state_.counters.remote_prefills
                                          : state_.counters.local_prefills);
    if (elsewhere.worker != kNobody) {
      return pull_prefix(state_, request, sequence, elsewhere, now_, out_);
    }
    if (sequence.spread) return spread_row(sequence);
    prompt_row(sequence);
    if (sequence.scheduled < sequence.prefill_length && !sequence.outgrown)
      w_.compute.prefills.push_back(sequence.id);
  }

  void send() {
    for (const SequenceId id : step_.decode) {
      Sequence& sequence = *state_.sequences.find(id);
      note_writes(sequence, sequence.scheduled, 1);
      ++sequence.scheduled;
      ++sequence.inflight;
      ++sequence.sampling;
    }
    for (const SequenceId id : step_.beams) {
      Sequence& sequence = *state_.sequences.find(id);
      note_writes(sequence, sequence.scheduled, 1);
      ++sequence.scheduled;
      ++sequence.inflight;
    }
    for (const auto& [id, n] : step_.rows) {
      const Sequence& sequence = *state_.sequences.find(id);
      if (!sequence.spread) note_writes(sequence, sequence.scheduled - n, n);
      state_.counters.computed_tokens += n;
      step_.pairs += attended_pairs(sequence.scheduled - n, n);
      charge_prompt(state_, *state_.request_of(sequence), sequence.scheduled - n,
                    sequence.scheduled);
    }
    take_copies();
    for (const CopyOp& op : plan_.ops) step_.writes.push_back({op.to, 0});
    step_.samples += step_.decode.size() + step_.beams.size();
    plan_.drop.swap(w_.compute.drops);
    w_.compute.drops.clear();
    plan_.term = w_.peer.term;
    plan_.step = step_.step = ++w_.compute.sent;
    step_.sent = now_;
    w_.peer.work.add(Work::step, 0, step_.step, now_);
    w_.compute.steps.push_back(std::move(step_));
    out_.to_workers.emplace_back(w_.peer.link, std::move(plan_));
  }

  void note_writes(const Sequence& sequence, std::uint32_t position, std::uint32_t tokens) {
    note_writes(sequence.tail(), position, tokens);
  }
  void note_writes(const Extent& extent, std::uint32_t position, std::uint32_t tokens) {
    add_step_writes(extent.blocks, position - extent.first_token, tokens,
                    w_.store.tokens_per_block(), step_.writes, w_.store.shape.groups.count);
  }

  void take_copies() {
    save_ahead(state_, w_);
    for (const CopyOp& copy : w_.store.copies) {
      ++(w_.store.pool.is_host(copy.to) ? state_.counters.blocks_out : state_.counters.blocks_in);
    }
    plan_.ops.insert(plan_.ops.begin(), w_.store.copies.begin(), w_.store.copies.end());
    step_.copies.swap(w_.store.copies);
    w_.store.copies.clear();
  }

  State& state_;
  Worker& w_;
  WorkerIndex index_;
  TimeNs now_;
  Outbox& out_;
  StepPlan plan_;
  InFlightStep step_;
  std::vector<SequenceId> growing_;
  bool passed_on_ = false;
  bool in_turn_ = false;           // a suspect's step is built
  bool suspect_found_ = false;     // one of those here is due for a step of its own
  std::uint32_t budget_ = 0;       // tokens that still fit the step
  std::uint32_t prompt_rows_ = 0;  // prompts, likewise
  std::uint32_t logprob_budget_ = kLogprobBudget;
  std::size_t told_bytes_ = 0;    // of what the plan tells of sequences
  std::size_t vector_bytes_ = 0;  // of the vectors of its result
};

/// A suspect's turn has passed at their targets.
void resume_held_pulls(State& state, TimeNs now, Outbox& out) {
  for (const std::uint64_t id : std::exchange(state.held_pulls, {})) {
    if (Request* request = state.requests.find(id)) advance_handoff(state, *request, now, out);
  }
}

}  // namespace

void plan(State& state, TimeNs now, Outbox& out) {
  state.now = now;
  out.message_bytes = state.settings.message_bytes;
  state.queued = state.waiting.size() + state.handoffs.size();
  if (!state.outgrown.empty()) move_outgrown(state);
  form_static_group(state, now, out);
  resume_held_pulls(state, now, out);
  place_handoffs(state, now, out);
  // A chunk that has left may be followed by that of a worker that was asked before.
  for (bool again = true; again;) {
    again = false;
    for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
      while (state.workers[i].ready() &&
             state.workers[i].compute.steps.size() < state.settings.steps_in_flight) {
        StepBuilder builder(state, i, now, out);
        if (!builder.build()) break;
        again = again || builder.passed_on();
      }
    }
  }
  // Behind the steps, for which somebody may have outgrown his pool.
  if (!state.spanning.empty()) begin_gathers(state, now, out);
}

}  // namespace baton
