#include "workers/execute/gpu_travel.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace baton {

namespace {

constexpr std::int64_t kAllInPlaceKeys = std::numeric_limits<std::int64_t>::max();
/// No link between GPUs is quicker (NVLink 4, one way).
constexpr double kLinkBytesPerUs = 450e3;

}  // namespace

GpuTravel::GpuTravel(const GpuDecoder& decoder, std::shared_ptr<PoolNumbers> pools,
                     std::shared_ptr<HolderDevices> holders, std::uint32_t in_place_keys,
                     std::uint64_t key_bytes)
    : decoder_(decoder),
      numbers_(std::move(pools)),
      holders_(std::move(holders)),
      in_place_keys_(in_place_keys),
      key_link_us_(static_cast<double>(key_bytes) / kLinkBytesPerUs) {}

/// Pools are made before: a GPU that is full has none.
bool GpuTravel::has_workspace() {
  if (workspace_.bytes() > 0 || no_room_) return !no_room_;
  try {
    workspace_ = cuda::DeviceMemory(
        decoder_.decode_attention().workspace_bytes(GpuStepPacker::kTravelSlots));
  } catch (const cuda::CudaError& e) {
    spdlog::info("keys on other GPUs are read over the link: {}", e.what());
    no_room_ = true;
  }
  return !no_room_;
}

void GpuTravel::tell(Timed& timed) {
  if (std::exchange(timed.told, true)) return;
  const double us = cuda::OwnedEvent::microseconds(timed.begin, timed.end);
  const bool before = choice_.travels(true);
  choice_.told(timed.travelled, us, timed.link_us);
  if (before != choice_.travels(true)) {
    spdlog::debug("keys on other GPUs are {} after a step of {:.0f} us",
                  before ? "read over the link" : "attended to there", us);
  }
}

const GpuPools& GpuTravel::pools(int lane, bool decodes_only) {
  tell(timed_[lane]);
  pools_.in_place_keys = choice_.travels(decodes_only) ? in_place_keys_ : kAllInPlaceKeys;
  pools_.offsets = numbers_->offsets();
  for (std::int64_t& offset : pools_.offsets) offset = pool_elements(offset);
  pools_.held.assign(pools_.offsets.size(), 0);
  pools_.device.assign(pools_.offsets.size(), 0);
  pools_.others.clear();
  if (!holders_) return pools_;
  const std::vector<PoolNumbers::Held> held = numbers_->holders();
  for (std::size_t i = 0; i < std::min(held.size(), pools_.device.size()); ++i) {
    const cuda::OtherDevice* const holder = device(held[i].device);
    if (holder == nullptr || !has_workspace()) continue;
    pools_.others.push_back({holder, static_cast<std::uint32_t>(i)});
    pools_.held[i] = pool_elements(held[i].offset);
    pools_.device[i] = static_cast<int>(pools_.others.size());
  }
  return pools_;
}

const cuda::OtherDevice* GpuTravel::device(int ordinal) const {
  return !holders_ || ordinal < 0 ? nullptr : holders_->find(ordinal);
}

void GpuTravel::begin(GpuStepPacker::Packed& packed, const std::byte* inputs,
                      const std::byte* uploaded, bool decodes_only, int lane, cuda::Stream stream) {
  Timed& timed = timed_[lane];
  timed.told = !decodes_only || packed.keys_elsewhere <= in_place_keys_;
  if (!timed.told) {
    timed.travelled = !packed.travel.parts.empty();
    timed.link_us = key_link_us_ * static_cast<double>(packed.keys_elsewhere);
    timed.begin.record(stream);
  }
  if (packed.travel.parts.empty()) return;
  send(packed.travel, inputs, packed.bytes, uploaded, stream);
  packed.batch.travel = &packed.travel;
}

void GpuTravel::send(cuda::TravelWork& travel, const std::byte* inputs, std::size_t bytes,
                     const std::byte* uploaded, cuda::Stream stream) {
  if (!std::exchange(zeroed_, true)) {
    cuda::fill_bytes(workspace_.data(), 0, workspace_.bytes(), stream);
  }
  std::vector<const cuda::OtherDevice*> sent;
  for (cuda::TravelPart& part : travel.parts) {
    if (part.device == nullptr) continue;
    if (std::find(sent.begin(), sent.end(), part.device) == sent.end()) {
      part.device->upload(inputs, bytes);
      sent.push_back(part.device);
    }
    part = moved(part, uploaded, part.device->inputs());
  }
  travel.asked = &asked_;
  travel.workspace = workspace_.data();
}

void GpuTravel::look() const {
  if (holders_) holders_->look();
}

void GpuTravel::end(int lane, cuda::Stream stream) const {
  if (!timed_[lane].told) timed_[lane].end.record(stream);
}

}  // namespace baton
