// Exit statuses that every program of Baton shares.
#pragma once

namespace baton {

/// Exit status of a program whose command line, configuration or model folder is wrong: starting it
/// again changes nothing.
inline constexpr int kExitUsage = 2;

}  // namespace baton
