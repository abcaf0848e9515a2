#include "workers/execute/rank_step.h"

#include <cstdint>
#include <cstring>

#include "workers/execute/raw_bytes.h"
#include "workers/pool/resolved_tables.h"

namespace baton {

namespace {

struct StepHead {
  std::uint64_t rows = 0;
  std::uint64_t awaits = 0;
};

/// What stands in front, once a row.
struct RowHead {
  std::int64_t position = 0;
  std::uint32_t tokens = 0;
  std::uint32_t blocks = 0;
  std::uint32_t parts = 0;
  std::uint32_t logits = 0;
  std::uint32_t hidden = 0;
  std::uint32_t nothing = 0;  // no byte of it is left as it was
};
static_assert(sizeof(RowHead) == 32);

/// A TablePart without a gap.
struct PartBytes {
  std::uint64_t allocation = 0;
  std::uint64_t blocks = 0;
};

template <typename T>
void take(const std::string& bytes, std::size_t& at, std::vector<T>& to) {
  if (to.empty()) return;
  std::memcpy(to.data(), bytes.data() + at, to.size() * sizeof(T));
  at += to.size() * sizeof(T);
}

}  // namespace

void encode_rank_step(const RunStep& step, std::string& bytes) {
  bytes.clear();
  const StepHead head{step.rows.size(), step.waits.empty() ? 0U : 1U};
  put(bytes, &head, 1);
  for (const BatchRow& row : step.rows) {
    const RowHead each{row.position,
                       static_cast<std::uint32_t>(row.tokens.size()),
                       static_cast<std::uint32_t>(row.blocks.size()),
                       static_cast<std::uint32_t>(row.before.size()),
                       static_cast<std::uint32_t>(row.logits),
                       row.wants_hidden() ? 1U : 0U};
    put(bytes, &each, 1);
  }
  for (const BatchRow& row : step.rows) {
    for (const TablePart& part : row.before) {
      const PartBytes each{part.allocation, part.blocks};
      put(bytes, &each, 1);
    }
  }
  for (const BatchRow& row : step.rows) put(bytes, row.tokens.data(), row.tokens.size());
  for (const BatchRow& row : step.rows) put(bytes, row.blocks.data(), row.blocks.size());
}

Status RankStep::decode(const std::string& bytes) {
  const auto bad = [] { return invalid("a step of rank 0 that cannot be read"); };
  StepHead head;
  if (bytes.size() < sizeof head) return bad();
  std::memcpy(&head, bytes.data(), sizeof head);
  std::size_t at = sizeof head;
  if (head.rows > (bytes.size() - at) / sizeof(RowHead) || head.awaits > 1) return bad();
  std::vector<RowHead> heads(head.rows);
  take(bytes, at, heads);
  std::size_t tokens = 0;
  std::size_t blocks = 0;
  std::size_t parts = 0;
  for (const RowHead& each : heads) {
    const auto most = static_cast<std::uint32_t>(LogitsWanted::all);
    if (each.logits > most || each.hidden > 1) return bad();
    tokens += each.tokens;
    blocks += each.blocks;
    parts += each.parts;
  }
  const std::size_t left =
      parts * sizeof(PartBytes) + tokens * sizeof(Token) + blocks * sizeof(BlockId);
  if (bytes.size() - at != left) return bad();
  step_.clear();
  rows_.clear();
  std::vector<PartBytes> all_parts(parts);
  take(bytes, at, all_parts);
  for (const PartBytes& part : all_parts)
    step_.parts.push_back({part.allocation, static_cast<std::uint32_t>(part.blocks)});
  step_.tokens.resize(tokens);
  step_.blocks.resize(blocks);
  take(bytes, at, step_.tokens);
  take(bytes, at, step_.blocks);
  awaits_ = head.awaits != 0;
  step_.reads_in_place = parts > 0;
  std::span<const Token> tokens_left(step_.tokens);
  std::span<const BlockId> blocks_left(step_.blocks);
  std::span<const TablePart> parts_left(step_.parts);
  for (const RowHead& each : heads) {
    BatchRow& row = step_.rows.emplace_back();
    row.blocks = blocks_left.first(each.blocks);
    row.before = parts_left.first(each.parts);
    rows_.push_back({tokens_left.first(each.tokens), each.position, row.blocks,
                     static_cast<LogitsWanted>(each.logits), each.hidden != 0});
    tokens_left = tokens_left.subspan(each.tokens);
    blocks_left = blocks_left.subspan(each.blocks);
    parts_left = parts_left.subspan(each.parts);
  }
  return {};
}

std::span<const StepRow> RankStep::rows_in(const PoolWindow& window) {
  resolve_rows(step_, window, tables_);
  for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i].block_table = tables_[i];
  return rows_;
}

}  // namespace baton
