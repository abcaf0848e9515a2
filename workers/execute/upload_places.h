// Arrays of a step's upload, one after another, in the buffer on the host and at the same places on
// the device.
#pragma once

#include <cstddef>

namespace baton {

/// An address in an upload at `from` becomes that in one at `to`, which has the same in the same
/// places. Null stays null.
template <typename T>
void move_upload(const T*& address, const std::byte* from, const std::byte* to) {
  if (address == nullptr) return;
  address = reinterpret_cast<const T*>(to + (reinterpret_cast<const std::byte*>(address) - from));
}

class UploadPlaces {
 public:
  UploadPlaces(std::byte* host, std::byte* device, std::size_t capacity)
      : host_(host), device_(device), capacity_(capacity) {}

  template <typename T>
  struct Array {
    T* host = nullptr;
    const T* device = nullptr;
  };
  template <typename T>
  Array<T> take(std::size_t n) {
    const std::size_t at = used_;
    used_ += (n * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    if (used_ > capacity_) return {};
    return {reinterpret_cast<T*>(host_ + at), reinterpret_cast<const T*>(device_ + at)};
  }
  std::size_t used() const { return used_; }
  bool full() const { return used_ > capacity_; }

 private:
  static constexpr std::size_t kAlign = 16;

  std::byte* host_;
  std::byte* device_;
  std::size_t capacity_;
  std::size_t used_ = 0;
};

}  // namespace baton
