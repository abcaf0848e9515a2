#include "text/schema/mark_search.h"

#include <deque>
#include <utility>

#include "text/schema/text_sets.h"

namespace baton::schema {

MarkSearch::MarkSearch(const std::vector<Mark>& marks) : nodes_(1) {
  for (const Mark& mark : marks) {
    std::uint32_t at = 0;
    for (const char c : mark.text) {
      const auto byte = static_cast<unsigned char>(c);
      if (nodes_[at].next[byte] == 0) {
        nodes_[at].next[byte] = static_cast<std::uint32_t>(nodes_.size());
        nodes_.emplace_back();
        if (nodes_.size() > 4'000) throw LimitError("its marks are too long");
      }
      at = nodes_[at].next[byte];
    }
    // The first of equal marks counts, and one that must not come more than any other.
    if (!std::exchange(nodes_[at].found, true) || mark.to == UINT32_MAX) nodes_[at].to = mark.to;
  }
  std::deque<std::uint32_t> queue;
  for (const std::uint32_t next : nodes_[0].next) {
    if (next != 0) queue.push_back(next);
  }
  for (; !queue.empty(); queue.pop_front()) {
    Node& node = nodes_[queue.front()];
    const Node& fallback = nodes_[node.fallback];
    if (!node.found && fallback.found) {
      node.found = true;
      node.to = fallback.to;
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (node.next[byte] == 0) {
        node.next[byte] = fallback.next[byte];
      } else {
        nodes_[node.next[byte]].fallback = fallback.next[byte];
        queue.push_back(node.next[byte]);
      }
    }
  }
}

MarkSearch::Step MarkSearch::step(std::uint32_t node, unsigned char byte) const {
  const std::uint32_t next = nodes_[node].next[byte];
  return {next, nodes_[next].found ? &nodes_[next].to : nullptr};
}

}  // namespace baton::schema
