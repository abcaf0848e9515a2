#include "tests/sim/network.h"

#include <algorithm>
#include <type_traits>

#include "ipc/codec.h"
#include "scheduler/state/message_size.h"

#include "tests/sim/describe.h"
#include "tests/sim/world.h"

namespace baton::sim {

namespace {

template <typename T>
T& grown(std::vector<T>& list, std::size_t index) {
  if (list.size() <= index) list.resize(index + 1);
  return list[index];
}

}  // namespace

Link* Network::link_of_peer(std::uint32_t peer) {
  const std::uint32_t index = grown(by_peer_, peer);
  return index == 0 ? nullptr : links_[index - 1].get();
}

Link* Network::link_of_id(LinkId id) {
  const std::uint32_t index = grown(by_id_, id);
  return index == 0 ? nullptr : links_[index - 1].get();
}

void Network::connect(std::uint32_t peer) {
  Process& process = world_.process(peer);
  if (!process.alive) return;
  Link* old = link_of_peer(peer);
  SimScheduler* scheduler = world_.scheduler();
  if (old != nullptr && old->up) return;
  if (scheduler == nullptr || !scheduler->alive) {
    world_.after(world_.random().time(20 * kMillisecond, 200 * kMillisecond), What::connect, peer);
    return;
  }
  auto link = std::make_unique<Link>();
  const bool same =
      old != nullptr && old->scheduler == scheduler->id && world_.scenario().network.same_link_id;
  link->id = same ? old->id : static_cast<LinkId>(std::max<std::size_t>(by_id_.size(), 1));
  link->peer = peer;
  link->scheduler = scheduler->id;
  links_.push_back(std::move(link));
  grown(by_peer_, peer) = static_cast<std::uint32_t>(links_.size());
  grown(by_id_, links_.back()->id) = static_cast<std::uint32_t>(links_.size());
  if (world_.tracing()) {
    world_.trace(process.label + " connected, link " + std::to_string(links_.back()->id));
  }
}

TimeNs Network::arrival(TimeNs& last) {
  const auto& n = world_.scenario().network;
  Random& random = world_.random();
  TimeNs delay = random.time(n.delay / 8, n.delay);
  if (world_.faults_on() && random.permille(n.late_permille)) delay = random.time(0, n.late);
  last = std::max(last, world_.now() + delay);
  return last;
}

namespace {

/// Of an encoded message. The scheduler splits plans and events by its own limit; what an end of a
/// request tells may be larger than the half of it that is left.
template <typename Kind>
std::size_t most_bytes(const Scenario& scenario, const Kind& kind) {
  const std::size_t own = scenario.settings.message_bytes;
  if constexpr (std::is_same_v<Kind, ToWorker>) {
    if (std::holds_alternative<StepPlan>(kind) || std::holds_alternative<Pull>(kind)) return own;
  }
  if constexpr (std::is_same_v<Kind, ToFrontend>) {
    if (std::holds_alternative<Events>(kind)) return own + kMaxReasonBytes;
  }
  return scenario.most_bytes;
}

}  // namespace

template <typename Message>
void Network::over_the_wire(Message& message) {
  const Scenario& scenario = world_.scenario();
  if (!scenario.codec && !scenario.weighed) return;
  std::visit(
      [&](auto& kind) {
        using Kind = std::decay_t<decltype(kind)>;
        const std::string bytes = std::visit([](const auto& m) { return encode(m); }, kind);
        const std::size_t most = most_bytes(scenario, kind);
        if (scenario.weighed && bytes.size() > most)
          world_.fail("a message of " + std::to_string(bytes.size()) + " bytes, where " +
                      std::to_string(most) + " are the most: " + describe(message));
        if (!scenario.codec) return;
        const auto decode = [&] {
          if constexpr (std::is_same_v<Kind, WorkerMessage>) return decode_worker_message(bytes);
          if constexpr (std::is_same_v<Kind, FrontendMessage>)
            return decode_frontend_message(bytes);
          if constexpr (std::is_same_v<Kind, ToWorker>) return decode_to_worker(bytes);
          if constexpr (std::is_same_v<Kind, ToFrontend>) return decode_to_frontend(bytes);
        };
        auto read = decode();
        if (!read.ok())
          world_.fail("a message that its receiver refuses: " + read.status().message());
        kind = std::move(read.value());
      },
      message);
}

bool Network::send_up(std::uint32_t peer, ToScheduler message) {
  over_the_wire(message);
  Link* link = link_of_peer(peer);
  if (link == nullptr || !link->up) return false;
  if (link->up_queue.size() >= kQueue) world_.fail("a queue grows without bound");
  const auto& n = world_.scenario().network;
  const bool worker = std::holds_alternative<WorkerMessage>(message);
  const bool lost = world_.faults_on() &&
                    world_.random().permille(worker ? n.lost_from_worker : n.lost_from_frontend);
  if (world_.tracing()) {
    world_.trace(world_.process(peer).label + " -> scheduler: " + describe(message) +
                 (lost ? "  LOST" : ""));
  }
  if (lost) return true;
  link->up_queue.push(std::move(message));
  world_.at(arrival(link->up_last), What::deliver_up,
            static_cast<std::uint32_t>(by_peer_[peer] - 1));
  return true;
}

bool Network::send_down(LinkId id, ToPeer message) {
  over_the_wire(message);
  Link* link = link_of_id(id);
  if (link != nullptr && link->down_queue.size() >= kQueue) {
    world_.fail("a queue grows without bound");
  }
  if (link == nullptr || !link->up) {
    if (world_.tracing()) {
      world_.trace("scheduler -> link " + std::to_string(id) + ": " + describe(message) +
                   "  UNREACHABLE");
    }
    return false;
  }
  const auto& n = world_.scenario().network;
  const bool worker = std::holds_alternative<ToWorker>(message);
  const bool lost = world_.faults_on() &&
                    world_.random().permille(worker ? n.lost_to_worker : n.lost_to_frontend);
  if (world_.tracing()) {
    world_.trace("scheduler -> " + world_.process(link->peer).label + ": " + describe(message) +
                 (lost ? "  LOST" : ""));
  }
  if (lost) return true;
  link->down_queue.push(std::move(message));
  world_.at(arrival(link->down_last), What::deliver_down, by_id_[id] - 1);
  return true;
}

void Network::cut(Link& link) {
  if (!link.up) return;
  link.up = false;
  Random& random = world_.random();
  link.up_queue.keep(random.below(link.up_queue.size() + 1));
  link.down_queue.keep(random.below(link.down_queue.size() + 1));
  // A reconnected socket may hand out what the old connection still holds long after the new one's.
  if (random.permille(500)) link.held_until = world_.now() + random.time(0, 2 * kSecond);
}

bool Network::held(std::uint32_t index, bool up) {
  const TimeNs until = links_[index]->held_until;
  if (world_.now() >= until) return false;
  world_.at(until, up ? What::deliver_up : What::deliver_down, index);
  return true;
}

void Network::break_link(std::uint32_t peer) {
  Link* link = link_of_peer(peer);
  if (link == nullptr || !link->up) return;
  cut(*link);
  world_.after(world_.random().time(kMillisecond, 300 * kMillisecond), What::connect, peer);
}

void Network::ended(std::uint32_t process) {
  for (auto& link : links_) {
    if (!link->up || (link->peer != process && link->scheduler != process)) continue;
    cut(*link);
    if (link->scheduler == process) {
      world_.after(world_.random().time(kMillisecond, 200 * kMillisecond), What::connect,
                   link->peer);
    }
  }
}

void Network::deliver_up(std::uint32_t index) {
  Link& link = *links_[index];
  if (link.up_queue.empty()) return;  // it broke meanwhile
  if (held(index, /*up=*/true)) return;
  ToScheduler message = link.up_queue.pop();
  SimScheduler* scheduler = world_.scheduler();
  if (scheduler == nullptr || !scheduler->alive || scheduler->id != link.scheduler) return;
  scheduler->receive(link.id, std::move(message));
}

void Network::deliver_down(std::uint32_t index) {
  Link& link = *links_[index];
  if (link.down_queue.empty()) return;
  if (held(index, /*up=*/false)) return;
  ToPeer message = link.down_queue.pop();
  Process& peer = world_.process(link.peer);
  if (peer.alive) peer.receive(std::move(message));
}

}  // namespace baton::sim
