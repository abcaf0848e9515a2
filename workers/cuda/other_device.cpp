#include "workers/cuda/other_device.h"

namespace baton::cuda {

OtherDevice::OtherDevice(int ordinal, int own, std::size_t input_bytes) : ordinal_(ordinal) {
  if (ordinal != own) enable_peer_access(ordinal, own);
  const OnDevice on(ordinal);
  // Before the prompts that this process may compute there: its pieces hold a step up.
  stream_ = std::make_unique<OwnedStream>(/*high_priority=*/true);
  ended_ = std::make_unique<OwnedEvent>();
  inputs_ = DeviceMemory(input_bytes);
}

OtherDevice::~OtherDevice() {
  try {
    const OnDevice on(ordinal_);
    stream_->synchronize();
    ended_.reset();
    stream_.reset();
    inputs_ = DeviceMemory();
  } catch (const CudaError&) {  // a device that failed: the process ends
  }
}

void OtherDevice::upload(const std::byte* inputs, std::size_t bytes) const {
  const OnDevice on(ordinal_);
  copy_to_device(inputs_.data(), inputs, bytes, stream_->get());
}

void OtherDevice::look() const {
  const OnDevice on(ordinal_);
  static_cast<void>(ended_->ended());
}

}  // namespace baton::cuda
