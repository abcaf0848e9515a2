// Ranks as threads of one process, on one or several GPUs: for tests and benchmarks of what they do
// together.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "workers/cuda/collective/rank_exchange.h"
#include "workers/cuda/device.h"

namespace baton::cuda {

struct LocalRank {
  int rank = 0;
  int device = 0;
  std::unique_ptr<OwnedStream> stream;
  DeviceMemory buffer;
  std::unique_ptr<RankExchange> exchange;
};

class LocalRanks {
 public:
  /// Empty if `devices` GPUs can serve a group; else what is missing.
  static std::string missing(int devices);

  /// Rank r on device r % devices. `options`' rank and ranks_of_device are filled in.
  LocalRanks(RankExchangeOptions options, int devices);

  int size() const { return static_cast<int>(ranks_.size()); }
  LocalRank& operator[](int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  /// work(rank) on a thread for each, with its device; ends when all have. Rethrows.
  void each(const std::function<void(LocalRank&)>& work);

  /// Whether all streams have done their work in time. If not, abort() ends it.
  bool finish(std::chrono::milliseconds patience);
  /// Ends every wait of the ranks.
  void abort();
  /// As new again, when nothing is queued.
  void reset();

 private:
  void init_buffers();

  RankExchangeOptions options_;
  PinnedMemory abort_word_;
  std::vector<LocalRank> ranks_;
};

}  // namespace baton::cuda
