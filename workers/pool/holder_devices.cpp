#include "workers/pool/holder_devices.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

namespace baton {

namespace {

/// Its own workers may still need some memory there: to record graphs, for libraries.
constexpr std::size_t kLeft = std::size_t{512} << 20;

}  // namespace

HeldPool::HeldPool(int device, const std::string& handle) : device_(device) {
  const cuda::OnDevice on(device);
  memory_ = std::make_unique<cuda::ImportedMemory>(handle);
}

HeldPool::~HeldPool() {
  try {
    const cuda::OnDevice on(device_);
    memory_.reset();
  } catch (const cuda::CudaError&) {  // a device that failed: the process ends
  }
}

std::unique_ptr<HeldPool> HolderDevices::map(const std::string& uuid, const std::string& handle) {
  try {
    const auto device = cuda::find_device(uuid);
    if (!device) {
      refuse(uuid, "this process does not see it");
      return nullptr;
    }
    if (*device == own_) return nullptr;  // its keys are near
    if (find(*device) == nullptr && !make(*device, uuid)) return nullptr;
    return std::make_unique<HeldPool>(*device, handle);
  } catch (const cuda::CudaError& e) {
    refuse(uuid, e.what());
    return nullptr;
  }
}

/// False: it is read over the link for good. What was taken there before it refused is not given
/// back.
bool HolderDevices::make(int device, const std::string& uuid) {
  if (given_up_.count(device) > 0) return false;
  try {
    auto made = std::make_unique<cuda::OtherDevice>(device, own_, input_bytes_);
    {
      const cuda::OnDevice on(device);
      if (load_) load_();
      const std::size_t free = cuda::memory_info().free;
      if (free < kLeft) {
        throw cuda::CudaError("only " + std::to_string(free >> 20U) + " MiB are free there");
      }
    }
    const std::lock_guard lock(mutex_);
    devices_[device] = std::move(made);
  } catch (const cuda::CudaError& e) {
    given_up_.insert(device);
    refuse(uuid, e.what());
    return false;
  }
  spdlog::info("keys on {} are attended to there: some 500 MiB of its memory are this process's",
               uuid);
  return true;
}

void HolderDevices::look() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [ordinal, device] : devices_) device->look();
}

void HolderDevices::refuse(const std::string& uuid, const std::string& why) {
  if (!refused_.insert(uuid).second) return;
  spdlog::info("keys on {} are read over the link: {}", uuid, why);
}

const cuda::OtherDevice* HolderDevices::find(int device) const {
  const std::lock_guard lock(mutex_);
  const auto it = devices_.find(device);
  return it == devices_.end() ? nullptr : it->second.get();
}

}  // namespace baton
