// A piece of shared memory: one owner that writes, any number of importers that only read.
// shm_region.cpp is the only file that includes Boost.Interprocess. No policy here: the name holds
// the allocation id and is never used twice, and a region is never resized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

struct ShmOptions {
  /// Touch every page now, so that no step pays for page faults later.
  bool prefault = false;
};

/// Movable handle. The destructor unmaps; the owner's also unlinks the name (importers that have it
/// mapped keep the memory). A killed owner unlinks nothing: see unlink_dead_regions.
class ShmRegion {
 public:
  /// Fails if the name exists (a name is never reused). The memory is allocated, not sparse: when
  /// /dev/shm is too small this is an error that says how much is needed and how much there is, not
  /// a SIGBUS later. All bytes are zero.
  static Result<ShmRegion> create(const std::string& name, std::size_t bytes, ShmOptions = {});

  /// Maps a region that somebody else has named (name_region) and keeps: for writing, with all its
  /// pages.
  static Result<ShmRegion> open_writable(const std::string& name, std::size_t expected_bytes,
                                         ShmOptions = {});

  /// Maps read-only; a write is a SIGSEGV. Fails if the size is not `expected_bytes`.
  static Result<ShmRegion> open_readonly(const std::string& name, std::size_t expected_bytes,
                                         ShmOptions = {});

  ShmRegion();
  ~ShmRegion();
  ShmRegion(ShmRegion&&) noexcept;
  ShmRegion& operator=(ShmRegion&&) noexcept;

  bool mapped() const { return impl_ != nullptr; }
  /// Null unless this is the mapping of the one who writes.
  std::byte* writable_data();
  const std::byte* data() const;
  std::size_t size() const;
  const std::string& name() const;

 private:
  struct Impl;
  explicit ShmRegion(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Who owns a region, as its name tells.
struct RegionName {
  std::string worker;
  std::int32_t pid = 0;
  std::uint64_t pid_start = 0;
  AllocationId allocation = 0;
  bool host_part = false;  // of the pool: see Hello
  bool leased = false;     // the owner is the memory process, and `worker` writes to it
  bool progress = false;   // no part of a pool: how far its steps are (Hello::progress_handle)
};

/// "<space of run_dir>-<worker>-<pid>-<pid start>-<allocation hex>" (ipc/shm_space.h), behind it
/// "k" for one that is leased, and behind that "h" for a host part; "p" for progress.
std::string region_name(const std::string& run_dir, const RegionName& owner);

/// Names in /dev/shm that belong to this user and run_dir.
std::vector<RegionName> list_regions(const std::string& run_dir);

/// Creates a region of that name and size without taking memory for it: whoever writes to it
/// (open_writable) does. One of that name and size may be there already.
Status name_region(const std::string& name, std::size_t bytes);

/// Memory that the region takes, which may be less than its size; nothing if there is none of that
/// name.
std::optional<std::uint64_t> region_bytes(const std::string& name);

/// False if it did not exist.
bool unlink_region(const std::string& name);

/// Unlinks the names whose owner's process is gone; those of a dead memory process only with
/// `leased`, since their workers may live, and be read. Also all names of this user's spaces whose
/// lock no process holds: a container that is started again has another space than before. Returns
/// how many of run_dir. Mapped memory stays until it is unmapped.
int unlink_dead_regions(const std::string& run_dir, bool leased = false);

/// A worker at its start: unlinks every region of its name except `own`, alive or not (the older
/// incarnation is fenced by then). Returns how many.
int unlink_predecessors(const std::string& run_dir, const std::string& worker, AllocationId own);

}  // namespace baton
