// Where a journal lies, so that it outlives its writer.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "ipc/process.h"
#include "ipc/sealed_memory.h"
#include "ipc/status.h"

namespace baton {

/// Memory for a journal: a memfd of fixed size, so that no reader of it can be made to fault.
class JournalMemory {
 public:
  static Result<JournalMemory> create(std::size_t bytes);
  /// What another process made. An error if its size is not sealed.
  static Result<JournalMemory> map(UniqueFd fd);

  std::span<std::byte> bytes() const { return {mapped_.data(), mapped_.size()}; }
  int fd() const { return fd_.get(); }

 private:
  JournalMemory(UniqueFd fd, Mapped mapped) : fd_(std::move(fd)), mapped_(std::move(mapped)) {}
  UniqueFd fd_;
  Mapped mapped_;
};

}  // namespace baton
