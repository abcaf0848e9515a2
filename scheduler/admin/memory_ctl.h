// What baton-ctl asks of the memory process itself, which knows what the scheduler does not: pools
// of workers that are away, weights, and all of it while no scheduler runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace baton {

/// Carries out "show memory [json]" and "memory drop WHAT" and prints the answer. Returns the exit
/// code; nothing: these words are no business of the memory process.
std::optional<int> memory_command(const std::vector<std::string>& words, const std::string& socket);

}  // namespace baton
