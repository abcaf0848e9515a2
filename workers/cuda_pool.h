// A worker's KV pool on its GPU, exported by cudaIpcMemHandle, its host part in page-locked shared memory,
// and copies out of the pools of others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ipc/kv_layout.h"
#include "workers/cuda/blocks.h"
#include "workers/cuda/device.h"
#include "workers/executor.h"
#include "workers/kv_pool.h"

namespace baton {

/// One cudaMalloc, and one region of shared memory that the device reads and writes.
class CudaPool {
 public:
  /// `host_part`: PoolPart::host of the same shape, or KvPool() for none. Throws CudaError.
  explicit CudaPool(const KvGeometry& geometry, KvPool host_part = KvPool());
  /// Exported memory is not freed: importers may still read it, and the end of the process frees it.
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
  KvGeometry geometry_;
  cuda::DeviceMemory memory_;
  std::string handle_;
  KvPool host_part_;
  cuda::RegisteredMemory registered_;  // the host part
};

/// One gather kernel a pull, on a stream of its own. Used by the pull thread alone. A source's host part is
/// page-locked at the first pull that reads it; where the device has no read-only registration, its
/// blocks take a way through page-locked buffers of this process.
class CudaBlockReader final : public BlockReader {
 public:
  /// `stage_host_parts`: tests; never page-lock one.
  CudaBlockReader(const CudaPool& pool, cuda::DeviceInfo device, bool stage_host_parts = false);
  ~CudaBlockReader() override;
  Result<std::unique_ptr<MappedPool>> map(const Pull& pull) override;
  Status copy(MappedPool& source, const Pull& pull) override;

 private:
  struct Lane;   // stream, event and id lists, made by the thread that uses them
  struct Stage;  // a buffer for blocks on their way
  void gather(const cuda::ConstPoolParts& source, const std::vector<BlockId>& from,
              const std::vector<BlockId>& to);
  void copy_staged(const std::byte* host_part, const std::vector<BlockId>& from,
                   const std::vector<BlockId>& to);

  const CudaPool& pool_;
  const cuda::DeviceInfo device_;
  const bool stage_host_parts_;
  std::unique_ptr<Lane> lane_;
  std::unique_ptr<Stage> stages_[2];  // made when first needed
};

}  // namespace baton
