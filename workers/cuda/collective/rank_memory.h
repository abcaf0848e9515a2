// What lies where in a rank's exchange buffer, and what a kernel knows of all of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ipc/max_ranks.h"

namespace baton::cuda {

/// CTAs of a staged call at most. Channel b is CTA b's of every rank, with a part of the staged
/// memory, flags and a count of its own: CTAs of different channels never wait for each other.
constexpr int kChannels = 64;

struct RankExchangeOptions {
  int rank = 0;
  int ranks = 1;
  int hidden = 0;                       // widest row of add_reduced, at most 16384
  std::size_t staged_bytes = 16 << 20;  // of a rank, in one staged round
  /// A call is direct if what a rank sends comes to so many bytes at most, over all receivers.
  std::size_t direct_bytes = 1 << 20;
  /// CTAs that share a row of a direct sum: 1, 2, 4 or 8; 0: by the row's width.
  int cluster = 0;
  /// Of this group, on this device. Several (tests) leave each other room: fewer CTAs, empty
  /// multiprocessors for the rank that the others wait for, and no successor's CTA takes a place
  /// while a rank's kernel may still lack one.
  int ranks_of_device = 1;

  // For tests alone.
  std::uint32_t first_call = 1;  // the counts begin here
  std::uint32_t pause = 0;       // clocks at most between what a CTA sends and what it receives
  int generations = 2;           // 1 is a fault
};

/// At the start of the buffer; its owner's kernels alone use it.
struct RankControl {
  std::uint32_t call;     // number of the next direct call
  std::uint32_t aborted;  // somebody has seen the host's word
  std::uint32_t readers;  // CTAs that have read `call` in this call
  std::uint32_t unused[61];
  std::uint32_t round[kChannels];  // number of each channel's next post
};

/// 8 bytes of payload on their way: two words, each with the call's number. Either half is stored
/// and loaded as one.
struct alignas(16) RankUnit {
  std::uint32_t first, first_call, second, second_call;
};

/// Byte offsets in a buffer. A sender's place at a receiver: place_of().
struct RankLayout {
  static constexpr std::size_t kFlagBytes = 32;  // a sector each

  std::size_t flags = 0;   // [place][channel]: a sender's last post
  std::size_t direct = 0;  // [generation][place][region_units] RankUnit
  std::size_t tokens = 0;  // [generation][place] RankUnit
  std::size_t staged = 0;  // [generation][channel][slice_bytes]
  std::size_t region_units = 0;
  std::size_t slice_bytes = 0;
  std::size_t bytes = 0;

  static RankLayout of(const RankExchangeOptions& o) {
    const auto peers = static_cast<std::size_t>(o.ranks - 1);
    RankLayout at;
    at.flags = sizeof(RankControl);
    at.direct = at.flags + peers * kChannels * kFlagBytes;
    at.region_units = peers == 0 ? 0 : o.direct_bytes / peers / 64 * 8;  // whole lines
    at.tokens = at.direct + 2 * peers * at.region_units * sizeof(RankUnit);
    at.staged = (at.tokens + 2 * peers * sizeof(RankUnit) + 127) / 128 * 128;
    at.slice_bytes = o.staged_bytes / kChannels / 128 * 128;
    at.bytes = at.staged + 2 * kChannels * at.slice_bytes;
    return at;
  }
};

/// As kernels are given it.
struct RankLink {
  int rank = 0;
  int ranks = 1;
  RankLayout layout;
  std::byte* buffer[kMaxRanks] = {};  // by rank
  const std::uint32_t* abort_word = nullptr;
  std::uint32_t pause = 0;
  bool one_generation = false;
  bool early_release = true;  // successors may start while this call waits
};

}  // namespace baton::cuda
