// Bytes that parts of a message take on the wire: upper bounds, without encoding them. Whoever
// fills a message that grows with the load asks here, and leaves the rest to the next one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ipc/codec.h"
#include "ipc/messages.h"

namespace baton {

/// Longest text that a terminal carries.
constexpr std::size_t kMaxReasonBytes = 1024;
/// Copies that a plan has before it takes nobody else in; the last one may bring those of all its
/// blocks, which is what context_in_a_message() leaves room for.
constexpr std::size_t kMostCopies = 65'536;

inline std::size_t bytes_of(const SamplingParams& sampling) {
  std::size_t bytes = 256 + sampling.grammar.size();
  bytes += sizeof(Token) * (sampling.stop_ids.size() + 2 * sampling.bias_tokens.size() +
                            sampling.allowed_tokens.size());
  for (const auto& word : sampling.bad_words) bytes += 8 + sizeof(Token) * word.size();
  return bytes;
}

/// Of an AddSequence with so many tokens and so many blocks.
inline std::size_t bytes_of_add(std::size_t tokens, const SamplingParams& sampling,
                                std::size_t blocks) {
  return 128 + sizeof(Token) * tokens + bytes_of(sampling) + sizeof(BlockId) * blocks;
}

inline std::size_t bytes_of(const AddSequence& add) {
  std::size_t bytes =
      bytes_of_add(add.prompt.size() + add.generated.size(), add.sampling, add.blocks.size());
  for (const PoolBlocks& part : add.before) bytes += 32 + sizeof(BlockId) * part.blocks.size();
  return bytes;
}

inline std::size_t bytes_of(const Logprobs& values) {
  return 64 + 4 * (values.items.size() + values.logprobs.size() + values.counts.size() +
                   values.top_tokens.size() + values.top_logprobs.size() +
                   values.vector_sizes.size() + values.vectors.size());
}

/// Asked for each token: nothing in it is looked at but prompts' log probabilities, of which a
/// message has few.
inline std::size_t bytes_of(const Events& events) {
  constexpr std::size_t kRow = 8 + 4 + 4 + 4;
  constexpr std::size_t kBegun = 8 + 4 + 8;
  constexpr std::size_t kProgress = 8 + 4 + 4 + 4 + 8;
  constexpr std::size_t kTerminal = kMaxReasonBytes + 8192;  // with all that happened to it
  constexpr std::size_t kTiming = 512;
  std::size_t bytes = 128 + kRow * events.counters.size() + sizeof(Token) * events.tokens.size() +
                      kBegun * events.begun_counters.size() +
                      kProgress * events.progress_counters.size() +
                      kTerminal * events.terminals.size() + kTiming * events.timings.size() +
                      bytes_of(events.logprobs);
  for (const PromptLogprobs& part : events.prompt_logprobs) bytes += 16 + bytes_of(part.values);
  return bytes;
}

/// Tokens of the longest sequence that half of a message holds with its table, or whose blocks one
/// plan copies between the parts of a pool.
inline std::uint32_t context_in_a_message(const Hello& hello, std::size_t message_bytes) {
  const std::size_t groups = std::max<std::size_t>(1, hello.windows.size());
  const std::size_t table =
      (sizeof(BlockId) * groups + hello.tokens_per_block - 1) / hello.tokens_per_block;
  const std::size_t tokens = message_bytes / 2 / (sizeof(Token) + table);
  const std::size_t copied = (kMaxArrayEntries - kMostCopies) / 2 / groups * hello.tokens_per_block;
  return static_cast<std::uint32_t>(
      std::clamp<std::size_t>(std::min(tokens, copied), 1, 0xFFFFFFFFU));
}

}  // namespace baton
