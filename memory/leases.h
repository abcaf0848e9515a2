// Who holds which pool: the rules of the memory process, as plain values. No file, socket, clock or
// process: what the kernel says of a process comes in as a call.
//
// One pool a worker's name. It has one writer: a younger process of the name gets it only when the
// older one has ended. It is kept for whoever reads its bytes in the same way, as long as nobody
// has to doubt them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ipc/messages.h"
#include "ipc/status.h"

namespace baton {

/// How long a pool that nobody holds is kept. Longer than the scheduler waits for its worker, and
/// than any start that it is worth to wait for.
constexpr TimeNs kKeepIdle = 120 * kSecond;

/// A pool that exists, or will once its first holder has made it.
struct KeptPool {
  std::string worker;
  PoolKey key;
  AllocationId allocation = 0;
  std::uint32_t blocks = 0;
  std::uint32_t host_blocks = 0;
  Incarnation holder = 0;  // the process that writes to it, or did last
  bool held = false;       // that process has not ended
  bool kept = false;       // it was kept for this holder
  bool spoiled = false;    // its last holder died of a fault: it may have written anywhere
  TimeNs since = 0;        // the lease's beginning, or its end
};

enum class Ruling : std::uint8_t {
  lease,   // the pool is the asker's
  wait,    // an older process of the name lives: ask again when it has ended
  refuse,  // never
};

struct LeaseAnswer {
  Ruling ruling = Ruling::refuse;
  KeptPool pool;              // with `lease`
  std::string why;            // of `refuse`, or why the pool that there was is not kept
  AllocationId given_up = 0;  // that pool
};

class Leases {
 public:
  LeaseAnswer ask(const Lease& lease, TimeNs now);
  /// The holder's process has ended, as the kernel says. `spoiled`: by a fault of its own.
  void ended(const std::string& worker, Incarnation holder, bool spoiled, TimeNs now);
  /// The pool turns out not to exist: its worker's next lease is a fresh one.
  void forget(const std::string& worker) { pools_.erase(worker); }
  /// Pools that nobody has held for kKeepIdle: they are given up.
  std::vector<KeptPool> expire(TimeNs now);
  /// Takes out the pool of that worker if nobody holds it and it is of another model than the one
  /// that the worker loads now.
  std::optional<KeptPool> outdated(const std::string& worker, std::uint64_t model_fingerprint);
  /// Takes out a pool that nobody holds, on somebody's word. The error says why it stays.
  Result<KeptPool> drop(const std::string& worker);
  const std::map<std::string, KeptPool>& pools() const { return pools_; }

 private:
  std::map<std::string, KeptPool> pools_;  // by worker
};

/// Why the pool cannot be kept for that lease; empty: it can.
std::string why_not_kept(const KeptPool& pool, const Lease& lease);

}  // namespace baton
