#include "frontend/http/byte_ledger.h"

namespace baton {

std::size_t ByteLedger::unowned(const std::vector<const ByteCharge*>& charges) const {
  const std::lock_guard lock(mutex_);
  std::size_t owned = 0;
  for (const ByteCharge* charge : charges) owned += charge->bytes();
  return total() - owned;
}

void ByteCharge::set(std::size_t bytes) {
  if (bytes == this->bytes()) return;
  if (ledger_ == nullptr) return bytes_.store(bytes, std::memory_order_relaxed);
  const std::lock_guard lock(ledger_->mutex_);
  const std::size_t change = bytes - this->bytes();  // modulo 2^64, as the sums are
  bytes_.store(bytes, std::memory_order_relaxed);
  peer_->bytes.fetch_add(change, std::memory_order_relaxed);
  ledger_->total_.fetch_add(change, std::memory_order_relaxed);
}

}  // namespace baton
