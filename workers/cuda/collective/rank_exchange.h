// What the ranks of a worker on GPUs do together: sums, gathers and broadcasts by kernels that read
// and write each other's memory (NVLink). Each rank has one exchange buffer, which all others map.
//
// Every call only queues kernels, allocates nothing and may be captured into a graph: what counts
// the calls lies in device memory. All ranks make the same calls in the same order, whether from
// graphs or not. Two protocols, by size:
//   direct  small: data goes straight into the receiver's memory, each word with the call's number
//           beside it, and the receiver looks for that number (rank_direct.cu)
//   staged  large: data is left in the own buffer, a flag says so, the others read it
//           (rank_staged.cu)
// A wait has no end of its own: the host's word ends all of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "workers/cuda/collective/rank_memory.h"
#include "workers/cuda/types.h"

namespace baton::cuda {

struct RankSum;

/// The same on all ranks, but for `rank`. Throws CudaError where they cannot be served.
class RankExchange {
 public:
  static std::size_t buffer_bytes(const RankExchangeOptions& options);
  /// Queued by the buffer's owner, and done before the others know of the buffer.
  static void init(std::byte* own_buffer, const RankExchangeOptions& options, Stream stream);

  /// buffers[r]: where rank r's buffer lies here (its own, mapped by cudaIpc, or of a peer).
  /// `abort_word`: device address of a 32-bit word in page-locked host memory. Nonzero ends every
  /// wait, also of later calls; results are void then, until init(). Null: nothing ends them.
  /// Made on the thread and device that queues; loads all kernels, so that no later call has to
  /// (loading may wait for the device, on which a kernel may be waiting for this rank).
  RankExchange(const RankExchangeOptions& options, std::vector<std::byte*> buffers,
               const std::uint32_t* abort_word);

  /// x += the sum of all ranks' `partial`, in fp32: x + ((p0 + p1) + p2 ...), rounded once, so the
  /// same bits on every rank if x was. Then, with `weight`, y = rms_norm(x) * weight, the bits of
  /// rms_norm() (rowwise.h). partial, x, y [rows, hidden], 16-byte aligned; hidden % 8 == 0.
  void add_reduced(const Bf16* partial, Bf16* x, const Bf16* weight, float eps, int rows,
                   int hidden, Bf16* y, Stream stream);
  /// sum = the sum of all ranks' `partial` as above, with nothing to be added to; it may not be
  /// `partial`. What is in `sum` before is not looked at.
  void reduce(const Bf16* partial, Bf16* sum, int rows, int hidden, Stream stream);

  /// Rank r's part [rows, columns[r]] comes to `all` [rows, sum of columns] of rank 0, side by side
  /// in rank order. `all` of other ranks is not looked at.
  void gather_to_first(const float* part, const std::vector<int>& columns, int rows, float* all,
                       Stream stream);

  /// Rank 0's n words at `data` come to `data` of every rank.
  void broadcast_from_first(std::int32_t* data, int n, Stream stream);

  /// As gather_to_first(), to every rank. columns[r] % 2 == 0.
  void gather(const Bf16* part, const std::vector<int>& columns, int rows, Bf16* all,
              Stream stream);
  void gather(const float* part, const std::vector<int>& columns, int rows, float* all,
              Stream stream);

 private:
  void share_device();
  struct Words;  // what a gather moves, in words of 32 bits
  void check_row(int hidden) const;
  void sum_up(const RankSum& sum, Stream stream);
  void gather_words(const Words& words, const std::vector<int>& columns, int rows, Stream stream);

  RankExchangeOptions options_;
  RankLink link_;
  std::array<int, 4> direct_clusters_{};  // resident at once, of 1, 2, 4 and 8 CTAs
  int direct_ctas_ = 0;                   // of a gather
  int staged_ctas_ = kChannels;           // at most; the same on all ranks
};

}  // namespace baton::cuda
