// Numbers by value, as sets of their texts without an exponent.
#include <algorithm>
#include <string>

#include "text/schema/text_sets.h"

namespace baton::schema {
namespace {

constexpr std::size_t kMaxDigits = 700;

/// A decimal's text, perhaps with an exponent, as digits before and after the point.
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction;
  bool zero() const { return whole == "0" && fraction.empty(); }
};

Decimal decimal_of(std::string_view text) {
  Decimal out;
  if (!text.empty() && text[0] == '-') {
    out.negative = true;
    text.remove_prefix(1);
  }
  std::string digits;
  std::int64_t point = -1;
  std::size_t i = 0;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      point = static_cast<std::int64_t>(digits.size());
    } else {
      digits += text[i];
    }
  }
  if (point < 0) point = static_cast<std::int64_t>(digits.size());
  if (i < text.size()) point += std::stol(std::string(text.substr(i + 1)));
  if (point > static_cast<std::int64_t>(kMaxDigits) ||
      point < -static_cast<std::int64_t>(kMaxDigits) || digits.size() > kMaxDigits) {
    throw LimitError("a number has more than " + std::to_string(kMaxDigits) + " digits");
  }
  if (point < 0) {
    digits.insert(0, static_cast<std::size_t>(-point), '0');
    point = 0;
  }
  const auto at = static_cast<std::size_t>(point);
  if (at > digits.size()) digits.append(at - digits.size(), '0');
  out.whole = digits.substr(0, at);
  out.fraction = digits.substr(at);
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  while (!out.fraction.empty() && out.fraction.back() == '0') out.fraction.pop_back();
  if (out.zero()) out.negative = false;
  return out;
}

}  // namespace

std::uint32_t TextSets::all_digits() {
  const std::uint32_t node = graph_node(true);
  graph_[node].next.emplace_back('.', node);
  for (char32_t c = '0'; c <= '9'; ++c) graph_[node].next.emplace_back(c, node);
  return node;
}

/// Takes away ways of the nodes from `first` on that lead to no end.
void TextSets::prune(std::uint32_t first) {
  std::vector<bool> good(graph_.size() - first);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < good.size(); ++i) {
      if (good[i]) continue;
      const GraphNode& node = graph_[first + i];
      good[i] = node.ends || std::any_of(node.next.begin(), node.next.end(), [&](const auto& way) {
                  return way.second >= first && good[way.second - first];
                });
      changed = changed || good[i];
    }
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::erase_if(graph_[first + i].next,
                  [&](const auto& way) { return !good[way.second - first]; });
  }
}

/// Numbers without a sign that are less than, equal to, or greater than one.
std::uint32_t TextSets::magnitude(std::string_view whole, std::string_view fraction, bool less,
                                  bool equal, bool greater) {
  const std::uint32_t none = graph_node(false);
  const std::uint32_t first = none;
  const std::uint32_t all = all_digits();
  const auto side = [&](bool wanted) { return wanted ? all : none; };
  const bool rest = !fraction.empty();      // what is equal so far and ends is less
  std::uint32_t after = graph_node(equal);  // the end of the fraction
  graph_[after].next.emplace_back('0', after);
  for (char32_t c = '1'; c <= '9'; ++c) graph_[after].next.emplace_back(c, side(greater));
  for (std::size_t i = fraction.size(); i-- > 0;) {
    const std::uint32_t node = graph_node(less);
    for (char c = '0'; c <= '9'; ++c) {
      graph_[node].next.emplace_back(
          c, c == fraction[i] ? after : side(c < fraction[i] ? less : greater));
    }
    after = node;
  }
  // The digits before the point: how many came, and how they compare so far.
  std::uint32_t below[3] = {none, none, none};
  const std::uint32_t longer = graph_node(greater);
  graph_[longer].next.emplace_back('.', side(greater));
  for (char32_t c = '0'; c <= '9'; ++c) graph_[longer].next.emplace_back(c, longer);
  for (std::size_t i = whole.size() + 1; i-- > 0;) {
    std::uint32_t here[3];
    for (int sign = 0; sign < 3; ++sign) {  // less, equal, greater so far
      const bool full = i == whole.size();
      const bool value = !full || sign == 0 ? less : sign == 1 ? (rest ? less : equal) : greater;
      here[sign] = graph_node(i > 0 && value);
      auto& next = graph_[here[sign]].next;
      if (i > 0) next.emplace_back('.', full && sign == 1 ? after : side(value));
      for (char c = '0'; c <= '9'; ++c) {
        std::uint32_t to = longer;
        if (!full) to = below[sign != 1 ? sign : c < whole[i] ? 0 : c == whole[i] ? 1 : 2];
        graph_[here[sign]].next.emplace_back(c, to);
      }
    }
    std::copy(here, here + 3, below);
  }
  prune(first);
  return below[1];
}

TextSet TextSets::number_at_most(std::string_view decimal, bool inclusive) {
  const Decimal bound = decimal_of(decimal);
  const std::uint32_t root = graph_node(false);
  std::uint32_t negative = 0;
  std::uint32_t positive = graph_node(false);
  if (bound.negative) {
    negative = magnitude(bound.whole, bound.fraction, false, inclusive, true);
  } else {
    // -0 is 0
    negative = bound.zero() ? magnitude("0", "", false, inclusive, true) : all_digits();
    positive = magnitude(bound.whole, bound.fraction, true, inclusive, false);
  }
  const auto digits = graph_[positive].next;
  graph_[root].next.emplace_back('-', negative);
  graph_[root].next.insert(graph_[root].next.end(), digits.begin(), digits.end());
  return make_graph(root);
}

TextSet TextSets::number_equal(std::string_view decimal) {
  return both(number_at_most(decimal, true), complement(number_at_most(decimal, false)));
}

TextSet TextSets::multiple_of(std::string_view step) {
  const Decimal of = decimal_of(step);
  std::string digits = of.whole + of.fraction;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  constexpr std::size_t kMaxStepDigits = 9;
  if (digits.empty()) throw LimitError("multipleOf must be above 0");
  if (digits.size() > kMaxStepDigits) {
    throw LimitError("multipleOf has more than " + std::to_string(kMaxStepDigits) + " digits");
  }
  multiples_.push_back({std::stoull(digits), static_cast<std::uint32_t>(of.fraction.size())});
  return make_multiple(multiples_.size() - 1, 0, 0);
}

}  // namespace baton::schema
