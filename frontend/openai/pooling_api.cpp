#include "frontend/openai/pooling_api.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "frontend/core/json_reader.h"
#include "frontend/core/open_reply.h"
#include "frontend/openai/request_fields.h"

namespace baton {
namespace {

using PoolingJson = nlohmann::json;

/// As the model cards of Qwen3-Reranker have it: each of the three is tokenised by itself.
constexpr std::string_view kJudgeBegins =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note that the answer can only be \"yes\" or "
    "\"no\".<|im_end|>\n<|im_start|>user\n";
constexpr std::string_view kJudgeEnds =
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
constexpr std::string_view kInstruction =
    "Given a web search query, retrieve relevant passages that answer the query";

/// What all of these requests may say.
struct Common {
  ParsedRequest request;
  std::int64_t truncate = 0;  // tokens of a prompt that are kept; 0: all, -1: what fits
  std::string unknown_model;
};

void read_common(FieldReader& fields, const RequestContext& context, const ServedModel& model,
                 Common& common) {
  const auto name = fields.string("model");
  if (name && *name != model.name && !context.any_model) common.unknown_model = *name;
  read_standing(fields, common.request);
  common.truncate = fields.integer("truncate_prompt_tokens", -1, kMaxCount).value_or(0);
  read_timeout(fields, context, common.request);
  fields.take("user");
}

std::string entry_name(const std::string& field, std::size_t index, std::size_t count) {
  return count == 1 ? field : field + "[" + std::to_string(index) + "]";
}

/// How many tokens of a prompt are kept at the most.
std::size_t kept_tokens(const Common& common, const RequestContext& context) {
  const std::size_t fits = context.max_context == 0 ? 0 : context.max_context - 1;
  if (common.truncate == 0) return SIZE_MAX;
  if (common.truncate < 0) return fits;
  return std::min(static_cast<std::size_t>(common.truncate), fits);
}

Status add_ids(std::vector<Token> ids, const RequestContext& context, Common& common) {
  if (Status status = check_prompt(ids.size(), context); !status.ok()) return status;
  common.request.prompts.push_back(std::move(ids));
  return {};
}

/// The request is whole but for its reply.
ParseOutcome pooled_request(Common common, Pooling pooling, const IgnoredFields& ignored,
                            std::unique_ptr<ReplyWriter> reply) {
  ParsedRequest& request = common.request;
  request.sampling.pooling = pooling;
  request.sampling.max_tokens = 1;
  request.seed_given = true;  // nothing is drawn
  if (!ignored.names().empty()) {
    request.headers.emplace_back(kIgnoredFieldsHeader, ignored.joined());
    request.ignored_fields = ignored.names();
  }
  request.reply = std::move(reply);
  return std::move(request);
}

HttpError text_error(const Status& status, const std::string& field) {
  return http_error(status, http_status(status.code()) == 400 ? field : "");
}

/// All of them at once: each is a stream of its own to the scheduler.
Status check_count(std::size_t count, std::size_t values, const RequestContext& context) {
  const std::size_t most = std::min<std::size_t>(kMaxInputs, context.max_choices);
  if (count == 0) return invalid("is empty");
  if (count > most) {
    return invalid("may hold at most " + std::to_string(most) + " texts, not " +
                   std::to_string(count));
  }
  if (count * values * kVectorValueBytes > kMaxReplyBytes) {
    return invalid("asks for " + std::to_string(count) + " vectors of " + std::to_string(values) +
                   " values, more than a reply may hold; ask for " +
                   std::to_string(kMaxReplyBytes / (values * kVectorValueBytes)) + " at once");
  }
  return {};
}

// ---------------------------------------------------------------- embeddings

/// Each either text or ids.
struct Inputs {
  std::vector<const PoolingJson*> list;
  bool several = false;  // an array of them was given
};

Inputs read_texts_or_ids(FieldReader& fields, const std::string& field) {
  Inputs inputs;
  const PoolingJson* value = fields.take(field);
  if (value == nullptr) {
    fields.fail(field, "is missing");
    return inputs;
  }
  inputs.several = value->is_array() && (value->empty() || !(*value)[0].is_number());
  if (!inputs.several) {
    inputs.list.push_back(value);
  } else {
    for (const PoolingJson& entry : *value) inputs.list.push_back(&entry);
  }
  return inputs;
}

/// The tokens that the tokenizer puts around a prompt stay when its end is cut off.
void truncate_text(std::vector<Token>& ids, std::size_t kept, const ServedModel& model) {
  if (ids.size() <= kept) return;
  const std::vector<Token> around = model.tokenizer->encode("", model.tokenizer->add_bos());
  const Token last = ids.back();
  ids.resize(kept);
  if (kept > 0 && !around.empty() && around.back() == last) ids.back() = last;
}

/// What is wrong with it, as an error about `name`, or nothing.
std::optional<HttpError> add_input(FieldReader& fields, const PoolingJson& input,
                                   const std::string& name, bool specials,
                                   const RequestContext& context, const ServedModel& model,
                                   Common& common) {
  std::vector<Token> ids;
  const std::size_t kept = kept_tokens(common, context);
  if (input.is_string()) {
    const bool truncated = kept != SIZE_MAX;  // then all of it must be tokenised, as far as it goes
    auto found = model.tokenizer->encode_within(
        input.get_ref<const std::string&>(), specials && model.tokenizer->add_bos(),
        truncated ? Tokenizer::kNoLimit : tokenise_limit(context));
    if (!found) return text_error(far_too_long(context), name);
    ids = std::move(*found);
    truncate_text(ids, kept, model);
  } else if (input.is_array()) {
    ids = read_token_ids(fields, input, name, model);
    if (!fields.ok()) return field_error(*fields.finish());
    if (ids.size() > kept) ids.resize(kept);
  } else {
    fields.fail(name,
                std::string("must be a string or an array of token ids, not ") + kind_of(input));
    return field_error(*fields.finish());
  }
  const Status status = add_ids(std::move(ids), context, common);
  if (!status.ok()) return text_error(status, name);
  return std::nullopt;
}

bool read_base64(FieldReader& fields) {
  const auto format = fields.string("encoding_format");
  if (!format || *format == "float") return false;
  if (*format != "base64") {
    fields.fail("encoding_format", "is " + shown(*format) + "; it may be \"float\" or \"base64\"");
  }
  return true;
}

// ---------------------------------------------------------------- scores

struct Pair {
  std::string_view query;
  std::string_view document;
  std::string name;  // of the field that the document came from
};

std::string_view read_instruction(FieldReader& fields) {
  const std::string_view instruction = fields.string("instruction").value_or(kInstruction);
  if (instruction.size() > kMaxInstructionBytes) {
    fields.fail("instruction",
                "may have at most " + std::to_string(kMaxInstructionBytes) + " bytes");
  }
  return instruction;
}

/// Text, or an object with one.
std::string_view read_document(FieldReader& fields, const PoolingJson& value,
                               const std::string& name) {
  if (value.is_string()) return value.get_ref<const std::string&>();
  if (value.is_object() && value.contains("text") && value["text"].is_string())
    return value["text"].get_ref<const std::string&>();
  fields.fail(name,
              std::string("must be a string or an object with a 'text', not ") + kind_of(value));
  return {};
}

/// One text, or several.
std::vector<std::string_view> read_texts(FieldReader& fields, const std::string& field) {
  std::vector<std::string_view> texts;
  const PoolingJson* value = fields.take(field);
  if (value == nullptr) {
    fields.fail(field, "is missing");
  } else if (!value->is_array()) {
    texts.push_back(read_document(fields, *value, field));
  } else {
    for (std::size_t i = 0; i < value->size() && fields.ok() && i <= kMaxInputs; ++i) {
      texts.push_back(read_document(fields, (*value)[i], field + "[" + std::to_string(i) + "]"));
    }
    if (value->size() > kMaxInputs) {
      fields.fail(field, "may hold at most " + std::to_string(kMaxInputs) + " texts, not " +
                             std::to_string(value->size()));
    }
  }
  return texts;
}

constexpr std::size_t kMaxBytesPerToken = 64;
constexpr std::string_view kQueryMark = "\n<Query>:";
constexpr std::string_view kDocumentMark = "\n<Document>:";

/// Makes the prompts of pairs. What is said in query and document stays text, whatever special
/// tokens it spells. A query that several pairs have is tokenised by itself once.
class PairPrompts {
 public:
  PairPrompts(std::string_view instruction, const Common& common, const RequestContext& context,
              const ServedModel& model)
      : instruction_("<Instruct>: " + std::string(instruction)),
        context_(context),
        tokenizer_(*model.tokenizer),
        kept_(kept_tokens(common, context)),
        begins_(tokenizer_.encode(kJudgeBegins, false)),
        ends_(tokenizer_.encode(kJudgeEnds, false)) {
    about_ = plain(instruction_ + std::string(kQueryMark), false);
    mark_ = plain(kDocumentMark);
  }

  /// What is wrong with it, as an error about `*field`, or the prompt's ids.
  Result<std::vector<Token>> make(const Pair& pair, std::string* field) {
    *field = pair.name;
    if (kept_ == SIZE_MAX) {
      if (!joins(pair)) return framed(in_pieces(pair, SIZE_MAX));
      auto middle = tokenizer_.encode_plain_within(whole(pair), false, tokenise_limit(context_));
      if (!middle) return far_too_long(context_);
      return framed(*middle);
    }
    const std::size_t frame = begins_.size() + about_.size() + mark_.size() + ends_.size();
    if (kept_ <= frame + 1) {  // a token of the query and one of the document
      *field = "truncate_prompt_tokens";
      return invalid("is " + std::to_string(kept_) +
                     "; what is around a query and a document takes " + std::to_string(frame) +
                     " tokens, and each of the two at least one");
    }
    return framed(truncated(pair, kept_ - frame));
  }

 private:
  /// `goes_on`: something stands before it, so that no dummy prefix does.
  std::vector<Token> plain(std::string_view text, bool goes_on = true) const {
    return tokenizer_.encode_plain(text, goes_on);
  }
  std::string whole(const Pair& pair) const {
    std::string text = instruction_;
    text += kQueryMark;
    text.append(" ").append(pair.query) += kDocumentMark;
    return text.append(" ").append(pair.document);
  }

  /// Whether query and document may be tokenised together, which for many documents costs much
  /// where a long query has few tokens (blanks, say).
  bool joins(const Pair& pair) const {
    return pair.query.size() <= kMaxBytesPerToken * context_.max_context;
  }

  const std::vector<Token>& query_ids(const Pair& pair) {
    if (pair.query.data() != query_.data() || pair.query.size() != query_.size()) {
      query_ = pair.query;
      query_ids_ = plain(" " + std::string(query_));
    }
    return query_ids_;
  }

  std::vector<Token> truncated(const Pair& pair, std::size_t room) {
    const bool short_query = query_ids(pair).size() <= room - room / 2;
    if (!short_query || !joins(pair)) return in_pieces(pair, room);
    // The query fits as it is. Together, since tokens may reach over its end.
    std::vector<Token> ids = plain(whole(pair), false);
    ids.resize(std::min(ids.size(), kept_ - begins_.size() - ends_.size()));
    return ids;
  }

  /// As tokenizers truncate a pair ("longest_first"): the longer of query and document loses its
  /// end until both have `room`, or are of the same length.
  std::vector<Token> in_pieces(const Pair& pair, std::size_t room) {
    const std::vector<Token>& query = query_ids(pair);
    const std::vector<Token> document = plain(" " + std::string(pair.document));
    const std::size_t half = room / 2;
    const std::size_t of_document =
        std::min(document.size(), std::max(half, room - std::min(query.size(), room)));
    const std::size_t of_query = std::min(query.size(), room - of_document);
    std::vector<Token> ids = about_;
    const auto add = [&](const std::vector<Token>& more, std::size_t count) {
      ids.insert(ids.end(), more.begin(), more.begin() + static_cast<std::ptrdiff_t>(count));
    };
    add(query, of_query);
    add(mark_, mark_.size());
    add(document, of_document);
    return ids;
  }

  std::vector<Token> framed(const std::vector<Token>& middle) const {
    std::vector<Token> ids = begins_;
    ids.reserve(begins_.size() + middle.size() + ends_.size());
    ids.insert(ids.end(), middle.begin(), middle.end());
    ids.insert(ids.end(), ends_.begin(), ends_.end());
    return ids;
  }

  const std::string instruction_;
  const RequestContext& context_;
  const Tokenizer& tokenizer_;
  const std::size_t kept_;
  const std::vector<Token> begins_, ends_;
  std::vector<Token> about_, mark_;  // what is before the query, and between it and the document
  std::string_view query_;           // the last one
  std::vector<Token> query_ids_;
};

/// A request for scores, but for what all pooled ones may say.
struct Scoring {
  ScoreFacts facts;
  std::string_view instruction;
  std::vector<Pair> pairs;
};

ParseOutcome score_pairs(Scoring scoring, const IgnoredFields& ignored,
                         const RequestContext& context, const ServedModel& model, Common common) {
  auto& [facts, instruction, pairs] = scoring;
  if (!common.unknown_model.empty()) return unknown_model(common.unknown_model, model);
  if (context.max_context == 0) return http_error(check_prompt(0, context));
  const Status count = check_count(pairs.size(), 2, context);
  if (!count.ok()) {
    return http_error(count, facts.shape == ScoreShape::rerank ? "documents" : "text_2");
  }
  PairPrompts prompts(instruction, common, context, model);
  for (const Pair& pair : pairs) {
    std::string field;
    auto ids = prompts.make(pair, &field);
    const Status status =
        ids.ok() ? add_ids(std::move(ids).value(), context, common) : ids.status();
    if (!status.ok()) return text_error(status, field);
  }
  common.request.sampling.allowed_tokens = {model.no_token, model.yes_token};
  facts.id = context.request_id;
  facts.model = model.name;
  facts.created = context.unix_seconds;
  facts.pairs = static_cast<std::uint32_t>(pairs.size());
  return pooled_request(std::move(common), Pooling::token_logits, ignored,
                        scores_reply(std::move(facts)));
}

/// `read` takes the route's own fields.
template <class Read>
ParseOutcome parse_scoring(std::string_view body, const RequestContext& context,
                           const ServedModel& model, Read read) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  IgnoredFields ignored;
  FieldReader fields(json.value(), {}, context.strict_fields ? nullptr : &ignored);
  Common common;
  read_common(fields, context, model, common);
  Scoring scoring;
  read(fields, scoring);
  if (const auto& error = fields.finish()) return field_error(*error);
  if (auto refused = refuse_task(ModelTask::rerank, model)) return std::move(*refused);
  return score_pairs(std::move(scoring), ignored, context, model, std::move(common));
}

}  // namespace

std::optional<HttpError> refuse_task(ModelTask task, const ServedModel& model) {
  if (model.task == task) return std::nullopt;
  const auto words = [](ModelTask of) {
    return of == ModelTask::generate ? "generates text"
           : of == ModelTask::embed  ? "makes embeddings"
                                     : "scores documents";
  };
  return http_error(400,
                    "the model '" + model.name + "' " + words(model.task) + " here (model_task: " +
                        to_string(model.task) + "); this request wants one that " + words(task),
                    "wrong_task", "model");
}

ParseOutcome parse_embeddings(std::string_view body, const RequestContext& context,
                              const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  return embed_texts(json.value(), "input", VectorShape::openai, context, model);
}

ParseOutcome embed_texts(const nlohmann::json& body, const char* field, VectorShape shape,
                         const RequestContext& context, const ServedModel& model) {
  IgnoredFields ignored;
  FieldReader fields(body, {}, context.strict_fields ? nullptr : &ignored);
  Common common;
  read_common(fields, context, model, common);
  EmbeddingFacts facts;
  facts.shape = shape;
  if (shape == VectorShape::openai) {
    facts.base64 = read_base64(fields);
  } else {  // Ollama's
    const bool cut = fields.boolean("truncate").value_or(true);
    if (common.truncate == 0 && cut) common.truncate = -1;
    fields.take("options");
    fields.take("keep_alive");
  }
  facts.dimensions = static_cast<std::uint32_t>(
      fields.integer("dimensions", 1, std::max<std::int64_t>(1, model.vector_size)).value_or(0));
  const bool specials = fields.boolean("add_special_tokens").value_or(true);
  const Inputs inputs = read_texts_or_ids(fields, field);
  if (const auto& error = fields.finish()) return field_error(*error);
  if (!common.unknown_model.empty()) return unknown_model(common.unknown_model, model);
  if (auto refused = refuse_task(ModelTask::embed, model)) return std::move(*refused);
  if (context.max_context == 0) return http_error(check_prompt(0, context));
  const Status count = check_count(inputs.list.size(), model.vector_size, context);
  if (!count.ok()) return http_error(count, field);
  for (std::size_t i = 0; i < inputs.list.size(); ++i) {
    const std::string name =
        inputs.several ? std::string(field) + "[" + std::to_string(i) + "]" : field;
    if (auto error = add_input(fields, *inputs.list[i], name, specials, context, model, common))
      return std::move(*error);
  }
  facts.model = model.name;
  facts.inputs = static_cast<std::uint32_t>(inputs.list.size());
  return pooled_request(std::move(common), Pooling::last_hidden, ignored,
                        embeddings_reply(std::move(facts)));
}

ParseOutcome parse_rerank(std::string_view body, const RequestContext& context,
                          const ServedModel& model) {
  return parse_scoring(body, context, model, [](FieldReader& fields, Scoring& scoring) {
    const std::string_view query = fields.string("query").value_or("");
    if (fields.ok() && query.empty()) fields.fail("query", "is missing, or empty");
    scoring.facts.top_n =
        static_cast<std::uint32_t>(fields.integer("top_n", 0, kMaxCount).value_or(0));
    const bool told = fields.boolean("return_documents").value_or(false);
    scoring.instruction = read_instruction(fields);
    const std::vector<std::string_view> documents = read_texts(fields, "documents");
    for (std::size_t i = 0; i < documents.size(); ++i) {
      scoring.pairs.push_back({query, documents[i], entry_name("documents", i, documents.size())});
      if (told) scoring.facts.documents.emplace_back(documents[i]);
    }
  });
}

ParseOutcome parse_score(std::string_view body, const RequestContext& context,
                         const ServedModel& model) {
  return parse_scoring(body, context, model, [](FieldReader& fields, Scoring& scoring) {
    scoring.facts.shape = ScoreShape::score;
    scoring.instruction = read_instruction(fields);
    const std::vector<std::string_view> first = read_texts(fields, "text_1");
    const std::vector<std::string_view> second = read_texts(fields, "text_2");
    if (fields.ok() && first.size() != 1 && first.size() != second.size()) {
      fields.fail("text_2", "has " + std::to_string(second.size()) + " texts and text_1 has " +
                                std::to_string(first.size()) +
                                "; text_1 may be one text, or as many as text_2");
    }
    if (!fields.ok()) return;
    for (std::size_t i = 0; i < second.size(); ++i) {
      scoring.pairs.push_back(
          {first[first.size() == 1 ? 0 : i], second[i], entry_name("text_2", i, second.size())});
    }
  });
}

}  // namespace baton
