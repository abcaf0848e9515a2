#include "workers/execute/gpu_progress.h"

#include "workers/cuda/device.h"

namespace baton {

namespace {

/// A callback holds the stream up for some ten microseconds: small steps tell their last layer
/// alone.
constexpr std::size_t kTokensOfEach = 256;

}  // namespace

void GpuProgress::begin(OfStep& of, const RunStep& step, int layers) {
  of.step = &step;
  of.layers = layers;
  of.each = step.tokens.size() >= kTokensOfEach;
  progress_.begin(step, of.awaited);
  of.tells.clear();
  of.tells.reserve(static_cast<std::size_t>(layers));
}

void GpuProgress::tell(OfStep& of, std::uint32_t layers, cuda::Stream stream) {
  const bool last = layers == static_cast<std::uint32_t>(of.layers);
  if (layers == 0 || of.awaited.in_vain() || !tells() || !(of.each || last)) return;
  of.tells.push_back({&progress_, of.step->term, of.step->step, layers, void_if_});
  cuda::call_host(
      stream,
      [](void* tell) {
        const auto& told = *static_cast<const Tell*>(tell);
        if (told.void_if != nullptr && told.void_if->load() != 0) return;
        told.to->written(told.term, told.step, told.layers);
      },
      &of.tells.back());
}

}  // namespace baton
