// Weights of linear layers that stay whole numbers in memory: their packing into panels; the
// kernels are in grouped_impl.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "workers/cpu/kernels.h"
#include "workers/cpu/packing.h"
#include "workers/cpu/thread_pool.h"

namespace baton::cpu {

/// How a matrix of whole numbers is stored in memory.
struct GroupedType {
  WeightType type = WeightType::int8;
  GroupFormat format;

  bool operator==(const GroupedType&) const = default;
};

/// A matrix [out, in] of whole numbers; w as GroupFormat says.
struct GroupedMatrix {
  std::int64_t out = 0;
  std::int64_t in = 0;
  GroupedType type;
  std::vector<std::int8_t> q;  // [out][in]; of int4 in [0, 15]
  std::vector<float> scale;    // [out][in / group]
  std::vector<float> second;   // likewise; empty where there is none
  std::string name = {};       // for messages: file and tensor
};

/// The narrowest type that holds matrices of both exactly; false if there is none. Panels of one
/// matrix have one type, and q, k and v make one matrix.
bool join_types(GroupedType& type, const GroupedType& other);

/// Packs the parts, stacked along their rows, or (`paired`) two of the same shape with alternating
/// panels, as pack_stacked() and pack_paired() do. `panels` holds panel_bytes() a panel of `type`,
/// which holds the parts' types. Empty columns are zero.
void pack_grouped(std::span<const GroupedMatrix> parts, bool paired, const GroupedType& type,
                  ThreadPool& pool, void* panels);

/// Output `row` of a packed matrix of whole numbers as fp32, [in]: a row of the matrix that was
/// packed.
void widen_row(const PackedMatrix& matrix, int row, float* result);

/// Writes the same numbers as fp32, [out, in]; or rows [first, first + rows) of them.
void widen(const GroupedMatrix& matrix, ThreadPool& pool, float* result);
void widen_rows(const GroupedMatrix& matrix, std::int64_t first, std::int64_t rows,
                ThreadPool& pool, float* result);

}  // namespace baton::cpu
