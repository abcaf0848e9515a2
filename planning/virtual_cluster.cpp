#include "planning/virtual_cluster.h"

#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <unordered_map>
#include <utility>

#include "scheduler/apply/apply_event.h"
#include "scheduler/plan/plan_step.h"

namespace baton {
namespace {

constexpr TimeNs kTickEvery = 20 * kMillisecond;  // as the scheduler's loop
constexpr Incarnation kFrontend = 1;
constexpr LinkId kFrontendLink = 1;
/// Of the model: a chunk that waits for another worker's is a layer behind it.
constexpr TimeNs kLayers = 32;
constexpr Token kWord = 9;                    // what every worker samples
constexpr Token kStop = 2;                    // ... as an answer's last one
constexpr std::size_t kProgressEvery = 4096;  // events
constexpr std::size_t kStepsKept = 64;        // a worker's; longer ago nobody waits for them

class VirtualCluster {
 public:
  VirtualCluster(const Settings& settings, const std::vector<VirtualWorker>& workers,
                 const StepTimes& times, const std::vector<VirtualRequest>& requests,
                 const VirtualOptions& options)
      : times_(times), requests_(requests), options_(options), devices_(workers.size()) {
    state_.epoch = 1;
    state_.build = "virtual";
    state_.settings = settings;
    run_.replies.resize(requests.size());
    run_.workers.resize(workers.size());
    FrontendHello frontend;
    frontend.build = state_.build;
    frontend.name = "frontend0";
    frontend.incarnation = kFrontend;
    apply(state_, FromFrontend{kFrontendLink, std::move(frontend)}, now_, out_);
    for (std::uint32_t i = 0; i < workers.size(); ++i) join(i, workers[i]);
    for (std::uint32_t i = 0; i < requests.size(); ++i) {
      last_arrival_ = std::max(last_arrival_, requests[i].arrival);
      at(requests[i].arrival + times_.request + times_.message, What::submit, i);
    }
  }

  VirtualRun run() {
    std::size_t events = 0;
    while (!queue_.empty() && run_.complete) {
      now_ = queue_.top().at;
      while (!queue_.empty() && queue_.top().at == now_) {
        const Event event = queue_.top();
        queue_.pop();
        happen(event);
        if (++events % kProgressEvery == 0 && options_.progress && !options_.progress(ended_)) {
          run_.complete = false;
        }
      }
      hear_everybody();
      plan(state_, now_, out_);
      flush();
      if (now_ > last_arrival_ + options_.patience) run_.complete = false;
    }
    run_.complete = run_.complete && ended_ == requests_.size();
    run_.counters = state_.counters;
    run_.end = now_;
    return std::move(run_);
  }

 private:
  enum class What : std::uint8_t { submit, step_ended, pull_ended, tick };
  struct Event {
    TimeNs at;
    std::uint64_t order;
    What what;
    std::uint32_t who;
    std::uint64_t arg;
    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  struct Device {
    LinkId link = kNoLink;
    TimeNs free_at = 0;
    TimeNs pulls_free_at = 0;
    std::deque<TimeNs> took;                                // each step in flight
    std::deque<TimeNs> waited;                              // of these, for other workers
    std::map<StepId, TimeNs> ends;                          // of the last steps
    std::unordered_map<SequenceId, std::uint32_t> written;  // tokens whose KV is there
  };

  void at(TimeNs when, What what, std::uint32_t who, std::uint64_t arg = 0) {
    queue_.push({when, ++order_, what, who, arg});
  }

  void join(std::uint32_t i, const VirtualWorker& worker) {
    devices_[i].link = kFrontendLink + 1 + i;
    Register identity;
    identity.build = state_.build;
    identity.name = worker.name;
    identity.role = identity.home = worker.role;
    identity.incarnation = 1;
    apply(state_, FromWorker{devices_[i].link, std::move(identity)}, now_, out_);
    Hello hello;
    hello.name = worker.name;
    hello.incarnation = 1;
    hello.hello_id = 1;
    hello.allocation = i + 1;
    hello.tokens_per_block = options_.tokens_per_block;
    hello.blocks = worker.blocks;
    hello.host_blocks = worker.host_blocks;
    hello.host_block_us = static_cast<float>(times_.host_block) / 1e3F;
    hello.max_context = options_.max_context;
    hello.layers = kLayers;
    hello.reads_in_place = true;
    hello.progress_handle = std::to_string(i);
    apply(state_, FromWorker{devices_[i].link, std::move(hello)}, now_, out_);
    flush();
  }

  void happen(const Event& event) {
    switch (event.what) {
      case What::submit:
        return submit(event.who);
      case What::step_ended:
        return step_ended(event.who);
      case What::pull_ended: {
        const Worker& w = state_.workers[event.who];
        apply(state_, FromWorker{w.peer.link, PullDone{w.peer.term, event.arg, 1}}, now_, out_);
        return;
      }
      case What::tick:
        ticking_ = false;
        hear_everybody();
        apply(state_, Tick{}, now_, out_);
        return;
    }
  }

  void submit(std::uint32_t index) {
    const VirtualRequest& request = requests_[index];
    Submit m;
    m.epoch = state_.epoch;
    m.request = {kFrontend, index + 1};
    m.arrival = request.arrival;
    m.deadline = request.timeout > 0 ? request.arrival + request.timeout : INT64_MAX;
    m.priority = request.priority;
    m.share = request.share;
    m.cache_salt = request.cache_salt;
    m.prompt = request.prompt;
    if (m.prompt.empty()) {
      m.prompt.assign(std::max(request.input, 1U), kWord);
      m.prompt.front() = -1 - static_cast<Token>(index);  // nobody else begins so
    }
    m.sampling.temperature = 0;
    m.sampling.max_tokens = std::max({request.output, request.limit, 1U});
    m.sampling.stop_ids = {kStop};
    apply(state_, FromFrontend{kFrontendLink, std::move(m)}, now_, out_);
  }

  /// The oldest step of the worker has ended: a token for every row that samples.
  void step_ended(std::uint32_t index) {
    const Worker& w = state_.workers[index];
    const InFlightStep& step = w.compute.steps.front();
    StepResult m;
    m.term = w.peer.term;
    m.step = step.step;
    m.duration_us = static_cast<std::uint32_t>(devices_[index].took.front() / 1000);
    devices_[index].took.pop_front();
    m.waited_us = static_cast<std::uint32_t>(devices_[index].waited.front() / 1000);
    devices_[index].waited.pop_front();
    for (const auto& [id, n] : step.rows) {
      const Sequence* s = state_.sequences.find(id);
      if (s != nullptr && s->computed + n == s->prefill_length) m.sequences.push_back(id);
    }
    m.sequences.insert(m.sequences.end(), step.decode.begin(), step.decode.end());
    for (const SequenceId id : m.sequences) m.tokens.push_back(next_token(id));
    apply(state_, FromWorker{w.peer.link, std::move(m)}, now_, out_);
  }

  /// A word, until the answer is as long as its request says.
  Token next_token(SequenceId id) {
    const Sequence* sequence = state_.sequences.find(id);
    const Request* request = sequence != nullptr ? state_.request_of(*sequence) : nullptr;
    if (request == nullptr) return kWord;  // a void row
    const VirtualRequest& wanted = requests_[request->name.counter - 1];
    return request->generated.size() + 1 >= wanted.output ? kStop : kWord;
  }

  /// Heartbeats: nobody is ever silent, and everything that was sent has arrived.
  void hear_everybody() {
    for (Worker& w : state_.workers) {
      w.peer.heard = now_;
      for (const Work kind : {Work::step, Work::pull})
        w.peer.work.acknowledge(kind, w.peer.work.sent(kind), now_);
    }
    for (Frontend& f : state_.frontends) f.heard = now_;
  }

  void flush() {
    for (auto& [link, message] : out_.to_workers) {
      const std::uint32_t index = link - kFrontendLink - 1;
      if (const auto* plan = std::get_if<StepPlan>(&message)) start(index, *plan);
      if (const auto* pull = std::get_if<Pull>(&message)) start(index, *pull);
    }
    out_.to_workers.clear();
    out_.to_frontends.clear();
    out_.log.clear();
    acks_.clear();
    for (auto& [frontend, events] : out_.full) take(events);
    out_.full.clear();
    for (Events& events : out_.events) take(events);
    for (const RequestId& id : acks_)
      apply(state_, FromFrontend{kFrontendLink, Ack{id}}, now_, out_);
    // Deadlines and what is tried again need the time to pass while somebody waits.
    if (!ticking_ && !state_.deadlines.empty()) {
      ticking_ = true;
      at(now_ + kTickEvery, What::tick, 0);
    }
  }

  /// Of the first `position` tokens of a sequence, those that the worker reads in other pools.
  std::uint32_t elsewhere(std::uint32_t index, SequenceId id, std::uint32_t position) const {
    const Sequence* sequence = state_.sequences.find(id);
    if (sequence == nullptr || sequence->extents.size() < 2) return 0;
    std::uint32_t tokens = 0;
    for (std::size_t i = 0; i + 1 < sequence->extents.size(); ++i) {
      const Extent& extent = sequence->extents[i];
      const std::uint32_t end = std::min(sequence->extents[i + 1].first_token, position);
      if (extent.store != index && end > extent.first_token) tokens += end - extent.first_token;
    }
    return tokens;
  }

  /// Takes a plan as a worker does, for how long it takes.
  void start(std::uint32_t index, const StepPlan& plan) {
    Device& device = devices_[index];
    WorkerUse& use = run_.workers[index];
    for (const SequenceId id : plan.drop) device.written.erase(id);
    for (const AddSequence& add : plan.add) device.written[add.sequence] = add.computed;
    for (const BlocksElsewhere& passed : plan.elsewhere) {
      device.written[passed.sequence] +=
          static_cast<std::uint32_t>(passed.part.blocks.size()) * options_.tokens_per_block;
    }
    StepLoad load;
    for (const PromptRow& row : plan.rows) {
      std::uint32_t& position = device.written[row.sequence];
      load.prompt_tokens += row.n_tokens;
      load.link_tokens += row.n_tokens > 0 ? elsewhere(index, row.sequence, position) : 0;
      load.prompt_pairs += static_cast<std::uint64_t>(attended_pairs(position, row.n_tokens));
      load.prompt_ends += row.n_tokens > 0 && row.logits != LogitsWanted::none ? 1 : 0;
      position += row.n_tokens;
    }
    const auto& steps = state_.workers[index].compute.steps;
    const auto step = std::find_if(steps.begin(), steps.end(),
                                   [&](const InFlightStep& s) { return s.step == plan.step; });
    for (const SequenceId id : step->decode) {
      const std::uint32_t away = elsewhere(index, id, device.written[id]);
      load.link_tokens += away;
      load.decode_context += ++device.written[id] - away;
    }
    load.decode_rows = static_cast<std::uint32_t>(step->decode.size());
    const bool empty = load.decode_rows == 0 && load.prompt_tokens == 0;  // it only drops or adds
    const auto copies = static_cast<TimeNs>(step->copies.size()) * times_.host_block;
    const TimeNs time = copies + (empty ? 0 : times_.of(load));
    const TimeNs alone = std::max(device.free_at, now_ + times_.message) + time;
    device.free_at = std::max(alone, last_layer_at(plan) + time / kLayers);
    device.waited.push_back(device.free_at - alone);
    device.took.push_back(time + device.waited.back());
    device.ends[plan.step] = device.free_at;
    if (device.ends.size() > kStepsKept) device.ends.erase(device.ends.begin());
    at(device.free_at + times_.message, What::step_ended, index);
    use.steps += empty ? 0 : 1;
    use.busy += time;
    use.prompt_tokens += load.prompt_tokens;
    use.decode_tokens += load.decode_rows;
  }

  /// When the steps that this one's rows wait for have written their last layer.
  TimeNs last_layer_at(const StepPlan& plan) const {
    TimeNs at = 0;
    for (const StepWait& wait : plan.waits) {
      const Device& other = devices_[std::stoul(wait.handle)];
      const auto end = other.ends.find(wait.step);
      if (end != other.ends.end()) at = std::max(at, end->second);
    }
    return at;
  }

  /// Pulls of one worker run one after another, beside its steps.
  void start(std::uint32_t index, const Pull& pull) {
    Device& device = devices_[index];
    const auto blocks = static_cast<TimeNs>(pull.to.size());
    const TimeNs time = blocks == 0 ? 0 : times_.pull + blocks * times_.pull_block;  // 0: a probe
    device.pulls_free_at = std::max(device.pulls_free_at, now_ + times_.message) + time;
    at(device.pulls_free_at + times_.message, What::pull_ended, index, pull.pull_id);
  }

  void take(Events& events) {
    const TimeNs seen = now_ + 2 * times_.message;
    for (std::size_t i = 0; i < events.counters.size(); ++i) {
      VirtualReply& reply = run_.replies[events.counters[i] - 1];
      reply.tokens.insert(reply.tokens.end(), events.counts[i], seen);
    }
    for (const Terminal& terminal : events.terminals) {
      VirtualReply& reply = run_.replies[terminal.counter - 1];
      acks_.push_back({kFrontend, terminal.counter});
      if (reply.end != 0) continue;
      reply.end = seen;
      reply.code = terminal.code;
      ++ended_;
    }
    events = Events{};
  }

  const StepTimes& times_;
  const std::vector<VirtualRequest>& requests_;
  const VirtualOptions& options_;
  State state_;
  Outbox out_;
  VirtualRun run_;
  std::vector<Device> devices_;
  std::vector<RequestId> acks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::uint64_t order_ = 0;
  TimeNs now_ = 0;
  TimeNs last_arrival_ = 0;
  std::size_t ended_ = 0;
  bool ticking_ = false;
};

}  // namespace

VirtualRun run_virtual_cluster(const Settings& settings, const std::vector<VirtualWorker>& workers,
                               const StepTimes& times, const std::vector<VirtualRequest>& requests,
                               const VirtualOptions& options) {
  return VirtualCluster(settings, workers, times, requests, options).run();
}

}  // namespace baton
