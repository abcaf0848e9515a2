#include "workers/cuda/attention/attention_decode_runs.h"

#include <algorithm>
#include <cstdint>

namespace baton::cuda {
namespace {

constexpr int kTile = 16;
/// Tiles. A warp is through with so many before the parts of a row would have met in memory.
constexpr std::int64_t kShortestRun = 8;
/// A row's pieces are merged by eights: more than this take longer than they save.
constexpr std::int64_t kMostPieces = 64;
/// Runs may be longer or shorter by this part, to end where rows end: then there is nothing to
/// merge.
constexpr std::int64_t kSlackPart = 24;

std::int64_t first_tile(const DecodeItem& item) { return item.key_begin / kTile; }
std::int64_t tiles_of(const DecodeItem& item) {
  return (std::int64_t{item.key_end} + kTile - 1) / kTile - first_tile(item);
}

/// The rows one after another, cut wherever one asks for it.
class Dealer {
 public:
  Dealer(std::span<const DecodeItem> rows, DecodePlan& plan) : rows_(rows), plan_(plan) {}

  bool done() const { return row_ == rows_.size(); }
  /// Of the present row.
  std::int64_t left() const { return tiles_of(rows_[row_]) - taken_; }
  bool begun() const { return taken_ > 0; }
  void take(std::int64_t tiles) {
    DecodeItem item = rows_[row_];
    const std::int64_t begin = first_tile(item) + taken_;
    item.key_begin = static_cast<int>(std::max<std::int64_t>(item.key_begin, begin * kTile));
    item.key_end = static_cast<int>(std::min<std::int64_t>(item.key_end, (begin + tiles) * kTile));
    item.piece = pieces_++;
    plan_.items.push_back(item);
    taken_ += tiles;
    if (left() == 0) end_row();
  }

 private:
  void end_row() {
    if (pieces_ > 1) {
      for (auto item = plan_.items.end() - pieces_; item != plan_.items.end(); ++item) {
        item->pieces = pieces_;
        item->slot = slots_;
      }
      slots_ += pieces_;
    }
    ++row_;
    taken_ = 0;
    pieces_ = 0;
  }

  std::span<const DecodeItem> rows_;
  DecodePlan& plan_;
  std::size_t row_ = 0;
  std::int64_t taken_ = 0;  // tiles of the present row ...
  int pieces_ = 0;          // ... in so many pieces
  int slots_ = 0;
};

/// Deals the rows out to n runs of `even` tiles, or `slack` more or less where a row then ends.
void deal(std::span<const DecodeItem> rows, std::int64_t tiles, std::int64_t n, std::int64_t slack,
          DecodePlan& plan) {
  plan.items.clear();
  plan.counts.clear();
  const std::int64_t most = (tiles + n - 1) / n + slack;
  Dealer dealer(rows, plan);
  for (std::int64_t run = 0; run < n; ++run) {
    plan.counts.push_back(static_cast<std::int32_t>(plan.items.size()));
    // What is left is dealt out anew each time, and never more than `most` a run.
    const std::int64_t behind = n - run - 1;
    const std::int64_t wanted = (tiles + behind) / (behind + 1);
    std::int64_t taken = 0;
    while (!dealer.done() && taken < wanted) {
      std::int64_t next = dealer.left();
      if (taken + next > most) {
        const bool may_end = !dealer.begun() && tiles <= most * behind;
        if (may_end && wanted - taken <= slack) break;
        next = wanted - taken;
      }
      dealer.take(next);
      taken += next;
      tiles -= next;
    }
  }
}

}  // namespace

void plan_runs(std::span<const DecodeItem> rows, int runs, DecodePlan& plan) {
  std::int64_t tiles = 0;
  std::int64_t longest = 0;
  for (const DecodeItem& row : rows) {
    tiles += tiles_of(row);
    longest = std::max(longest, tiles_of(row));
  }
  const std::int64_t shortest = std::max(kShortestRun, longest / kMostPieces);
  const std::int64_t n = std::clamp<std::int64_t>(tiles / shortest, 1, runs);
  deal(rows, tiles, n, tiles / n / kSlackPart, plan);
  // It must save merges of most runs: the longest run is what all wait for.
  const std::size_t cuts = plan.items.size() - rows.size();
  if (2 * cuts > static_cast<std::size_t>(n)) deal(rows, tiles, n, 0, plan);
  plan.counts.resize(static_cast<std::size_t>(runs) + 1,
                     static_cast<std::int32_t>(plan.items.size()));
}

}  // namespace baton::cuda
