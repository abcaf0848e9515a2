// Paged causal attention on V16; see AttentionTask. Included once by each kernels_*.cpp.
#pragma once

#include "workers/cpu/kernels.h"
#include "workers/cpu/rowwise_impl.h"

namespace {

using baton::cpu::AttentionTask;
using baton::cpu::kAttentionRows;
using baton::cpu::kAttentionTile;

/// Where the keys and values of a tile lie; places behind its last key point to zeros.
struct TileRows {
  const float* key[kAttentionTile];
  const float* value[kAttentionTile];
};

/// The scratch floats of one task, by name. `dim` is head_dim rounded up to 16.
struct AttentionState {
  int queries, dim;
  float* q;        // [queries, dim], zeros behind head_dim
  float* out;      // [queries, dim]
  float* p;        // [queries, 64] scores, then probabilities
  float* sums;     // [queries, 16]
  float* keys_t;   // [dim, 64] one tile of keys, transposed
  float* zeros;    // [dim]
  float* maximum;  // [queries]
  TileRows* rows;  // of this tile
  TileRows* next;  // of the tile behind it, asked for on the way
};

AttentionState attention_state(const AttentionTask& t) {
  AttentionState s;
  s.queries = t.rows * t.group;
  s.dim = (t.head_dim + 15) / 16 * 16;
  const std::int64_t capacity = static_cast<std::int64_t>(kAttentionRows) * t.group;
  float* next = t.scratch;
  const auto take = [&next](std::int64_t n) {
    float* p = next;
    next += n;
    return p;
  };
  s.q = take(capacity * s.dim);
  s.out = take(capacity * s.dim);
  s.p = take(capacity * kAttentionTile);
  s.sums = take(capacity * 16);
  s.keys_t = take(static_cast<std::int64_t>(s.dim) * kAttentionTile);
  s.zeros = take(s.dim);
  s.maximum = take(capacity);
  return s;
}

void start_queries(const AttentionTask& t, AttentionState& s) {
  for (int c = 0; c < s.dim; c += 16) store(s.zeros + c, zero());
  for (int i = 0; i < s.queries; ++i) {
    const float* q = t.q + (i / t.group) * t.q_stride + (i % t.group) * t.head_dim;
    for (int c = 0; c < s.dim; c += 16) {
      store(s.q + i * s.dim + c, load_n(q + c, t.head_dim - c));
      store(s.out + i * s.dim + c, zero());
    }
    store(s.sums + i * 16, zero());
    s.maximum[i] = -kInfinity;
    if (t.sinks != nullptr) {  // as if it were a key that has been seen, whose value is 0
      s.maximum[i] = t.sinks[i % t.group];
      s.sums[i * 16] = 1.0F;
    }
  }
}

/// Walks over a sequence's rows in the pool: one division at the start, none a token.
struct RowCursor {
  RowCursor(const AttentionTask& task, std::int64_t position)
      : t(task),
        row_bytes(static_cast<std::uint64_t>(task.head_dim) * sizeof(float)),
        block(static_cast<std::uint64_t>(position) / task.tokens_per_block),
        slot(static_cast<std::uint32_t>(static_cast<std::uint64_t>(position) %
                                        task.tokens_per_block)) {}

  /// Bytes from the head's first row in block 0 to this position's row; moves on to the next.
  std::uint64_t next() {
    const std::uint64_t offset =
        t.block_table[block * t.table_stride] * t.block_bytes + slot * row_bytes;
    if (++slot == t.tokens_per_block) {
      slot = 0;
      ++block;
    }
    return offset;
  }

  const AttentionTask& t;
  std::uint64_t row_bytes;
  std::uint64_t block;
  std::uint32_t slot;
};

/// Finds the rows of the tile that begins at `begin`.
void find_rows(const AttentionTask& t, std::int64_t begin, const float* zeros, TileRows& rows) {
  const std::int64_t left = t.position + t.rows - begin;
  const int count = left < kAttentionTile ? static_cast<int>(left) : kAttentionTile;
  RowCursor row(t, begin);
  for (int j = 0; j < count; ++j) {
    const std::uint64_t offset = row.next();
    rows.key[j] = reinterpret_cast<const float*>(t.keys + offset);
    rows.value[j] = reinterpret_cast<const float*>(t.values + offset);
  }
  for (int j = count; j < kAttentionTile; ++j) rows.key[j] = rows.value[j] = zeros;
}

/// Where the tile with the first key that any row of the task sees begins.
inline std::int64_t first_tile(const AttentionTask& t) {
  const std::int64_t key = t.window > 0 ? t.position + 1 - t.window : 0;
  return key <= 0 ? 0 : key / kAttentionTile * kAttentionTile;
}

/// The tile that will be needed after the one at `begin`: of this task, or the first of the next
/// one.
void find_next(const AttentionTask& t, AttentionState& s, std::int64_t begin) {
  if (begin + kAttentionTile < t.position + t.rows) {
    find_rows(t, begin + kAttentionTile, s.zeros, *s.next);
  } else if (t.next != nullptr) {
    find_rows(*t.next, first_tile(*t.next), s.zeros, *s.next);
  } else {
    for (int j = 0; j < kAttentionTile; ++j) s.next->key[j] = s.next->value[j] = s.zeros;
  }
}

/// The first `count` keys of the tile and the zeros behind them, as score_block() wants them.
void transpose_keys(const AttentionTask& t, AttentionState& s, int count) {
  constexpr int kStep = 16 * kKeyVectors;
  const int padded = (count + kStep - 1) / kStep * kStep;
  for (int j = 0; j < padded; j += 16) {
    for (int c = 0; c < s.dim; c += 16) {
      V16 rows[16];
      const int n = t.head_dim - c;
      for (int r = 0; r < 16; ++r) {
        const float* key = s.rows->key[j + r] + c;
        rows[r] = n >= 16 ? load(key) : load_n(key, n);
      }
      transpose16(rows, s.keys_t + c * kAttentionTile + j, kAttentionTile);
    }
  }
}

/// Q queries against 16 * kKeyVectors keys. The first queries of a task ask for the next tile's
/// keys on the way, a line or two at a time: blocks lie anywhere in the pool, so no hardware
/// prefetcher guesses them, and asked for in a burst they would stop everything else.
template <int Q>
void score_block(const AttentionState& s, int query, int first_key, float scale_by) {
  V16 sum[Q][kKeyVectors];
  const float* q = s.q + query * s.dim;
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kKeyVectors; ++v) sum[i][v] = zero();
  }
  constexpr int kKeys = 16 * kKeyVectors;
  for (int c = 0; c < s.dim; ++c) {
    if (query == 0) {
      const float* ahead = s.next->key[first_key + c % kKeys] + c / kKeys * kKeys;
      for (int v = 0; v < kKeyVectors; ++v) __builtin_prefetch(ahead + 16 * v, 0, 2);
    }
    V16 key[kKeyVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kKeyVectors; ++v) {
      key[v] = load(s.keys_t + c * kAttentionTile + first_key + 16 * v);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const V16 value = set1(q[i * s.dim + c]);
#pragma GCC unroll 2
      for (int v = 0; v < kKeyVectors; ++v) sum[i][v] = fma(value, key[v], sum[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kKeyVectors; ++v) {
      store(s.p + (query + i) * kAttentionTile + first_key + 16 * v,
            mul(sum[i][v], set1(scale_by)));
    }
  }
}

/// Out of line: what most models do not do must not change how the rest is compiled.
__attribute__((noinline)) void cap_scores(const AttentionState& s, int query, int queries,
                                          float cap) {
  soft_cap(s.p + query * kAttentionTile, static_cast<std::int64_t>(queries) * kAttentionTile, cap);
}

/// Keys of a tile, counted from its begin.
struct KeyRange {
  int begin, end;
  bool empty() const { return begin >= end; }
};

/// Turns one query's scores of a tile into probabilities; it sees these keys, at least one.
void softmax_tile(AttentionState& s, int query, KeyRange seen) {
  float* p = s.p + query * kAttentionTile;
  const V16 least = set1(-kInfinity);
  V16 best = least;
  const int start = seen.begin / 16 * 16;
  for (int j = start; j < seen.end; j += 16) {
    const V16 score = select_first(seen.end - j, load(p + j), least);
    best = max(select_first(seen.begin - j, least, score), best);
  }
  const float tile_max = reduce_max(best);
  const float old_max = s.maximum[query];
  const float new_max = tile_max > old_max ? tile_max : old_max;
  V16 sum = load(s.sums + query * 16);
  if (new_max != old_max) {
    const V16 factor = exp16(set1(old_max - new_max));  // 0 at the first tile
    sum = mul(sum, factor);
    float* out = s.out + query * s.dim;
    for (int c = 0; c < s.dim; c += 16) store(out + c, mul(load(out + c), factor));
    s.maximum[query] = new_max;
  }
  for (int j = start; j < seen.end; j += 16) {
    V16 e = exp16(sub(load(p + j), set1(new_max)));
    e = select_first(seen.begin - j, zero(), select_first(seen.end - j, e, zero()));
    store(p + j, e);
    sum = add(sum, e);
  }
  store(s.sums + query * 16, sum);
}

/// out[query .. query + Q][c .. c + n] += p * values, keys [begin, end) of the tile in ascending
/// order.
template <int Q, int C>
void value_block(const AttentionState& s, int query, int c, int n, int begin, int end) {
  V16 sum[Q][C];
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < C; ++v) sum[i][v] = load(s.out + (query + i) * s.dim + c + 16 * v);
  }
  for (int j = begin; j < end; ++j) {
    V16 value[C];
#pragma GCC unroll 2
    for (int v = 0; v < C; ++v) {
      value[v] = n >= 16 ? load(s.rows->value[j] + c + 16 * v) : load_n(s.rows->value[j] + c, n);
      if (query == 0) __builtin_prefetch(s.next->value[j] + c + 16 * v, 0, 2);
    }
#pragma GCC unroll 8
    for (int i = 0; i < Q; ++i) {
      const V16 weight = set1(s.p[(query + i) * kAttentionTile + j]);
#pragma GCC unroll 2
      for (int v = 0; v < C; ++v) sum[i][v] = fma(weight, value[v], sum[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Q; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < C; ++v) store(s.out + (query + i) * s.dim + c + 16 * v, sum[i][v]);
  }
}

template <int Q>
void values_of(const AttentionTask& t, const AttentionState& s, int query, int begin, int end) {
  if (begin >= end) return;
  int c = 0;
  if constexpr (kKeyVectors == 2) {
    for (; c + 32 <= t.head_dim; c += 32) value_block<Q, 2>(s, query, c, 32, begin, end);
  }
  for (; c + 16 <= t.head_dim; c += 16) value_block<Q, 1>(s, query, c, 16, begin, end);
  if (c < t.head_dim) value_block<Q, 1>(s, query, c, t.head_dim - c, begin, end);
}

/// Which keys of the tile at `begin` a query sees.
inline KeyRange seen_keys(const AttentionTask& t, int query, std::int64_t begin) {
  const auto in_tile = [](std::int64_t n) {
    return n <= 0 ? 0 : n >= kAttentionTile ? kAttentionTile : static_cast<int>(n);
  };
  const std::int64_t end = t.position + query / t.group + 1 - begin;
  return {t.window > 0 ? in_tile(end - t.window) : 0, in_tile(end)};
}

/// Q neighbouring queries over one tile. Queries see different keys on the diagonal and at the edge
/// of the window: the common part together, what is in front of it and behind it one by one, so
/// that no query ever touches a key that it does not see.
template <int Q>
void tile_of(const AttentionTask& t, AttentionState& s, int query, std::int64_t begin, int count) {
  for (int j = 0; j < count; j += 16 * kKeyVectors) score_block<Q>(s, query, j, t.scale);
  if (t.soft_cap > 0) [[unlikely]]
    cap_scores(s, query, Q, t.soft_cap);
  KeyRange common = {0, kAttentionTile};
  for (int i = 0; i < Q; ++i) {
    const KeyRange seen = seen_keys(t, query + i, begin);
    if (!seen.empty()) softmax_tile(s, query + i, seen);
    if (seen.begin > common.begin) common.begin = seen.begin;
    if (seen.end < common.end) common.end = seen.end;
  }
  if (common.empty()) common = {kAttentionTile, kAttentionTile};
  for (int i = 0; i < Q; ++i) {
    const KeyRange seen = seen_keys(t, query + i, begin);
    const int end = seen.end < common.begin ? seen.end : common.begin;
    values_of<1>(t, s, query + i, seen.begin, end);
  }
  values_of<Q>(t, s, query, common.begin, common.end);
  for (int i = 0; i < Q; ++i) {
    const KeyRange seen = seen_keys(t, query + i, begin);
    values_of<1>(t, s, query + i, common.end, seen.end);
  }
}

/// Calls tile_of<queries>.
template <int Q = kMaxQueries>
void tile_queries(int queries, const AttentionTask& t, AttentionState& s, int query,
                  std::int64_t begin, int count) {
  if constexpr (Q > 1) {
    if (queries < Q) return tile_queries<Q - 1>(queries, t, s, query, begin, count);
  }
  tile_of<Q>(t, s, query, begin, count);
}

void attention(const AttentionTask& t) {
  TileRows tiles[2];
  AttentionState s = attention_state(t);
  s.rows = &tiles[0];
  s.next = &tiles[1];
  start_queries(t, s);
  const std::int64_t keys = t.position + t.rows;
  find_rows(t, first_tile(t), s.zeros, *s.rows);
  for (std::int64_t begin = first_tile(t); begin < keys; begin += kAttentionTile) {
    const int count =
        keys - begin < kAttentionTile ? static_cast<int>(keys - begin) : kAttentionTile;
    find_next(t, s, begin);
    transpose_keys(t, s, count);
    const int blocks = (s.queries + kMaxQueries - 1) / kMaxQueries;
    for (int block = 0; block < blocks; ++block) {
      const int query = s.queries * block / blocks;
      tile_queries(s.queries * (block + 1) / blocks - query, t, s, query, begin, count);
    }
    TileRows* done = s.rows;
    s.rows = s.next;
    s.next = done;
  }
  for (int i = 0; i < s.queries; ++i) {
    float* out = t.out + (i / t.group) * t.out_stride + (i % t.group) * t.head_dim;
    const V16 total = set1(reduce_add(load(s.sums + i * 16)));
    for (int c = 0; c < s.dim; c += 16) {
      store_n(out + c, div(load(s.out + i * s.dim + c), total), t.head_dim - c);
    }
  }
}

}  // namespace
