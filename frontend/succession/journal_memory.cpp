#include "frontend/succession/journal_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace baton {
namespace {

constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

Result<JournalMemory> JournalMemory::create(std::size_t bytes) {
  UniqueFd fd(memfd_create("baton-journal", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kFixedSize | F_SEAL_SEAL) != 0) {
    return Status(ErrorCode::unavailable,
                  "no memory for a journal: " + std::string(std::strerror(errno)));
  }
  return map(std::move(fd));
}

Result<JournalMemory> JournalMemory::map(UniqueFd fd) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kFixedSize) != kFixedSize)
    return invalid("journal: its size is not sealed");
  struct stat facts {};
  if (fstat(fd.get(), &facts) != 0 || facts.st_size <= 0) return invalid("journal: it is empty");
  const auto size = static_cast<std::size_t>(facts.st_size);
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) {
    return Status(ErrorCode::unavailable,
                  "a journal cannot be mapped: " + std::string(std::strerror(errno)));
  }
  return JournalMemory(std::move(fd), Mapped(static_cast<std::byte*>(at), size));
}

}  // namespace baton
