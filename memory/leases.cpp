#include "memory/leases.h"

#include <utility>

#include "ipc/fault_points.h"

namespace baton {

namespace {

std::string differs(const char* field, const std::string& was, const std::string& is) {
  return std::string(field) + " was " + was + " and is " + is;
}

std::string differs(const char* field, std::uint64_t was, std::uint64_t is) {
  return differs(field, std::to_string(was), std::to_string(is));
}

std::string difference(const PoolKey& was, const PoolKey& is) {
  if (was.model_fingerprint != is.model_fingerprint)
    return differs("the model's fingerprint", was.model_fingerprint, is.model_fingerprint);
  if (was.weights != is.weights) return differs("the weights' type", was.weights, is.weights);
  if (was.dtype != is.dtype) return differs("the KV dtype", was.dtype, is.dtype);
  if (was.layers != is.layers) return differs("layers", was.layers, is.layers);
  if (was.kv_heads != is.kv_heads) return differs("KV heads", was.kv_heads, is.kv_heads);
  if (was.head_dim != is.head_dim) return differs("head_dim", was.head_dim, is.head_dim);
  if (was.tokens_per_block != is.tokens_per_block)
    return differs("tokens_per_block", was.tokens_per_block, is.tokens_per_block);
  if (was.block_bytes != is.block_bytes)
    return differs("bytes of a block", was.block_bytes, is.block_bytes);
  if (was.layout != is.layout && !fault(Fault::other_layout_kept))
    return differs("the layout's version", was.layout, is.layout);
  return "";
}

}  // namespace

std::string why_not_kept(const KeptPool& pool, const Lease& lease) {
  if (pool.spoiled && !fault(Fault::spoiled_pool_kept))
    return "the process that wrote it died of a fault";
  std::string what = difference(pool.key, lease.key);
  if (!what.empty()) return what;
  if (pool.blocks != lease.blocks && !lease.planned)
    return differs("blocks", pool.blocks, lease.blocks);
  if (pool.host_blocks != lease.host_blocks)
    return differs("blocks of its host part", pool.host_blocks, lease.host_blocks);
  return "";
}

LeaseAnswer Leases::ask(const Lease& lease, TimeNs now) {
  LeaseAnswer answer;
  const auto known = pools_.find(lease.worker);
  if (known != pools_.end()) {
    KeptPool& pool = known->second;
    if (pool.holder > lease.incarnation) {
      answer.why = "a younger process has the name " + lease.worker;
      return answer;
    }
    if (pool.holder == lease.incarnation) {  // our answer was lost
      answer.ruling = Ruling::lease;
      answer.pool = pool;
      return answer;
    }
    if (pool.held && !fault(Fault::lease_while_writer_lives)) {
      answer.ruling = Ruling::wait;
      return answer;
    }
    answer.why = why_not_kept(pool, lease);
    if (!answer.why.empty()) {
      answer.given_up = pool.allocation;
      pools_.erase(known);
    }
  }
  const auto [entry, fresh] = pools_.try_emplace(lease.worker);
  KeptPool& pool = entry->second;
  if (fresh) {
    pool.worker = lease.worker;
    pool.key = lease.key;
    pool.allocation = lease.allocation;
    pool.blocks = lease.blocks;
    pool.host_blocks = lease.host_blocks;
  }
  pool.holder = lease.incarnation;
  pool.held = true;
  pool.kept = !fresh;
  pool.since = now;
  answer.ruling = Ruling::lease;
  answer.pool = pool;
  return answer;
}

void Leases::ended(const std::string& worker, Incarnation holder, bool spoiled, TimeNs now) {
  const auto known = pools_.find(worker);
  if (known == pools_.end() || known->second.holder != holder || !known->second.held) return;
  known->second.held = false;
  known->second.spoiled = spoiled;
  known->second.since = now;
}

std::optional<KeptPool> Leases::outdated(const std::string& worker,
                                         std::uint64_t model_fingerprint) {
  const auto known = pools_.find(worker);
  if (known == pools_.end() || known->second.held ||
      known->second.key.model_fingerprint == model_fingerprint) {
    return std::nullopt;
  }
  KeptPool pool = std::move(known->second);
  pools_.erase(known);
  return pool;
}

Result<KeptPool> Leases::drop(const std::string& worker) {
  const auto known = pools_.find(worker);
  if (known == pools_.end()) return invalid("there is none of that name");
  if (known->second.held) return invalid(worker + " holds it");
  KeptPool pool = std::move(known->second);
  pools_.erase(known);
  return pool;
}

std::vector<KeptPool> Leases::expire(TimeNs now) {
  std::vector<KeptPool> over;
  for (auto it = pools_.begin(); it != pools_.end();) {
    if (it->second.held || now - it->second.since < kKeepIdle) {
      ++it;
      continue;
    }
    over.push_back(std::move(it->second));
    it = pools_.erase(it);
  }
  return over;
}

}  // namespace baton
