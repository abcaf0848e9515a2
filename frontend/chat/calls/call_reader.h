// Reads tool calls out of a reply while it arrives. A call is reported when it is certain: its name
// is one of the request's tools and its arguments are one whole JSON object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/chat/calls/call_format.h"
#include "frontend/chat/json_scanner.h"
#include "frontend/chat/tool_parameters.h"

namespace baton {

struct FoundCall {
  std::string id;  // the model's own; empty: it wrote none
  std::string name;
  std::string arguments;  // compact JSON, an object
};

/// Copyable. Reads one section of calls in linear time. The caller keeps the text and passes all of
/// it each time; it may drop the first used() bytes.
class CallReader {
 public:
  enum class State : std::uint8_t {
    more,    // more text is needed
    call,    // take() has one more; used() bytes are behind
    done,    // no call follows; used() bytes are behind
    failed,  // what follows is no call
  };

  /// `tools`: nullptr lets every name pass, with string parameters.
  CallReader(const CallFormat& format, std::shared_ptr<const ToolParameters> tools)
      : format_(&format), tools_(std::move(tools)) {}

  /// `text`: from the opening mark on; after a `call`, what follows its used() bytes.
  State read(std::string_view text);
  /// The reply has ended: `call` where only closing marks are missing, else `failed`.
  State finish(std::string_view text);
  FoundCall take() { return std::move(found_); }
  /// Bytes of the text of the last read() that the call, or the section, takes.
  std::size_t used() const { return used_; }

 private:
  enum class Step : std::uint8_t {
    opening,
    item,  // of a list
    object,
    arguments,
    parameters,  // between two
    value,       // of a parameter
    python,
    finished,
  };
  enum class Match : std::uint8_t { yes, no, more };

  State read_opening(std::string_view text);
  State read_name(std::string_view text, std::size_t begin);
  State read_item(std::string_view text);
  State read_json(std::string_view text);
  State read_parameters(std::string_view text);
  State read_value(std::string_view text);
  State read_python(std::string_view text);
  State read_function(std::string_view text, std::size_t begin);
  State read_pair_name(std::string_view text, std::size_t begin);
  State begin_parameters(std::string_view text, std::string_view name, std::size_t begin);
  State begin_json(std::string_view text, std::size_t begin, Step step);
  State end_object(const std::string& json, std::size_t end, bool open);
  State give(std::size_t end);
  bool known(std::string_view name) const;
  bool set_arguments(std::string_view json);
  bool add_value(std::string_view key, std::string_view raw);
  bool take_string();
  bool closes(std::string_view text) const;
  bool may_close(std::string_view text) const;
  Match follows(std::string_view text, bool parameter) const;
  Match ends_value(std::string_view text, std::size_t at, std::size_t& length) const;

  const CallFormat* format_;
  std::shared_ptr<const ToolParameters> tools_;
  Step step_ = Step::opening;
  std::size_t at_ = 0;     // bytes that were read
  std::size_t begin_ = 0;  // of what is being read
  std::size_t used_ = 0;
  JsonScanner json_{JsonScanner::Controls::allowed};
  std::string string_;  // of the object's own members, the one being read
  std::string key_;
  bool in_list_ = false;
  bool final_ = false;  // the reply has ended
  bool any_ = false;    // a call was reported
  // Of xml and pairs.
  std::set<std::string, std::less<>> given_;
  std::string parameter_;
  // Of pythonic.
  std::string brackets_;
  char quote_ = 0;
  bool escape_ = false;
  std::vector<FoundCall> ready_;  // of a list that was read at once, the last one first

  FoundCall found_;
};

/// `[name(key=value, ...), ...]`, Python literals, as calls; nullopt: it is something else.
std::optional<std::vector<FoundCall>> read_python_calls(std::string_view text);

/// A call's arguments as compact JSON: "{}" of a blank text or null; nullopt: they are no object.
std::optional<std::string> arguments_of(std::string_view json);

/// `json` with control characters inside of its strings as escapes, as JSON wants them.
std::string escape_controls(std::string_view json);

}  // namespace baton
