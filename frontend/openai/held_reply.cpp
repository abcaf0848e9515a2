#include "frontend/openai/held_reply.h"

#include <optional>
#include <utility>

#include "frontend/chat/chat_template.h"
#include "frontend/chat/forced_calls.h"
#include "frontend/chat/many_tools.h"
#include "frontend/chat/reasoning_tag.h"
#include "frontend/chat/reply_marks.h"
#include "frontend/chat/strict_calls.h"

namespace baton {
namespace {

constexpr std::size_t kMaxHeaderBytes = 1000;

/// Where the model decides whether it calls: what strict functions need, unless the reply is held
/// to another grammar. True: the grammar is set, reasoning included.
bool hold_strict_calls(const HeldReply& held, const ServedModel& model, const ReplyParser& parser,
                       ParsedRequest& request) {
  if (held.forced.forced || !held.forced.strict) return false;
  std::optional<std::string> grammar;
  if (request.grammar_field.empty() && !request.sampling.beams() && !held.ignore_eos) {
    grammar = strict_calls(held.forced, {request.schemas, held.schemas},
                           model.chat_template->reply_grammar(), *model.tokenizer, parser);
  }
  if (!grammar) {
    const std::string names = strict_names(held.forced).substr(0, kMaxHeaderBytes);
    request.headers.emplace_back(
        kUnenforcedHeader,
        "strict of " + names +
            " (calls in this model's format, or beside another grammar, beam search or "
            "ignore_eos, are not held to a schema)");
    return false;
  }
  request.sampling.grammar_kind = GrammarKind::structural_tag;
  request.sampling.grammar = std::move(*grammar);
  request.grammar_field = "tools";
  return true;
}

/// The grammar behind a reasoning; what the reply begins with where it cannot be.
void put_behind_reasoning(const ServedModel& model, const ReplyParser& parser,
                          SamplingParams& sampling, std::string& begun) {
  const ReplyGrammar& family = model.chat_template->reply_grammar();
  const bool reasoning = parser.reasoning();
  std::optional<std::string> behind;
  if (begun.empty()) {
    behind = behind_reasoning(sampling.grammar_kind, sampling.grammar, family, *model.tokenizer,
                              reasoning);
  }
  if (behind) {
    sampling.grammar = std::move(*behind);
    sampling.grammar_kind = GrammarKind::structural_tag;
  } else if (reasoning) {
    begun = "\n" + family.think_close + "\n\n" + begun;  // no text can go on to a special token
  }
}

}  // namespace

Result<std::string> hold_reply(const HeldReply& held, const ServedModel& model, ReplyParser& parser,
                               ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  std::string begun;
  if (held.forced.forced) {
    auto forced = forced_calls(held.forced, model.chat_template->reply_grammar(), *model.tokenizer,
                               {request.schemas, held.schemas});
    if (!forced.ok()) return forced.status();
    begun = std::move(forced.value().begun);
    sampling.grammar = std::move(forced.value().grammar);
    if (sampling.grammar.size() > SamplingParams::kMaxGrammarBytes && !held.forced.strict) {
      sampling.grammar = names_only(sampling.grammar);
      request.headers.emplace_back(kUnenforcedHeader,
                                   "parameters of tools (their grammar is too large)");
    }
  }
  if (!hold_strict_calls(held, model, parser, request) &&
      sampling.grammar_kind != GrammarKind::none) {
    if (begun.empty() && parser.in_header()) {
      // A header is no part of what the grammar describes. The answer begins at once.
      begun = std::string(kChannelMark) + "final" + std::string(kMessageMark);
    } else if (parser.reasoning() || parser.may_reason()) {
      put_behind_reasoning(model, parser, sampling, begun);
    }
  }
  if (sampling.grammar.size() > SamplingParams::kMaxGrammarBytes) {
    return invalid("makes a grammar of " + std::to_string(sampling.grammar.size()) +
                   " bytes; at most " + std::to_string(SamplingParams::kMaxGrammarBytes) +
                   " are allowed");
  }
  parser.feed(begun);
  return begun;
}

}  // namespace baton
