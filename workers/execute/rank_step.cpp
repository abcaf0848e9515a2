#include "workers/execute/rank_step.h"

#include <cstdint>
#include <cstring>

#include "workers/execute/raw_bytes.h"

namespace baton {

namespace {

/// What stands in front, once a row.
struct RowHead {
  std::int64_t position = 0;
  std::uint32_t tokens = 0;
  std::uint32_t blocks = 0;
  std::uint32_t logits = 0;
  std::uint32_t hidden = 0;
};

}  // namespace

void encode_rank_step(std::span<const StepRow> rows, std::string& bytes) {
  bytes.clear();
  const std::uint64_t count = rows.size();
  put(bytes, &count, 1);
  for (const StepRow& row : rows) {
    const RowHead head{row.position, static_cast<std::uint32_t>(row.tokens.size()),
                       static_cast<std::uint32_t>(row.block_table.size()),
                       static_cast<std::uint32_t>(row.logits), row.hidden ? 1U : 0U};
    put(bytes, &head, 1);
  }
  for (const StepRow& row : rows) put(bytes, row.tokens.data(), row.tokens.size());
  for (const StepRow& row : rows) put(bytes, row.block_table.data(), row.block_table.size());
}

Status RankStep::decode(const std::string& bytes) {
  const auto bad = [] { return invalid("a step of rank 0 that cannot be read"); };
  std::uint64_t count = 0;
  if (bytes.size() < sizeof count) return bad();
  std::memcpy(&count, bytes.data(), sizeof count);
  if (count > (bytes.size() - sizeof count) / sizeof(RowHead)) return bad();
  std::vector<RowHead> heads(count);
  std::memcpy(heads.data(), bytes.data() + sizeof count, count * sizeof(RowHead));
  std::size_t tokens = 0;
  std::size_t blocks = 0;
  for (const RowHead& head : heads) {
    const auto most = static_cast<std::uint32_t>(LogitsWanted::all);
    if (head.logits > most || head.hidden > 1) return bad();
    tokens += head.tokens;
    blocks += head.blocks;
  }
  const std::size_t at = sizeof count + count * sizeof(RowHead);
  if (bytes.size() - at != tokens * sizeof(Token) + blocks * sizeof(BlockId)) return bad();
  tokens_.resize(tokens);
  blocks_.resize(blocks);
  std::memcpy(tokens_.data(), bytes.data() + at, tokens * sizeof(Token));
  std::memcpy(blocks_.data(), bytes.data() + at + tokens * sizeof(Token), blocks * sizeof(BlockId));
  rows_.clear();
  std::span<const Token> tokens_left(tokens_);
  std::span<const BlockId> blocks_left(blocks_);
  for (const RowHead& head : heads) {
    rows_.push_back({tokens_left.first(head.tokens), head.position, blocks_left.first(head.blocks),
                     static_cast<LogitsWanted>(head.logits), head.hidden != 0});
    tokens_left = tokens_left.subspan(head.tokens);
    blocks_left = blocks_left.subspan(head.blocks);
  }
  return {};
}

}  // namespace baton
