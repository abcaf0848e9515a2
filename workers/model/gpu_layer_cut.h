// Which rows, columns and numbers of a layer's tensors a rank brings to its GPU, in the
// checkpoint's order. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "workers/model/checkpoint_reader.h"
#include "workers/model/config.h"
#include "workers/model/gpu_cut.h"

namespace baton {

struct LayerCut {
  Slice q, kv;   // rows of q; of k and of v
  Slice middle;  // features of a feed-forward part, or of each expert
  Slice hidden;  // where what they lead to is cut by outputs
  bool whole = true;
  bool by_outputs = false;
  /// `c`: the whole model's; `intermediate`: the features of the part in question.
  LayerCut(const ModelConfig& c, const GpuCut& cut, int intermediate);
};

/// Some rows and columns of a stored matrix, and which rows of the one on the GPU they become.
struct MatrixPiece {
  const LinearSource* from = nullptr;
  Slice rows, columns;
  std::int64_t row = 0;      // the first one's
  bool interleaved = false;  // eight rows, then room for eight
};

/// A rank's rows of q, k and v, also where one tensor has all three.
std::vector<MatrixPiece> pieces_of_qkv(const LayerSource& from, const ModelConfig& c,
                                       const LayerCut& cut);
/// A rank's rows of gate and up, eight of each in turns, also where one tensor has both; or of up
/// alone.
std::vector<MatrixPiece> pieces_of_up(const FeedForwardSource& from, const MlpSpec& spec,
                                      const LayerCut& cut);
/// Of a matrix that is cut by its inputs, or by outputs.
MatrixPiece piece_behind(const LinearSource& from, const LayerCut& cut, const Slice& columns);

// Vectors beside them; of an empty one nothing.

/// Numbers that q's, k's and v's columns have.
std::vector<float> qkv_part(const std::vector<float>& all, const ModelConfig& c,
                            const LayerCut& cut);
/// Numbers that gate's and then up's features have.
std::vector<float> up_part(const std::vector<float>& all, const MlpSpec& spec, const LayerCut& cut);
std::vector<float> numbers_of(const std::vector<float>& all, const Slice& slice);

/// The scales of a matrix in FP8 of `rows` features that becomes of some pieces: [rows, units],
/// where each unit of 64 inputs has one (expert_layout.h).
std::vector<float> fp8_unit_scales(const std::vector<MatrixPiece>& pieces, std::int64_t rows);

}  // namespace baton
