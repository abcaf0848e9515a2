// Who packs a checkpoint's weights and who shares them: the rules of the memory process, as plain
// values like those of leases.h. One copy a key. The first to ask packs it; everybody else waits
// for that, and maps it once it is sealed. A packer that dies leaves nothing: the next one packs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "ipc/messages.h"

namespace baton {

/// How long weights that nobody uses are kept.
constexpr TimeNs kKeepWeights = 120 * kSecond;
/// Copies at a time: different models, or formats of one. Who asks for more packs its own.
constexpr std::size_t kMostCopies = 64;

/// A link to the memory process, by a number that is not used twice.
using LinkNumber = std::uint64_t;

struct WeightCopy {
  std::string name;  // for people: see MemoryEntry::what
  bool sealed = false;
  LinkNumber packer = 0;                    // while it is not sealed
  std::map<LinkNumber, std::string> users;  // links and their workers; the packer is one
  TimeNs since = 0;                         // sealed: the last change from used to unused or back
};

enum class WeightsRuling : std::uint8_t {
  map,     // it is sealed
  fill,    // the asker packs it
  wait,    // somebody else does: ask again when anything has changed
  refuse,  // never
};

class SharedWeights {
 public:
  struct KeyLess {
    bool operator()(const WeightsKey& a, const WeightsKey& b) const {
      return std::tie(a.model_fingerprint, a.files, a.format, a.layout) <
             std::tie(b.model_fingerprint, b.files, b.format, b.layout);
    }
  };
  using Copies = std::map<WeightsKey, WeightCopy, KeyLess>;

  /// `names`: what copies are called, in front of their number.
  explicit SharedWeights(std::string names = "") : names_(std::move(names)) {}
  WeightsRuling ask(LinkNumber link, const WeightsAsk& ask, TimeNs now);
  /// The packer's word that it is done. Null unless that link was packing something.
  const WeightsKey* sealed(LinkNumber link, TimeNs now);
  /// The link has ended: it uses nothing any more, and what it was packing is nothing.
  void gone(LinkNumber link, TimeNs now);
  /// It does not exist: what is there is damaged, or there was no room for it. Who uses it keeps
  /// it.
  void forget(const WeightsKey& key) { copies_.erase(key); }
  /// Takes one out that nobody has used for so long; false: there is none.
  bool expire(TimeNs now, WeightsKey& key, TimeNs unused = kKeepWeights);
  /// Takes out the copy of that name. Otherwise says why not; `key` is the copy's.
  std::string drop(const std::string& name, WeightsKey& key);
  const Copies& copies() const { return copies_; }

 private:
  Copies copies_;
  std::string names_;
  std::uint64_t named_ = 0;
};

}  // namespace baton
