// Which stored layers become which matrix on a GPU, and by which way: as they are, repacked, or
// widened. What gpu_weights.cpp and gpu_general_weights.cpp share.
#pragma once

#include <functional>
#include <vector>

#include "workers/cuda/linear/linear.h"
#include "workers/cuda/linear/quantized_load.h"
#include "workers/model/checkpoint_reader.h"
#include "workers/model/config.h"
#include "workers/model/cut.h"
#include "workers/model/gpu_layer_cut.h"
#include "workers/model/gpu_upload.h"
#include "workers/model/gpu_weights.h"

namespace baton {

class GpuBring {
 public:
  /// `upload` outlives it.
  GpuBring(GpuUpload& upload, const Quantization& quantization)
      : upload_(upload), method_(quantization.method) {}

  /// All pieces of a matrix; of one that is cut by its inputs there is one.
  void matrix(const std::vector<MatrixPiece>& pieces, const cuda::LinearWeight& to) const;
  void all(const LinearSource& part, const cuda::LinearWeight& to) const;

 private:
  void packed(const std::vector<MatrixPiece>& pieces, const cuda::LinearWeight& to) const;
  void widened(const MatrixPiece& piece, const cuda::LinearWeight& to) const;

  GpuUpload& upload_;
  const QuantMethod method_;
};

class ExpertStage;
/// Brings a layer's experts, some at a time by way of `stage`, and does all jobs of `upload`.
/// `expert(e)` reads one; `layer` has their places.
void bring_by_stage(GpuUpload& upload, const GpuBring& bring, int ordinal, const ExpertSpec& spec,
                    const LayerCut& cut, const std::function<FeedForwardSource(int)>& expert,
                    ExpertStage& stage, const GpuLayer& layer);

}  // namespace baton
