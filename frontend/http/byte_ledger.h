// How many bytes of requests the connections of a port hold. Each connection owns its charge, and
// the charge's destructor takes it out of every sum: no way in which a connection ends can leave
// bytes behind.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace baton {

/// What all connections of one address hold together.
struct PeerUse {
  std::atomic<std::size_t> connections{0};
  std::atomic<std::size_t> bytes{0};  // of requests that are not whole yet, or wait for their turn
};

class ByteCharge;

/// The sum of all charges. Thread-safe.
class ByteLedger {
 public:
  std::size_t total() const { return total_.load(std::memory_order_relaxed); }
  /// Bytes that none of `charges` accounts for.
  std::size_t unowned(const std::vector<const ByteCharge*>& charges) const;

 private:
  friend class ByteCharge;
  mutable std::mutex mutex_;  // a charge and its sums change together
  std::atomic<std::size_t> total_{0};
};

/// One connection's bytes, in the sum of its address and in that of its port.
class ByteCharge {
 public:
  ByteCharge() = default;
  ~ByteCharge() { set(0); }
  ByteCharge(const ByteCharge&) = delete;
  ByteCharge& operator=(const ByteCharge&) = delete;

  /// Once, before the first set(). The sums live for as long as a charge in them.
  void enter(std::shared_ptr<ByteLedger> ledger, std::shared_ptr<PeerUse> peer) {
    ledger_ = std::move(ledger);
    peer_ = std::move(peer);
  }
  /// One thread at a time.
  void set(std::size_t bytes);
  /// Any thread.
  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<ByteLedger> ledger_;  // null: it is in no sum
  std::shared_ptr<PeerUse> peer_;
  std::atomic<std::size_t> bytes_{0};
};

}  // namespace baton
