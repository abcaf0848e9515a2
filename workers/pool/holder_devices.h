// Pools of other workers as the GPUs see them in whose memory they lie: this process maps them
// there a second time, so that its own kernels can attend to their keys where they are
// (workers/cuda/attention/travel.h). An IPC handle may be opened once on each device of a process.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "workers/cuda/device.h"
#include "workers/cuda/other_device.h"
#include "workers/pool/pool_numbers.h"

namespace baton {

/// The second mapping of a pool; ends with this.
class HeldPool {
 public:
  /// Throws CudaError.
  HeldPool(int device, const std::string& handle);
  ~HeldPool();
  HeldPool(const HeldPool&) = delete;
  HeldPool& operator=(const HeldPool&) = delete;
  PoolHolder seen() const { return {device_, memory_->data()}; }

 private:
  int device_;
  std::unique_ptr<cuda::ImportedMemory> memory_;
};

/// The other GPUs that this process has kernels on: each from the first pool on that is mapped
/// there. The pull thread maps, the step thread looks up.
class HolderDevices {
 public:
  /// Steps' uploads take up to `input_bytes`. `load`: has the calling thread's GPU load what steps
  /// will launch there; may throw CudaError.
  HolderDevices(int own, std::size_t input_bytes, std::function<void()> load = {})
      : own_(own), input_bytes_(input_bytes), load_(std::move(load)) {}

  /// Null: it stays where it is read from, over the link. The log says why, once for each GPU. A
  /// GPU that has no room for this process, or refuses it, is not asked again.
  std::unique_ptr<HeldPool> map(const std::string& uuid, const std::string& handle);
  /// Those that HeldPool::seen() names are there for good.
  const cuda::OtherDevice* find(int device) const;
  /// Throws CudaError if one of them has failed.
  void look() const;

 private:
  bool make(int device, const std::string& uuid);
  void refuse(const std::string& uuid, const std::string& why);

  const int own_;
  const std::size_t input_bytes_;
  const std::function<void()> load_;
  std::set<std::string> refused_;  // UUIDs that the log has named
  std::set<int> given_up_;
  mutable std::mutex mutex_;
  std::map<int, std::unique_ptr<cuda::OtherDevice>> devices_;  // by ordinal
};

}  // namespace baton
