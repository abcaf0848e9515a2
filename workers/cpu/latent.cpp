// Operations of attention over latent keys and values: what every token leaves in the pool is one
// vector for all heads, and heads look at it through matrices of their own.
#include <algorithm>
#include <cstring>

#include "workers/cpu/step_ops.h"

namespace baton::cpu {

void StepOps::latent_append(Rows kv, const LatentShape& shape, const float* norm, float eps,
                            bool interleaved, std::span<const RowPlace> places, KvLayer layer) {
  const auto rope = interleaved ? kernels_.rope_interleaved : kernels_.rope;
  const std::uint64_t offset = kv_offset_in_block(*layer.geometry, layer.layer, KvPart::key, 0, 0);
  for_rows(kv.rows, kv.columns, [&](int r) {
    const RowPlace& place = places[static_cast<std::size_t>(r)];
    float* row = kv.row(r);
    kernels_.rms_norm(row, norm, row, shape.rank, eps);
    rope(row + shape.rank, 1, shape.rope, shape.rope, place.cos, place.sin);
    if (!layer.writes) return;
    std::memcpy(layer.base + place.slot + offset, row,
                static_cast<std::size_t>(shape.width()) * sizeof(float));
  });
}

void StepOps::latent_split(Rows q, const LatentShape& shape, bool interleaved,
                           std::span<const RowPlace> places, Rows by_head, Rows wide) {
  const auto rope = interleaved ? kernels_.rope_interleaved : kernels_.rope;
  for_rows(q.rows, q.columns, [&](int r) {
    const RowPlace& place = places[static_cast<std::size_t>(r)];
    for (int h = 0; h < shape_.heads; ++h) {
      const float* head = q.row(r) + std::int64_t{h} * (shape.plain + shape.rope);
      std::copy_n(head, shape.plain, by_head.row(h * q.rows + r));
      float* turned = wide.row(r) + std::int64_t{h} * shape.width() + shape.rank;
      std::copy_n(head + shape.plain, shape.rope, turned);
      rope(turned, 1, shape.rope, shape.rope, place.cos, place.sin);
      if (place.query_factor == 1) continue;
      float* const plain = by_head.row(h * q.rows + r);
      for (int i = 0; i < shape.plain; ++i) plain[i] *= place.query_factor;
      for (int i = 0; i < shape.rope; ++i) turned[i] *= place.query_factor;
    }
  });
}

void StepOps::heads_to_rows(Rows by_head, int width, int stride, Rows wide) {
  for_rows(wide.rows, wide.columns, [&](int r) {
    for (int h = 0; h < shape_.heads; ++h) {
      std::copy_n(by_head.row(h * wide.rows + r), width, wide.row(r) + std::int64_t{h} * stride);
    }
  });
}

void StepOps::rows_to_heads(Rows wide, int width, int stride, Rows by_head) {
  for_rows(wide.rows, wide.columns, [&](int r) {
    for (int h = 0; h < shape_.heads; ++h) {
      std::copy_n(wide.row(r) + std::int64_t{h} * stride, width, by_head.row(h * wide.rows + r));
    }
  });
}

}  // namespace baton::cpu
