// The number by which scheduler and workers name a grammar.
#pragma once

#include <array>
#include <cstdint>

#include "ipc/types.h"

namespace baton {

/// Random bytes of one scheduler process. Without them a client could compute 2^32 grammars, find
/// two that share a key, and use one grammar's "ready" for the other.
using GrammarSecret = std::array<std::uint8_t, 32>;

/// The first 64 bits of HMAC-SHA-256(secret, kind and text); 0: the request has no grammar. Equal
/// kinds and texts have equal keys in one scheduler process.
std::uint64_t grammar_key(const SamplingParams& sampling, const GrammarSecret& secret = {});

}  // namespace baton
