// Where packed weights lie: in this process's memory, or in memory that it can seal and share.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "ipc/sealed_memory.h"

namespace baton {

class WeightMemory {
 public:
  /// This process's own.
  WeightMemory() = default;
  /// Shared memory, of which no more than `most` bytes will be taken; this process's own where the
  /// kernel gives none.
  explicit WeightMemory(std::size_t most);
  bool shared() const { return shared_.has_value(); }

  /// Aligned to 64 bytes. Throws ModelError if that is more than was said.
  std::byte* take(std::size_t bytes);
  /// Of shared memory alone: where it begins, and how much is taken.
  const std::byte* base() const { return shared_->data(); }
  std::size_t used() const { return used_; }
  /// What was taken has no address any more, but in the sealed memory. Throws ModelError.
  SealedMemory seal();

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::optional<UnsealedMemory> shared_;
  std::size_t used_ = 0;
  std::vector<std::unique_ptr<std::byte, Free>> own_;
};

}  // namespace baton
