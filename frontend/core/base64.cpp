#include "frontend/core/base64.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace baton {
namespace {

constexpr std::string_view kBase64Letters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t n = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t three = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      three = three << 8U | (i < n ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      out += i <= n ? kBase64Letters[three >> (18 - 6 * i) & 63U] : '=';
    }
  }
  return out;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  for (std::size_t at = 0; at < text.size(); at += 4) {
    const bool last = at + 4 == text.size();
    const std::size_t letters = last ? 4 - padding : 4;
    std::uint32_t three = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t value = i < letters ? kBase64Letters.find(text[at + i]) : 0;
      if (value == std::string_view::npos) return std::nullopt;
      three = three << 6U | static_cast<std::uint32_t>(value);
    }
    for (std::size_t i = 0; i + 1 < letters; ++i) {
      out += static_cast<char>(three >> (16 - 8 * i) & 255U);
    }
  }
  return out;
}

}  // namespace baton
