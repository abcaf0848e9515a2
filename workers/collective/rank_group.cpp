#include "workers/collective/rank_group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

#include "ipc/packet_socket.h"

namespace baton {

namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(2);
constexpr TimeNs kAnswer = 2 * kSecond;

std::string socket_of(const RankGroupOptions& o) {
  return o.run_dir + "/" + o.worker + ".ranks.sock";
}

/// What a rank says when it comes: processes of different builds refuse each other.
std::string request_of(const RankGroupOptions& o) {
  return "rank " + std::to_string(o.rank) + " " + std::to_string(o.ranks) + " " + build_version();
}

/// Every rank but 0 holds a shared lock on this file for as long as it lives; the kernel gives it
/// back when the process has ended, behind its memory.
Result<UniqueFd> presence_file(const RankGroupOptions& o) {
  const std::string path = o.run_dir + "/" + o.worker + ".ranks.alive";
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return Status(ErrorCode::unavailable, path + ": " + std::strerror(errno));
  return fd;
}

Status wait_for_old_ranks(const RankGroupOptions& o) {
  auto file = presence_file(o);
  if (!file.ok()) return file.status();
  const TimeNs end = now_ns() + o.old_ones;
  while (::flock(file.value().get(), LOCK_EX | LOCK_NB) != 0) {
    if (now_ns() >= end) {
      return Status(ErrorCode::unavailable, "a rank of the last " + o.worker + " has not ended");
    }
    std::this_thread::sleep_for(kLookEvery);
  }
  return {};  // the descriptor is closed, and with it goes the lock
}

/// The process at the other end of a connection.
std::int32_t peer_pid(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

}  // namespace

RankGroup::RankGroup(const RankGroupOptions& options, Memories memories, OnLost on_lost)
    : options_(options),
      memory_(std::move(memories.steps)),
      pulls_memory_(std::move(memories.pulls)),
      pids_(static_cast<std::size_t>(options.ranks), 0),
      collective_(std::make_unique<Collective>(memory_, options.rank, options.collective)),
      pulls_(std::make_unique<Collective>(pulls_memory_, options.rank, options.collective)),
      watchdog_(std::make_unique<Watchdog>([this, told = std::move(on_lost)](int rank) {
        // One that left because of another is not why the group ends.
        const auto first = Collective::loss(memory_);
        told(first ? first->rank() : rank);  // whoever an exchange throws at knows why already
        Collective::abort(memory_, rank);
        Collective::abort(pulls_memory_, rank);
      })) {
  pulls_->set_patience(options.pull_patience);
  pids_[static_cast<std::size_t>(options.rank)] = ::getpid();
}

// ---------------------------------------------------------------- rank 0

Result<std::unique_ptr<RankGroup>> RankGroup::lead(const RankGroupOptions& options,
                                                   OnLost on_lost) {
  const std::string lock = options.run_dir + "/" + options.worker + ".ranks.lock";
  auto name = LockFile::acquire(lock);
  for (const TimeNs end = now_ns() + options.old_ones; !name.ok() && now_ns() < end;) {
    std::this_thread::sleep_for(kLookEvery);
    name = LockFile::acquire(lock);
  }
  if (!name.ok()) return name.status();
  if (Status status = wait_for_old_ranks(options); !status.ok()) return status;
  auto memory = ExchangeMemory::create(options.ranks);
  if (!memory.ok()) return memory.status();
  auto pulls = ExchangeMemory::create(options.ranks);
  if (!pulls.ok()) return pulls.status();
  auto listening = listen_packets(name.value(), socket_of(options));
  if (!listening.ok()) return listening.status();
  std::unique_ptr<RankGroup> group(new RankGroup(
      options, {std::move(memory).value(), std::move(pulls).value()}, std::move(on_lost)));
  group->name_.emplace(std::move(name).value());
  group->listening_ = std::move(listening).value();
  if (Status status = group->gather(group->listening_.get()); !status.ok()) return status;
  return group;
}

/// One connection after the other, until every rank has one.
Status RankGroup::gather(int listening) {
  const TimeNs end = now_ns() + options_.patience;
  const auto missing = [this] { return std::find(pids_.begin(), pids_.end(), 0); };
  while (missing() != pids_.end()) {
    if (const auto lost = Collective::loss(memory_)) {
      if (has_failed(lost->rank())) return failure_of(lost->rank());
      return Status(ErrorCode::unavailable,
                    std::string(lost->what()) + ": the others had not come");
    }
    if (now_ns() >= end) {
      return Status(ErrorCode::unavailable,
                    "rank " + std::to_string(missing() - pids_.begin()) + " has not come");
    }
    pollfd entry{listening, POLLIN, 0};
    ::poll(&entry, 1, 100);
    auto peer = accept_packets(listening);
    if (!peer) continue;
    std::string asked;
    if (receive_packet(peer->fd.get(), kAnswer, asked) != Received::packet) continue;
    admit(asked, peer->pid, peer->fd.get());
  }
  return wait_for(RankState::joined, kAnswer);
}

bool RankGroup::admit(const std::string& asked, std::int32_t pid, int link) {
  std::istringstream text(asked);
  std::string word;
  int rank = 0;
  int ranks = 0;
  text >> word >> rank >> ranks;
  RankGroupOptions theirs = options_;
  theirs.rank = rank;
  const bool fits = rank > 0 && rank < options_.ranks && asked == request_of(theirs);
  if (!fits || pid == 0 || pid_of(rank) != 0 || !watchdog_->watch(rank, pid)) {
    return send_packet(link, "no: it is " + request_of(options_) + " that leads");
  }
  pids_[static_cast<std::size_t>(rank)] = pid;
  return send_packet(link, "yes", memory_.fd()) && send_packet(link, "pulls", pulls_memory_.fd());
}

Status RankGroup::wait_for(RankState state, TimeNs patience) {
  const TimeNs end = now_ns() + patience;
  const auto wanted = static_cast<std::uint32_t>(state);
  for (int rank = 1; rank < ranks(); ++rank) {
    for (;;) {
      // What a rank has failed for is told when more is asked of it than to have joined.
      if (has_failed(rank) && state != RankState::joined) return failure_of(rank);
      if (cell(rank).state.load() >= wanted) break;
      if (const auto lost = Collective::loss(memory_)) {
        if (lost->rank() != rank && has_failed(lost->rank())) return failure_of(lost->rank());
        return Status(ErrorCode::unavailable, words_of_loss(lost->rank()));
      }
      if (now_ns() >= end) {
        return Status(ErrorCode::unavailable,
                      "rank " + std::to_string(rank) + " has not got ready in time");
      }
      std::this_thread::sleep_for(kLookEvery);
    }
  }
  return {};
}

bool RankGroup::has_failed(int rank) const {
  return cell(rank).state.load() == static_cast<std::uint32_t>(RankState::failed);
}

Status RankGroup::failure_of(int rank) const {
  const auto& why = memory_.head().reasons[rank];
  return invalid("rank " + std::to_string(rank) + ": " +
                 std::string(why, ::strnlen(why, sizeof why)));
}

std::string RankGroup::words_of_loss(int rank) const {
  if (has_failed(rank)) return failure_of(rank).message();
  const auto first = Collective::loss(memory_);
  return first && first->rank() == rank ? first->what() : RankLost(rank, false).what();
}

void RankGroup::offer_pool(const PoolOffer& offer) {
  PoolNotice& notice = memory_.head().pool;
  notice.blocks = offer.blocks;
  notice.allocation = offer.allocation;
  const std::size_t n = std::min(offer.handle.size(), sizeof notice.handle - 1);
  std::memcpy(notice.handle, offer.handle.data(), n);
  notice.handle[n] = 0;
  notice.round.fetch_add(1);
}

void RankGroup::end_others() {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != options_.rank) watchdog_->kill(rank);
  }
}

// ---------------------------------------------------------------- the others

Result<std::unique_ptr<RankGroup>> RankGroup::join(const RankGroupOptions& options,
                                                   OnLost on_lost) {
  const TimeNs end = now_ns() + options.patience;
  std::string why = "nobody leads";
  for (; now_ns() < end; std::this_thread::sleep_for(kLookEvery * 5)) {
    auto link = connect_packets(socket_of(options));
    if (!link.ok() || !send_packet(link.value().get(), request_of(options))) continue;
    std::string answer;
    UniqueFd carried;
    // Rank 0 may be about to end, and its successor is the one to ask.
    if (receive_packet(link.value().get(), kAnswer, answer, &carried) != Received::packet) continue;
    if (!carried) {
      why = answer;
      continue;
    }
    auto memory = ExchangeMemory::map(std::move(carried));
    if (!memory.ok()) return memory.status();
    if (receive_packet(link.value().get(), kAnswer, answer, &carried) != Received::packet) continue;
    auto pulls = ExchangeMemory::map(std::move(carried));
    if (!pulls.ok()) return pulls.status();
    auto presence = presence_file(options);
    if (!presence.ok()) return presence.status();
    if (::flock(presence.value().get(), LOCK_SH | LOCK_NB) != 0) continue;  // the next rank 0 looks
    std::unique_ptr<RankGroup> group(new RankGroup(
        options, {std::move(memory).value(), std::move(pulls).value()}, std::move(on_lost)));
    group->presence_ = std::move(presence).value();
    group->pids_[0] = peer_pid(link.value().get());
    if (group->pids_[0] == 0 || !group->watchdog_->watch(0, group->pids_[0])) {
      return Status(ErrorCode::unavailable, "rank 0 is gone, or of another PID namespace");
    }
    group->tell(RankState::joined, 0);
    return group;
  }
  return Status(ErrorCode::unavailable, "no group to join: " + why);
}

void RankGroup::tell(RankState state, int percent) {
  RankCell& mine = cell(options_.rank);
  mine.percent.store(percent);
  mine.state.store(static_cast<std::uint32_t>(state));
}

void RankGroup::fail(const std::string& reason) {
  char* to = memory_.head().reasons[options_.rank];
  const std::size_t n = std::min(reason.size(), sizeof memory_.head().reasons[0] - 1);
  std::memcpy(to, reason.data(), n);
  to[n] = 0;
  tell(RankState::failed);
}

std::optional<PoolOffer> RankGroup::wait_for_pool(TimeNs patience) {
  const PoolNotice& notice = memory_.head().pool;
  for (const TimeNs end = now_ns() + patience; now_ns() < end;) {
    if (notice.round.load() > 0) {
      return PoolOffer{std::string(notice.handle, ::strnlen(notice.handle, sizeof notice.handle)),
                       notice.blocks, notice.allocation};
    }
    std::this_thread::sleep_for(5 * kLookEvery);
  }
  return std::nullopt;
}

}  // namespace baton
