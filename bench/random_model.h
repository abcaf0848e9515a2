// Writes model folders with random weights: for benchmarks and tests of shapes that nobody trained.
#pragma once

#include <cstdint>
#include <string>

namespace baton {

struct RandomModelShape {
  int hidden = 192;
  int layers = 12;
  int heads = 6;
  int kv_heads = 2;
  int head_dim = 32;
  int intermediate = 512;
  int vocab = 4096;
  int max_context = 32768;
  bool tied_embeddings = true;
  bool bf16 = true;  // else f32
};

/// Writes config.json and model.safetensors into `folder`, which must exist. The weights follow
/// from `seed` and are of the size that keeps activations near 1. Throws std::runtime_error.
void write_random_model(const std::string& folder, const RandomModelShape& shape,
                        std::uint64_t seed);

}  // namespace baton
