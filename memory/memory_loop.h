// A memory process's shell: workers' connections, and what the kernel says of their processes.
// What is decided is in leases.h and shared_weights.h, where it lies in pool_store.h and
// weights_keeper.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/channel.h"
#include "ipc/process.h"
#include "ipc/trace_ring.h"
#include "memory/device_allocator.h"
#include "memory/leases.h"
#include "memory/pool_store.h"
#include "memory/weights_keeper.h"

namespace baton {

class MemoryLoop {
 public:
  /// Of CPUs.
  MemoryLoop(const std::string& run_dir, UniqueFd listening);
  /// Of one GPU. `name` is that of the process; `device` outlives this.
  MemoryLoop(const std::string& run_dir, const std::string& name, UniqueFd listening,
             DeviceAllocator& device);
  /// Until a signal asks to stop. Then all pools are dropped; who has mapped one keeps it.
  void run(SignalFd& signals);

 private:
  /// A link of a worker's process, for its pool or for its weights, or of baton-ctl. Workers stay
  /// connected as long as they live: so they see this process's death, and it sees who uses
  /// weights.
  struct Tenant {
    LinkNumber link = 0;
    UniqueFd fd;
    std::int32_t pid = 0;
    // Not answered.
    std::optional<Lease> lease = std::nullopt;
    std::optional<WeightsAsk> weights = std::nullopt;
    Poller::Index polled = 0;
    bool lost = false;
  };
  /// A process that may write to a pool, watched by its pidfd.
  struct Holder {
    std::string worker;
    Incarnation incarnation = 0;
    std::int32_t pid = 0;
    std::uint64_t start = 0;  // pid_start_time()
    UniqueFd pidfd;
    Poller::Index polled = 0;
  };

  void wait(SignalFd& signals);
  void take_deaths();
  void accept();
  void take_messages();
  void lose(Tenant& tenant);
  bool take_message(Tenant& tenant);
  bool take(Tenant& tenant, const MemoryCommand& command);
  bool take(Tenant& tenant, const WeightsSealed& sealed, UniqueFd packed);
  bool answer_lease(Tenant& tenant);
  bool answer_weights(Tenant& tenant);
  MemoryReport report() const;
  std::string drop(const std::string& what);
  Leased give(const LeaseAnswer& answer);
  Status make(const KeptPool& pool);

  const std::string run_dir_;
  UniqueFd listening_;
  AliveFile alive_;
  Tracer tracer_;
  Leases leases_;
  std::unique_ptr<PoolStore> pools_;
  WeightsKeeper weights_;
  LinkNumber links_ = 0;
  std::vector<Tenant> tenants_;
  std::vector<Holder> holders_;
  Poller poller_;
  Poller::Index listening_index_ = 0;
  TimeNs now_ = 0;
};

}  // namespace baton
