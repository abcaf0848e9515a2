#include "workers/cuda/attention/travel_plan.h"

#include <algorithm>

#include "workers/cuda/attention/pieces.h"
#include "workers/pool/pool_ids.h"

namespace baton::cuda {
namespace {

/// Neighbouring keys that one device attends to.
struct Span {
  std::int64_t begin = 0, end = 0;
  int device = 0;
  std::int64_t keys() const { return end - begin; }
};

struct Candidate {
  const AttentionRow* row = nullptr;
  std::vector<Span> spans;
};

/// Cuts where the table goes from one device to another.
std::vector<Span> spans_of(const AttentionRow& row, const std::int32_t* tables,
                           const TravelRules& rules) {
  std::vector<Span> spans;
  const std::int64_t keys = row.position + 1;
  for (std::int64_t begin = 0; begin < keys; begin += rules.tokens_per_block) {
    const std::int32_t id = tables[row.first_block + begin / rules.tokens_per_block];
    const auto pool = static_cast<std::size_t>(id >> kPoolBlockBits);
    const int device = pool < rules.device_of_pool.size() ? rules.device_of_pool[pool] : 0;
    const std::int64_t end = std::min<std::int64_t>(keys, begin + rules.tokens_per_block);
    if (!spans.empty() && spans.back().device == device) {
      spans.back().end = end;
    } else {
      spans.push_back({begin, end, device});
    }
  }
  return spans;
}

/// Pieces that depend on the position alone. One that begins and ends in the same span is its
/// device's.
std::vector<Span> fixed_pieces(const std::vector<Span>& spans, std::int64_t split) {
  std::vector<Span> pieces;
  auto span = spans.begin();
  for (std::int64_t begin = 0; begin < spans.back().end; begin += split) {
    const std::int64_t end = std::min(begin + split, spans.back().end);
    while (span->end <= begin) ++span;
    pieces.push_back({begin, end, end <= span->end ? span->device : 0});
  }
  return pieces;
}

/// Pieces of equal length in each span, of about as many keys as its device's are to have.
std::vector<Span> even_pieces(const std::vector<Span>& spans,
                              const std::vector<std::int64_t>& wanted) {
  std::vector<Span> pieces;
  for (const Span& span : spans) {
    const std::int64_t each = wanted[static_cast<std::size_t>(span.device)];
    const std::int64_t n = std::max<std::int64_t>(1, (span.keys() + each / 2) / each);
    const std::int64_t length = round_up(ceil_div(span.keys(), n), kKeysAtOnce);
    for (std::int64_t begin = span.begin; begin < span.end; begin += length) {
      pieces.push_back({begin, std::min(begin + length, span.end), span.device});
    }
  }
  return pieces;
}

/// By device: so many keys a piece that it is full a whole number of times.
std::vector<std::int64_t> wanted_keys(const std::vector<Candidate>& candidates,
                                      const TravelRules& rules) {
  std::vector<std::int64_t> wanted(static_cast<std::size_t>(rules.devices), 0);
  for (const Candidate& candidate : candidates) {
    for (const Span& span : candidate.spans) {
      wanted[static_cast<std::size_t>(span.device)] += span.keys();
    }
  }
  std::int64_t pieces = 0;
  for (std::int64_t& keys : wanted) {
    const std::int64_t all = keys;
    keys = std::max<std::int64_t>(kKeysAtOnce, even_piece(keys, rules.pieces_at_once));
    pieces += ceil_div(all, keys);
  }
  // Room is for no more: longer ones, a few of which spans' ends make shorter.
  const std::int64_t longer = ceil_div(2 * pieces, std::max(rules.slots, 1));
  for (std::int64_t& keys : wanted) keys *= std::max<std::int64_t>(1, longer);
  return wanted;
}

std::int64_t elsewhere(const Candidate& candidate) {
  std::int64_t keys = 0;
  for (const Span& span : candidate.spans) keys += span.device != 0 ? span.keys() : 0;
  return keys;
}

DecodeItem item_of(const AttentionRow& row, std::int64_t begin, std::int64_t end, int slot) {
  DecodeItem item;
  item.row = row.first_row;
  item.first_block = row.first_block;
  item.key_begin = static_cast<std::int32_t>(begin);
  item.key_end = static_cast<std::int32_t>(end);
  item.slot = slot;
  item.fresh = static_cast<std::int32_t>(row.position);
  return item;
}

}  // namespace

void plan_travel(std::span<const AttentionRow> rows, const std::int32_t* tables,
                 const TravelRules& rules, TravelPlan& plan) {
  plan.items.assign(static_cast<std::size_t>(rules.devices), {});
  plan.merges.clear();
  plan.others.clear();
  std::vector<Candidate> candidates;
  plan.keys_elsewhere = 0;
  for (const AttentionRow& row : rows) {
    Candidate candidate{&row, {}};
    if (row.n_rows == 1) candidate.spans = spans_of(row, tables, rules);
    if (const std::int64_t far = elsewhere(candidate); far > 0) {
      plan.keys_elsewhere += far;
      candidates.push_back(std::move(candidate));
    } else {
      plan.others.push_back(row);
    }
  }
  const auto wanted = wanted_keys(candidates, rules);
  int used = 0;
  for (const Candidate& candidate : candidates) {
    const AttentionRow& row = *candidate.row;
    const auto pieces = rules.fixed_split > 0 ? fixed_pieces(candidate.spans, rules.fixed_split)
                                              : even_pieces(candidate.spans, wanted);
    const int n = static_cast<int>(pieces.size());
    const bool leaves = std::any_of(pieces.begin(), pieces.end(),
                                    [](const Span& piece) { return piece.device != 0; });
    if (plan.keys_elsewhere <= rules.in_place_keys || !leaves || n > rules.slots - used) {
      plan.others.push_back(row);
      continue;
    }
    DecodeItem whole = item_of(row, 0, row.position + 1, rules.first_slot + used);
    whole.pieces = n;
    plan.merges.push_back(whole);
    for (int i = 0; i < n; ++i) {
      const Span& piece = pieces[static_cast<std::size_t>(i)];
      DecodeItem item = item_of(row, piece.begin, piece.end, whole.slot);
      item.piece = i;
      plan.items[static_cast<std::size_t>(piece.device)].push_back(item);
    }
    used += n;
  }
  for (auto& items : plan.items) {  // long ones first: the short ones fill the gaps at the end
    std::stable_sort(items.begin(), items.end(), [](const DecodeItem& a, const DecodeItem& b) {
      return a.key_end - a.key_begin > b.key_end - b.key_begin;
    });
  }
}

}  // namespace baton::cuda
