// The extents of a journal that nothing lies in, and how their memory goes back to the kernel. The
// latest freed is the next used, so that memory follows what was needed at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace baton {

/// One thread at a time. Extents that were never used, or whose memory was released, are used last.
class FreeExtents {
 public:
  explicit FreeExtents(std::uint32_t count);

  std::optional<std::uint32_t> take();
  void give_back(std::span<const std::uint32_t> extents);
  std::size_t size() const { return free_.size(); }
  bool empty() const { return free_.empty(); }

  /// Extents with memory that were free at every moment since the last call, at most `at_most`, and
  /// all but `keep` of them. They are in use until put_released().
  std::vector<std::uint32_t> take_idle(std::size_t keep, std::size_t at_most);
  /// Their memory was released.
  void put_released(std::span<const std::uint32_t> extents);

 private:
  std::size_t with_memory() const { return free_.size() - fresh_; }

  std::vector<std::uint32_t> free_;  // the next to be used last
  std::size_t fresh_ = 0;            // of these, the first: they have no memory
  std::size_t least_ = 0;            // with_memory(), at its lowest since the last take_idle()
};

/// Gives the memory of whole pages among `extents` back to the kernel; they read as zero then.
/// `first`: of extent 0 in `memory`, which is shared memory that begins with a page (else nothing
/// happens).
void release_extents(std::span<std::byte> memory, std::size_t first, std::size_t extent_bytes,
                     std::vector<std::uint32_t> extents);

/// What a journal keeps for its next use, and what one call releases at the most.
inline constexpr std::size_t kKeptExtents = 512;
inline constexpr std::size_t kReleasedExtents = 4096;

}  // namespace baton
