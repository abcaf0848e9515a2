// A worker that dies of a fault may have written anywhere in its pool before: it leaves a mark, so
// that the memory process does not keep what the pool holds, and the scheduler pulls nothing from
// it. The mark is there before the process has ended, and stays: each reader reads it when it
// learns of the death, in any order. A mark names the process that it is about; no other pool is
// doubted for it.
#pragma once

#include <cstdint>
#include <string>

namespace baton {

/// From here on this process leaves a mark when a fault of its own kills it: SIGSEGV, SIGBUS,
/// SIGILL, SIGFPE, SIGABRT. At most twice a process, for two pools; the death itself goes on as it
/// would have. `holder`: the process that holds the lease of the pool, if it is another one.
void mark_pool_on_fault(const std::string& run_dir, const std::string& worker,
                        std::int32_t holder = 0);

/// Leaves the mark now: this process ends because its device failed, or a step of its own did.
/// `holder`: as above.
void mark_pool_spoiled(const std::string& run_dir, const std::string& worker,
                       std::int32_t holder = 0);

/// Whether there is a mark about the process `pid` that began at `start` (pid_start_time()).
bool has_spoiled_mark(const std::string& run_dir, const std::string& worker, std::int32_t pid,
                      std::uint64_t start);

}  // namespace baton
