#include "scheduler/state/grammar_key.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>
#include <new>
#include <string>

namespace baton {

std::uint64_t grammar_key(const SamplingParams& sampling, const GrammarSecret& secret) {
  if (sampling.grammar_kind == GrammarKind::none) return 0;
  const std::string text = static_cast<char>(sampling.grammar_kind) + sampling.grammar;
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  // Fails for lack of memory alone.
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
           &size) == nullptr) {
    throw std::bad_alloc();
  }
  std::uint64_t key = 0;
  std::memcpy(&key, digest.data(), sizeof(key));
  return key == 0 ? 1 : key;
}

}  // namespace baton
