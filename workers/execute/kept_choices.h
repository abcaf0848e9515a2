// Kernel choices in run_dir, so that a worker that starts again does not time them again.
#pragma once

#include <optional>
#include <string>

#include "workers/cuda/linear/kernel_choices.h"

namespace baton {

/// What this program is, for a key: its version, and size and time of its file, since builds of one
/// commit may differ.
std::string program_stamp();

/// Nothing: there are none for this key, or the file makes no sense.
std::optional<cuda::KernelChoices> recall_choices(const std::string& run_dir,
                                                  const std::string& key);

/// Replaces the file as a whole. Failing costs the next start its time, and nothing else: false.
bool keep_choices(const std::string& run_dir, const std::string& key,
                  const cuda::KernelChoices& choices);

}  // namespace baton
