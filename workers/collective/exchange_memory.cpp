#include "workers/collective/exchange_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace baton {

namespace {

constexpr std::uint64_t kExchangeMagic = 0x65676E6168637842;  // "Bxchange"
constexpr std::uint32_t kMostBufferBytes = 64U << 20U;

constexpr std::size_t head_bytes() { return (sizeof(ExchangeHead) + 4095) / 4096 * 4096; }

std::size_t bytes_for(int ranks, std::uint32_t buffer_bytes) {
  return head_bytes() + std::size_t{2} * static_cast<std::size_t>(ranks) * buffer_bytes;
}

Status exchange_failed(const char* what) {
  return Status(ErrorCode::unavailable,
                std::string("exchange memory: ") + what + ": " + std::strerror(errno));
}

Result<Mapped> map_exchange(int fd, std::size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (at == MAP_FAILED) return exchange_failed("mmap");
  return Mapped(static_cast<std::byte*>(at), bytes);
}

}  // namespace

Result<ExchangeMemory> ExchangeMemory::create(int ranks, std::uint32_t buffer_bytes) {
  if (ranks < 2 || ranks > kMaxRanks) {
    return invalid("a group has 2 to " + std::to_string(kMaxRanks) + " ranks, not " +
                   std::to_string(ranks));
  }
  if (buffer_bytes == 0 || buffer_bytes % 64 != 0 || buffer_bytes > kMostBufferBytes) {
    return invalid("an exchange buffer of " + std::to_string(buffer_bytes) + " bytes");
  }
  ExchangeMemory memory;
  memory.fd_ = unnamed_memory("baton-exchange");
  if (!memory.fd_) return exchange_failed("memfd_create");
  const std::size_t bytes = bytes_for(ranks, buffer_bytes);
  if (::ftruncate(memory.fd_.get(), static_cast<off_t>(bytes)) != 0)
    return exchange_failed("ftruncate");
  auto mapped = map_exchange(memory.fd_.get(), bytes);
  if (!mapped.ok()) return mapped.status();
  memory.mapped_ = std::move(mapped).value();
  auto* head = new (memory.mapped_.data()) ExchangeHead;
  head->magic = kExchangeMagic;
  head->ranks = static_cast<std::uint32_t>(ranks);
  head->buffer_bytes = buffer_bytes;
  return memory;
}

Result<ExchangeMemory> ExchangeMemory::map(UniqueFd fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return exchange_failed("fstat");
  const auto bytes = static_cast<std::size_t>(info.st_size);
  if (bytes < head_bytes()) return invalid("that is no exchange memory");
  auto mapped = map_exchange(fd.get(), bytes);
  if (!mapped.ok()) return mapped.status();
  ExchangeMemory memory;
  memory.fd_ = std::move(fd);
  memory.mapped_ = std::move(mapped).value();
  const ExchangeHead& head = memory.head();
  if (head.magic != kExchangeMagic || head.ranks < 2 || head.ranks > kMaxRanks ||
      head.buffer_bytes > kMostBufferBytes ||
      bytes_for(static_cast<int>(head.ranks), head.buffer_bytes) != bytes) {
    return invalid("that is no exchange memory of this build");
  }
  return memory;
}

std::byte* ExchangeMemory::buffer(int rank, std::uint32_t round) const {
  const auto index = static_cast<std::size_t>(rank) * 2 + round % 2;
  return mapped_.data() + head_bytes() + index * buffer_bytes();
}

}  // namespace baton
