#include "frontend/core/pooled_vector.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "frontend/core/base64.h"

namespace baton {

std::vector<float> embedding_of(std::span<const float> hidden, std::uint32_t dimensions) {
  if (dimensions > 0 && dimensions < hidden.size()) hidden = hidden.first(dimensions);
  double squares = 0;
  for (const float value : hidden) squares += double{value} * value;
  const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  std::vector<float> out(hidden.size());
  std::transform(hidden.begin(), hidden.end(), out.begin(),
                 [&](float value) { return static_cast<float>(value * scale); });
  return out;
}

float yes_share(std::span<const float> logits) {
  if (logits.size() != 2) return 0;
  return static_cast<float>(1 / (1 + std::exp(double{logits[0]} - double{logits[1]})));
}

std::string json_array(std::span<const float> values) {
  std::string out = "[";
  std::array<char, 32> text{};
  for (const float value : values) {
    if (out.size() > 1) out += ',';
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
    out.append(text.data(), end.ptr);
  }
  return out + "]";
}

std::string base64_floats(std::span<const float> values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return to_base64(bytes);
}

}  // namespace baton
