#include "text/schema/char_set.h"

#include <algorithm>

namespace baton::schema {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800;
constexpr char32_t kLastSurrogate = 0xDFFF;

CharSet joined(CharSet set) {
  std::sort(set.begin(), set.end(),
            [](const CharRange& a, const CharRange& b) { return a.first < b.first; });
  CharSet out;
  for (const CharRange& range : set) {
    if (!out.empty() && range.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

}  // namespace

CharSet normal(CharSet set) {
  CharSet out;
  for (const CharRange& range : joined(std::move(set))) {
    if (range.first < kFirstSurrogate) {
      out.push_back({range.first, std::min<char32_t>(range.last, kFirstSurrogate - 1)});
    }
    if (range.last > kLastSurrogate) {
      out.push_back({std::max<char32_t>(range.first, kLastSurrogate + 1), range.last});
    }
  }
  return out;
}

CharSet inverse(const CharSet& set) {
  CharSet out;
  char32_t next = 0;
  for (const CharRange& range : joined(set)) {
    if (range.first > next) out.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) out.push_back({next, kMaxCodePoint});
  return normal(std::move(out));
}

CharSet digit_chars() { return {{'0', '9'}}; }

CharSet word_chars() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }

CharSet space_chars() {
  return {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}

CharSet dot_chars() { return inverse({{0x0A, 0x0A}, {0x0D, 0x0D}, {0x2028, 0x2029}}); }

}  // namespace baton::schema
