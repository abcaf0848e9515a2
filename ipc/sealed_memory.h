// Memory that is written once and then never again, by nobody: the kernel holds everybody to it
// (memfd_create and its seals). It has no name, so one that is not finished ends with its maker;
// it lives as long as somebody holds its descriptor or maps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "ipc/process.h"
#include "ipc/status.h"

namespace baton {

/// A mapping that is undone by the destructor. Movable.
class Mapped {
 public:
  Mapped() = default;
  Mapped(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  ~Mapped();
  Mapped(Mapped&& other) noexcept { swap(other); }
  Mapped& operator=(Mapped&& other) noexcept {
    swap(other);
    return *this;
  }
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void swap(Mapped& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Memory without a name and without a size yet (memfd_create, whose flags these are; errno if
/// there is none). `label`: for people who look into /proc.
UniqueFd unnamed_memory(const char* label, unsigned flags = 0);

/// Sealed and mapped for reading; a write is a SIGSEGV.
class SealedMemory {
 public:
  /// Maps all of it at once. An error if it is not sealed: then its maker could still change it.
  static Result<SealedMemory> map(UniqueFd fd);

  const std::byte* data() const { return mapped_.data(); }
  std::size_t size() const { return mapped_.size(); }
  int fd() const { return fd_.get(); }
  /// The kernel's number of this memory: equal for two processes that map the same, and not used
  /// again while anybody does. Never 0.
  std::uint64_t id() const { return id_; }

 private:
  UniqueFd fd_;
  Mapped mapped_;
  std::uint64_t id_ = 0;
};

/// Its maker's, before it is sealed.
class UnsealedMemory {
 public:
  /// Reserves addresses alone; memory is taken by writing. All bytes are zero.
  static Result<UnsealedMemory> create(std::size_t capacity);
  std::byte* data() const { return mapped_.data(); }
  std::size_t capacity() const { return mapped_.size(); }
  /// Cuts it to `bytes`, seals it, and maps it again for reading, at another address.
  static Result<SealedMemory> seal(UnsealedMemory memory, std::size_t bytes);

 private:
  UniqueFd fd_;
  Mapped mapped_;
};

/// Bytes that a descriptor's memory takes; nothing if it is not sealed memory.
std::optional<std::uint64_t> sealed_bytes(int fd);

}  // namespace baton
