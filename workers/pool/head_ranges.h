// Which heads of which ranks of an exporter a rank reads, where both workers have pools that are
// cut by heads, into as many or into different numbers of parts. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "ipc/kv_layout.h"
#include "workers/model/cut.h"

namespace baton {

/// Some heads of a block, between pools that hold different ones of a model: of each layer's keys,
/// and of its values, `bytes` from `from_first` on become those from `to_first` on.
struct HeadRange {
  std::size_t parts = 0;  // layers * 2
  std::size_t bytes = 0;
  // Of a block; from part to part; in a part
  std::size_t to_block = 0, to_stride = 0, to_first = 0;
  std::size_t from_block = 0, from_stride = 0, from_first = 0;
};

struct HeadSource {
  int rank = 0;       // of the exporter
  bool whole = true;  // its blocks are like the own ones, and are copied as they are
  HeadRange range;    // if not
};

/// For the rank `cut` whose pool is `own`, of a model with `kv_heads` heads. Heads that several
/// ranks of the exporter have are taken from the first of them.
std::vector<HeadSource> head_sources(const KvGeometry& own, const ModelCut& cut, int kv_heads,
                                     int exporter_ranks);

}  // namespace baton
