#include "workers/pool/head_ranges.h"

#include <algorithm>

namespace baton {

std::vector<HeadSource> head_sources(const KvGeometry& own, const ModelCut& cut, int kv_heads,
                                     int exporter_ranks) {
  if (exporter_ranks == cut.ranks) return {HeadSource{cut.rank, true, {}}};
  ModelSpec heads;
  heads.heads = heads.kv_heads = kv_heads;
  const Slice mine = cut.kv_heads(heads);
  const std::size_t head = kv_head_stride(own);
  const auto bytes = [head](std::int64_t n) { return head * static_cast<std::size_t>(n); };
  std::vector<HeadSource> sources;
  std::int64_t next = mine.first;  // heads in front of it have been found
  for (int rank = 0; rank < exporter_ranks && next < mine.end(); ++rank) {
    const Slice theirs = ModelCut{rank, exporter_ranks}.kv_heads(heads);
    if (!theirs.holds(next)) continue;
    const std::int64_t end = std::min(theirs.end(), mine.end());
    HeadSource source;
    source.rank = rank;
    source.whole = false;
    HeadRange& range = source.range;
    range.parts = std::size_t{own.layers} * 2;
    range.bytes = bytes(end - next);
    range.to_block = own.block_bytes;
    range.to_stride = kv_part_stride(own);
    range.to_first = bytes(next - mine.first);
    range.from_stride = bytes(theirs.count);
    range.from_block = range.from_stride * range.parts;
    range.from_first = bytes(next - theirs.first);
    sources.push_back(source);
    next = end;
  }
  return sources;
}

}  // namespace baton
