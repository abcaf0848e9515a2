#include "scheduler/state/tenants.h"

#include <algorithm>
#include <cmath>

#include "ipc/fault_points.h"

namespace baton {

TenantIndex Tenants::entry_for(const std::string& name) {
  if (name.empty()) return kSharedTenant;
  const auto known = by_name_.find(name);
  if (known != by_name_.end()) return known->second;
  auto index = static_cast<TenantIndex>(tenants_.size());
  if (tenants_.size() < kMaxTenants) {
    tenants_.emplace_back();
  } else {
    index = kSharedTenant;
    for (TenantIndex i = 1; i < tenants_.size(); ++i) {
      const Tenant& tenant = tenants_[i];
      if (tenant.open != 0) continue;
      if (index == kSharedTenant || tenant.counter < tenants_[index].counter) index = i;
    }
    if (index == kSharedTenant) return kSharedTenant;
    by_name_.erase(tenants_[index].name);
    tenants_[index] = Tenant{};
  }
  tenants_[index].name = name;
  by_name_[name] = index;
  return index;
}

TenantIndex Tenants::open(const TenantShare& share) {
  const TenantIndex index = entry_for(share.tenant);
  Tenant& tenant = tenants_[index];
  ++tenant.open;
  ++tenant.requests;
  if (index == kSharedTenant && !share.tenant.empty()) return index;
  tenant.weight = std::isfinite(share.weight)
                      ? std::clamp(share.weight, kLeastTenantWeight, kMostTenantWeight)
                      : 1.0;
  const std::int32_t priority = std::clamp(share.priority, -kMaxPriority, kMaxPriority);
  // Counters of other priorities say nothing here: it begins anew beside these.
  if (priority != tenant.priority) tenant.counter = floor(priority);
  tenant.priority = priority;
  return index;
}

double Tenants::floor(std::int32_t priority) const {
  const Tenant* least = nullptr;
  for (const TenantIndex i : queued_) {
    const Tenant& tenant = tenants_[i];
    if (tenant.priority != priority) continue;
    if (least == nullptr || tenant.counter < least->counter) least = &tenant;
  }
  if (least != nullptr) return least->counter;
  const auto last = last_.find(priority);
  return last == last_.end() || tenants_[last->second].priority != priority
             ? 0
             : tenants_[last->second].counter;
}

void Tenants::enter_queue(TenantIndex index, const QueueKey& key) {
  Tenant& tenant = tenants_[index];
  if (tenant.waiting.empty()) {
    if (!fault(Fault::return_not_lifted)) {
      tenant.counter = std::max(tenant.counter, floor(tenant.priority));
    }
    queued_.insert(index);
  }
  tenant.waiting.insert(key);
}

void Tenants::leave_queue(TenantIndex index, const QueueKey& key) {
  Tenant& tenant = tenants_[index];
  if (tenant.waiting.erase(key) == 0 || !tenant.waiting.empty()) return;
  queued_.erase(index);
  if (!fault(Fault::last_leaver_forgotten)) last_[tenant.priority] = index;
}

void Tenants::charge_prompt(TenantIndex index, std::uint32_t tokens) {
  Tenant& tenant = tenants_[index];
  tenant.prompt_tokens += tokens;
  tenant.counter += tokens / tenant.weight;
}

void Tenants::charge_output(TenantIndex index, std::uint32_t tokens, double cost) {
  Tenant& tenant = tenants_[index];
  tenant.output_tokens += tokens;
  if (!fault(Fault::replies_not_charged)) tenant.counter += tokens * cost / tenant.weight;
}

}  // namespace baton
