#include "workers/model/gpu_fp8_experts.h"

#include <algorithm>

#include "workers/cuda/layer/experts_load.h"

namespace baton {
namespace {

using cuda::Bf16;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace

Fp8ExpertStage::Fp8ExpertStage(int count, int hidden, int intermediate) {
  constexpr std::size_t kBytes = std::size_t{512} << 20U;
  const std::size_t each = 3 * size(hidden) * size(intermediate) * sizeof(Bf16);
  places_ = static_cast<int>(std::clamp<std::size_t>(kBytes / each, 1, size(count)));
  const auto room = [count = places_](Part& part, int out, int in) {
    part.out = out;
    part.in = in;
    part.values = cuda::DeviceMemory(size(count) * size(out) * size(in) * sizeof(Bf16));
    part.scales.resize(size(count) * size(out) * size(cuda::expert_units(in)));
  };
  room(gate_up_, 2 * intermediate, hidden);
  room(down_, hidden, intermediate);
}

cuda::LinearWeight Fp8ExpertStage::at(const Part& part, int expert) const {
  return {part.values.as<Bf16>() + std::int64_t{part.out} * part.in * (expert % places_), part.out,
          part.in};
}

cuda::LinearWeight Fp8ExpertStage::gate_up(int expert) const { return at(gate_up_, expert); }

cuda::LinearWeight Fp8ExpertStage::down(int expert) const { return at(down_, expert); }

void Fp8ExpertStage::take_scales(int expert, const std::vector<MatrixPiece>& gate_up,
                                 const MatrixPiece& down) {
  const auto put = [place = expert % places_](Part& part, const std::vector<MatrixPiece>& pieces) {
    const std::vector<float> scales = fp8_unit_scales(pieces, part.out);
    std::copy(scales.begin(), scales.end(),
              part.scales.begin() + static_cast<std::ptrdiff_t>(scales.size()) * place);
  };
  put(gate_up_, gate_up);
  put(down_, {down});
}

void Fp8ExpertStage::pack(const Part& part, int first, int n, const cuda::ExpertWeight& to) {
  const cuda::OwnedStream stream;
  cuda::DeviceMemory scales(part.scales.size() * sizeof(float));
  cuda::copy_to_device(scales.data(), part.scales.data(), scales.bytes(), stream.get());
  const std::size_t bytes = cuda::expert_bytes(cuda::ExpertFormat::fp8, part.out, part.in);
  const std::int64_t scales_each = std::int64_t{part.out} * cuda::expert_units(part.in);
  for (int e = 0; e < n; ++e) {
    cuda::pack_fp8({part.out, part.in, at(part, e).data, scales.as<float>() + scales_each * e},
                   const_cast<std::byte*>(to.data) + bytes * size(first + e), stream.get());
  }
  stream.synchronize();
}

void Fp8ExpertStage::pack(int first, int n, const cuda::ExpertWeight& gate_up,
                          const cuda::ExpertWeight& down) {
  pack(gate_up_, first, n, gate_up);
  pack(down_, first, n, down);
}

}  // namespace baton
