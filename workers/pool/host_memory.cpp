#include "workers/pool/host_memory.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>

namespace baton {
namespace {

constexpr std::uint64_t kMib = 1U << 20U;
constexpr std::uint64_t kLeastWanted = 256 * kMib;
constexpr std::uint64_t kMostWanted = 4096 * kMib;
/// A chosen pool below this serves nobody: better say so.
constexpr std::uint64_t kLeastPool = 16 * kMib;
/// Activations, libraries, the process itself.
constexpr std::uint64_t kOwn = 64 * kMib;

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The number behind `key` in `text`; behind nothing, the number that the text begins with.
std::uint64_t number_after(const std::string& text, const std::string& key,
                           std::uint64_t otherwise) {
  std::size_t at = key.empty() ? 0 : text.find(key);
  if (at == std::string::npos) return otherwise;
  at = text.find_first_not_of(" \t", at + key.size());
  if (at == std::string::npos) return otherwise;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
  return error == std::errc() ? value : otherwise;
}

std::string gib(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1U << 30U));
  return text;
}

std::uint64_t share_of(const MemoryAsk& ask) {
  if (ask.memory_mib > 0) return ask.memory_mib * kMib;
  return static_cast<std::uint64_t>(ask.fraction * static_cast<double>(ask.free)) / ask.sharers;
}

std::string share_text(const MemoryAsk& ask) {
  if (ask.memory_mib > 0) return "memory_mib allows " + gib(share_of(ask));
  char fraction[32];
  std::snprintf(fraction, sizeof fraction, "%g", ask.fraction);
  std::string text = gib(ask.free) + " are free, of which memory_fraction " + fraction;
  if (ask.sharers > 1) text += ", divided by " + std::to_string(ask.sharers) + " workers,";
  return text + " allows " + gib(share_of(ask));
}

std::uint64_t host_part_of(const MemoryAsk& ask) {
  return ask.host_pool_blocks > 0 ? ask.host_pool_blocks * ask.block_bytes
                                  : ask.host_pool_mib * kMib;
}

Status too_little(const MemoryAsk& ask, std::uint64_t pool) {
  std::string text = "not enough memory: weights " + gib(ask.weights) + " (" + ask.dtype + ")";
  if (ask.loading > 0) text += " + " + gib(ask.loading) + " while they are dequantised";
  text += " + KV pool " + gib(pool) + (ask.pool_mib + ask.pool_blocks > 0 ? "" : " at least") +
          (host_part_of(ask) > 0 ? " + its host part " + gib(host_part_of(ask)) : "") + " + " +
          gib(kOwn) + " of the process's own; " + share_text(ask) +
          ". Fewer workers on CPUs (configs/1mixed.yaml has one), a smaller model, `dtype: bf16` "
          "or a smaller pool_mib need less; memory_mib overrides the limit";
  return invalid(std::move(text));
}

}  // namespace

std::uint64_t free_memory(const std::string& meminfo, const std::string& group_max,
                          const std::string& group_current, const std::string& group_stat) {
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t available = number_after(meminfo, "MemAvailable:", 0) * 1024;
  const std::uint64_t limit = number_after(group_max, "", kNone);  // "max": none
  if (limit == kNone) return available;
  // Pages of files that nobody uses are given back before the limit hurts.
  const std::uint64_t used = number_after(group_current, "", 0);
  const std::uint64_t idle = std::min(used, number_after(group_stat, "inactive_file ", 0));
  const std::uint64_t left = limit - std::min(limit, used - idle);
  return available == 0 ? left : std::min(available, left);
}

std::uint64_t free_host_memory() {
  const std::string meminfo = text_of("/proc/meminfo");
  const std::string own = text_of("/proc/self/cgroup");  // 0::/path
  std::uint64_t least = free_memory(meminfo, "", "", "");
  const std::size_t at = own.find("0::/");
  std::string path = at == std::string::npos ? "" : own.substr(at + 3, own.find('\n', at) - at - 3);
  while (true) {  // the group and those around it, of which each may have a limit
    const std::string folder = "/sys/fs/cgroup" + path + "/memory.";
    least = std::min(least, free_memory(meminfo, text_of(folder + "max"),
                                        text_of(folder + "current"), text_of(folder + "stat")));
    if (path.empty()) break;
    path.resize(path.rfind('/'));
  }
  // The older kind of control groups, as a container sees its own.
  const std::string old = "/sys/fs/cgroup/memory/memory.";
  return std::min(least, free_memory(meminfo, text_of(old + "limit_in_bytes"),
                                     text_of(old + "usage_in_bytes"), text_of(old + "stat")));
}

std::uint64_t free_shared_memory() {
  struct statvfs info {};
  if (::statvfs("/dev/shm", &info) != 0) return 0;
  return std::uint64_t{info.f_bavail} * info.f_frsize;
}

Result<std::uint64_t> plan_host_pool(const MemoryAsk& ask) {
  const bool given = ask.pool_blocks > 0 || ask.pool_mib > 0;
  std::uint64_t pool =
      ask.pool_blocks > 0 ? ask.pool_blocks * ask.block_bytes : ask.pool_mib * kMib;
  if (!given) pool = std::clamp(2 * ask.context_bytes, kLeastWanted, kMostWanted);
  if (ask.free == 0 && ask.memory_mib == 0) return pool;
  const std::uint64_t share = share_of(ask);
  const std::uint64_t own = ask.weights + ask.loading + host_part_of(ask) + kOwn;
  const std::uint64_t left = share - std::min(share, own);
  const std::uint64_t least = given ? pool : std::max(kLeastPool, 2 * ask.block_bytes);
  if (left < least) return too_little(ask, least);
  if (given) return pool;
  pool = std::min(pool, std::max(left / 2, least));
  if (ask.shared_free > 0) {
    const std::uint64_t part = ask.shared_free / ask.sharers;
    pool = std::min(pool, std::max(part - std::min(part, host_part_of(ask)), least));
  }
  return pool;
}

Status check_host_part(std::uint64_t bytes, std::uint64_t free, std::uint64_t sharers) {
  if (free == 0 || bytes <= (free - free / 10) / sharers) return {};
  return Status(
      ErrorCode::unavailable,
      "the KV pool's host part would take " + gib(bytes) + " and page-lock it, but only " +
          gib(free) + " of the host's memory are free, of which a tenth must stay so" +
          (sharers > 1 ? " and " + std::to_string(sharers) + " workers share the rest" : "") +
          ": lower host_pool_mib or host_pool_blocks");
}

}  // namespace baton
