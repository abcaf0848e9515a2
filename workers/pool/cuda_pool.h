// A worker's KV pool on its GPU, exported by cudaIpcMemHandle, its host part in page-locked shared
// memory, and copies out of the pools of others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ipc/kv_layout.h"
#include "workers/cuda/blocks.h"
#include "workers/cuda/device.h"
#include "workers/execute/executor.h"
#include "workers/model/cut.h"
#include "workers/pool/holder_devices.h"
#include "workers/pool/kv_pool.h"
#include "workers/pool/pool_numbers.h"

namespace baton {

/// One allocation, and one region of shared memory that the device reads and writes.
class CudaPool {
 public:
  /// `host_part`: PoolPart::host of the same shape, or KvPool() for none. Throws CudaError.
  explicit CudaPool(const KvGeometry& geometry, KvPool host_part = KvPool());
  /// A pool that a memory process keeps: `handle` is its, and everybody's who maps it.
  CudaPool(const KvGeometry& geometry, const std::string& handle, KvPool host_part);
  /// Exported memory is not freed: importers may still read it, and the end of the process frees
  /// it.
  ~CudaPool() { memory_.leak(); }

  /// Of the device part.
  const KvGeometry& geometry() const { return geometry_; }
  std::byte* data() const { return memory_.data(); }
  const std::string& handle() const { return handle_; }
  const KvPool& host_part() const { return host_part_; }
  cuda::PoolParts parts() const {
    return {memory_.data(), registered_.device_data(), geometry_.blocks};
  }

 private:
  void register_host_part();

  KvGeometry geometry_;
  cuda::DeviceMemory memory_;
  std::string handle_;
  KvPool host_part_;
  cuda::RegisteredMemory registered_;  // the host part
};

/// One gather kernel a pull, on a stream of its own. Used by the pull thread alone. Of an
/// exporter's host part, the slices that pulls read are page-locked, a few with each pull: all of a
/// large part at once would take longer than the scheduler waits. Blocks elsewhere, or all of them
/// where the device has no read-only registration, take a way through page-locked buffers of this
/// process.
class CudaBlockReader final : public BlockReader {
 public:
  struct Options {
    std::size_t slice_bytes = std::size_t{1} << 30U;  // a multiple of the page size
    int slices_a_pull = 4;                            // 53 to 143 ms each (H200)
    std::string run_dir = {};                         // where memory processes listen
    ModelCut cut = {};                                // which of a model's heads the own pool has,
    int kv_heads = 0;  // and how many there are of them; 0: all, as the pool has
    std::shared_ptr<PoolNumbers> pools = {};  // null: no row reads another pool in place
    std::shared_ptr<HolderDevices> holders = {};  // null: none but the own device attends to them
  };
  CudaBlockReader(const CudaPool& pool, cuda::DeviceInfo device, Options options);
  CudaBlockReader(const CudaPool& pool, cuda::DeviceInfo device)
      : CudaBlockReader(pool, std::move(device), Options()) {}
  ~CudaBlockReader() override;
  Result<std::unique_ptr<MappedPool>> map(const Pull& pull) override;
  Status copy(MappedPool& exported, const Pull& pull) override;
  Status place(MappedPool& exported, const Pull& pull) override;
  Result<std::vector<std::uint64_t>> sums(const std::vector<BlockId>& blocks) override;

 private:
  struct Lane;    // stream, event and id lists, made by the thread that uses them
  struct Stage;   // a buffer for blocks on their way
  struct Mapped;  // another process's pool
  bool page_lock(Mapped& exported, BlockId host_block, int& slices_left) const;
  /// Its heads of one rank of an exporter.
  struct Source;
  Result<UniqueFd> hold(const std::string& handle) const;
  void gather(const Mapped& exported, const std::vector<BlockId>& from,
              const std::vector<BlockId>& to);
  Status make_stages();
  void copy_staged(const std::byte* host_part, const std::vector<BlockId>& from,
                   const std::vector<BlockId>& to);

  const CudaPool& pool_;
  const cuda::DeviceInfo device_;
  const Options options_;
  std::unique_ptr<Lane> lane_;
  std::unique_ptr<Stage> stages_[2];  // made when first needed
};

}  // namespace baton
