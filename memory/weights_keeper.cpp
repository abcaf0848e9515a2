#include "memory/weights_keeper.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "ipc/sealed_memory.h"

namespace baton {

std::optional<WeightsKeeper::Answer> WeightsKeeper::ask(LinkNumber link, const WeightsAsk& ask,
                                                        TimeNs now) {
  Answer answer;
  switch (rules_.ask(link, ask, now)) {
    case WeightsRuling::wait:
      return std::nullopt;
    case WeightsRuling::refuse:
      answer.message.why = "the memory process keeps too many weights";
      break;
    case WeightsRuling::fill:
      answer.message.fill = true;
      spdlog::info("{} packs its weights", ask.worker);
      break;
    case WeightsRuling::map:
      answer.message.sealed = true;
      answer.fd = sealed_.at(ask.key).fd.get();
      spdlog::info("{} maps weights that are there", ask.worker);
      break;
  }
  return answer;
}

WeightsGiven WeightsKeeper::take(LinkNumber link, UniqueFd packed, TimeNs now) {
  WeightsGiven message;
  const auto bytes = packed ? sealed_bytes(packed.get()) : std::nullopt;
  if (!bytes) {
    message.why = "that is no sealed memory";
    return message;
  }
  const WeightsKey* key = rules_.sealed(link, now);
  if (key == nullptr) {
    message.why = "nobody has asked for them";
    return message;
  }
  spdlog::info("weights are sealed, {} MiB", *bytes >> 20U);
  sealed_[*key] = Sealed{std::move(packed), *bytes};
  message.sealed = true;
  return message;
}

void WeightsKeeper::expire(TimeNs now) {
  for (WeightsKey key; rules_.expire(now, key);) {
    spdlog::info("weights are given up: nobody has used them for {} s", kKeepWeights / kSecond);
    sealed_.erase(key);
  }
}

std::string WeightsKeeper::drop(const std::string& name) {
  WeightsKey key;
  std::string why = rules_.drop(name, key);
  if (why.empty()) sealed_.erase(key);
  return why;
}

void WeightsKeeper::report(TimeNs now, const std::function<std::int32_t(LinkNumber)>& pid_of,
                           std::vector<MemoryEntry>& entries) const {
  for (const auto& [key, copy] : rules_.copies()) {
    MemoryEntry entry;
    entry.what = "weights:" + copy.name;
    entry.state = !copy.sealed ? "filling" : copy.users.empty() ? "waits" : "held";
    for (const auto& [link, worker] : copy.users) {
      entry.workers.push_back(worker);
      entry.pids.push_back(pid_of(link));
    }
    const auto known = sealed_.find(key);
    if (known != sealed_.end()) entry.bytes = known->second.bytes;
    entry.since_ns = now - copy.since;
    entries.push_back(std::move(entry));
  }
}

}  // namespace baton
