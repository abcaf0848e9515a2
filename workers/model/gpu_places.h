// Where parameters lie in their one allocation. Inside of gpu_weights.cpp and its helpers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "workers/cuda/layer/expert_layout.h"
#include "workers/cuda/linear/linear.h"
#include "workers/cuda/types.h"
#include "workers/model/gpu_format.h"

namespace baton {

/// Hands out places in one allocation; without memory it only counts.
class GpuPlaces {
 public:
  explicit GpuPlaces(std::byte* base) : base_(base) {}
  cuda::Bf16* take(std::size_t elements) { return take_as<cuda::Bf16>(elements); }
  cuda::LinearWeight matrix(std::int64_t out, std::int64_t in) {
    return {take(size(out * in)), static_cast<int>(out), static_cast<int>(in)};
  }
  cuda::LinearWeight matrix(std::int64_t out, std::int64_t in, const LinearFormat& format) {
    if (format.format == cuda::WeightFormat::bf16) return matrix(out, in);
    cuda::LinearWeight w{nullptr, static_cast<int>(out), static_cast<int>(in)};
    cuda::QuantizedWeight& q = w.quantized;
    q.format = format.format;
    q.groups = format.groups;
    q.group_shift = format.group_shift;
    q.words = take_as<std::uint32_t>(cuda::weight_words(q.format, w.out, w.in));
    q.scales = take_as<std::uint32_t>(cuda::scale_words(w.out, q.groups));
    if (format.shared_scales) {
      q.shared_scales = take_as<std::uint32_t>(cuda::shared_scale_words(w.out, q.groups));
    }
    if (format.ordered) q.order = take_as<std::int32_t>(size(in));
    return w;
  }
  /// All experts' matrices [out, in].
  cuda::ExpertWeight experts(cuda::ExpertFormat format, int count, int out, int in) {
    return {format, take_as<std::byte>(size(count) * cuda::expert_bytes(format, out, in))};
  }
  template <typename T>
  T* take_as(std::size_t elements) {
    const std::size_t at = used_;
    used_ += (elements * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  std::size_t used() const { return used_; }

 private:
  static constexpr std::size_t kAlign = 256;
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  std::byte* base_;
  std::size_t used_ = 0;
};

/// Experts in bf16 as the matrix they are.
inline const cuda::Bf16* bf16_of(const cuda::ExpertWeight& w) {
  return reinterpret_cast<const cuda::Bf16*>(w.data);
}

}  // namespace baton
