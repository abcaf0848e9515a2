// The shell's connections: a number for each routing id. A number is never used twice. What was
// silent for a while, and the core does not name, is forgotten; whoever speaks again gets a new
// number, and is told to say hello.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

#include "scheduler/state/cluster_state.h"

namespace baton {

/// `Extra`: what the shell keeps beside each.
template <typename Extra>
class LinkTable {
 public:
  static constexpr TimeNs kForgetAfter = 60 * kSecond;
  struct Link {
    std::string routing_id;
    TimeNs heard = 0;
    Extra extra;
  };

  /// The link of a message that has just come.
  LinkId heard(const std::string& routing_id, TimeNs now) {
    const auto [it, fresh] = ids_.try_emplace(routing_id, next_);
    if (fresh) links_[next_++].routing_id = routing_id;
    links_[it->second].heard = now;
    return it->second;
  }
  /// Null: it was forgotten.
  Link* find(LinkId link) {
    const auto it = links_.find(link);
    return it == links_.end() ? nullptr : &it->second;
  }
  std::size_t size() const { return links_.size(); }

  /// f(LinkId, Link&).
  template <typename F>
  void each(F f) {
    for (auto& [id, link] : links_) f(id, link);
  }
  /// Those that have been silent, and that `forget(LinkId)` agrees to.
  template <typename F>
  void forget_silent(TimeNs now, F forget) {
    std::erase_if(links_, [&](const auto& entry) {
      if (now - entry.second.heard < kForgetAfter || !forget(entry.first)) return false;
      ids_.erase(entry.second.routing_id);
      return true;
    });
  }

 private:
  std::unordered_map<LinkId, Link> links_;
  std::unordered_map<std::string, LinkId> ids_;
  LinkId next_ = kNoLink + 1;
};

}  // namespace baton
