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

#include "frontend/chat/call_head.h"
#include "frontend/chat/conversation.h"
#include "frontend/chat/tool_parameters.h"

namespace baton {

/// How a model family writes calls.
enum class CallStyle : std::uint8_t {
  none,
  tagged,      // <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Hermes, Qwen)
  bracketed,   // [TOOL_CALLS] [{"name", "arguments"}, ...] or [TOOL_CALLS]name[ARGS]{...} (Mistral)
  whole_json,  // the whole reply: {"name": ..., "parameters": {...}}, several with ";" (Llama 3)
  xml,       // <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>
             // (Qwen3-Coder)
  channels,  // <|channel|>commentary to=functions.NAME<|message|>{...}<|call|> (harmony: gpt-oss)
};

/// How a model family marks its reply, as its chat templates show it. A style that none of them
/// shows is not looked for.
struct ReplyGrammar {
  std::string think_open;  // empty: the family does not mark its reasoning
  std::string think_close;
  CallStyle calls = CallStyle::none;
  bool channels = false;  // the reply is messages, each with a header that says its channel

  /// Whether the family tells its reasoning from its answer.
  bool reasons() const { return channels || !think_open.empty(); }

  /// Of templates that hold `text`.
  static ReplyGrammar of_templates(std::string_view text);
  /// The texts that must reach a parser, special tokens or not.
  std::vector<std::string> marks(bool with_calls) const;
};

struct ReplyPart {
  enum class Kind : std::uint8_t {
    reasoning,
    content,
    call,       // one begins: `call` has its id and name
    arguments,  // more of the arguments of the call that began last
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
/// A call begins as soon as its name is known and its arguments open with "{"; from there on they
/// are passed on as they arrive, as compact JSON, and never taken back: a reply that is cut off
/// leaves them unfinished, and where they stop being JSON they end, and the rest is content. Calls
/// that begin with their arguments, or whose arguments are a string, are held back until they are
/// whole.
///
/// In the xml style a call begins with its first parameter or its end. Its values are raw text and
/// become JSON by the types of the tool's parameters; strings are passed on as they arrive, other
/// values when they are whole.
///
/// In the harmony format each message has a header. Its channel tells reasoning (analysis) from
/// what users see (final, and commentary that is said to nobody else); a message to a function is a
/// call, whose text is its arguments, passed on to the letter. Texts of neighbouring messages of
/// one kind are set apart by a line end. What is said to other tools, which no request can define,
/// is reasoning.
class ReplyParser {
 public:
  /// `prompt`: the rendered prompt, whose end says whether the reply begins inside the reasoning.
  /// `with_calls`: the request defined tools. `seed` makes the ids of calls unique.
  /// `tools`: the types of their parameters, which only the xml style asks for.
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
  /// The text at hand is the header of a message, which says what kind of message it is.
  bool in_header() const { return state_ == State::header; }
  /// Calls so far.
  std::uint32_t calls() const { return calls_; }

 private:
  enum class State : std::uint8_t {
    start,
    reasoning,
    content,
    tagged_call,    // behind <tool_call>, before it is sure
    rest_is_calls,  // of the other styles: before a call is sure, and between two
    arguments,      // inside of them
    call_rest,      // behind them, inside of the call's object
    tagged_end,     // before </tool_call>
    xml_call,       // behind <tool_call> or <function=, before a call is sure
    xml_inside,     // of a function, between its parameters
    xml_value_begin,
    xml_value,  // of a parameter
    header,     // of a message of a channel
    message,
    between_messages,
  };
  /// What the next call of the rest begins with: an object, its name (then arguments), or more is
  /// needed, or there is none.
  enum class Start : std::uint8_t { object, arguments, more, none };

  bool step(std::vector<ReplyPart>& parts);
  bool step_start(std::vector<ReplyPart>& parts);
  bool step_reasoning(std::vector<ReplyPart>& parts);
  bool step_content(std::vector<ReplyPart>& parts);
  bool step_tagged_call(std::vector<ReplyPart>& parts);
  bool step_rest(std::vector<ReplyPart>& parts);
  bool step_arguments(std::vector<ReplyPart>& parts);
  bool step_call_rest();
  bool step_tagged_end();
  bool step_xml_call(std::vector<ReplyPart>& parts);
  bool step_xml_inside(std::vector<ReplyPart>& parts);
  bool step_xml_value_begin(std::vector<ReplyPart>& parts);
  bool step_xml_value(std::vector<ReplyPart>& parts);
  bool step_header(std::vector<ReplyPart>& parts);
  bool step_message(std::vector<ReplyPart>& parts);
  bool step_between(std::vector<ReplyPart>& parts);
  void begin_channels(std::string_view prompt);
  void finish_channels(std::vector<ReplyPart>& parts);
  void read_header(std::string_view header);
  void give_message(std::string_view text, std::vector<ReplyPart>& parts);
  void begin_value(const std::string& key, std::vector<ReplyPart>& parts);
  void give_reasoning(std::string_view text, std::vector<ReplyPart>& parts);
  void give_content(std::string_view text, std::vector<ReplyPart>& parts);
  bool give_call(std::string_view json, std::vector<ReplyPart>& parts);
  bool give_named_call(std::string name, std::string arguments, std::vector<ReplyPart>& parts);
  void give_arguments(std::string text, std::vector<ReplyPart>& parts);
  void give_rest(std::vector<ReplyPart>& parts);
  void begin_call(std::string name, std::vector<ReplyPart>& parts);
  void commit(std::string name, const JsonScanner& scanner, std::size_t taken,
              std::vector<ReplyPart>& parts);
  bool commit_named(std::vector<ReplyPart>& parts);
  bool scan_head(CallHead::State& found);
  Start find_whole_json();
  Start find_bracketed();
  std::size_t list_calls(std::string_view text, std::vector<ReplyPart>& parts);
  std::size_t whole_calls(std::string_view text, std::vector<ReplyPart>& parts);
  std::size_t bracketed_calls(std::string_view text, std::vector<ReplyPart>& parts);
  std::string call_id() const;

  ReplyGrammar grammar_;
  std::string seed_;
  State state_ = State::content;
  std::string held_;          // text that no part has yet
  std::string space_;         // whitespace in front of what may be a call
  std::size_t searched_ = 0;  // bytes of held_ in which a closing mark does not begin
  std::size_t scanned_ = 0;   // bytes of held_ that head_ has read
  std::size_t head_begin_ = 0;
  std::optional<CallHead> head_;     // of a call that is not sure yet
  JsonScanner json_;                 // of the call that is being made
  std::size_t arguments_depth_ = 0;  // of its brackets, inside of the arguments
  bool held_to_end_ = false;         // only the end, or the closing mark, shows what held_ is
  bool in_list_ = false;             // between the calls of [TOOL_CALLS] [...]
  bool at_border_ = false;           // whitespace that comes next is dropped
  bool at_beginning_ = true;         // no content yet
  std::uint32_t calls_ = 0;

  // Of the message at hand, in the harmony format.
  ReplyPart::Kind message_kind_ = ReplyPart::Kind::content;
  std::string callee_;         // the function that it calls
  bool message_told_ = false;  // some of it has become a part
  std::set<ReplyPart::Kind> kinds_told_;

  // Of the xml style.
  std::shared_ptr<const ToolParameters> tools_;
  std::string function_;         // of the call that is being made
  std::set<std::string> given_;  // its parameters so far
  ParameterType value_type_;     // of the one at hand
  bool repeated_ = false;        // that one is among them already
};

}  // namespace baton
