// How much memory a checkpoint's weights will take on the CPU backend, before any of it is taken.
// Torch-free.
#pragma once

#include <cstdint>
#include <string>

#include "workers/model/config.h"
#include "workers/model/safetensors.h"

namespace baton {

/// The type that weights have in memory: as they are stored (f16: f32; quantised ones: whole
/// numbers with their scales where cpu::GroupFormat has them, else f32), or one of f32 and bf16 for
/// all, where bf16 may round.
enum class WeightChoice : std::uint8_t { stored, f32, bf16 };

/// What goes into products with weights that stay whole numbers: the inputs as they are, or rounded
/// to eight bits (cpu/integer.h). Other weights take them as they are.
enum class Activations : std::uint8_t { exact, int8 };

/// Raised by a change of what packed weights look like: workers with different ones share none.
constexpr std::uint32_t kWeightLayoutVersion = 4;

struct WeightPlan {
  std::string dtype;                // of the linear layers: "bf16", "f32", "int4 (stored as gptq)"
  bool whole_numbers = false;       // some of them stay so
  std::uint64_t bytes = 0;          // of all weights, as packed
  std::uint64_t loading_bytes = 0;  // beside them while loading: a quantised layer, dequantised
};

/// Reads the headers alone. Exact for checkpoints whose linear layers have one stored type.
WeightPlan plan_weights(const ModelConfig& config, const Checkpoint& checkpoint,
                        WeightChoice choice);

/// More than packed weights can take, whatever their types: addresses for them are reserved.
std::uint64_t most_weight_bytes(const ModelConfig& config);

/// Whether some matrix loses digits.
bool rounds(const Checkpoint& checkpoint, WeightChoice choice);

}  // namespace baton
