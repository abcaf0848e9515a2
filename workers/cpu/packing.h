// Weights of linear layers, rearranged once at load time into the panels that LinearTask reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "workers/cpu/kernels.h"
#include "workers/cpu/thread_pool.h"

namespace baton::cpu {

/// Element types of stored weights.
enum class ElementType : std::uint8_t { f32, f16, bf16 };

constexpr std::int64_t element_bytes(ElementType type) { return type == ElementType::f32 ? 4 : 2; }

/// A row-major matrix [rows, columns] = [out, in]. Its memory is somebody else's, or `owner`'s.
struct MatrixSource {
  const std::byte* data = nullptr;
  ElementType type = ElementType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::shared_ptr<const void> owner = nullptr;
  std::string name = {};  // for messages: file and tensor
};

/// A packed weight, ready to multiply with. Does not own its memory.
struct PackedMatrix {
  const void* panels = nullptr;  // [panel_count][in][32]
  WeightType type = WeightType::f32;
  int panel_count = 0;
  int in = 0;
  int out = 0;          // columns of the result (gate and up together make one)
  bool paired = false;  // panels alternate gate, up
  GroupFormat format = {};  // of int8 and int4
};

constexpr std::int64_t panels_for(std::int64_t rows) {
  return (rows + kPanelColumns - 1) / kPanelColumns;
}

/// One element as fp32; exact for every type.
float element(const std::byte* data, ElementType type, std::int64_t index);

/// bf16 where every part is stored so, else f32: packed so, nothing is rounded.
WeightType packed_type(std::span<const MatrixSource> parts);

/// To the nearest bf16, ties to even; NaN stays NaN.
std::uint16_t round_to_bf16(float value);

/// An element that is NaN or infinite.
struct NotFinite {
  std::string name;  // of its matrix
  std::int64_t element = 0;
  float value = 0;
};

/// Packs the parts stacked along their rows (q, k, v make one matrix). `panels` holds
/// panels_for(sum of rows) * columns * 32 elements of `type`; empty columns are zero.
/// Threads share the panels. Returns an element that is no number if there is any; it is looked for
/// where the packing reads anyway.
std::optional<NotFinite> pack_stacked(std::span<const MatrixSource> parts, WeightType type,
                                      ThreadPool& pool, void* panels);

/// Packs gate and up (same shape) with alternating panels: 2 * panels_for(rows) of them. Returns as
/// above.
std::optional<NotFinite> pack_paired(const MatrixSource& gate, const MatrixSource& up,
                                     WeightType type, ThreadPool& pool, void* panels);

}  // namespace baton::cpu
