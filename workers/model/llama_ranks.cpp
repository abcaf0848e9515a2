// The parts of the forward pass that differ where a model is cut over ranks: who has which token's
// row, norms over heads of all ranks, and whether all ranks have come to the same.
#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <vector>

#include "workers/model/llama_impl.h"

namespace baton {

/// x = E[tokens]; a rank has some of the tokens' rows.
void LlamaModel::Impl::embed(const cpu::Rows& x) {
  const EmbeddingTable& table = weights.embedding;
  const auto look_up = [&](std::span<const Token> tokens, const cpu::Rows& to) {
    if (table.data == nullptr) {
      ops.embed(weights.lm_head, tokens, to);
    } else {
      ops.embed(table.data, table.type, tokens, to);
    }
  };
  if (group == nullptr) return look_up(batch.tokens, x);
  const Slice own = cut.part(config.vocab);
  for (int r = 0; r < x.rows; ++r) {
    const Token token = batch.tokens[static_cast<std::size_t>(r)];
    if (!own.holds(token)) continue;
    const auto local = static_cast<Token>(token - own.first);
    look_up({&local, 1}, {x.row(r), 1, x.columns});
  }
  group->gather_rows(x.data, x.rows, x.columns, [this](int r) {
    return cut.owner(config.vocab, batch.tokens[static_cast<std::size_t>(r)]);
  });
}

/// q, k, v = W_qkv normed (+ bias; q and k normed); q and k turned by their position; k and v
/// written to the pool
void LlamaModel::Impl::project(const LayerSpec& spec, const LayerWeights& layer,
                               const cpu::Rows& normed, const cpu::KvLayer& kv,
                               const cpu::Rows& to) {
  if (config.latent.rank > 0) {
    project_latent(spec, layer.latent, normed, kv, to);
  } else {
    project_heads(spec, layer, normed, kv, to);
  }
  // Ranks with the same heads read what one of them has written.
  if (group != nullptr && cut.repeats_kv(config)) group->barrier();
}

void LlamaModel::Impl::project_heads(const LayerSpec& spec, const LayerWeights& layer,
                                     const cpu::Rows& normed, const cpu::KvLayer& kv,
                                     const cpu::Rows& to) {
  const cpu::QkvFinish finish = qkv_finish(spec, layer);
  if (group == nullptr || !finish.whole) {
    ops.qkv_rope_append(normed, layer.qkv, finish, places_of(spec, kv), kv, to);
  } else {
    ops.linear(normed, layer.qkv, cpu::Epilogue::store, to);
    whole_norms(spec, layer, to);
    ops.rope_append(to, finish, places_of(spec, kv), kv);
  }
}

/// Norms over all of q and all of k, of which `qkv` has this rank's heads.
void LlamaModel::Impl::whole_norms(const LayerSpec& spec, const LayerWeights& layer,
                                   const cpu::Rows& qkv) {
  const cpu::Rows all = rows_of(workspace.qkv_all, qkv.rows);
  const std::int64_t dim = config.head_dim;
  const std::int64_t q_end = config.heads * dim;
  const std::int64_t k_end = q_end + config.kv_heads * dim;
  const Slice q = cut.heads(config);
  const Slice kv = cut.kv_heads(config);
  // Where the parts of the rank's row lie in the whole one.
  const std::array<Slice, 3> parts = {Slice{q.first * dim, q.count * dim},
                                      Slice{q_end + kv.first * dim, kv.count * dim},
                                      Slice{k_end + kv.first * dim, kv.count * dim}};
  const auto copy = [&](bool back) {
    for (int r = 0; r < qkv.rows; ++r) {
      float* mine = qkv.row(r);
      for (const Slice& each : parts) {
        float* whole = all.row(r) + each.first;
        std::copy_n(back ? whole : mine, each.count, back ? mine : whole);
        mine += each.count;
      }
    }
  };
  if (!layer.qkv_bias.empty()) {  // it is added to all columns; nobody reads others' values
    for (int r = 0; r < all.rows; ++r) std::fill_n(all.row(r) + k_end, config.kv_heads * dim, 0.0F);
  }
  copy(false);
  for (int r = 0; r < cut.ranks; ++r) {
    const Slice theirs = cut.heads_of(r, config);
    ranges[static_cast<std::size_t>(r)] = {theirs.first * dim, theirs.count * dim};
  }
  const auto n = static_cast<std::size_t>(cut.ranks);
  group->gather_columns(all.data, all.rows, all.columns, std::span(ranges).first(n));
  for (int r = 0; r < cut.ranks; ++r) {
    const Slice theirs = cut.kv_heads_of(r, config);
    ranges[static_cast<std::size_t>(r)] = {q_end + theirs.first * dim, theirs.count * dim};
  }
  group->gather_columns(all.data, all.rows, all.columns, std::span(ranges).first(n));
  ops.finish_whole(all, qkv_finish(spec, layer), {config.heads, config.kv_heads, config.head_dim});
  copy(true);
}

/// All ranks have come to the end of the step, from the same rows and to the same: `last` is what
/// logits are made of. Ranks with other rows would not see it there, for all of them go on with
/// what each has given.
void LlamaModel::Impl::end_step(const cpu::Rows& last) {
  if (group == nullptr) return;
  std::uint64_t sum = 0xCBF29CE484222325ULL;
  const auto take = [&sum](std::uint64_t value) { sum = (sum ^ value) * 0x100000001B3ULL; };
  for (const Token token : batch.tokens) take(static_cast<std::uint64_t>(token));
  for (const cpu::RowPlace& place : batch.places.front()) take(place.slot);
  for (const cpu::Segment& segment : batch.segments) {
    take(static_cast<std::uint64_t>(segment.position));
    take(static_cast<std::uint64_t>(segment.rows));
  }
  for (std::int64_t i = 0; i < last.rows * last.columns; ++i) {
    take(std::bit_cast<std::uint32_t>(last.data[i]));
  }
  const std::vector<std::uint64_t> sums = group->all_gather(sum);
  for (std::size_t r = 1; r < sums.size(); ++r) {
    if (sums[r] != sums[0]) {
      throw RanksDiffer("rank " + std::to_string(r) + " has computed something else than rank 0");
    }
  }
}

}  // namespace baton
