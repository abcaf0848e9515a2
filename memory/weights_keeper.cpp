#include "memory/weights_keeper.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "ipc/sealed_memory.h"

namespace baton {

namespace {

/// Of a process that is watched by its pidfd; nobody's has ended.
bool has_ended(const UniqueFd& pidfd) {
  if (!pidfd) return true;
  pollfd poll{pidfd.get(), POLLIN, 0};
  return ::poll(&poll, 1, 0) > 0;
}

/// "memory-gpu0" names its copies "gpu0.1", "gpu0.2": names of several processes differ.
std::string names_of(const std::string& process) {
  return process.substr(process.find('-') + 1) + ".";
}

}  // namespace

WeightsKeeper::WeightsKeeper(const std::string& process, DeviceAllocator& device)
    : rules_(names_of(process)), device_(&device) {}

std::optional<WeightsKeeper::Answer> WeightsKeeper::ask(const Asker& asker, const WeightsAsk& ask,
                                                        TimeNs now) {
  Answer answer;
  if (!ask.damaged.empty()) forget_damaged(ask);
  switch (rules_.ask(asker.link, ask, now)) {
    case WeightsRuling::wait:
      return std::nullopt;
    case WeightsRuling::refuse:
      answer.message.why = "the memory process keeps too many weights";
      break;
    case WeightsRuling::fill:
      fill(asker, ask, now, answer.message);
      break;
    case WeightsRuling::map: {
      const Held& held = held_.at(ask.key);
      answer.message.sealed = true;
      answer.message.handle = held.block.handle;
      answer.message.bytes = held.bytes;
      answer.message.sum = held.sum;
      answer.fd = held.fd.get();
      spdlog::info("{} maps weights that are there", ask.worker);
      break;
    }
  }
  return answer;
}

void WeightsKeeper::fill(const Asker& asker, const WeightsAsk& ask, TimeNs now,
                         WeightsGiven& message) {
  if (device_ != nullptr) {
    release(ask.key);  // nothing, unless the asker asks twice
    auto block = device_->allocate(ask.bytes);
    if (!block.ok() && drop_unused(now)) block = device_->allocate(ask.bytes);
    UniqueFd pidfd(asker.pid > 0 ? open_pidfd(asker.pid) : -1);
    if (block.ok() && !pidfd) {
      device_->free(block.value());
      block = invalid("the memory process cannot watch process " + std::to_string(asker.pid));
    }
    if (!block.ok()) {
      rules_.forget(ask.key);
      message.why = block.status().message();
      return;
    }
    Held& held = held_[ask.key];
    held.block = std::move(block).value();
    held.bytes = ask.bytes;
    held.packer = asker.link;
    held.packer_pidfd = std::move(pidfd);
    message.handle = held.block.handle;
    message.bytes = held.bytes;
  }
  message.fill = true;
  spdlog::info("{} packs its weights", ask.worker);
}

WeightsGiven WeightsKeeper::take(LinkNumber link, const WeightsSealed& sealed, UniqueFd packed,
                                 TimeNs now) {
  WeightsGiven message;
  const auto bytes = device_ != nullptr ? std::optional(sealed.bytes)
                     : packed           ? sealed_bytes(packed.get())
                                        : std::nullopt;
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
  Held& held = held_[*key];
  held.fd = std::move(packed);
  held.bytes = *bytes;
  held.sum = sealed.sum;
  held.packer = 0;
  held.packer_pidfd.reset();
  message.sealed = true;
  return message;
}

/// A packer that dies may have kernels under way: its memory is free when its process has ended.
void WeightsKeeper::gone(LinkNumber link, TimeNs now) {
  rules_.gone(link, now);
  for (Leaving& leaving : leaving_) leaving.users.erase(link);
  for (auto it = held_.begin(); it != held_.end();) {
    const auto next = std::next(it);
    if (it->second.packer == link && link != 0) release(WeightsKey(it->first));
    it = next;
  }
}

/// Whoever uses them computes with them as they are; nobody else gets them.
void WeightsKeeper::forget_damaged(const WeightsAsk& ask) {
  const auto held = held_.find(ask.key);
  const auto copy = rules_.copies().find(ask.key);
  if (held == held_.end() || copy == rules_.copies().end() || !copy->second.sealed ||
      held->second.block.handle != ask.damaged) {
    return;
  }
  std::set<LinkNumber> users;
  for (const auto& [link, worker] : copy->second.users) users.insert(link);
  spdlog::error(
      "weights:{} are not what was sealed: some worker has written over them. {} packs "
      "them again; restart the other workers of this device",
      copy->second.name, ask.worker);
  rules_.forget(ask.key);
  release(ask.key, std::move(users));
}

void WeightsKeeper::release(const WeightsKey& key, std::set<LinkNumber> users) {
  const auto known = held_.find(key);
  if (known == held_.end()) return;
  if (device_ != nullptr) {
    Held& held = known->second;
    leaving_.push_back({std::move(held.block), std::move(users), std::move(held.packer_pidfd)});
  }
  held_.erase(known);
}

void WeightsKeeper::expire(TimeNs now) {
  for (WeightsKey key; rules_.expire(now, key);) {
    spdlog::info("weights are given up: nobody has used them for {} s", kKeepWeights / kSecond);
    release(key);
  }
  std::erase_if(leaving_, [this](const Leaving& leaving) {
    if (!leaving.users.empty() || !has_ended(leaving.writer)) return false;
    device_->free(leaving.block);
    return true;
  });
}

bool WeightsKeeper::drop_unused(TimeNs now) {
  bool any = false;
  for (WeightsKey key; rules_.expire(now, key, 0);) {
    spdlog::info("weights that nobody uses are given up: their room is needed");
    release(key);
    any = true;
  }
  expire(now);
  return any;
}

std::string WeightsKeeper::drop(const std::string& name) {
  WeightsKey key;
  std::string why = rules_.drop(name, key);
  if (why.empty()) release(key);
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
    const auto known = held_.find(key);
    if (known != held_.end()) entry.bytes = known->second.bytes;
    entry.since_ns = now - copy.since;
    entries.push_back(std::move(entry));
  }
}

}  // namespace baton
