// The version of the protocol that this program writes and reads. Tests build programs that differ
// in it alone, and let them meet the others (tests/e2e/test_upgrade.py).
#pragma once

#include <cstdint>

#include "ipc/messages.h"

namespace baton {

#ifdef BATON_TEST_OTHER_VERSION
constexpr std::uint32_t kSpokenVersion = kProtocolVersion + 1'000'000;
#else
constexpr std::uint32_t kSpokenVersion = kProtocolVersion;
#endif

}  // namespace baton
