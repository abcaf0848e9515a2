// Where in a text the first of some marks ends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace baton::schema {

/// A text that is looked for in free text, and the node behind it; UINT32_MAX: it must not come.
struct Mark {
  std::string text;
  std::uint32_t to = UINT32_MAX;
};

/// Free text up to one of its marks: the automaton of Aho and Corasick. LimitError where the marks
/// are too long.
class MarkSearch {
 public:
  explicit MarkSearch(const std::vector<Mark>& marks);

  std::size_t size() const { return nodes_.size(); }
  struct Step {
    std::uint32_t node = 0;             // where the search goes on
    const std::uint32_t* to = nullptr;  // or: a mark has been found, and this is behind it
  };
  Step step(std::uint32_t node, unsigned char byte) const;

 private:
  struct Node {
    std::array<std::uint32_t, 256> next{};  // 0: no mark goes on so
    std::uint32_t fallback = 0;
    bool found = false;
    std::uint32_t to = UINT32_MAX;
  };
  std::vector<Node> nodes_;
};

}  // namespace baton::schema
