#include "ipc/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace baton {

namespace {

constexpr int kAllSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

// Of Linux 6.3: such memory is never run as a program. Some systems allow no other.
constexpr unsigned kNeverRun = 0x0008U;

Status failed(const char* what) {
  return Status(ErrorCode::unavailable, std::string(what) + ": " + std::strerror(errno));
}

Result<Mapped> map_all(int fd, std::size_t bytes, int protection, int flags) {
  void* at = ::mmap(nullptr, bytes, protection, flags, fd, 0);
  if (at == MAP_FAILED) return failed("cannot map memory");
  return Mapped(static_cast<std::byte*>(at), bytes);
}

}  // namespace

UniqueFd unnamed_memory(const char* label, unsigned flags) {
  const int fd = ::memfd_create(label, MFD_CLOEXEC | flags | kNeverRun);
  if (fd >= 0 || errno != EINVAL) return UniqueFd(fd);
  return UniqueFd(::memfd_create(label, MFD_CLOEXEC | flags));
}

Mapped::~Mapped() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

std::optional<std::uint64_t> sealed_bytes(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct stat info {};
  if (seals < 0 || (seals & kAllSeals) != kAllSeals || ::fstat(fd, &info) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(info.st_size);
}

Result<SealedMemory> SealedMemory::map(UniqueFd fd) {
  const auto bytes = sealed_bytes(fd.get());
  if (!bytes || *bytes == 0) return invalid("that is no sealed memory");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return failed("cannot look at memory");
  // Private, though nothing is ever copied: Linux before 6.7 maps no write-sealed memory as shared.
  auto mapped = map_all(fd.get(), *bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE);
  if (!mapped.ok()) return mapped.status();
  SealedMemory memory;
  memory.fd_ = std::move(fd);
  memory.mapped_ = std::move(mapped).value();
  memory.id_ = info.st_ino;
  return memory;
}

Result<UnsealedMemory> UnsealedMemory::create(std::size_t capacity) {
  UnsealedMemory memory;
  memory.fd_ = unnamed_memory("baton-weights", MFD_ALLOW_SEALING);
  if (!memory.fd_) return failed("no shared memory");
  if (::ftruncate(memory.fd_.get(), static_cast<off_t>(capacity)) != 0)
    return failed("cannot size shared memory");
  auto mapped =
      map_all(memory.fd_.get(), capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE);
  if (!mapped.ok()) return mapped.status();
  memory.mapped_ = std::move(mapped).value();
  return memory;
}

Result<SealedMemory> UnsealedMemory::seal(UnsealedMemory memory, std::size_t bytes) {
  if (bytes > memory.capacity()) return invalid("more than was reserved");
  memory.mapped_ = Mapped();  // the kernel seals nothing that is mapped for writing
  const int fd = memory.fd_.get();
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return failed("cannot cut shared memory");
  if (::fcntl(fd, F_ADD_SEALS, kAllSeals) != 0) return failed("cannot seal shared memory");
  return SealedMemory::map(std::move(memory.fd_));
}

}  // namespace baton
