// Which kernels a worker on a GPU computes with: by timing at its start, or as an earlier process
// of the same program, device, model and settings has found.
#pragma once

#include <cstdint>
#include <string>

#include "workers/cuda/device.h"
#include "workers/model/gpu_decoder.h"

namespace baton {

/// What choices follow from beside the model.
struct KernelsRequest {
  std::string run_dir;  // where they are kept
  cuda::DeviceInfo device;
  GpuDecoder::Options options;
  std::uint32_t tokens_per_block = 0;
};

/// Waits for the device where it times. Throws CudaError.
void choose_kernels(GpuDecoder& decoder, const KernelsRequest& request, cuda::Stream stream);

}  // namespace baton
