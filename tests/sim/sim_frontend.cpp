// A front end's shell in virtual time, and its clients: each knows beforehand what it must be told.
#include <algorithm>

#include "scheduler/plan/admission.h"
#include "scheduler/plan/batch_limits.h"
#include "tests/sim/describe.h"
#include "tests/sim/world.h"

namespace baton::sim {

namespace {

FrontendIdentity identity_of(World& world, std::uint32_t name) {
  FrontendIdentity identity;
  identity.build = "sim";
  identity.name = "frontend" + std::to_string(name);
  identity.incarnation = static_cast<Incarnation>(world.now());
  identity.pid = static_cast<std::int32_t>(world.next_process());
  identity.pid_start = static_cast<std::uint64_t>(world.now());
  identity.has_successor = world.scenario().successors;
  return identity;
}

FrontendIdentity heir_of(World& world, const SimFrontend& predecessor) {
  FrontendIdentity identity = identity_of(world, predecessor.name);
  identity.incarnation = predecessor.incarnation();
  identity.generation = predecessor.generation() + 1;
  return identity;
}

}  // namespace

SimFrontend::SimFrontend(World& world, std::uint32_t name_, std::string label_)
    : Process(world, std::move(label_)),
      name(name_),
      table(identity_of(world, name_), RequestTableLimits{}),
      incarnation_(static_cast<Incarnation>(world.now())) {
  by_counter_.resize(1);
}

SimFrontend::SimFrontend(World& world, std::string label_, SimFrontend& predecessor)
    : Process(world, std::move(label_)),
      name(predecessor.name),
      table(heir_of(world, predecessor), RequestTableLimits{}),
      clients(std::move(predecessor.clients)),
      incarnation_(predecessor.incarnation_),
      generation_(predecessor.generation_ + 1),
      by_counter_(std::move(predecessor.by_counter_)),
      first_counter_(by_counter_.size()),
      epoch_(predecessor.epoch_),
      waiting_(predecessor.waiting_) {
  predecessor.clients.clear();
  predecessor.by_counter_.clear();
  predecessor.waiting_ = 0;
  predecessor.replaced_ = true;
  table.succeed(epoch_, first_counter_);
  for (std::uint64_t counter = 1; counter < first_counter_; ++counter) {
    Client& client = by_counter_[counter];
    if (client.ended) continue;
    if (world_.spec_of(kFirstSeed + client.spec).sampling.beams()) restart(client);
    table.adopt({counter, client.attempt, client.arrival, request_of(client), client.got},
                world_.now());
  }
}

/// Its first tick, and what clients have done meanwhile, or the journal shows that they are done.
void SimFrontend::begin() {
  TableOutput out;
  for (std::uint64_t counter = 1; counter < by_counter_.size(); ++counter) {
    const Client& client = by_counter_[counter];
    if (client.ended) continue;
    if (client.cancel_at != 0) world_.at(client.cancel_at, What::client_cancel, id, counter);
    const RequestSpec& spec = world_.spec_of(kFirstSeed + client.spec);
    if (client.got.size() >= spec.stop_at) {
      table.finish(counter, spec.stop_at, world_.now(), out);
    }
  }
  take(out);
}

/// Of a search, a client has nothing before it has all.
void SimFrontend::restart(Client& client) {
  const RequestSpec& spec = world_.spec_of(kFirstSeed + client.spec);
  client.got.clear();
  client.prefix = spec.root;
  for (const Token token : spec.prompt) client.prefix = extend_prefix(client.prefix, token);
}

bool SimFrontend::dies_here() {
  if (fuse_ == 0 || --fuse_ != 0 || !alive) return !alive;
  world_.kill(id);
  return true;
}

void SimFrontend::receive(ToPeer message) {
  TableOutput out;
  table.apply(std::get<ToFrontend>(message), world_.now(), out);
  take(out);
}

void SimFrontend::happen(What what, std::uint64_t arg) {
  TableOutput out;
  switch (what) {
    case What::frontend_tick:
      if (static_cast<TimeNs>(arg) != tick_at_) return;  // another one was set
      tick_at_ = 0;
      table.tick(world_.now(), out);
      world_.share_turns(*this);
      world_.check_waits(*this);
      break;
    case What::client_cancel: {
      if (replaced_) {  // it does not know that its clients have gone
        table.cancel(arg, world_.now(), out);
        break;
      }
      Client& client = by_counter_[arg];
      if (client.ended) return;
      client.cancelled = true;
      table.cancel(arg, world_.now(), out);
      break;
    }
    default:
      world_.fail("front end: unexpected event");
  }
  take(out);
}

void SimFrontend::submit(std::uint32_t index) {
  const RequestSpec& spec = world_.spec_of(kFirstSeed + index);
  Client client;
  client.spec = index;
  client.deadline =
      spec.timeout == 0 ? world_.now() + 100'000 * kSecond : world_.now() + spec.timeout;
  client.arrival = world_.now();
  if (spec.cancel_after != 0) client.cancel_at = world_.now() + spec.cancel_after;
  restart(client);
  TableOutput out;
  const Result<RequestId> opened = table.open(request_of(client), world_.now(), out);
  if (!opened.ok() || opened.value().counter != by_counter_.size())
    world_.fail("a client was not taken");
  by_counter_.push_back(client);
  ++waiting_;
  clients[opened.value().counter] = index;
  if (client.cancel_at != 0) {
    world_.at(client.cancel_at, What::client_cancel, id, opened.value().counter);
  }
  take(out);
}

NewRequest SimFrontend::request_of(const Client& client) {
  const RequestSpec& spec = world_.spec_of(kFirstSeed + client.spec);
  NewRequest request;
  request.prompt = spec.prompt;
  request.priority = spec.priority;
  request.share = spec.share;
  request.cache_salt = spec.cache_salt;
  request.sampling = spec.sampling;
  request.deadline = client.deadline;
  return request;
}

void SimFrontend::leave() {
  leaving_ = true;
  TableOutput out;
  take(out);
}

void SimFrontend::take(TableOutput& out) {
  if (out.refused) {
    if (!replaced_) world_.fail(label + " was refused: " + *out.refused);
    world_.ended(*this);
    return;
  }
  if (table.scheduler().epoch != 0) epoch_ = table.scheduler().epoch;
  for (const FrontendMessage& message : out.messages) {
    const auto* submit = std::get_if<Submit>(&message);
    if (submit != nullptr && !replaced_) {
      Client& client = by_counter_[submit->request.counter];
      if (submit->attempt <= client.attempt)
        world_.fail("an attempt has the number of another one");
      client.attempt = submit->attempt;
    }
  }
  for (FrontendMessage& message : out.messages) {
    if (dies_here()) return;
    world_.network().send_up(id, std::move(message));  // lost ones are healed by heartbeats
  }
  if (replaced_) return schedule_tick();  // it writes to nobody
  TableOutput finished;
  for (const Delivery& delivery : out.deliveries) {
    if (dies_here()) return;
    deliver(delivery, out);
    const Client& client = by_counter_[delivery.counter];
    const RequestSpec& spec = world_.spec_of(kFirstSeed + client.spec);
    if (client.got.size() >= spec.stop_at) {
      table.finish(delivery.counter, spec.stop_at, world_.now(), finished);
    }
  }
  for (const StreamEnd& ending : out.endings) {
    if (dies_here()) return;
    end(ending);
  }
  if (!finished.endings.empty()) take(finished);
  if (leaving_ && waiting_ == 0 && alive) {
    world_.network().send_up(id, FrontendMessage(FrontendBye{}));
    world_.ended(*this);
    return;
  }
  schedule_tick();
}

void SimFrontend::schedule_tick() {
  if (!alive) return;
  const TimeNs next = std::max(table.next_tick(), world_.now() + 1);
  if (tick_at_ != 0 && tick_at_ <= next) return;
  tick_at_ = next;
  world_.at(next, What::frontend_tick, id, static_cast<std::uint64_t>(next));
}

void SimFrontend::deliver(const Delivery& delivery, const TableOutput& out) {
  Client& client = by_counter_[delivery.counter];
  const RequestSpec& spec = world_.spec_of(kFirstSeed + client.spec);
  if (client.ended) world_.fail("tokens after the end of a stream");
  const bool beams = spec.sampling.beams();  // what a search finds comes one after another
  if (delivery.first_index != (beams ? 0 : client.got.size())) {
    world_.fail("a token is missing or repeated");
  }
  // Where some pool is too small, the search may have been cut: nobody knows what it finds then.
  const bool cut =
      beams && spec.prompt.size() + spec.sampling.max_tokens > world_.scenario().fits();
  if (beams && !cut &&
      (delivery.choice >= spec.lengths.size() || delivery.count != spec.lengths[delivery.choice])) {
    world_.fail("request " + std::to_string(client.spec) + ": another sequence was found");
  }
  if (spec.sampling.pools()) check_vector(spec, client, delivery, out);
  for (std::uint32_t i = 0; i < delivery.count; ++i) {
    const Token token = out.tokens[delivery.begin + i];
    if (!cut && !spec.sampling.pools()) check_token(spec, client, token);
    client.got.push_back(token);
    client.prefix = extend_prefix(client.prefix, token);
    ++world_.report().tokens;
  }
}

/// The one token comes with the prompt's vector, whoever computed it and however it was cut.
void SimFrontend::check_vector(const RequestSpec& spec, const Client& client,
                               const Delivery& delivery, const TableOutput& out) {
  LogprobReader reader(out.logprobs);
  LogprobReader::Entry entry;
  bool right = delivery.count == 1 && out.tokens[delivery.begin] == 0;
  bool found = false;
  while (!reader.done()) {
    const bool here = reader.item() == delivery.begin;
    reader.take(reader.item(), entry);
    if (here)
      found = std::equal(entry.vector.begin(), entry.vector.end(), spec.vector.begin(),
                         spec.vector.end());
  }
  if (!right || !found)
    world_.fail("request " + std::to_string(client.spec) + ": its vector is missing or another's");
}

void SimFrontend::check_token(const RequestSpec& spec, const Client& client, Token token) {
  const auto n = static_cast<std::uint32_t>(client.got.size());
  bool right = false;
  if (world_.scenario().settings.batching == Batching::continuous || spec.sampling.beams()) {
    right = n < spec.answer.size() && spec.answer[n] == token;
  } else {
    // A group shares its limits: which tokens are masked depends on the others.
    SamplingParams masked = spec.sampling;
    masked.min_tokens = n + 1;
    SamplingParams open = spec.sampling;
    open.min_tokens = 0;
    right = token == sample(client.prefix, n, masked, world_.scenario().vocab) ||
            token == sample(client.prefix, n, open, world_.scenario().vocab);
  }
  if (!right) {
    world_.fail("request " + std::to_string(client.spec) + ": token " + std::to_string(n) + " is " +
                std::to_string(token) + ", which the model never says there");
  }
}

void SimFrontend::end(const StreamEnd& ending) {
  Client& client = by_counter_[ending.counter];
  RequestSpec& spec = world_.spec_of(kFirstSeed + client.spec);
  if (world_.tracing()) {
    world_.trace("request " + std::to_string(client.spec) + " ends: " + to_string(ending.reason) +
                 " " + to_string(ending.code) + " n " + std::to_string(ending.n) + " " +
                 ending.message);
  }
  if (client.ended) world_.fail("a stream ends twice");
  client.ended = true;
  spec.ended = world_.now();
  --waiting_;
  clients.erase(ending.counter);
  check_answer(spec, client, ending);
}

/// Who has killed nobody does not end for what another request did. Where workers are killed by
/// others than requests, one may end for these kills: they look the same. A grammar's deaths count
/// for all who have it.
template <typename Expect>
void SimFrontend::check_blame(const RequestSpec& spec, const Expect& expect) const {
  const Scenario& s = world_.scenario();
  if (s.calm) {
    expect(spec.struck > 0 || spec.hangs || world_.cause_struck(spec),
           "blamed for deaths that are not its own");
  } else {
    if (s.settings.max_deaths == 1) return;  // the first death ends whoever was at work
    const std::uint32_t met = std::max(spec.strikes_met + spec.blows, world_.met_by_grammar(spec));
    const bool workers = spec.struck + spec.blows > 0 && met >= s.settings.max_deaths;
    expect(workers || spec.schedulers_killed >= 3, "blamed for deaths that never were");
  }
}

void SimFrontend::check_answer(const RequestSpec& spec, const Client& client,
                               const StreamEnd& ending) {
  const Scenario& s = world_.scenario();
  const auto expect = [&](bool right, const char* what) {
    if (right) return;
    world_.fail("request " + std::to_string(client.spec) + ": " + what + " (" +
                to_string(ending.reason) + ", " + to_string(ending.code) + ", n " +
                std::to_string(ending.n) + " of " + std::to_string(spec.answer.size()) + ", " +
                ending.message + ")");
  };
  const auto length = static_cast<std::uint32_t>(spec.prompt.size()) + spec.sampling.max_tokens;
  const bool beams = spec.sampling.beams();
  const bool continuous = s.settings.batching == Batching::continuous || beams;
  const auto got = static_cast<std::uint32_t>(client.got.size());
  switch (ending.code) {
    case ErrorCode::ok:
      if (ending.reason == FinishReason::stop && ending.n == spec.stop_at) return;
      expect(ending.n == got, "the end does not count its tokens");
      expect(beams || got <= spec.sampling.max_tokens, "more tokens than asked for");
      if (!continuous) return;
      // Cut where some pool ends.
      if (beams ? length > s.fits()
                : ending.reason == FinishReason::length && spec.prompt.size() + got >= s.fits()) {
        return;
      }
      expect(got == spec.answer.size() && ending.reason == spec.reason, "ended elsewhere");
      expect(spec.bad_row >= (beams ? spec.steps : got) &&
                 spec.killer_at >= (beams ? spec.steps : got),
             "survived what it cannot");
      return;
    case ErrorCode::cancelled:
      expect(client.cancelled || world_.was_cancelled({incarnation_, ending.counter}),
             "cancelled by nobody");
      return;
    case ErrorCode::deadline_exceeded:
      expect(world_.now() >= client.deadline, "its deadline is not over");
      return;
    case ErrorCode::queue_full:
      expect(s.settings.max_waiting < 20000 && got == 0, "refused without need");
      return;
    case ErrorCode::too_long:
      // Where every pool is known, what one of them holds is not refused because of another.
      if (s.calm && s.load.strike != Strike::scheduler && !beams &&
          world_.all_joined_before(spec.asked)) {
        expect(static_cast<std::uint32_t>(spec.prompt.size()) + got + 1 > s.fits_somewhere(),
               "a larger pool holds it");
      }
      [[fallthrough]];
    case ErrorCode::kv_exhausted:
      expect(length > s.fits() ||
                 (beams &&
                  !s.fits_beams(static_cast<std::uint32_t>(spec.prompt.size()), spec.sampling)),
             "it would have fitted");
      return;
    case ErrorCode::worker_crashes:
      check_blame(spec, expect);
      return;
    case ErrorCode::internal:
      expect(beams ? spec.bad_row < spec.steps : spec.bad_row == got, "no row of it failed");
      return;
    case ErrorCode::invalid_argument:
      expect(beams && spec.sampling.num_beams > most_beams(s.settings), "an error for nothing");
      return;
    case ErrorCode::unavailable:
      // One of the pools that held it together has stayed away for as long as one is waited for.
      // Where nothing else goes wrong, strikers have taken it away.
      expect(s.settings.elastic && !beams && length > s.fits() &&
                 (!s.calm || spec.strikes_met > 0 || world_.hangs()),
             "an error for nothing");
      expect(world_.now() - spec.asked >= kWaitForPools, "nobody has waited for the pools");
  }
}

}  // namespace baton::sim
