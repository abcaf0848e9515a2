// Numbers as they lie in memory: between processes of one build and one user.
#pragma once

#include <cstddef>
#include <string>

namespace baton {

template <typename T>
void put(std::string& bytes, const T* from, std::size_t count) {
  bytes.append(reinterpret_cast<const char*>(from), count * sizeof(T));
}

}  // namespace baton
