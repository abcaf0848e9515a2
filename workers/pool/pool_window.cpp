#include "workers/pool/pool_window.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <string>

#include "workers/pool/resolved_tables.h"

namespace baton {

namespace {

/// Addresses alone, no memory: room for as many pools like the own one as may share a request.
constexpr std::size_t kLeastReserved = std::size_t{1} << 38U;
constexpr std::size_t kMostReserved = std::size_t{1} << 42U;

constexpr std::uint32_t kNoPlace = 0xFFFFFFFF;

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

void* reserve(void* at, std::size_t bytes, int flags) {
  return ::mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

Status failed(const char* what) {
  return Status(ErrorCode::unavailable, std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

PoolWindow::PoolWindow(AllocationId allocation, std::span<std::byte> own, std::uint64_t block_bytes)
    : own_(allocation), own_pool_(own), block_bytes_(block_bytes) {}

PoolWindow::~PoolWindow() {
  if (base_ != nullptr) ::munmap(base_, reserved_);
}

/// Reserves the range and puts the own pool at its beginning.
Status PoolWindow::open() {
  const std::size_t page = page_bytes();
  const std::size_t least = 2 * round_up(own_pool_.size(), page);
  // Addresses alone cost nothing, and a pool may be much larger than the own one.
  std::size_t bytes = std::clamp(64 * own_pool_.size(), kLeastReserved, kMostReserved);
  void* range = reserve(nullptr, bytes, 0);
  while (range == MAP_FAILED && bytes / 2 >= least) range = reserve(nullptr, bytes /= 2, 0);
  if (range == MAP_FAILED) return failed("no addresses for other pools beside the own one");
  base_ = static_cast<std::byte*>(range);
  reserved_ = bytes;
  step_ = static_cast<std::uint32_t>(page / std::gcd<std::size_t>(page, block_bytes_));
  ids_ = static_cast<std::uint32_t>(std::min<std::size_t>(bytes / block_bytes_, kNoPlace));
  if (const Status status = map(own_pool_.data(), own_pool_.size(), 0); !status.ok()) {
    ::munmap(base_, reserved_);
    base_ = nullptr;
    return status;
  }
  const auto blocks = static_cast<std::uint32_t>(own_pool_.size() / block_bytes_);
  places_[own_] = {0, blocks, own_pool_.size()};
  return {};
}

/// An old size of 0 makes a second mapping of the same shared pages (mremap(2)). One that fails may
/// have unmapped first what lay there: no hole is left in which others' memory would come to lie,
/// and which the next pool or the end of the window would take from them.
Status PoolWindow::map(const std::byte* from, std::size_t bytes, std::uint32_t first) {
  void* const source = const_cast<std::byte*>(from);
  void* const at = base_ + std::size_t{first} * block_bytes_;
  const std::size_t whole = round_up(bytes, page_bytes());
  const void* mapped = ::mremap(source, 0, whole, MREMAP_MAYMOVE | MREMAP_FIXED, at);
  if (mapped == at) return {};
  const Status status = failed("a pool cannot be mapped beside the own one");
  reserve(at, whole, MAP_FIXED);
  return status;
}

/// The first gap that is large enough; kNoPlace: there is none.
std::uint32_t PoolWindow::find_place(std::uint32_t blocks) const {
  const std::uint32_t page_blocks =
      static_cast<std::uint32_t>(page_bytes() / block_bytes_) + 1;  // a mapping ends with its page
  const auto next_first = [&](std::uint64_t id) { return (id + step_ - 1) / step_ * step_; };
  std::vector<Place> taken;
  for (const auto& [allocation, place] : places_) taken.push_back(place);
  std::sort(taken.begin(), taken.end(),
            [](const Place& a, const Place& b) { return a.first < b.first; });
  std::uint64_t first = 0;
  for (const Place& place : taken) {
    if (first + blocks + page_blocks <= place.first) break;
    first = next_first(std::uint64_t{place.first} + place.blocks + page_blocks);
  }
  return first + blocks + page_blocks <= ids_ ? static_cast<std::uint32_t>(first) : kNoPlace;
}

Status PoolWindow::add(AllocationId allocation, std::span<const std::byte> pool) {
  const std::lock_guard lock(mutex_);
  if (base_ == nullptr) {
    if (const Status status = open(); !status.ok()) return status;
  }
  if (places_.count(allocation) != 0) return {};
  const auto blocks = static_cast<std::uint32_t>(pool.size() / block_bytes_);
  const std::uint32_t first = find_place(blocks);
  if (first == kNoPlace) {
    return Status(ErrorCode::unavailable, "no addresses are left beside the own pool");
  }
  if (const Status status = map(pool.data(), pool.size(), first); !status.ok()) return status;
  places_[allocation] = {first, blocks, pool.size()};
  return {};
}

void PoolWindow::remove(AllocationId allocation) {
  const std::lock_guard lock(mutex_);
  const auto it = places_.find(allocation);
  if (it == places_.end() || allocation == own_) return;
  // Reserved again, over the mapping.
  reserve(base_ + std::size_t{it->second.first} * block_bytes_,
          round_up(it->second.bytes, page_bytes()), MAP_FIXED);
  places_.erase(it);
}

bool PoolWindow::resolve(const BatchRow& row, std::vector<BlockId>& ids) const {
  const std::lock_guard lock(mutex_);
  return resolve_row(row, places_, ids);
}

}  // namespace baton
