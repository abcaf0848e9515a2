// What a twin is told, and what it says to a successor. Its code is that of twin_process.cpp alone.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace baton {

constexpr unsigned kKeepsakes = 4;

enum class TwinState : std::uint32_t {
  preparing = 0,  // the front end serves nobody: it leaves nothing
  serving = 1,    // what it holds is its successor's
  done = 2,       // it ends on purpose
};

/// One page that front end and twin share. All but the first three is set before the clone and
/// stays as it is.
struct TwinPage {
  std::uint32_t state;                 // a TwinState; atomic accesses
  std::uint32_t settled;               // 1: the twin has left its group; atomic accesses
  std::int32_t keepsakes[kKeepsakes];  // -1: none; atomic accesses
  std::int32_t listener;
  std::int32_t front_end;  // pidfd
  std::int32_t front_end_pid;
  std::uint64_t device;  // of the listener's file, under either of its two names
  std::uint64_t inode;
  std::int64_t nobody_comes_ms;
  std::int64_t says_nothing_ms;
  char path[108];          // where a successor looks
  char waiting_path[120];  // where the socket is until the front end commits
  char title[16];
};

/// The first packet to a successor. The keepsakes that there are come with it, in their order.
struct LegacyHead {
  std::uint32_t magic = kMagic;
  std::uint32_t keepsakes = 0;                         // bit i: there is number i
  std::uint32_t sockets = 0;                           // which follow
  static constexpr std::uint32_t kMagic = 0x314E5754;  // "TWN1"
};
/// Each packet after that: so many sockets come with it, 1 to kMaxBatch.
struct LegacyBatch {
  std::uint32_t sockets = 0;
};
constexpr unsigned kMaxBatch = 250;  // the kernel takes 253

/// What a successor answers when it needs the twin no more.
constexpr char kReleased = 'r';

/// Makes the twin: a process with memory of its own and this process's descriptor table. Its pid,
/// or -1 with errno. Block all signals around it.
pid_t clone_twin(TwinPage* page);

}  // namespace baton
