// Replies that are made of vectors: lists of embeddings, and documents by how well they fit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "frontend/core/generation.h"

namespace baton {

enum class VectorShape : std::uint8_t {
  openai = 0,         // {"object": "list", "data": [{"embedding": ...}], ...}
  ollama = 1,         // {"model", "embeddings": [...], "prompt_eval_count"}
  ollama_legacy = 2,  // {"embedding": [...]}
};

struct EmbeddingFacts {
  VectorShape shape = VectorShape::openai;
  std::string model;
  std::uint32_t inputs = 1;
  std::uint32_t dimensions = 0;  // 0: all
  bool base64 = false;
};

/// Choice i is the vector of input i.
std::unique_ptr<ReplyWriter> embeddings_reply(EmbeddingFacts facts);

enum class ScoreShape : std::uint8_t {
  rerank = 0,  // Jina's, Cohere's and vLLM's: the best first
  score = 1,   // vLLM's /score: in the order of the pairs
};

struct ScoreFacts {
  ScoreShape shape = ScoreShape::rerank;
  std::string id;
  std::string model;
  std::int64_t created = 0;
  std::uint32_t pairs = 1;
  std::uint32_t top_n = 0;             // of a rerank: so many are told; 0: all
  std::vector<std::string> documents;  // told with their results; empty: they are not
};

/// Choice i is pair i; its vector holds the logits of "no" and "yes".
std::unique_ptr<ReplyWriter> scores_reply(ScoreFacts facts);

}  // namespace baton
