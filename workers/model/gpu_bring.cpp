#include "workers/model/gpu_bring.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "workers/model/gpu_expert_stage.h"
#include "workers/model/gpu_format.h"
#include "workers/model/stored_part.h"

namespace baton {

namespace {

using cuda::LinearWeight;

cuda::PartRows rows_at(const MatrixPiece& p) { return {static_cast<int>(p.row), p.interleaved}; }

/// Where the order of a quantised matrix's inputs goes, from the groups of one of its pieces.
void upload_order(const MatrixPiece& piece, const LinearWeight& to) {
  if (to.quantized.order == nullptr) return;
  const auto order = order_by_group(groups_within(piece.from->int4->group, piece.columns),
                                    to.quantized.group_shift);
  const cuda::OwnedStream stream;
  cuda::copy_to_device(const_cast<std::int32_t*>(to.quantized.order), order->data(),
                       order->size() * sizeof(std::int32_t), stream.get());
  stream.synchronize();
}

/// Formats that the host decodes: they become whole numbers, or fp32.
bool decoded_on_host(const LinearSource& source) { return source.blocks || source.lazy; }

/// From within a block into the next one.
bool parts_blocks(const Slice& some, std::int64_t block) {
  return some.first % block != 0 && some.first / block != (some.end() - 1) / block;
}

/// Rows or inputs of FP8 in blocks whose scales others share cannot be stored apart.
bool parts_blocks(const MatrixPiece& piece) {
  const auto& fp8 = piece.from->fp8;
  return fp8 && (parts_blocks(piece.rows, fp8->block_rows) ||
                 parts_blocks(piece.columns, fp8->block_columns));
}

}  // namespace

void GpuBring::matrix(const std::vector<MatrixPiece>& pieces, const LinearWeight& to) const {
  if (to.is_quantized()) return packed(pieces, to);
  for (const MatrixPiece& piece : pieces) widened(piece, to);
}

void GpuBring::all(const LinearSource& part, const LinearWeight& to) const {
  matrix({{&part, {0, part.rows()}, {0, part.columns()}}}, to);
}

void GpuBring::packed(const std::vector<MatrixPiece>& pieces, const LinearWeight& to) const {
  if (decoded_on_host(*pieces.front().from)) {
    std::vector<DecodedPart> parts;
    for (const MatrixPiece& p : pieces) parts.push_back({*p.from, p.rows, p.columns, rows_at(p)});
    return upload_.whole(std::move(parts), to);
  }
  upload_order(pieces.front(), to);
  for (const MatrixPiece& p : pieces) {
    upload_.packed(stored_part(*p.from, method_, p.rows, p.columns), rows_at(p), to.quantized);
  }
}

void GpuBring::widened(const MatrixPiece& p, const LinearWeight& to) const {
  const LinearSource& from = *p.from;
  if (decoded_on_host(from) || parts_blocks(p)) {
    upload_.widened({from, p.rows, p.columns, rows_at(p)}, to.data);
  } else if (from.quantized()) {
    upload_.dequantized(stored_part(from, method_, p.rows, p.columns), rows_at(p), to.data);
  } else if (p.columns.count == from.columns()) {
    upload_.plain(rows_of(from.plain, p.rows), to.data + p.row * to.in, p.interleaved);
  } else {
    upload_.columns(from.plain, p.columns, to.data);  // of what is cut by inputs: all of `to`
  }
}

void bring_by_stage(GpuUpload& upload, const GpuBring& bring, int ordinal, const ExpertSpec& spec,
                    const LayerCut& cut, const std::function<FeedForwardSource(int)>& expert,
                    ExpertStage& stage, const GpuLayer& layer) {
  for (int first = 0; first < spec.count; first += stage.places()) {
    const int n = std::min(stage.places(), spec.count - first);
    for (int e = first; e < first + n; ++e) {
      const FeedForwardSource from = expert(e);
      const std::vector<MatrixPiece> up = pieces_of_up(from, spec.expert, cut);
      const MatrixPiece down = piece_behind(from.down, cut, cut.middle);
      bring.matrix(up, stage.gate_up(e));
      bring.matrix({down}, stage.down(e));
      stage.take_scales(e, up, down);
    }
    std::atomic<int> ignored{0};
    upload.run(ordinal, ignored);
    stage.pack(first, n, layer.expert_gate_up, layer.expert_down);
  }
}

}  // namespace baton
