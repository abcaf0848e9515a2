#include "ipc/utf8.h"

namespace baton {
namespace {

constexpr Utf8Scan kInvalid{Utf8State::invalid, 1};

/// Bounds of the second byte, which exclude overlong forms, surrogates and too large values.
struct Range {
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
};

Range second_byte(unsigned char lead) {
  switch (lead) {
    case 0xE0:
      return {0xA0, 0xBF};
    case 0xED:
      return {0x80, 0x9F};
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};
    default:
      return {};
  }
}

}  // namespace

Utf8Scan scan_utf8(std::string_view bytes) {
  if (bytes.empty()) return {};
  const auto lead = static_cast<unsigned char>(bytes[0]);
  if (lead < 0x80) return {Utf8State::valid, 1};
  if (lead < 0xC2 || lead > 0xF4) return kInvalid;
  const std::uint8_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  Range range = second_byte(lead);
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte < range.low || byte > range.high) {
      return {Utf8State::invalid, static_cast<std::uint8_t>(i)};
    }
    range = {};
  }
  return {Utf8State::valid, length};
}

std::size_t first_non_utf8(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Scan scan = scan_utf8(bytes.substr(at));
    if (scan.state != Utf8State::valid) break;
    at += scan.length;
  }
  return at;
}

}  // namespace baton
