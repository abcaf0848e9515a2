// How a model's layers share KV blocks. Layers that see equally far form groups; a block holds the
// layers of one group for its tokens, so that all blocks have one size and each may serve any
// group. What a group's windows have left behind is given back alone (docs/adr/0020). Pure, std
// only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "ipc/types.h"

namespace baton {

constexpr std::uint32_t kMaxKvGroups = 8;

/// Of one model. A token at position p sees, in a group with a window, the keys at
/// p + 1 - window .. p.
struct KvGroups {
  std::uint32_t count = 1;
  std::array<std::uint32_t, kMaxKvGroups> windows{};  // 0: all keys are seen

  /// One group of all layers, which see everything: nothing is ever given back.
  bool plain() const { return count == 1 && windows[0] == 0; }
  bool windowed() const {
    return std::any_of(windows.begin(), windows.begin() + count,
                       [](std::uint32_t w) { return w != 0; });
  }
  bool windows_everywhere() const {
    return std::all_of(windows.begin(), windows.begin() + count,
                       [](std::uint32_t w) { return w != 0; });
  }
  bool operator==(const KvGroups&) const = default;
};

/// The table of a sequence: column c stands for the tokens [c * per_block, (c + 1) * per_block) and
/// has a block for each group, side by side. kNoBlock: the windows have left that one behind, or it
/// has not been needed yet. With one group without a window, blocks and columns are the same.
struct TableShape {
  std::uint32_t per_block = 1;
  KvGroups groups;

  TableShape() = default;
  TableShape(std::uint32_t tokens_per_block, const KvGroups& of = {})
      : per_block(tokens_per_block), groups(of) {}

  bool plain() const { return groups.plain(); }
  std::uint32_t columns(std::uint32_t tokens) const {
    return tokens / per_block + (tokens % per_block != 0 ? 1 : 0);
  }
  /// The first column that the token at `position`, or any behind it, may look at.
  std::uint32_t first(std::uint32_t group, std::uint32_t position) const {
    const std::uint32_t window = groups.windows[group];
    return window == 0 || position < window ? 0 : (position + 1 - window) / per_block;
  }
  /// Columns that a group needs at once of a sequence of any length, if it is computed step by
  /// step: those of the window, which may begin and end inside a block, and one of growth.
  std::uint32_t most_live(std::uint32_t group) const {
    const std::uint32_t window = groups.windows[group];
    return window == 0 ? std::numeric_limits<std::uint32_t>::max() : columns(window) + 2;
  }
  /// What a group needs at once of so many columns.
  std::uint32_t live(std::uint32_t group, std::uint32_t columns) const {
    return std::min(columns, most_live(group));
  }
  /// Behind the last column that a group is given at the start of a sequence which is computed from
  /// token `from` on, and has room for `to` tokens one day: everything, or what its window needs.
  std::uint32_t start_end(std::uint32_t group, std::uint32_t from, std::uint32_t to) const {
    const std::uint64_t live = std::uint64_t{first(group, from)} + most_live(group);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(columns(to), live));
  }
  /// Blocks of that start.
  std::uint32_t start_blocks(std::uint32_t from, std::uint32_t to) const {
    std::uint32_t blocks = 0;
    for (std::uint32_t g = 0; g < groups.count; ++g) {
      const std::uint32_t end = start_end(g, from, to);
      blocks += end - std::min(end, first(g, from));
    }
    return blocks;
  }
  /// Most blocks that a sequence of `tokens` tokens needs at once.
  std::uint64_t live_blocks(std::uint32_t tokens) const { return blocks_of(columns(tokens)); }
  /// Tokens of the longest sequence that so many blocks hold, if it is alone.
  std::uint64_t longest(std::uint32_t blocks) const {
    if (plain()) return std::uint64_t{blocks} * per_block;
    constexpr std::uint32_t kAny = std::numeric_limits<std::uint32_t>::max();
    if (blocks_of(kAny) <= blocks) return kAny;
    std::uint64_t fits = 0;  // columns
    std::uint64_t too_many = std::uint64_t{blocks} + 1;
    while (too_many - fits > 1) {
      const std::uint64_t middle = (fits + too_many) / 2;
      const bool more = blocks_of(static_cast<std::uint32_t>(middle)) <= blocks;
      (more ? fits : too_many) = middle;
    }
    return fits * per_block;
  }

 private:
  std::uint64_t blocks_of(std::uint32_t columns) const {
    std::uint64_t blocks = 0;
    for (std::uint32_t g = 0; g < groups.count; ++g) blocks += live(g, columns);
    return blocks;
  }
};

}  // namespace baton
