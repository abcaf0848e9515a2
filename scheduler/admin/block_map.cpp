#include "scheduler/admin/block_map.h"

#include <algorithm>
#include <array>
#include <vector>

namespace baton {

char cell_letter(std::uint32_t free, std::uint32_t cached, std::uint32_t owned,
                 std::uint32_t fenced) {
  // Ties go to what is of more interest.
  const std::array<std::pair<char, std::uint32_t>, 4> shares = {
      {{'o', owned}, {'x', fenced}, {'c', cached}, {'f', free}}};
  const auto most = std::max_element(shares.begin(), shares.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  const bool some_owned = owned > 0 && most->first != 'o';
  return some_owned ? 'p' : most->first;
}

void RunLengthText::add(char letter) {
  if (letter != letter_) close_run();
  letter_ = letter;
  ++run_;
}

std::string RunLengthText::take() {
  close_run();
  return std::exchange(text_, {});
}

void RunLengthText::close_run() {
  if (run_ > 1) text_ += std::to_string(run_);
  if (run_ > 0) text_.push_back(letter_);
  run_ = 0;
}

std::uint32_t blocks_per_cell(std::uint32_t total, std::uint32_t most_cells) {
  return std::max<std::uint32_t>(1, (total + most_cells - 1) / most_cells);
}

std::string block_map(const BlockPool& pool, bool host, std::uint32_t per_cell) {
  RunLengthText text;
  const BlockId first = host ? pool.total() : 0;
  const BlockId end = first + (host ? pool.host_total() : pool.total());
  for (BlockId at = first; at < end;) {
    std::array<std::uint32_t, kBlockStates> counts{};
    const BlockId next = std::min<BlockId>(end, at + per_cell);
    for (; at < next; ++at) ++counts[static_cast<std::size_t>(pool.state(at))];
    const auto count = [&](BlockState state) { return counts[static_cast<std::size_t>(state)]; };
    text.add(cell_letter(count(BlockState::free), count(BlockState::cached),
                         count(BlockState::owned),
                         count(BlockState::retiring) + count(BlockState::held)));
  }
  return text.take();
}

std::string cell_ranges(std::span<const BlockId> blocks, BlockId first, std::uint32_t per_cell,
                        std::size_t most_ranges) {
  std::vector<BlockId> cells;
  cells.reserve(blocks.size());
  for (const BlockId block : blocks) {
    if (block >= first && block != kNoBlock) cells.push_back((block - first) / per_cell);
  }
  std::sort(cells.begin(), cells.end());
  cells.erase(std::unique(cells.begin(), cells.end()), cells.end());
  std::string text;
  for (std::size_t i = 0, ranges = 0; i < cells.size() && ranges < most_ranges; ++ranges) {
    const BlockId begin = cells[i];
    BlockId end = begin;
    for (++i; i < cells.size() && cells[i] == end + 1; ++i) ++end;
    if (!text.empty()) text.push_back(',');
    text += std::to_string(begin);
    if (end != begin) text += "-" + std::to_string(end);
  }
  return text;
}

}  // namespace baton
