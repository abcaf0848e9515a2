// Events of a cache as vLLM writes them, in MessagePack. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "scheduler/prefix/cache_log.h"

namespace baton {

struct KvEventFormat {
  bool arrays = false;  // [tag, ...] by position, as before vLLM's maps
  std::uint32_t block_size = 0;  // tokens
  std::uint32_t rank = 0;        // which worker, where several share a topic
};

/// [unix seconds, [events], rank]. Blocks that follow one another become one BlockStored. What lies
/// in a pool is of the medium "GPU", whatever the worker's device, what lies in a host part "CPU":
/// the names that routers rank.
std::string encode_kv_events(double unix_seconds, std::span<const CacheEvent> events,
                             const KvEventFormat& format);

}  // namespace baton
