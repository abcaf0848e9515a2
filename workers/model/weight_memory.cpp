#include "workers/model/weight_memory.h"

#include <cstdlib>
#include <utility>

#include "workers/model/error.h"

namespace baton {

namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

WeightMemory::WeightMemory(std::size_t most) {
  auto memory = UnsealedMemory::create(aligned(most));
  if (memory.ok()) shared_ = std::move(memory).value();
}

void WeightMemory::Free::operator()(std::byte* p) const { std::free(p); }

std::byte* WeightMemory::take(std::size_t bytes) {
  const std::size_t size = aligned(bytes);
  if (!shared_) {
    own_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size)));
    if (own_.back() == nullptr && size > 0)
      throw ModelError("no memory for weights of " + std::to_string(size >> 20U) + " MiB");
    return own_.back().get();
  }
  if (size > shared_->capacity() - used_) throw ModelError("the weights take more than planned");
  std::byte* at = shared_->data() + used_;
  used_ += size;
  return at;
}

SealedMemory WeightMemory::seal() {
  auto sealed = UnsealedMemory::seal(std::move(*shared_), used_);
  shared_.reset();
  if (!sealed.ok()) throw ModelError(sealed.status().message());
  return std::move(sealed).value();
}

}  // namespace baton
