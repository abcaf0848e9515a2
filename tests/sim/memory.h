// The simulated pools: a segment a worker life, host part included, one 64-bit cell a token
// position.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ipc/types.h"
#include "tests/sim/random.h"

namespace baton::sim {

/// Written by its exporter alone; readable by whoever mapped it, also after the exporter's death. A
/// leased one has another exporter after that.
struct Segment {
  AllocationId id = 0;
  std::uint32_t exporter = 0;  // index of the process
  std::uint32_t worker = 0;    // index of the name
  std::uint32_t tokens_per_block = 0;
  bool leased = false;  // the memory process keeps it, whoever dies
  std::uint32_t layout = 0;
  bool unlinked = false;  // a successor has removed its name: it cannot be mapped any more
  std::vector<std::uint64_t> cells;

  std::uint64_t& cell(BlockId block, std::uint32_t offset) {
    return cells[std::size_t{block} * tokens_per_block + offset];
  }
  /// Another process writes to it from now on. If it reads bytes in another way, it finds other
  /// values.
  void take_over(std::uint32_t process, std::uint32_t its_layout) {
    exporter = process;
    if (layout != its_layout) {
      for (std::uint64_t& value : cells) value = mix(value);
    }
    layout = its_layout;
  }
  /// The cell of a sequence's position.
  template <typename Blocks>
  std::uint64_t& at(const Blocks& blocks, std::uint32_t position) {
    return cell(blocks[position / tokens_per_block], position % tokens_per_block);
  }
};

class Memory {
 public:
  Segment& create(std::uint32_t exporter, std::uint32_t worker, std::uint32_t blocks,
                  std::uint32_t tokens_per_block) {
    auto segment = std::make_unique<Segment>();
    segment->id = kFirst + segments_.size();
    segment->exporter = exporter;
    segment->worker = worker;
    segment->tokens_per_block = tokens_per_block;
    segment->cells.assign(std::size_t{blocks} * tokens_per_block, 0);
    segments_.push_back(std::move(segment));
    return *segments_.back();
  }
  AllocationId next_id() const { return kFirst + segments_.size(); }
  Segment* find(AllocationId id) {
    return id >= kFirst && id < kFirst + segments_.size() ? segments_[id - kFirst].get() : nullptr;
  }
  /// A new process of `worker` allocates: the names of its predecessors go.
  void unlink(std::uint32_t worker, std::uint32_t before_process) {
    for (auto& segment : segments_) {
      segment->unlinked |= segment->worker == worker && segment->exporter < before_process;
    }
  }

 private:
  static constexpr AllocationId kFirst = 5000;
  std::vector<std::unique_ptr<Segment>> segments_;
};

}  // namespace baton::sim
