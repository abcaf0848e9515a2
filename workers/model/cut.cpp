#include "workers/model/cut.h"

#include <algorithm>

#include "ipc/max_ranks.h"

namespace baton {
namespace {

bool heads_divide(const ModelSpec& spec, int ranks) {
  const int kv_heads = spec.pool_heads();
  const bool kv = kv_heads % ranks == 0 || ranks % kv_heads == 0;
  return spec.heads % ranks == 0 && kv;
}

}  // namespace

Status can_cut(const ModelSpec& spec, int ranks) {
  if (ranks >= 1 && ranks <= kMaxRanks && heads_divide(spec, ranks)) return {};
  std::string possible;
  for (int n = 1; n <= std::min(kMaxRanks, spec.heads); ++n) {
    if (heads_divide(spec, n)) possible += (possible.empty() ? "" : ", ") + std::to_string(n);
  }
  return invalid("worker.ranks: " + std::to_string(ranks) + " ranks cannot share the model's " +
                 std::to_string(spec.heads) + " heads and " + std::to_string(spec.kv_heads) +
                 " KV heads evenly; it can have " + possible);
}

}  // namespace baton
