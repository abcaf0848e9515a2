#include "workers/collective/collective.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "ipc/process.h"

namespace baton {

namespace {

/// A sleeper looks at the abort word so often, should a wake have been lost with its sender.
constexpr TimeNs kLookAgain = 50 * kMillisecond;
/// Looks between two readings of the clock.
constexpr int kLooks = 64;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  timespec limit{0, kLookAgain};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, kMaxRanks, nullptr, nullptr, 0);
}

bool reached(std::uint32_t posted, std::uint32_t round) {
  return static_cast<std::int32_t>(posted - round) > 0;  // counts may wrap
}

}  // namespace

RankLost::RankLost(int rank, bool silent)
    : std::runtime_error("rank " + std::to_string(rank) +
                         (silent ? " does not come" : " is no more")),
      rank_(rank),
      silent_(silent) {}

Collective::Collective(const ExchangeMemory& memory, int rank, CollectiveOptions options)
    : memory_(memory),
      head_(memory.head()),
      rank_(rank),
      ranks_(memory.ranks()),
      options_(options) {}

std::optional<RankLost> Collective::loss(const ExchangeMemory& memory) {
  const std::uint32_t word = memory.head().aborted.load();
  if (word == 0) return std::nullopt;
  return RankLost(static_cast<int>(word & ~kSilentRank) - 1, (word & kSilentRank) != 0);
}

void Collective::abort(const ExchangeMemory& memory, int lost_rank, bool silent) {
  ExchangeHead& head = memory.head();
  std::uint32_t none = 0;
  const auto word = static_cast<std::uint32_t>(lost_rank) + 1;
  head.aborted.compare_exchange_strong(none, silent ? word | kSilentRank : word);
  for (const RankCell& cell : head.cells) futex_wake(cell.posted);
}

/// The own buffer, filled with so many bytes, is the others'.
void Collective::post(std::size_t bytes) {
  RankCell& cell = head_.cells[static_cast<std::size_t>(rank_)];
  cell.posted.store(++round_);  // in one order with `sleepers`: see await()
  if (cell.sleepers.load() > 0) futex_wake(cell.posted);
  ++figures_.rounds;
  figures_.bytes += bytes;
}

/// Told before this rank leaves, so that nobody takes its own end for the first one.
void Collective::lose_silent(int peer) const {
  abort(memory_, peer, /*silent=*/true);
  throw loss(memory_).value_or(RankLost(peer, true));
}

/// For `peer` to have posted what this rank has posted last.
void Collective::await(int peer, Patience patience) const {
  RankCell& cell = head_.cells[static_cast<std::size_t>(peer)];
  const std::uint32_t round = round_ - 1;
  if (reached(cell.posted.load(std::memory_order_acquire), round)) return;
  const std::atomic<std::uint32_t>& progress = head_.progress[static_cast<std::size_t>(peer)].count;
  const TimeNs began = now_ns();
  TimeNs moved = began;  // when the peer was last seen to get on
  std::uint32_t seen_progress = progress.load(std::memory_order_relaxed);
  for (;;) {
    for (int i = 0; i < kLooks; ++i) {
      if (reached(cell.posted.load(std::memory_order_acquire), round)) return;
      relax();
    }
    if (const auto lost = loss(memory_)) throw *lost;
    const TimeNs now = now_ns();
    const TimeNs waited = now - began;
    if (waited < options_.spin) continue;
    if (waited < 2 * options_.spin) {
      ::sched_yield();  // with fewer processors than ranks the one that is awaited needs ours
      continue;
    }
    if (const std::uint32_t count = progress.load(std::memory_order_relaxed);
        count != seen_progress) {
      seen_progress = count;
      moved = now;
    }
    if (patience == Patience::bounded && now - moved >= options_.patience) {
      lose_silent(peer);
    }
    cell.sleepers.fetch_add(1);
    const std::uint32_t seen = cell.posted.load();
    if (!reached(seen, round) && head_.aborted.load() == 0) futex_wait(cell.posted, seen);
    cell.sleepers.fetch_sub(1);
    if (look_) look_();
  }
}

void Collective::await_all() const {
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_) await(peer);
  }
}

void Collective::look_for_late(const std::function<TimeNs(int rank, TimeNs late)>& patience) {
  constexpr TimeNs kAwhile = 100 * kMillisecond;
  if (const auto lost = loss(memory_)) throw *lost;
  const TimeNs now = now_ns();
  // This process may have stood still itself.
  const TimeNs away = now - looked_ > kAwhile ? now - looked_ : 0;
  looked_ = now;
  if (seen_.empty()) seen_.assign(static_cast<std::size_t>(ranks_), {0, now});
  const std::uint32_t next = head_.cells[static_cast<std::size_t>(rank_)].posted.load();
  for (int peer = 0; peer < ranks_; ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    const std::uint32_t count = head_.progress[at].count.load(std::memory_order_relaxed);
    const bool came = reached(head_.cells[at].posted.load(std::memory_order_acquire), next);
    Seen& seen = seen_[at];
    seen.moved = std::min(seen.moved + away, now);
    if (peer == rank_ || came || count != seen.progress) {
      seen = {count, now};
    } else if (const TimeNs late = now - seen.moved; late >= patience(peer, late)) {
      lose_silent(peer);
    }
  }
}

void Collective::barrier() {
  post(0);
  await_all();
}

void Collective::gather_columns(float* data, int rows, std::int64_t stride,
                                std::span<const ColumnRange> ranges, int root) {
  if (rows == 0) return;
  std::int64_t widest = 1;
  for (const ColumnRange& range : ranges) widest = std::max(widest, range.count);
  const auto room = static_cast<std::int64_t>(memory_.buffer_bytes() / sizeof(float));
  // Rows that fit a buffer together; of a row that is wider than a buffer, so many columns.
  const int rows_each = static_cast<int>(std::clamp<std::int64_t>(room / widest, 1, rows));
  const std::int64_t columns_each = std::min(widest, room);
  for (int first = 0; first < rows; first += rows_each) {
    const int n = std::min(rows_each, rows - first);
    for (std::int64_t from = 0; from < widest; from += columns_each) {
      const auto part = [&](int rank) {
        const ColumnRange& all = ranges[static_cast<std::size_t>(rank)];
        return ColumnRange{all.first + from,
                           std::clamp<std::int64_t>(all.count - from, 0, columns_each)};
      };
      const ColumnRange mine = part(rank_);
      auto* to = reinterpret_cast<float*>(own());
      for (int r = 0; r < n; ++r, to += mine.count) {
        std::copy_n(data + (first + r) * stride + mine.first, mine.count, to);
      }
      const std::uint32_t round = round_;
      post(static_cast<std::size_t>(n * mine.count) * sizeof(float));
      for (int peer = 0; peer < ranks_; ++peer) {
        if (peer == rank_) continue;
        await(peer);
        if (root >= 0 && root != rank_) continue;
        const ColumnRange theirs = part(peer);
        const auto* source = reinterpret_cast<const float*>(memory_.buffer(peer, round));
        for (int r = 0; r < n; ++r, source += theirs.count) {
          std::copy_n(source, theirs.count, data + (first + r) * stride + theirs.first);
        }
      }
    }
  }
}

void Collective::gather_rows(float* data, int rows, std::int64_t columns,
                             const std::function<int(int)>& owner) {
  if (rows == 0 || columns == 0) return;
  const auto room = static_cast<std::int64_t>(memory_.buffer_bytes() / sizeof(float));
  const int rows_each = static_cast<int>(std::clamp<std::int64_t>(room / columns, 1, rows));
  const std::int64_t columns_each = std::min(columns, room);
  for (int first = 0; first < rows; first += rows_each) {
    const int end = std::min(rows, first + rows_each);
    for (std::int64_t from = 0; from < columns; from += columns_each) {
      const std::int64_t n = std::min(columns_each, columns - from);
      auto* to = reinterpret_cast<float*>(own());
      std::int64_t given = 0;
      for (int r = first; r < end; ++r) {
        if (owner(r) != rank_) continue;
        std::copy_n(data + r * columns + from, n, to + given);
        given += n;
      }
      const std::uint32_t round = round_;
      post(static_cast<std::size_t>(given) * sizeof(float));
      await_all();
      std::array<std::int64_t, kMaxRanks> taken{};
      for (int r = first; r < end; ++r) {
        const int peer = owner(r);
        if (peer == rank_) continue;
        std::int64_t& at = taken[static_cast<std::size_t>(peer)];
        const auto* source = reinterpret_cast<const float*>(memory_.buffer(peer, round));
        std::copy_n(source + at, n, data + r * columns + from);
        at += n;
      }
    }
  }
}

void Collective::all_reduce(float* data, std::int64_t count) {
  const auto room = static_cast<std::int64_t>(memory_.buffer_bytes() / sizeof(float));
  for (std::int64_t first = 0; first < count; first += room) {
    const std::int64_t n = std::min(room, count - first);
    float* part = data + first;
    std::copy_n(part, n, reinterpret_cast<float*>(own()));
    const std::uint32_t round = round_;
    post(static_cast<std::size_t>(n) * sizeof(float));
    await_all();
    std::copy_n(reinterpret_cast<const float*>(memory_.buffer(0, round)), n, part);
    for (int peer = 1; peer < ranks_; ++peer) {
      const auto* theirs = reinterpret_cast<const float*>(memory_.buffer(peer, round));
      for (std::int64_t i = 0; i < n; ++i) part[i] += theirs[i];
    }
  }
}

std::vector<std::uint64_t> Collective::all_gather(std::uint64_t value) {
  std::memcpy(own(), &value, sizeof value);
  const std::uint32_t round = round_;
  post(sizeof value);
  await_all();
  std::vector<std::uint64_t> values(static_cast<std::size_t>(ranks_));
  for (int peer = 0; peer < ranks_; ++peer) {
    std::memcpy(&values[static_cast<std::size_t>(peer)], memory_.buffer(peer, round), sizeof value);
  }
  return values;
}

std::vector<std::string> Collective::all_gather(const std::string& text) {
  const std::uint64_t size = std::min(text.size(), memory_.buffer_bytes() - sizeof(std::uint64_t));
  std::memcpy(own(), &size, sizeof size);
  std::memcpy(own() + sizeof size, text.data(), size);
  const std::uint32_t round = round_;
  post(sizeof size + size);
  await_all();
  std::vector<std::string> texts;
  for (int peer = 0; peer < ranks_; ++peer) {
    const std::byte* from = memory_.buffer(peer, round);
    std::uint64_t n = 0;
    std::memcpy(&n, from, sizeof n);
    if (n > memory_.buffer_bytes() - sizeof n) throw std::length_error("a text of another call");
    texts.emplace_back(reinterpret_cast<const char*>(from + sizeof n), n);
  }
  return texts;
}

void Collective::broadcast(std::string& bytes, std::size_t most) {
  // The length, then the bytes, in as many rounds as it takes.
  const std::size_t room = memory_.buffer_bytes();
  std::uint64_t size = bytes.size();
  std::size_t at = 0;
  for (bool first = true; first || at < size; first = false) {
    const std::size_t before = first ? sizeof size : 0;
    std::size_t n = 0;
    if (rank_ == 0) {
      n = std::min<std::size_t>(size - at, room - before);
      if (first) std::memcpy(own(), &size, sizeof size);
      std::memcpy(own() + before, bytes.data() + at, n);
    }
    const std::uint32_t round = round_;
    post(rank_ == 0 ? before + n : 0);
    if (rank_ != 0) {
      await(0, first ? Patience::endless : Patience::bounded);
      const std::byte* from = memory_.buffer(0, round);
      if (first) {
        std::memcpy(&size, from, sizeof size);
        if (size > most) throw std::length_error("rank 0 sends " + std::to_string(size) + " bytes");
        bytes.resize(size);
      }
      n = std::min<std::size_t>(size - at, room - before);
      std::memcpy(bytes.data() + at, from + before, n);
    }
    at += n;
    await_all();
  }
}

}  // namespace baton
