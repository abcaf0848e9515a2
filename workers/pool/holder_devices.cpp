#include "workers/pool/holder_devices.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace baton {

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
    if (find(*device) == nullptr) make(*device, uuid);
    return std::make_unique<HeldPool>(*device, handle);
  } catch (const cuda::CudaError& e) {
    refuse(uuid, e.what());
    return nullptr;
  }
}

void HolderDevices::make(int device, const std::string& uuid) {
  auto made = std::make_unique<cuda::OtherDevice>(device, own_, input_bytes_);
  const std::lock_guard lock(mutex_);
  devices_[device] = std::move(made);
  spdlog::info("keys on {} are attended to there: some 500 MiB of its memory are this process's",
               uuid);
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
