#include "memory/shared_weights.h"

#include <utility>

namespace baton {

WeightsRuling SharedWeights::ask(LinkNumber link, const WeightsAsk& ask, TimeNs now) {
  const auto known = copies_.find(ask.key);
  if (known == copies_.end()) {
    if (copies_.size() >= kMostCopies) return WeightsRuling::refuse;
    WeightCopy copy;
    copy.name = names_ + std::to_string(++named_);
    copy.packer = link;
    copy.users = {{link, ask.worker}};
    copy.since = now;
    copies_.emplace(ask.key, std::move(copy));
    return WeightsRuling::fill;
  }
  WeightCopy& copy = known->second;
  if (!copy.sealed) return copy.packer == link ? WeightsRuling::fill : WeightsRuling::wait;
  if (copy.users.empty()) copy.since = now;
  copy.users[link] = ask.worker;
  return WeightsRuling::map;
}

const WeightsKey* SharedWeights::sealed(LinkNumber link, TimeNs now) {
  for (auto& [key, copy] : copies_) {
    if (copy.sealed || copy.packer != link) continue;
    copy.sealed = true;
    copy.since = now;
    return &key;
  }
  return nullptr;
}

void SharedWeights::gone(LinkNumber link, TimeNs now) {
  for (auto it = copies_.begin(); it != copies_.end();) {
    WeightCopy& copy = it->second;
    if (!copy.sealed && copy.packer == link) {
      it = copies_.erase(it);
      continue;
    }
    if (copy.users.erase(link) > 0 && copy.users.empty()) copy.since = now;
    ++it;
  }
}

bool SharedWeights::expire(TimeNs now, WeightsKey& key, TimeNs unused) {
  for (auto it = copies_.begin(); it != copies_.end(); ++it) {
    if (!it->second.users.empty() || now - it->second.since < unused) continue;
    key = it->first;
    copies_.erase(it);
    return true;
  }
  return false;
}

std::string SharedWeights::drop(const std::string& name, WeightsKey& key) {
  for (auto it = copies_.begin(); it != copies_.end(); ++it) {
    const WeightCopy& copy = it->second;
    if (copy.name != name) continue;
    if (!copy.users.empty()) {
      return copy.users.begin()->second + (copy.sealed ? " uses them" : " is packing them");
    }
    key = it->first;
    copies_.erase(it);
    return "";
  }
  return "there are none of that name";
}

}  // namespace baton
