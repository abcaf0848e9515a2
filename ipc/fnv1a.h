// FNV-1a (Fowler, Noll, Vo), 64 bits: for what other builds and processes must come to as well, and
// nobody attacks.
#pragma once

#include <cstdint>
#include <string_view>

namespace baton {

/// `hash`: of what stands before these bytes.
constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = 14695981039346656037U) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

}  // namespace baton
