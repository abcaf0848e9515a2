// How experts that stay quantised get to a GPU: some at a time are brought as other matrices are,
// whatever a rank takes of them, and packed from there into the layout of experts
// (workers/cuda/layer/experts_load.h). FP8 comes widened to bf16, with the checkpoint's scales
// beside it; int4 as linear layers in int4.
#pragma once

#include <vector>

#include "workers/cuda/device.h"
#include "workers/cuda/layer/expert_layout.h"
#include "workers/cuda/linear/linear.h"
#include "workers/model/gpu_format.h"
#include "workers/model/gpu_layer_cut.h"

namespace baton {

/// Whether experts of this format come by way of a stage.
inline bool wants_stage(cuda::ExpertFormat format) {
  return format == cuda::ExpertFormat::fp8 || format == cuda::ExpertFormat::int4;
}

/// Room for some of a layer's experts, half a GiB of the device or one expert.
class ExpertStage {
 public:
  /// Of a rank: `intermediate` features of each expert. `format`: FP8 or int4, whose matrices'
  /// formats are `parts`. Throws CudaError.
  ExpertStage(cuda::ExpertFormat format, const ExpertParts& parts, int count, int hidden,
              int intermediate);

  /// How many it holds.
  int places() const { return places_; }
  /// Where the matrices of an expert of the layer are to be brought to, in bf16 or int4.
  cuda::LinearWeight gate_up(int expert) const;
  cuda::LinearWeight down(int expert) const;
  /// And what they are brought from: of FP8 the scales are taken from there.
  void take_scales(int expert, const std::vector<MatrixPiece>& gate_up, const MatrixPiece& down);
  /// `n` experts of the layer from `first` on, a multiple of places(), when all of them have been
  /// brought, scales and matrices. Throws CudaError.
  void pack(int first, int n, const cuda::ExpertWeight& gate_up, const cuda::ExpertWeight& down);

 private:
  struct Part {
    int out = 0, in = 0;
    LinearFormat format;        // bf16 or int4
    std::size_t each = 0;       // bytes of a place
    cuda::DeviceMemory values;  // [places]
    std::vector<float> scales;  // of FP8: [places][out, units]
  };
  cuda::LinearWeight at(const Part& part, int expert) const;
  void clear(const Part& part, cuda::Stream stream) const;
  void pack(const Part& part, int first, int n, const cuda::ExpertWeight& to) const;

  cuda::ExpertFormat format_;
  int places_ = 1;
  Part gate_up_, down_;
};

}  // namespace baton
