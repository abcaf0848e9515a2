#include "frontend/openai/pooled_reply.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "frontend/core/pooled_vector.h"
#include "frontend/http/http_error.h"
#include "frontend/http/sse.h"
#include "frontend/openai/logprobs_json.h"

namespace baton {
namespace {

std::string vector_usage(const Usage& usage) {
  const std::string tokens = std::to_string(usage.prompt_tokens);
  return R"({"prompt_tokens":)" + tokens + R"(,"total_tokens":)" + tokens +
         R"(,"prompt_tokens_details":{"cached_tokens":)" + std::to_string(usage.cached_tokens) +
         "}}";
}

/// Whole replies alone: nothing is told before the last vector is here.
class PooledReply : public ReplyWriter {
 public:
  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }
  std::string text(const ReplyPiece& piece) override {
    if (piece.logprobs != nullptr) take(piece.choice, piece.logprobs->vector);
    return {};
  }
  std::string end(std::uint32_t, const Ending&) override { return {}; }
  std::string fail(const Status& status) override { return error_json(status); }

 private:
  virtual void take(std::uint32_t choice, std::span<const float> vector) = 0;
};

class EmbeddingsReply : public PooledReply {
 public:
  explicit EmbeddingsReply(EmbeddingFacts facts)
      : facts_(std::move(facts)), texts_(facts_.inputs) {}

  std::string finish(const Usage& usage) override {
    if (facts_.shape == VectorShape::ollama_legacy) return R"({"embedding":)" + texts_[0] + "}";
    const bool openai = facts_.shape == VectorShape::openai;
    std::string body = openai ? R"({"object":"list","data":[)"
                              : R"({"model":)" + json_string(facts_.model) + R"(,"embeddings":[)";
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      if (i > 0) body += ',';
      if (openai) {
        body += R"({"object":"embedding","index":)" + std::to_string(i) + R"(,"embedding":)" +
                texts_[i] + "}";
      } else {
        body += texts_[i];
      }
      texts_[i] = {};  // most of a reply's memory
    }
    if (!openai) {
      return body + R"(],"prompt_eval_count":)" + std::to_string(usage.prompt_tokens) + "}";
    }
    return body + R"(],"model":)" + json_string(facts_.model) + R"(,"usage":)" +
           vector_usage(usage) + "}";
  }

 private:
  void take(std::uint32_t choice, std::span<const float> vector) override {
    const std::vector<float> values = embedding_of(vector, facts_.dimensions);
    texts_[choice] = facts_.base64 ? "\"" + base64_floats(values) + "\"" : json_array(values);
  }

  EmbeddingFacts facts_;
  std::vector<std::string> texts_;  // by input, as JSON
};

class ScoresReply : public PooledReply {
 public:
  explicit ScoresReply(ScoreFacts facts) : facts_(std::move(facts)), scores_(facts_.pairs) {}

  std::string finish(const Usage& usage) override {
    return facts_.shape == ScoreShape::rerank ? ranked(usage) : listed(usage);
  }

 private:
  void take(std::uint32_t choice, std::span<const float> vector) override {
    scores_[choice] = yes_share(vector);
  }

  /// Equally good ones stay in the client's order.
  std::string ranked(const Usage& usage) const {
    std::vector<std::uint32_t> order(scores_.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return scores_[a] > scores_[b]; });
    if (facts_.top_n > 0 && facts_.top_n < order.size()) order.resize(facts_.top_n);
    std::string body = R"({"id":)" + json_string("rerank-" + facts_.id) + R"(,"model":)" +
                       json_string(facts_.model) + R"(,"usage":)" + vector_usage(usage) +
                       R"(,"results":[)";
    for (const std::uint32_t i : order) {
      if (body.back() != '[') body += ',';
      body +=
          R"({"index":)" + std::to_string(i) + R"(,"relevance_score":)" + json_number(scores_[i]);
      if (!facts_.documents.empty())
        body += R"(,"document":{"text":)" + json_string(facts_.documents[i]) + "}";
      body += "}";
    }
    return body + "]}";
  }

  std::string listed(const Usage& usage) const {
    std::string body = R"({"id":)" + json_string("score-" + facts_.id) +
                       R"(,"object":"list","created":)" + std::to_string(facts_.created) +
                       R"(,"model":)" + json_string(facts_.model) + R"(,"data":[)";
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      if (i > 0) body += ',';
      body += R"({"index":)" + std::to_string(i) + R"(,"object":"score","score":)" +
              json_number(scores_[i]) + "}";
    }
    return body + R"(],"usage":)" + vector_usage(usage) + "}";
  }

  ScoreFacts facts_;
  std::vector<float> scores_;  // by pair
};

}  // namespace

std::unique_ptr<ReplyWriter> embeddings_reply(EmbeddingFacts facts) {
  return std::make_unique<EmbeddingsReply>(std::move(facts));
}

std::unique_ptr<ReplyWriter> scores_reply(ScoreFacts facts) {
  return std::make_unique<ScoresReply>(std::move(facts));
}

}  // namespace baton
