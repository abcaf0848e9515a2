// How the single rows of a step are cut into pieces. Host code only.
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/attention/pieces.h"
#include "workers/cuda/current_device.h"
#include "workers/cuda/launch.cuh"

namespace baton::cuda {
namespace {

constexpr int kTile = 16;
constexpr int kFixedBudget = 1024;  // pieces beyond one a row, with fixed pieces
constexpr int kMeasureBudget = 8192;

std::int64_t keys_of(const DecodeItem& item) {
  return item.key_end - item.key_begin / kTile * kTile;
}

/// How many pieces of about `wanted` keys a row is cut into.
std::int64_t pieces_of(std::int64_t keys, std::int64_t wanted) {
  return 2 * keys < 3 * wanted ? 1 : (keys + wanted / 2) / wanted;
}

/// One item for each query, as if none were cut.
std::vector<DecodeItem> list_queries(std::span<const AttentionRow> rows, int window,
                                     int tokens_per_block) {
  std::vector<DecodeItem> queries;
  for (const AttentionRow& row : rows) {
    const std::int64_t last = row.position + row.n_rows;
    if (last > std::numeric_limits<std::int32_t>::max() - kKeysAtOnce ||
        last > std::int64_t{row.n_blocks} * tokens_per_block) {
      throw std::invalid_argument("a single row behind its block table");
    }
    for (int i = 0; i < row.n_rows; ++i) {
      const int end = static_cast<int>(row.position) + i + 1;
      const int begin = window > 0 ? std::max(0, end - window) : 0;
      queries.push_back({row.first_row + i, row.first_block, begin, end, 0, 1, 0,
                         static_cast<int>(row.position)});
    }
  }
  return queries;
}

/// Cuts at multiples of `piece` keys, counted from `origin`.
void cut(const DecodeItem& whole, std::int64_t origin, std::int64_t piece, int slot,
         std::vector<DecodeItem>& items) {
  const std::int64_t first = (whole.key_begin - origin) / piece;
  const std::int64_t last = (whole.key_end - 1 - origin) / piece;
  for (std::int64_t i = first; i <= last; ++i) {
    DecodeItem item = whole;
    item.key_begin = static_cast<int>(std::max<std::int64_t>(whole.key_begin, origin + i * piece));
    item.key_end =
        static_cast<int>(std::min<std::int64_t>(whole.key_end, origin + (i + 1) * piece));
    item.piece = static_cast<int>(i - first);
    item.pieces = static_cast<int>(last - first + 1);
    item.slot = slot;
    items.push_back(item);
  }
}

}  // namespace

DecodeAttention::DecodeAttention(const Options& options) : options_(options) {
  const HeadShape& s = options.shape;
  if (s.head_dim < 1 || s.head_dim > 256) {
    throw std::invalid_argument("attention: head_dim " + std::to_string(s.head_dim) +
                                " is not supported on CUDA (up to 256 are)");
  }
  if (s.kv_heads < 1 || s.heads % s.kv_heads != 0) {
    throw std::invalid_argument("attention: " + std::to_string(s.heads) + " heads for " +
                                std::to_string(s.kv_heads) + " KV heads");
  }
  tiles_ = has_attention_tiles(s, options.capped) && !options.whole_rows;
  if (options.fixed_split < 0 || options.fixed_split % kTile != 0 || options.tokens_per_block < 1) {
    throw std::invalid_argument("attention: fixed_split must be a multiple of 16");
  }
  sm_count_ = multiprocessors();
}

int DecodeAttention::max_items(int rows) const {
  const int kv_heads = options_.shape.kv_heads;
  if (!tiles_) return rows;
  if (options_.piece_keys > 0) return rows + kMeasureBudget;
  if (options_.fixed_split > 0) return rows + std::min(kFixedBudget, 128 * rows);
  return rows + std::clamp(8 * sm_count_ / kv_heads, 1, 48 * rows);
}

/// A row of p > 1 pieces takes p slots and p - 1 of the items beyond one a row, so at most twice.
int DecodeAttention::split_slots() const { return 2 * (max_items() - options_.max_rows); }

int DecodeAttention::pieces_at_once() const {
  const HeadShape& s = options_.shape;
  return std::max(1,
                  sm_count_ * split_attention_ctas(s.heads / s.kv_heads, s.head_dim) / s.kv_heads);
}

bool DecodeAttention::may_travel() const {
  return tiles_ && options_.window == 0 && options_.tokens_per_block % kTile == 0;
}

/// As even_piece() has it for all rows together, longer where rows' ends make more pieces of it.
std::int64_t DecodeAttention::auto_piece(const std::vector<DecodeItem>& queries) const {
  if (options_.piece_keys > 0) return options_.piece_keys;
  const std::int64_t places = pieces_at_once();
  std::int64_t keys = 0;
  for (const DecodeItem& q : queries) keys += keys_of(q);
  const std::int64_t most = places * rounds_of(keys, places);
  std::int64_t piece = even_piece(keys, places);
  const auto pieces = [&] {
    std::int64_t n = 0;
    for (const DecodeItem& q : queries) n += pieces_of(keys_of(q), piece);
    return n;
  };
  while (piece < kLongestPiece && pieces() > most) piece += kKeysAtOnce;
  // Where a graph's launch has no room for so many.
  const auto rows = static_cast<int>(queries.size());
  const std::int64_t shortest = round_up(ceil_div(keys, max_items(rows) - rows), kKeysAtOnce);
  return std::max(piece, shortest);
}

void DecodeAttention::plan(std::span<const AttentionRow> single_rows, DecodePlan& plan,
                           int padded_rows) const {
  std::vector<DecodeItem> queries =
      list_queries(single_rows, options_.window, options_.tokens_per_block);
  const int rows = static_cast<int>(queries.size());
  if (std::max(rows, padded_rows) > options_.max_rows) {
    throw std::invalid_argument("more single rows than max_rows");
  }
  plan.rows = padded_rows > 0 ? padded_rows : rows;
  if (plan.rows < rows) throw std::invalid_argument("more single rows than the plan is padded to");
  plan.items.clear();
  plan_pieces(queries, plan);
}

void DecodeAttention::plan_pieces(std::vector<DecodeItem>& queries, DecodePlan& plan) const {
  const int rows = static_cast<int>(queries.size());
  if (rows == 0) return;
  // Long ones first: the short ones then fill the gaps at the end.
  std::stable_sort(queries.begin(), queries.end(), [](const DecodeItem& a, const DecodeItem& b) {
    return keys_of(a) > keys_of(b);
  });
  if (!tiles_) {
    plan.items = queries;
    return;
  }
  const std::int64_t wanted = auto_piece(queries);
  std::int64_t budget = max_items(rows) - rows;
  int slot = 0;
  for (const DecodeItem& q : queries) {
    const std::int64_t wanted_pieces = pieces_of(keys_of(q), wanted);
    std::int64_t piece = options_.fixed_split;
    std::int64_t origin = 0;
    if (piece == 0) {  // pieces of equal length, as many as the wanted length gives
      origin = q.key_begin / kTile * kTile;
      piece = round_up(ceil_div(keys_of(q), wanted_pieces), kKeysAtOnce);
    }
    const std::int64_t pieces =
        (q.key_end - 1 - origin) / piece - (q.key_begin - origin) / piece + 1;
    // A row that need not or cannot be spread is one item; with fixed pieces it takes them in turn.
    if (pieces == 1 || pieces - 1 > budget || wanted_pieces == 1) {
      plan.items.push_back(q);
      continue;
    }
    cut(q, origin, piece, slot, plan.items);
    slot += static_cast<int>(pieces);
    budget -= pieces - 1;
  }
  std::stable_sort(plan.items.begin(), plan.items.end(), [](const auto& a, const auto& b) {
    return a.key_end - a.key_begin > b.key_end - b.key_begin;
  });
}

}  // namespace baton::cuda
