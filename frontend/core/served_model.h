// The model that a front end serves, as the HTTP dialects see it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "frontend/chat/chat_format.h"
#include "frontend/core/generation.h"
#include "text/model_task.h"
#include "text/sampling_defaults.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

class ChatTemplate;

struct ServedModel {
  std::string name;            // as clients call it
  std::string entry{};         // of the list `models`; empty: it is the only model
  std::uint64_t identity = 0;  // model_identity(); 0: likewise
  std::string folder{};        // as the configuration has it
  std::string fault{};         // why it cannot be loaded: it has a name and no more; empty: it is
  std::string fingerprint{};   // "system_fingerprint": the build; empty: null
  std::shared_ptr<const Tokenizer> tokenizer;
  // At most one of the two; none: the chat route answers 400.
  std::shared_ptr<const ChatFormat> chat;
  std::shared_ptr<const ChatTemplate> chat_template;
  std::uint32_t default_max_tokens = 0;  // when a client gives no limit; 0: what the context leaves
  SamplingDefaults sampling{};           // when a client does not say otherwise
  ModelTask task = ModelTask::generate;
  std::uint32_t vector_size = 0;  // of embeddings
  Token no_token = -1;            // of a reranker: what it may answer
  Token yes_token = -1;
};

/// ServedModel::fault of one that could not be loaded.
inline std::string load_fault(const std::string& why) { return "it cannot be loaded: " + why; }

/// A body that is answered at once, without a worker.
struct Answer {
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

/// What a dialect makes of a body: a request to run, an answer, the reply that says what is wrong
/// with it, or a chat whose prompt the model's template must write down before it can be tokenised.
class PendingChat;
using ParseOutcome = std::variant<ParsedRequest, HttpError, std::unique_ptr<PendingChat>, Answer>;

/// A checked chat between two steps of its parsing, which are pure; what is between them is not.
class PendingChat {
 public:
  virtual ~PendingChat() = default;
  /// The renderer's frame (see template_process.h).
  virtual const std::string& render_request() const = 0;
  /// Takes the rendered text, or why there is none: never a pending chat again. Once.
  virtual ParseOutcome finish(const Result<std::string>& rendered, const ServedModel& model) = 0;
};

}  // namespace baton
