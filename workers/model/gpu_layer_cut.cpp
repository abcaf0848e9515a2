#include "workers/model/gpu_layer_cut.h"

#include "workers/cuda/layer/expert_layout.h"

namespace baton {

namespace {

void append(std::vector<float>& to, const std::vector<float>& all, std::int64_t first,
            std::int64_t count) {
  const auto begin = all.begin() + first;
  to.insert(to.end(), begin, begin + count);
}

}  // namespace

LayerCut::LayerCut(const ModelConfig& c, const GpuCut& cut, int intermediate)
    : middle(features_of(c, cut, intermediate)),
      hidden(cut.part(c.hidden)),
      whole(cut.whole()),
      by_outputs(cut.by_outputs) {
  const auto dims = [&c](const Slice& heads) {
    return Slice{heads.first * c.head_dim, heads.count * c.head_dim};
  };
  q = dims(cut.heads(c));
  kv = dims(cut.kv_heads(c));
}

std::vector<MatrixPiece> pieces_of_qkv(const LayerSource& from, const ModelConfig& c,
                                       const LayerCut& cut) {
  const bool fused = from.k.rows() == 0;
  const std::int64_t k_first = fused ? std::int64_t{c.heads} * c.head_dim : 0;
  const std::int64_t v_first = fused ? k_first + std::int64_t{c.kv_heads} * c.head_dim : 0;
  const Slice columns{0, c.hidden};
  if (fused && cut.whole) return {{&from.q, {0, from.q.rows()}, columns, 0, false}};
  return {{&from.q, cut.q, columns, 0, false},
          {fused ? &from.q : &from.k,
           {k_first + cut.kv.first, cut.kv.count},
           columns,
           cut.q.count,
           false},
          {fused ? &from.q : &from.v,
           {v_first + cut.kv.first, cut.kv.count},
           columns,
           cut.q.count + cut.kv.count,
           false}};
}

std::vector<MatrixPiece> pieces_of_up(const FeedForwardSource& from, const MlpSpec& spec,
                                      const LayerCut& cut) {
  if (!spec.gated) return {{&from.up, cut.middle, {0, from.up.columns()}, 0, false}};
  const bool fused = from.up.rows() == 0;
  const Slice columns{0, from.gate.columns()};
  const std::int64_t up_first = fused ? spec.intermediate : 0;
  return {{&from.gate, cut.middle, columns, 0, true},
          {fused ? &from.gate : &from.up,
           {up_first + cut.middle.first, cut.middle.count},
           columns,
           8,
           true}};
}

MatrixPiece piece_behind(const LinearSource& from, const LayerCut& cut, const Slice& columns) {
  if (cut.by_outputs) return {&from, cut.hidden, {0, from.columns()}, 0, false};
  return {&from, {0, from.rows()}, columns, 0, false};
}

std::vector<float> qkv_part(const std::vector<float>& all, const ModelConfig& c,
                            const LayerCut& cut) {
  if (all.empty() || cut.whole) return all;
  const std::int64_t k_first = std::int64_t{c.heads} * c.head_dim;
  const std::int64_t v_first = k_first + std::int64_t{c.kv_heads} * c.head_dim;
  std::vector<float> mine;
  append(mine, all, cut.q.first, cut.q.count);
  append(mine, all, k_first + cut.kv.first, cut.kv.count);
  append(mine, all, v_first + cut.kv.first, cut.kv.count);
  return mine;
}

std::vector<float> up_part(const std::vector<float>& all, const MlpSpec& spec,
                           const LayerCut& cut) {
  if (all.empty() || cut.whole) return all;
  std::vector<float> mine;
  append(mine, all, cut.middle.first, cut.middle.count);
  if (spec.gated) append(mine, all, spec.intermediate + cut.middle.first, cut.middle.count);
  return mine;
}

std::vector<float> numbers_of(const std::vector<float>& all, const Slice& slice) {
  std::vector<float> mine;
  if (!all.empty()) append(mine, all, slice.first, slice.count);
  return mine;
}

std::vector<float> fp8_unit_scales(const std::vector<MatrixPiece>& pieces, std::int64_t rows) {
  const std::int64_t units = cuda::expert_units(static_cast<int>(pieces.front().columns.count));
  std::vector<float> scales(static_cast<std::size_t>(rows * units));
  for (const MatrixPiece& piece : pieces) {
    const Fp8Weight& fp8 = *piece.from->fp8;
    for (std::int64_t r = 0; r < piece.rows.count; ++r) {
      const std::int64_t row = piece.row + (piece.interleaved ? r / 8 * 16 + r % 8 : r);
      const std::int64_t line = (piece.rows.first + r) / fp8.block_rows * fp8.scales.columns;
      for (std::int64_t unit = 0; unit < units; ++unit) {
        const std::int64_t column = piece.columns.first + unit * cuda::kExpertUnit;
        scales[static_cast<std::size_t>(row * units + unit)] =
            cpu::element(fp8.scales.data, fp8.scales.type, line + column / fp8.block_columns);
      }
    }
  }
  return scales;
}

}  // namespace baton
