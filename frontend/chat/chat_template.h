// The Jinja templates of a Hugging Face model folder: what they are given, and what becomes of the
// text that they write. Rendering itself is Jinja2's, in a process of its own (template_process.h).
//
// A folder's chat_format.json is Baton's own file: where there is one, it is taken, and the
// folder's templates are not.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/chat/chat_format.h"
#include "frontend/chat/conversation.h"
#include "frontend/chat/reply_parser.h"
#include "frontend/chat/special_guard.h"
#include "ipc/status.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// Const and safe for several threads.
class ChatTemplate {
 public:
  /// Templates by name, "default" among them: chat_template.jinja and additional_chat_templates/,
  /// or else "chat_template" of tokenizer_config.json, a string or a list of {"name", "template"};
  /// the special tokens' texts out of tokenizer_config.json and special_tokens_map.json. A null
  /// pointer when the folder has no template.
  /// `file`, if not empty, is the one template, whatever the folder has; it must be there.
  static Result<std::unique_ptr<ChatTemplate>> load(const std::string& dir,
                                                    const Tokenizer& tokenizer,
                                                    const std::string& file = "",
                                                    const ParserNames& parsers = {});

  /// Where the templates come from: a path, or a file of the folder.
  const std::string& source() const { return source_; }

  const std::map<std::string, std::string>& templates() const { return templates_; }
  /// Some template reads "tools": a request may define some.
  bool takes_tools() const { return takes_tools_; }
  /// Some template reads "reasoning_effort".
  bool takes_effort() const { return takes_effort_; }
  /// Some template reads "enable_thinking": it leaves the reasoning out when that is false.
  bool thinking_can_end() const { return thinking_can_end_; }
  /// Some template knows the role "developer"; otherwise it is called "system".
  bool knows_developer() const { return knows_developer_; }

  /// The frame for the renderer, every string of the conversation guarded. With tools, the template
  /// "tool_use" is taken where there is one. Keys that hold null are left out, as `transformers`
  /// does. In an assistant's message, its own marks (<think>, <tool_call>) stay as they are: the
  /// model wrote them as tokens, and templates look for them.
  std::string render_request(const Conversation& conversation) const;
  const SpecialGuard& guard() const { return guard_; }

  /// Ids of a rendered text, special pieces read as tokens; no bos is added, since templates write
  /// their own. More than `max_tokens` ids are too_long.
  Result<ChatPrompt> tokenise(std::string_view rendered, const Tokenizer& tokenizer,
                              std::size_t max_tokens) const;

  /// How replies of this model tell reasoning and calls apart, by what its templates show.
  const ReplyGrammar& reply_grammar() const { return grammar_; }
  /// The tokens of the marks around a reasoning; kNoToken where one is several tokens, or none.
  Token reasoning_open() const { return reasoning_open_; }
  Token reasoning_close() const { return reasoning_close_; }
  /// Special tokens whose letters a ReplyParser must see.
  std::vector<Token> shown_specials(const Tokenizer& tokenizer, bool with_calls) const;

 private:
  ChatTemplate() = default;
  Status read_templates(const std::string& dir);
  Status read_template(const std::string& file);
  Status read_special_tokens(const std::string& dir, const Tokenizer& tokenizer);
  std::string message_json(const ChatMessage& message) const;

  std::string source_;
  std::map<std::string, std::string> templates_;
  std::map<std::string, std::string> special_tokens_;  // bos_token, eos_token, ...: their texts
  std::vector<Token> stop_ids_;
  SpecialGuard guard_;
  SpecialGuard assistant_guard_;
  ReplyGrammar grammar_;
  Token reasoning_open_ = kNoToken;
  Token reasoning_close_ = kNoToken;
  bool takes_tools_ = false;
  bool takes_effort_ = false;
  bool thinking_can_end_ = false;
  bool knows_developer_ = false;
};

}  // namespace baton
