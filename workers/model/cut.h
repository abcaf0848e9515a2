// How a model is cut over the ranks of a worker. Every linear layer is cut by its outputs and reads
// all of its inputs, so that each output is the same chain of additions at any number of ranks:
// logits are equal to the bit (docs/adr/0024-ranks.md). Heads are cut evenly; features and the
// vocabulary as evenly as they can be; experts go whole to one rank each. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/status.h"
#include "workers/model/spec.h"

namespace baton {

/// Numbers [first, first + count).
struct Slice {
  std::int64_t first = 0;
  std::int64_t count = 0;

  std::int64_t end() const { return first + count; }
  bool holds(std::int64_t n) const { return n >= first && n < end(); }
  bool operator==(const Slice&) const = default;
};

/// What one rank of `ranks` has of a model. By default all of it.
struct ModelCut {
  int rank = 0;
  int ranks = 1;

  bool whole() const { return ranks == 1; }
  /// Of `total` outputs, experts or tokens: those of this rank, those of another, and whose one is.
  Slice part(std::int64_t total) const { return part_of(rank, total); }
  Slice part_of(int other, std::int64_t total) const {
    const std::int64_t first = total * other / ranks;
    return {first, total * (other + 1) / ranks - first};
  }
  int owner(std::int64_t total, std::int64_t index) const {
    return static_cast<int>(((index + 1) * ranks - 1) / total);
  }

  Slice heads(const ModelSpec& spec) const { return heads_of(rank, spec); }
  Slice heads_of(int other, const ModelSpec& spec) const { return part_of(other, spec.heads); }
  /// Those of the pool that this rank's heads look at. With more ranks than KV heads several ranks
  /// have the same one; latent keys and values are one head's, which all ranks have.
  Slice kv_heads(const ModelSpec& spec) const { return kv_heads_of(rank, spec); }
  Slice kv_heads_of(int other, const ModelSpec& spec) const {
    const int all = spec.pool_heads();
    if (ranks <= all) return part_of(other, all);
    return {other / (ranks / all), 1};
  }
  bool repeats_kv(const ModelSpec& spec) const { return ranks > spec.pool_heads(); }
  /// Whether this rank writes its KV heads to the pool: of those that have the same, the first.
  bool writes_kv(const ModelSpec& spec) const {
    return !repeats_kv(spec) || rank % (ranks / spec.pool_heads()) == 0;
  }

  bool operator==(const ModelCut&) const = default;
};

/// Whether a model can be cut so; the error names the numbers of ranks that it can.
Status can_cut(const ModelSpec& spec, int ranks);

}  // namespace baton
