// Is a text whole characters?
#pragma once

#include <string_view>

#include "ipc/utf8.h"

namespace baton::testing {

inline bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Scan scan = scan_utf8(text);
    if (scan.state != Utf8State::valid) return false;
    text.remove_prefix(scan.length);
  }
  return true;
}

}  // namespace baton::testing
