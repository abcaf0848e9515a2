#include "frontend/openai/openai_api.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "frontend/chat/chat_fields.h"
#include "frontend/chat/chat_template.h"
#include "frontend/core/json_reader.h"
#include "frontend/core/text_stream_options.h"
#include "frontend/http/sse.h"
#include "frontend/openai/choice_fields.h"
#include "frontend/openai/grammar_fields.h"
#include "frontend/openai/held_reply.h"
#include "frontend/openai/infill.h"
#include "frontend/openai/openai_reply.h"
#include "frontend/openai/prompt_fields.h"
#include "frontend/openai/request_fields.h"

namespace baton {
namespace {

using Json = nlohmann::json;

/// A search that names no limit: its beams reserve blocks for all tokens that they may come to.
constexpr std::int64_t kBeamTokens = 512;

/// The limits a client gave, before the prompt's length is known.
struct AskedLimits {
  std::optional<std::int64_t> max_tokens;
  std::string max_field = "max_tokens";
  std::int64_t min_tokens = 0;
  std::int64_t truncate = 0;  // tokens of a prompt that are kept; 0: all, -1: what fits
  bool beams = false;
};

/// What the body says, before anything is tokenised.
struct Asked {
  ParsedRequest request;
  AskedLimits limits;
  AskedChoices choices;
  bool include_usage = false;
  bool usage_so_far = false;
  bool ignore_eos = false;
  std::string unknown_model;
  IgnoredFields ignored;

  AskedPrompts prompts;       // of a completion
  Conversation conversation;  // of a chat
  std::optional<ReplyParser> parser;
  bool named_call = false;
  bool one_call = false;

  OtherApi other;
};

/// max_tokens may be 0 where a completion tells something about its prompt.
void read_limits(FieldReader& fields, OpenAiRoute route, const AskedChoices& choices,
                 AskedLimits& limits) {
  const bool about_prompt = choices.echo || choices.prompt_logprobs >= 0;
  const bool zero = route == OpenAiRoute::completion && about_prompt;
  limits.max_tokens = fields.integer("max_tokens", zero ? 0 : 1, kMaxCount);
  if (route == OpenAiRoute::chat) {
    const auto newer = fields.integer("max_completion_tokens", 1, kMaxCount);
    if (newer && limits.max_tokens && *newer != *limits.max_tokens) {
      fields.fail("max_completion_tokens", "contradicts 'max_tokens'; give one of them");
    }
    if (newer) {
      limits.max_tokens = newer;
      limits.max_field = "max_completion_tokens";
    }
  }
  limits.min_tokens = fields.integer("min_tokens", 0, kMaxCount).value_or(0);
  if (limits.max_tokens && limits.min_tokens > *limits.max_tokens) {
    fields.fail("min_tokens", "is " + std::to_string(limits.min_tokens) + ", above '" +
                                  limits.max_field + "', which is " +
                                  std::to_string(*limits.max_tokens));
  }
  limits.truncate = fields.integer("truncate_prompt_tokens", -1, kMaxCount).value_or(0);
}

void read_stream(FieldReader& fields, Asked& asked) {
  asked.request.stream = fields.boolean("stream").value_or(false);
  const bool progress = fields.boolean("return_progress").value_or(false);  // llama-server's name
  asked.request.progress = progress && asked.request.stream && !asked.other.make_reply;
  const Json* options = fields.take("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    fields.fail("stream_options", std::string("must be an object, not ") + kind_of(*options));
    return;
  }
  FieldReader inner(fields, *options, "stream_options");
  asked.include_usage = inner.boolean("include_usage").value_or(false);
  inner.boolean("include_obfuscation");
  asked.request.timing = inner.boolean("include_timing").value_or(false);
  asked.usage_so_far = inner.boolean("continuous_usage_stats").value_or(false);
  if (asked.usage_so_far && !asked.include_usage) {
    inner.fail("continuous_usage_stats", "is only allowed when 'include_usage' is true");
  }
  if (inner.finish()) fields.fail(*inner.finish());
}

void read_common(FieldReader& fields, std::string_view body, OpenAiRoute route,
                 const RequestContext& context, const ServedModel& model, Asked& asked) {
  const auto name = fields.string("model");
  if (name && *name != model.name && !context.any_model) asked.unknown_model = *name;
  take_defaults(model.sampling, asked.request.sampling);
  read_sampling(fields, context, model, 2, asked.request);
  asked.ignore_eos = read_stop_extras(fields, model, asked.request);
  asked.request.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  read_further_sampling(fields, model, asked.request);
  read_grammar(fields, body, asked.ignore_eos, context.schemas, asked.request);
  read_stream(fields, asked);
  read_standing(fields, asked.request);
  asked.choices = read_choices(fields, route, asked.request);
  asked.limits.beams = asked.request.sampling.beams();
  read_limits(fields, route, asked.choices, asked.limits);
  ignore_neutral_fields(fields, route);
}

/// Fits the asked lengths and one prompt to the context, now that it is tokenised. The tokens that
/// may follow it are in `*max_tokens`: what the client asked for, or without that the server's
/// default, but never more than the context leaves.
Status settle_limits(const AskedLimits& limits, const RequestContext& context,
                     const ServedModel& model, std::vector<Token>& ids, std::uint32_t* max_tokens) {
  const std::int64_t wanted = std::max(limits.max_tokens.value_or(0), limits.min_tokens);
  const std::int64_t most =
      limits.truncate >= 0 ? limits.truncate
                           : std::int64_t{context.max_context} - std::max<std::int64_t>(wanted, 1);
  if (most > 0 && static_cast<std::int64_t>(ids.size()) > most) {
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(most));
  }
  if (Status status = check_prompt(ids.size(), context); !status.ok()) return status;
  const auto prompt = static_cast<std::int64_t>(ids.size());
  const std::int64_t room = context.max_context - prompt;
  if (limits.min_tokens > room) {
    return Status(
        ErrorCode::too_long,
        "the prompt has " + std::to_string(prompt) + " tokens and 'min_tokens' is " +
            std::to_string(limits.min_tokens) + ": " + std::to_string(prompt + limits.min_tokens) +
            " tokens together; this model's context holds " + std::to_string(context.max_context));
  }
  std::int64_t fallback = model.default_max_tokens;
  if (fallback == 0) fallback = limits.beams ? kBeamTokens : room;
  fallback = std::max(fallback, limits.min_tokens);
  *max_tokens = static_cast<std::uint32_t>(std::min(limits.max_tokens.value_or(fallback), room));
  return {};
}

/// Limits of all prompts. The field at fault is in `*field`.
Status settle_prompts(const RequestContext& context, const ServedModel& model, Asked& asked,
                      std::string* field) {
  ParsedRequest& request = asked.request;
  const std::size_t count = request.prompts.size();
  if (count * request.choices > context.max_choices) {
    *field = request.choices > 1 ? (asked.choices.told > 1 ? "n" : "best_of") : *field;
    return invalid(std::to_string(count) + " prompts with " + std::to_string(request.choices) +
                   " choices each are more than this server's " +
                   std::to_string(context.max_choices) + " streams");
  }
  request.max_context = context.max_context;
  request.sampling.max_tokens = 0;
  std::uint32_t least = std::numeric_limits<std::uint32_t>::max();  // of all prompts
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t max_tokens = 0;
    Status status = settle_limits(asked.limits, context, model, request.prompts[i], &max_tokens);
    if (!status.ok()) {
      if (count > 1) *field = prompt_name(i, count);
      return status;
    }
    request.sampling.max_tokens = std::max(request.sampling.max_tokens, max_tokens);
    least = std::min(least, max_tokens);
  }
  request.sampling.min_tokens = static_cast<std::uint32_t>(asked.limits.min_tokens);
  if (least < asked.limits.max_tokens.value_or(0) && !asked.other.any_max_tokens) {
    request.headers.emplace_back(kMaxTokensHeader, "clamped from " +
                                                       std::to_string(*asked.limits.max_tokens) +
                                                       " to " + std::to_string(least));
  }
  request.prompt_only = request.sampling.max_tokens == 0;
  request.echo = asked.choices.echo;
  if (request.prompt_only) request.sampling.max_tokens = 1;
  return {};
}

Status tokenise_prompts(const RequestContext& context, const ServedModel& model, Asked& asked) {
  const Tokenizer& tokenizer = *model.tokenizer;
  if (asked.prompts.suffix) {
    return infill_prompts(asked.prompts, tokenizer, tokenise_limit(context), asked.request.prompts)
               ? Status()
               : far_too_long(context);
  }
  for (AskedPrompt& prompt : asked.prompts.list) {
    if (!prompt.text) {
      asked.request.prompts.push_back(std::move(prompt.ids));
      continue;
    }
    auto ids = tokenizer.encode_within(*prompt.text,
                                       asked.prompts.add_special_tokens && tokenizer.add_bos(),
                                       tokenise_limit(context));
    if (!ids) return far_too_long(context);
    asked.request.prompts.push_back(std::move(*ids));
  }
  return {};
}

/// What the reply repeats of each prompt. A text is repeated as it came, unless it was truncated.
std::vector<PromptFacts> prompt_facts(const ServedModel& model, const Asked& asked) {
  const ParsedRequest& request = asked.request;
  const AskedChoices& choices = asked.choices;
  std::vector<PromptFacts> all;
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    const std::vector<Token>& ids = request.prompts[i];
    PromptFacts& facts = all.emplace_back();
    facts.tokens = static_cast<std::uint32_t>(ids.size());
    if (choices.echo || choices.prompt_logprobs >= 0) facts.ids = ids;
    if (choices.logprobs >= 0) facts.options = text_stream_options(*model.tokenizer, request, ids);
    if (!choices.echo) continue;
    const auto& text = asked.prompts.list[i].text;
    facts.text = text && asked.limits.truncate == 0
                     ? std::string(*text)
                     : model.tokenizer->decode(ids, request.skip_special_tokens);
  }
  return all;
}

std::unique_ptr<ReplyWriter> make_reply(OpenAiRoute route, const RequestContext& context,
                                        const ServedModel& model, Asked& asked) {
  if (asked.other.make_reply) {
    return asked.other.make_reply(
        {.id = context.request_id,
         .model = model.name,
         .created = context.unix_seconds,
         .prompt_tokens = static_cast<std::uint32_t>(asked.request.prompts.front().size()),
         .stream = asked.request.stream,
         .one_call = asked.one_call,
         .parser = std::move(asked.parser)});
  }
  OpenAiFacts facts;
  facts.id = context.request_id;
  facts.model = model.name;
  facts.fingerprint = model.fingerprint;
  facts.created = context.unix_seconds;
  facts.include_usage = asked.include_usage;
  facts.usage_so_far = asked.usage_so_far;
  facts.prompts = prompt_facts(model, asked);
  facts.made = asked.choices.made;
  facts.told = asked.choices.told;
  facts.logprobs = asked.choices.logprobs;
  facts.prompt_logprobs = asked.choices.prompt_logprobs;
  facts.echo = asked.choices.echo;
  facts.tokenizer = model.tokenizer;
  facts.parser = std::move(asked.parser);
  facts.named_call = asked.named_call;
  facts.one_call = asked.one_call;
  const ReplyShape shape = route == OpenAiRoute::chat ? ReplyShape::chat : ReplyShape::completion;
  return asked.request.stream ? openai_stream_reply(shape, std::move(facts))
                              : openai_whole_reply(shape, std::move(facts));
}

/// Takes the prompt of a chat, or says why there is none.
Status take_chat_prompt(Result<ChatPrompt> prompt, const RequestContext& context, Asked& asked) {
  if (prompt.status().code() == ErrorCode::too_long) return far_too_long(context);
  if (!prompt.ok()) return prompt.status();
  ParsedRequest& request = asked.request;
  request.prompts = {std::move(prompt.value().ids)};
  if (asked.ignore_eos) return {};
  for (const Token id : prompt.value().stop_ids) request.sampling.stop_ids.push_back(id);
  for (std::string& stop : prompt.value().stop) request.stop.push_back(std::move(stop));
  return {};
}

/// What is left to do once the prompt has been tokenised, or was not.
ParseOutcome finish_request(Status status, OpenAiRoute route, const RequestContext& context,
                            const ServedModel& model, Asked& asked) {
  ParsedRequest& request = asked.request;
  std::string field = route == OpenAiRoute::chat ? "messages" : "prompt";
  if (status.ok()) status = settle_prompts(context, model, asked, &field);
  if (!status.ok()) return http_error(status, http_status(status.code()) == 400 ? field : "");
  SamplingParams& sampling = request.sampling;
  if (sampling.reasoning_budget >= sampling.max_tokens) sampling.reasoning_close = kNoToken;
  auto& ids = request.sampling.stop_ids;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  request.reply = make_reply(route, context, model, asked);
  return std::move(request);
}

/// What tool_choice says of a call that is forced, beside the request's other fields.
void check_forced_call(FieldReader& fields, Asked& asked) {
  const ForcedChoice& forced = asked.conversation.forced;
  if (!forced.forced || !fields.ok()) return;
  SamplingParams& sampling = asked.request.sampling;
  if (!asked.request.grammar_field.empty()) {
    fields.fail("tool_choice",
                "forces a call, which contradicts '" + asked.request.grammar_field + "'");
  } else if (sampling.beams()) {
    fields.fail("tool_choice", "cannot force a call with beam search");
  } else if (asked.ignore_eos) {
    fields.fail("ignore_eos", "contradicts 'tool_choice': what is complete must be able to end");
  }
  sampling.grammar_kind = GrammarKind::structural_tag;  // its text needs the rendered prompt
  asked.request.grammar_field = "tool_choice";
}

/// A chat between its two halves.
class TemplatedChat : public PendingChat {
 public:
  TemplatedChat(Asked asked, RequestContext context, const ServedModel& model)
      : asked_(std::move(asked)),
        context_(std::move(context)),
        request_(model.chat_template->render_request(asked_.conversation)) {
    with_calls_ = !asked_.conversation.tools.empty();
    if (with_calls_) {
      tools_ = std::make_shared<ToolParameters>(tool_parameters(asked_.conversation.tools));
    }
    forced_ = std::move(asked_.conversation.forced);
    budget_ = asked_.conversation.reasoning_budget;
    asked_.named_call = !forced_.name.empty();
    asked_.one_call = !forced_.several;
    asked_.conversation = {};
  }

  const std::string& render_request() const override { return request_; }

  ParseOutcome finish(const Result<std::string>& rendered, const ServedModel& model) override {
    Status status = rendered.status();
    if (rendered.ok()) {
      const ChatTemplate& format = *model.chat_template;
      asked_.parser.emplace(format.reply_grammar(), rendered.value(), with_calls_,
                            context_.request_id, tools_);
      std::string text = rendered.value();
      const auto begun = hold_reply({forced_, context_.schemas, asked_.ignore_eos}, model,
                                    *asked_.parser, asked_.request);
      if (!begun.ok()) return http_error(begun.status(), asked_.request.grammar_field);
      text += begun.value();
      hold_to_budget(format);
      status = take_chat_prompt(format.tokenise(text, *model.tokenizer, tokenise_limit(context_)),
                                context_, asked_);
      asked_.request.shown_specials = format.shown_specials(*model.tokenizer, with_calls_);
    }
    return finish_request(std::move(status), OpenAiRoute::chat, context_, model, asked_);
  }

 private:
  /// Its tokens count from where the reasoning begins: in the prompt, or with the reply.
  void hold_to_budget(const ChatTemplate& format) {
    SamplingParams& sampling = asked_.request.sampling;
    const bool begun = asked_.parser->reasoning();
    const bool may_begin = asked_.parser->may_reason() && format.reasoning_open() != kNoToken;
    if (!budget_ || sampling.beams() || !(begun || may_begin)) return;
    sampling.reasoning_budget = *budget_;
    sampling.reasoning_open = begun ? kNoToken : format.reasoning_open();
    sampling.reasoning_close = format.reasoning_close();
  }

  Asked asked_;
  RequestContext context_;
  ForcedChoice forced_;
  std::optional<std::uint32_t> budget_;  // of the reasoning
  std::string request_;
  bool with_calls_ = false;
  std::shared_ptr<const ToolParameters> tools_;  // what replies may call
};

void tell_ignored(Asked& asked) {
  if (asked.ignored.names().empty()) return;
  asked.request.ignored_fields = asked.ignored.names();
  asked.request.headers.emplace_back(kIgnoredFieldsHeader, asked.ignored.joined());
}

ParseOutcome parse(std::string_view body, OpenAiRoute route, const RequestContext& context,
                   const ServedModel& model, OtherApi other = {}) {
  const bool chat = route == OpenAiRoute::chat;
  if (chat && model.chat == nullptr && model.chat_template == nullptr) {
    return http_error(
        invalid("the model '" + model.name + "' has no chat format; use /v1/completions"),
        "messages");
  }
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());

  Asked asked;
  asked.ignored = std::move(other.ignored);
  asked.other = std::move(other);
  asked.ignored.set_strict(context.strict_fields);
  FieldReader fields(json.value(), {}, &asked.ignored);
  read_common(fields, body, route, context, model, asked);
  if (chat) {
    read_conversation(fields, body, model, asked.conversation);
    check_forced_call(fields, asked);
  } else {
    read_prompts(fields, model, asked.prompts);
    read_suffix(fields, model, asked.choices.echo, asked.prompts);
  }
  if (const auto& error = fields.finish()) return field_error(*error);
  if (!asked.unknown_model.empty()) return unknown_model(asked.unknown_model, model);
  tell_ignored(asked);

  if (!chat) {
    Status status = tokenise_prompts(context, model, asked);
    return finish_request(std::move(status), route, context, model, asked);
  }
  if (model.chat_template != nullptr) {
    return std::make_unique<TemplatedChat>(std::move(asked), context, model);
  }
  Status status = take_chat_prompt(
      model.chat->render(asked.conversation.messages, *model.tokenizer, tokenise_limit(context)),
      context, asked);
  return finish_request(std::move(status), route, context, model, asked);
}

std::string model_object(const ServedModel& model, std::int64_t created,
                         std::uint32_t max_context) {
  return "{\"id\":" + json_string(model.name) +
         ",\"object\":\"model\",\"created\":" + std::to_string(created) +
         ",\"owned_by\":\"baton\",\"max_model_len\":" +
         (max_context == 0 ? "null" : std::to_string(max_context)) + "}";
}

}  // namespace

ParseOutcome parse_completion(std::string_view body, const RequestContext& context,
                              const ServedModel& model) {
  return parse(body, OpenAiRoute::completion, context, model);
}

ParseOutcome parse_chat_completion(std::string_view body, const RequestContext& context,
                                   const ServedModel& model) {
  return parse(body, OpenAiRoute::chat, context, model);
}

ParseOutcome parse_for_other_api(std::string_view body, OpenAiRoute route,
                                 const RequestContext& context, const ServedModel& model,
                                 OtherApi other) {
  return parse(body, route, context, model, std::move(other));
}

std::vector<std::string> openai_fields(OpenAiRoute route, const ServedModel& model) {
  const Json nothing = Json::object();
  FieldReader fields(nothing);
  Asked asked;
  read_common(fields, "{}", route, {}, model, asked);
  if (route == OpenAiRoute::chat) {
    read_conversation(fields, "{}", model, asked.conversation);
  } else {
    read_prompts(fields, model, asked.prompts);
    read_suffix(fields, model, asked.choices.echo, asked.prompts);
  }
  return {fields.known().begin(), fields.known().end()};
}

std::string models_body(const std::vector<PageModel>& models, std::int64_t created) {
  std::string list;
  for (const PageModel& one : models) {
    list += (list.empty() ? "" : ",") + model_object(*one.model, created, one.max_context);
  }
  return "{\"object\":\"list\",\"data\":[" + list + "]}";
}

std::variant<std::string, HttpError> model_body(std::string_view id,
                                                const std::vector<PageModel>& models,
                                                std::int64_t created) {
  ServedModels served;
  for (const PageModel& one : models) {
    if (id == one.model->name) return model_object(*one.model, created, one.max_context);
    served.push_back(*one.model);
  }
  return no_such_model(id, served);
}

}  // namespace baton
