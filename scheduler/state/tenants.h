// Whose the requests are, and how many tokens each of these tenants has been given: the books of
// `queue_order: fair`. Plain values; who is next decides QueueWalk (scheduler/plan/queue_order.h).
//
// A tenant's counter is in virtual tokens: computed prompt tokens, and sampled ones times what such
// a one counts as, divided by the tenant's weight. The queue serves the least counter first. A
// tenant that comes back to the queue has saved nothing up: its counter is lifted to the least of
// those that wait (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ipc/messages.h"
#include "ipc/types.h"

namespace baton {

using TenantIndex = std::uint32_t;
/// Of requests that name no tenant, and of those of a tenant for which there was no room.
constexpr TenantIndex kSharedTenant = 0;
constexpr std::size_t kMaxTenants = 2048;

/// (place, id), as in State::waiting.
using QueueKey = std::pair<TimeNs, std::uint64_t>;

struct Tenant {
  std::string name;
  double weight = 1;
  std::int32_t priority = 0;
  double counter = 0;
  std::uint32_t open = 0;      // requests that have not ended
  std::set<QueueKey> waiting;  // of these, those in the queue
  // Since this scheduler began.
  std::uint64_t requests = 0;
  std::uint64_t prompt_tokens = 0;  // computed for it; those that were found in a cache are free
  std::uint64_t output_tokens = 0;
};

class Tenants {
 public:
  Tenants() : tenants_(1) {}

  /// A request of it has come. Its newest share counts for all of its requests. Where there is no
  /// room for one more tenant, the one that has no request open and the least counter is forgotten;
  /// if there is none, the request is the shared tenant's.
  TenantIndex open(const TenantShare& share);
  /// A request of it has ended.
  void close(TenantIndex tenant) { --tenants_[tenant].open; }

  /// A request of it enters, or leaves, the queue. Of one that is not there: no-op.
  void enter_queue(TenantIndex tenant, const QueueKey& key);
  void leave_queue(TenantIndex tenant, const QueueKey& key);

  /// Tokens that were computed, or sampled, for it.
  void charge_prompt(TenantIndex tenant, std::uint32_t tokens);
  void charge_output(TenantIndex tenant, std::uint32_t tokens, double cost);

  const Tenant& of(TenantIndex tenant) const { return tenants_[tenant]; }
  const std::vector<Tenant>& all() const { return tenants_; }
  /// Those that have somebody in the queue.
  const std::set<TenantIndex>& queued() const { return queued_; }

 private:
  TenantIndex entry_for(const std::string& name);
  /// The least counter among those of that priority that wait; if none does, that of the last one
  /// that did.
  double floor(std::int32_t priority) const;

  std::vector<Tenant> tenants_;  // indexes are stable; an entry is reused while nobody refers to it
  std::unordered_map<std::string, TenantIndex> by_name_;
  std::set<TenantIndex> queued_;
  std::map<std::int32_t, TenantIndex> last_;  // by priority: who left the queue last
};

}  // namespace baton
