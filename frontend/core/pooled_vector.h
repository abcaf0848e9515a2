// What becomes of a pooled vector: an embedding, or a score. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace baton {

/// The first `dimensions` values (0: all), scaled so that their squares add up to 1. Checkpoints
/// that were trained for it (Matryoshka) lose little by fewer. All zero stays all zero.
std::vector<float> embedding_of(std::span<const float> hidden, std::uint32_t dimensions);

/// Of the logits of "no" and "yes", in this order: how probable "yes" is of the two.
float yes_share(std::span<const float> logits);

/// As JSON numbers, each the shortest that reads back as the same float: "[0.5,-1e-05]".
std::string json_array(std::span<const float> values);

/// Their little-endian bytes, as OpenAI's `encoding_format: base64`.
std::string base64_floats(std::span<const float> values);

}  // namespace baton
