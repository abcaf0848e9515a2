// What a worker on a GPU needs so that the queries of its rows travel to keys on other GPUs
// (workers/cuda/attention/travel.h): where pools lie, room for what comes back, the steps' uploads,
// and how long steps took, by which it is chosen again whether anything travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "workers/cuda/device.h"
#include "workers/execute/gpu_step.h"
#include "workers/execute/travel_choice.h"
#include "workers/pool/holder_devices.h"
#include "workers/pool/pool_numbers.h"

namespace baton {

/// Of the step thread. Up to two steps are on the device at a time, in lanes 0 and 1.
class GpuTravel {
 public:
  /// `holders`: null: nothing travels. `key_bytes`: keys and values of a token, of all layers.
  GpuTravel(const GpuDecoder& decoder, std::shared_ptr<PoolNumbers> pools,
            std::shared_ptr<HolderDevices> holders, std::uint32_t in_place_keys,
            std::uint64_t key_bytes);

  /// Makes room for partial results, once. False: there is none, and nothing travels.
  bool has_workspace();
  /// For the next step, of a lane whose last one has ended. Without other devices where nothing may
  /// travel.
  const GpuPools& pools(int lane, bool decodes_only);
  /// The step packed with them is on its way from `inputs` to `uploaded` on the own device: has
  /// what travels follow, as long as `packed` lives.
  void begin(GpuStepPacker::Packed& packed, const std::byte* inputs, const std::byte* uploaded,
             bool decodes_only, int lane, cuda::Stream stream);
  /// Of a device that PoolNumbers::Held names: null if this process has no kernels there.
  const cuda::OtherDevice* device(int ordinal) const;
  /// Has the devices of `travel` get the upload, too: its addresses, in `uploaded`, become theirs.
  void send(cuda::TravelWork& travel, const std::byte* inputs, std::size_t bytes,
            const std::byte* uploaded, cuda::Stream stream);
  /// Whether the other devices still work. Throws CudaError.
  void look() const;
  /// It is queued.
  void end(int lane, cuda::Stream stream) const;

 private:
  /// How long a step takes on the device.
  struct Timed {
    cuda::OwnedEvent begin{/*timing=*/true};
    cuda::OwnedEvent end{/*timing=*/true};
    bool told = true;  // there is nothing to tell
    bool travelled = false;
    double link_us = 0;
  };
  void tell(Timed& timed);

  const GpuDecoder& decoder_;
  const std::shared_ptr<PoolNumbers> numbers_;
  const std::shared_ptr<HolderDevices> holders_;
  const std::int64_t in_place_keys_;
  const double key_link_us_;
  GpuPools pools_;  // of the step at hand
  cuda::OwnedEvent asked_;
  cuda::DeviceMemory workspace_;  // made when first needed
  bool zeroed_ = false;
  bool no_room_ = false;
  TravelChoice choice_;
  Timed timed_[2];
};

}  // namespace baton
