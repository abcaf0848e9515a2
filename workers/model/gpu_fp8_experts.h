// How experts in FP8 get to a GPU on which they stay so: a layer of them is widened to bf16 as any
// other matrices are, whatever a rank takes of it, some experts at a time, and packed from there
// with the scales of the checkpoint (workers/cuda/layer/experts_load.h says why that is exact).
#pragma once

#include <vector>

#include "workers/cuda/device.h"
#include "workers/cuda/layer/expert_layout.h"
#include "workers/cuda/linear/linear.h"
#include "workers/model/gpu_layer_cut.h"

namespace baton {

/// Room for some of a layer's experts, half a GiB of the device or one expert.
class Fp8ExpertStage {
 public:
  /// Of a rank: `intermediate` features of each expert. Throws CudaError.
  Fp8ExpertStage(int count, int hidden, int intermediate);

  /// How many it holds.
  int places() const { return places_; }
  /// Where the matrices of an expert of the layer are to be brought to in bf16.
  cuda::LinearWeight gate_up(int expert) const;
  cuda::LinearWeight down(int expert) const;
  /// And what they are brought from.
  void take_scales(int expert, const std::vector<MatrixPiece>& gate_up, const MatrixPiece& down);
  /// `n` experts of the layer from `first` on, a multiple of places(), when all of them have been
  /// brought, scales and matrices. Throws CudaError.
  void pack(int first, int n, const cuda::ExpertWeight& gate_up, const cuda::ExpertWeight& down);

 private:
  struct Part {
    int out = 0, in = 0;
    cuda::DeviceMemory values;  // [places][out, in], bf16
    std::vector<float> scales;  // [places][out, units]
  };
  cuda::LinearWeight at(const Part& part, int expert) const;
  void pack(const Part& part, int first, int n, const cuda::ExpertWeight& to);

  int places_ = 1;
  Part gate_up_, down_;
};

}  // namespace baton
