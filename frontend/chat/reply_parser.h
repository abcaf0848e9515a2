// What a model's reply consists of: its reasoning, its answer, and the calls that it asks for, told
// apart while the text arrives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/chat/calls/call_reader.h"
#include "frontend/chat/conversation.h"
#include "frontend/chat/reply_grammar.h"
#include "frontend/chat/tool_parameters.h"
#include "frontend/core/reply_section.h"

namespace baton {

struct ReplyPart {
  enum class Kind : std::uint8_t {
    reasoning,
    content,
    call,       // `call` has its id and name
    arguments,  // of that call, whole: compact JSON
  };
  Kind kind = Kind::content;
  std::string text;  // of all but calls
  ToolCall call;
  std::uint32_t index = 0;  // of the call, from 0
};

/// A value: one copy for each choice. The parts depend on the text alone, not on the pieces in
/// which it comes. Whitespace at the borders of reasoning and calls is dropped; what turns out not
/// to be a call is content, to the letter.
///
/// A call is reported when it is certain: it is whole, its name is one of the request's tools, and
/// its arguments are a JSON object. So a call that the reply's end cuts off is content. Reasoning
/// and content are passed on as they arrive.
///
/// In the harmony format each message has a header. Its channel tells reasoning (analysis) from
/// what users see (final, and commentary that is said to nobody else); a message to a function is a
/// call. Texts of neighbouring messages of one kind are set apart by a line end. What is said to
/// other tools, which no request can define, is reasoning.
class ReplyParser {
 public:
  /// `prompt`: the rendered prompt, whose end says whether the reply begins inside the reasoning.
  /// `with_calls`: the request defined tools. `seed` makes the ids of calls unique.
  /// `tools`: their names and the types of their parameters; nullptr: every name is a tool's.
  ReplyParser(const ReplyGrammar& grammar, std::string_view prompt, bool with_calls,
              std::string_view seed, std::shared_ptr<const ToolParameters> tools = nullptr);

  /// The ids of calls differ from those of the reply's other choices.
  void set_choice(std::uint32_t choice) {
    if (choice > 0) seed_ += "-" + std::to_string(choice);
  }

  /// The parts that `text`, which goes on from everything before, completes or lengthens.
  std::vector<ReplyPart> feed(std::string_view text);
  /// The end: the rest.
  std::vector<ReplyPart> finish();
  /// The text at hand is reasoning.
  bool reasoning() const { return state_ == State::reasoning; }
  /// Nothing has come yet, and a reasoning may.
  bool may_reason() const { return state_ == State::start; }
  /// The text at hand is the header of a message, which says what kind of message it is.
  bool in_header() const { return state_ == State::header; }
  /// Where the text that comes next stands, as far as the text so far tells.
  ReplySection section() const;
  /// Calls so far.
  std::uint32_t calls() const { return calls_; }

 private:
  enum class State : std::uint8_t {
    start,
    reasoning,
    content,
    call,         // behind an opening mark
    behind_call,  // its closing marks, or the next call
    header,       // of a message of a channel
    message,
    between_messages,
  };

  bool step(std::vector<ReplyPart>& parts);
  bool step_start(std::vector<ReplyPart>& parts);
  bool step_reasoning(std::vector<ReplyPart>& parts);
  bool step_content(std::vector<ReplyPart>& parts);
  bool step_call(std::vector<ReplyPart>& parts);
  bool step_behind_call();
  bool step_header(std::vector<ReplyPart>& parts);
  bool step_message(std::vector<ReplyPart>& parts);
  bool step_between(std::vector<ReplyPart>& parts);
  void begin_channels(std::string_view prompt);
  void finish_channels(std::vector<ReplyPart>& parts);
  void read_header(std::string_view header);
  void give_message(std::string_view text, std::vector<ReplyPart>& parts);
  void give_reasoning(std::string_view text, std::vector<ReplyPart>& parts);
  void give_content(std::string_view text, std::vector<ReplyPart>& parts);
  void begin_reader(std::size_t space);
  void give_call(FoundCall call, std::vector<ReplyPart>& parts);
  bool knows(std::string_view name) const {
    return tools_ == nullptr || tools_->find(name) != tools_->end();
  }
  void refuse_call(std::vector<ReplyPart>& parts);
  void finish_calls(std::vector<ReplyPart>& parts);
  std::string call_id() const;

  ReplyGrammar grammar_;
  std::string seed_;
  State state_ = State::content;
  std::string held_;   // text that no part has yet
  std::string space_;  // whitespace in front of what may be a call
  std::optional<CallReader> reader_;
  bool reader_gave_ = false;   // a call of the section at hand was reported
  std::uint32_t refused_ = 0;  // opening marks that no call followed
  bool at_border_ = false;     // whitespace that comes next is dropped
  bool at_beginning_ = true;   // no content yet
  std::uint32_t calls_ = 0;

  // Of the message at hand, in the harmony format.
  ReplyPart::Kind message_kind_ = ReplyPart::Kind::content;
  std::string callee_;         // the function that it calls; its text is held until it is whole
  std::size_t searched_ = 0;   // bytes of a call's text that hold no mark
  bool message_told_ = false;  // some of it has become a part
  std::set<ReplyPart::Kind> kinds_told_;

  std::shared_ptr<const ToolParameters> tools_;
};

}  // namespace baton
