#include "workers/model/gpu_expert_stage.h"

#include <algorithm>

#include "workers/cuda/layer/experts_load.h"
#include "workers/model/gpu_places.h"

namespace baton {
namespace {

using cuda::ExpertFormat;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

std::size_t bytes_of(std::int64_t out, std::int64_t in, const LinearFormat& format) {
  GpuPlaces counted(nullptr);
  counted.matrix(out, in, format);
  return counted.used();
}

}  // namespace

ExpertStage::ExpertStage(ExpertFormat format, const ExpertParts& parts, int count, int hidden,
                         int intermediate)
    : format_(format) {
  gate_up_ = {2 * intermediate, hidden, parts.gate_up, 0, {}, {}};
  down_ = {hidden, intermediate, parts.down, 0, {}, {}};
  for (Part* part : {&gate_up_, &down_}) part->each = bytes_of(part->out, part->in, part->format);
  constexpr std::size_t kBytes = std::size_t{512} << 20U;
  places_ = static_cast<int>(
      std::clamp<std::size_t>(kBytes / (gate_up_.each + down_.each), 1, size(count)));
  const cuda::OwnedStream stream;
  for (Part* part : {&gate_up_, &down_}) {
    part->values = cuda::DeviceMemory(size(places_) * part->each);
    if (format == ExpertFormat::fp8) {
      part->scales.resize(size(places_) * size(part->out) * size(cuda::expert_units(part->in)));
    }
    clear(*part, stream.get());
  }
  stream.synchronize();
}

/// What is brought in int4 is or-ed into its words, which must be noughts before.
void ExpertStage::clear(const Part& part, cuda::Stream stream) const {
  if (format_ != ExpertFormat::int4) return;
  cuda::fill_bytes(part.values.data(), 0, part.values.bytes(), stream);
}

cuda::LinearWeight ExpertStage::at(const Part& part, int expert) const {
  GpuPlaces place(part.values.as<std::byte>() + part.each * size(expert % places_));
  return place.matrix(part.out, part.in, part.format);
}

cuda::LinearWeight ExpertStage::gate_up(int expert) const { return at(gate_up_, expert); }

cuda::LinearWeight ExpertStage::down(int expert) const { return at(down_, expert); }

void ExpertStage::take_scales(int expert, const std::vector<MatrixPiece>& gate_up,
                              const MatrixPiece& down) {
  if (format_ != ExpertFormat::fp8) return;
  const auto put = [place = expert % places_](Part& part, const std::vector<MatrixPiece>& pieces) {
    const std::vector<float> scales = fp8_unit_scales(pieces, part.out);
    std::copy(scales.begin(), scales.end(),
              part.scales.begin() + static_cast<std::ptrdiff_t>(scales.size()) * place);
  };
  put(gate_up_, gate_up);
  put(down_, {down});
}

void ExpertStage::pack(const Part& part, int first, int n, const cuda::ExpertWeight& to) const {
  const cuda::OwnedStream stream;
  const std::size_t bytes = cuda::expert_bytes(format_, part.out, part.in);
  const auto place = [&](int e) {
    return const_cast<std::byte*>(to.data) + bytes * size(first + e);
  };
  if (format_ == ExpertFormat::int4) {
    for (int e = 0; e < n; ++e) {
      cuda::pack_int4(at(part, e).quantized, part.out, part.in, place(e), stream.get());
    }
    clear(part, stream.get());
    return stream.synchronize();
  }
  cuda::DeviceMemory scales(part.scales.size() * sizeof(float));
  cuda::copy_to_device(scales.data(), part.scales.data(), scales.bytes(), stream.get());
  const std::int64_t scales_each = std::int64_t{part.out} * cuda::expert_units(part.in);
  for (int e = 0; e < n; ++e) {
    cuda::pack_fp8({part.out, part.in, at(part, e).data, scales.as<float>() + scales_each * e},
                   place(e), stream.get());
  }
  stream.synchronize();
}

void ExpertStage::pack(int first, int n, const cuda::ExpertWeight& gate_up,
                       const cuda::ExpertWeight& down) {
  pack(gate_up_, first, n, gate_up);
  pack(down_, first, n, down);
}

}  // namespace baton
