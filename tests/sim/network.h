// Links between the scheduler and its peers: first in, first out, delayed, sometimes broken or
// lossy.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "ipc/messages.h"
#include "scheduler/apply/events.h"

namespace baton::sim {

class World;

template <typename T>
class Fifo {
 public:
  void push(T item) { items_.push_back(std::move(item)); }
  bool empty() const { return head_ == items_.size(); }
  std::size_t size() const { return items_.size() - head_; }
  T pop() {
    T item = std::move(items_[head_++]);
    if (empty()) {
      items_.clear();
      head_ = 0;
    }
    return item;
  }
  /// Forgets all but the first `n`.
  void keep(std::size_t n) {
    items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(head_ + n), items_.end());
  }

 private:
  std::vector<T> items_;
  std::size_t head_ = 0;
};

using ToScheduler = std::variant<WorkerMessage, FrontendMessage>;
using ToPeer = std::variant<ToWorker, ToFrontend>;

/// One connection. A broken one still delivers what survived in its buffers.
struct Link {
  LinkId id = kNoLink;          // as the scheduler sees it
  std::uint32_t peer = 0;       // process
  std::uint32_t scheduler = 0;  // process
  bool up = true;
  TimeNs held_until = 0;  // once broken: when what it still holds comes out
  TimeNs up_last = 0;
  TimeNs down_last = 0;
  Fifo<ToScheduler> up_queue;
  Fifo<ToPeer> down_queue;
};

class Network {
 public:
  explicit Network(World& world) : world_(world) {}

  /// Connects the peer to the living scheduler, or tries again later.
  void connect(std::uint32_t peer);
  /// False: not queued, and the sender knows.
  bool send_up(std::uint32_t peer, ToScheduler message);
  bool send_down(LinkId id, ToPeer message);
  /// Both ends notice; what is under way survives up to some point. Reconnects after a while.
  void break_link(std::uint32_t peer);
  /// One end has died.
  void ended(std::uint32_t process);

  /// The process at the other end of the scheduler's link.
  std::uint32_t peer_of(LinkId link) { return link_of_id(link)->peer; }
  std::uint32_t receiver_up(std::uint32_t link) const { return links_[link]->scheduler; }
  std::uint32_t receiver_down(std::uint32_t link) const { return links_[link]->peer; }
  void deliver_up(std::uint32_t link);
  void deliver_down(std::uint32_t link);

 private:
  static constexpr std::size_t kQueue = 4096;  // high-water mark
  /// Encodes the message and holds it against the limit; where the scenario says so, the receiver
  /// gets what the bytes say.
  template <typename Message>
  void over_the_wire(Message& message);
  Link* link_of_peer(std::uint32_t peer);
  Link* link_of_id(LinkId id);
  void cut(Link& link);
  TimeNs arrival(TimeNs& last);
  bool held(std::uint32_t link, bool up);

  World& world_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::uint32_t> by_peer_;  // newest link of a process, plus 1
  std::vector<std::uint32_t> by_id_;    // newest link of a LinkId, plus 1
};

}  // namespace baton::sim
