// What one worker's pool has come to hold, and what it holds no more, as a router is told of it
// (scheduler.kv_events). Contents have names that depend on nothing but the tokens before and in
// them and the salt: the same on every worker, and under the next scheduler.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ipc/types.h"

namespace baton {

/// A block of tokens behind all that comes before it.
using ContentHash = std::uint64_t;
ContentHash hash_content(std::optional<ContentHash> parent, std::string_view salt,
                         std::span<const Token> tokens);

struct CacheEvent {
  enum class What : std::uint8_t { stored, removed, cleared };
  What what = What::cleared;
  bool host = false;  // in the host part; else in the pool
  ContentHash hash = 0;
  std::optional<ContentHash> parent;  // of what is stored; none: a beginning
  std::vector<Token> tokens;          // likewise
  bool operator==(const CacheEvent&) const = default;
};

/// Told by the pool's prefix index; what happened is taken once a turn. What cannot be found (its
/// parent was forgotten before it came) is not told. Two entries of the index may have one content,
/// if the parent of the first was forgotten: it is stored with the first, removed with the last.
class CacheLog {
 public:
  using Node = std::uint64_t;
  static constexpr Node kRoot = 0;
  /// Beyond, a turn's events are dropped for one `cleared`: whoever listens knows of less, and of
  /// nothing that is not there.
  static constexpr std::size_t kMostEvents = 65536;

  /// A new log begins with `cleared`: nobody knows what was told of that worker before.
  CacheLog() { events_.emplace_back(); }

  /// There is such a content, whether a block holds it or not.
  void passed(Node node, Node parent, std::string_view salt, std::span<const Token> tokens);
  void stored(Node node, Node parent, std::string_view salt, std::span<const Token> tokens,
              bool host);
  void removed(Node node, bool host);
  /// No block holds it any more.
  void forgotten(Node node) { contents_.erase(node); }
  /// Nor anything else.
  void cleared();

  bool empty() const { return events_.empty(); }
  std::vector<CacheEvent> take() { return std::exchange(events_, {}); }
  /// As it is told; for tests.
  std::optional<ContentHash> hash_of(Node node) const;

 private:
  void add(CacheEvent&& event);

  struct Content {
    ContentHash hash = 0;
    std::optional<ContentHash> parent;
  };
  std::unordered_map<Node, Content> contents_;                              // of what is told
  std::unordered_map<ContentHash, std::array<std::uint32_t, 2>> holders_;  // pool, host part
  std::vector<CacheEvent> events_;
};

}  // namespace baton
