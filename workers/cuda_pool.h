// A worker's KV pool on its GPU, exported by cudaIpcMemHandle, and copies out of the pools of others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ipc/kv_layout.h"
#include "workers/cuda/device.h"
#include "workers/executor.h"

namespace baton {

/// One cudaMalloc.
class CudaPool {
 public:
  /// Throws CudaError.
  explicit CudaPool(const KvGeometry& geometry);
  /// Exported memory is not freed: importers may still read it, and the end of the process frees it.
  ~CudaPool() { memory_.leak(); }

  const KvGeometry& geometry() const { return geometry_; }
  std::byte* data() const { return memory_.data(); }
  const std::string& handle() const { return handle_; }

 private:
  KvGeometry geometry_;
  cuda::DeviceMemory memory_;
  std::string handle_;
};

/// One gather kernel a pull, on a stream of its own. Used by the pull thread alone.
class CudaBlockReader final : public BlockReader {
 public:
  CudaBlockReader(const CudaPool& pool, cuda::DeviceInfo device);
  ~CudaBlockReader() override;
  Result<std::unique_ptr<MappedPool>> map(const Pull& pull) override;
  Status copy(const MappedPool& source, const Pull& pull) override;

 private:
  struct Lane;  // stream, event and id lists, made by the thread that uses them
  const CudaPool& pool_;
  const cuda::DeviceInfo device_;
  std::unique_ptr<Lane> lane_;
};

}  // namespace baton
