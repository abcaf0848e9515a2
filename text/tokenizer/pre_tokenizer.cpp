#include "text/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/tokenizer/spec_object.h"
#include "text/tokenizer/unicode.h"

namespace baton {
namespace {

constexpr int kMaxDepth = 8;

/// GPT-2's expression, which ByteLevel brings along.
constexpr std::string_view kByteLevelWords =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

std::string set_of(std::string_view members) { return "[" + std::string(members) + "]"; }

/// What Rust calls a word character, and any run of them or of neither them nor spaces.
std::string whitespace_words() {
  const std::string word = std::string(kWordMembers) + "\\p{Join_Control}";
  return set_of(word) + "+|" + set_of("^" + word + std::string(kSpaceMembers)) + "+";
}

}  // namespace

/// Puts matches and the text between them together as a behavior says.
class PreTokenizer::Cutter {
 public:
  explicit Cutter(Behavior behavior) : behavior_(behavior) {}

  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool empty() const { return begin == end; }
  };
  /// The next stretch, in order and without gaps; what is complete now comes out, perhaps nothing.
  Range take(Range range, bool match) {
    const bool previous = std::exchange(previous_, match);
    switch (behavior_) {
      case Behavior::isolated:
        return range;
      case Behavior::removed:
        return match ? Range() : range;
      case Behavior::contiguous:
        if (match != previous || held_.empty()) return std::exchange(held_, range);
        held_.end = range.end;
        return {};
      case Behavior::merged_with_previous:
        if (!match || previous || held_.empty()) return std::exchange(held_, range);
        held_.end = range.end;
        return {};
      case Behavior::merged_with_next:
        if (match) return std::exchange(held_, range);
        return {held_.empty() ? range.begin : std::exchange(held_, Range()).begin, range.end};
    }
    return {};
  }
  Range rest() const { return held_; }

 private:
  Behavior behavior_;
  bool previous_ = false;
  Range held_;
};

Result<PreTokenizer> PreTokenizer::parse(const nlohmann::json& spec, const std::string& where) {
  PreTokenizer made;
  if (spec.is_null()) return made;
  if (Status status = made.add(spec, where, 0); !status.ok()) return status;
  return made;
}

namespace {

Result<Regex> compile_split(const SpecObject::Pattern& pattern, const std::string& where) {
  if (pattern.text.empty()) return unsupported(where, "an empty pattern");
  Result<std::string> translated =
      pattern.regex ? translate_regex(pattern.text) : escape_regex(pattern.text);
  if (translated.ok()) {
    auto regex = Regex::compile(translated.value());
    if (regex.ok()) return regex;
    translated = regex.status();
  }
  return Status(translated.status().code(), where + ": " + translated.status().message());
}

}  // namespace

/// Fills in a Metaspace step; the pattern that it cuts at comes back, empty when it cuts nothing.
std::string PreTokenizer::read_metaspace(SpecObject& object, Step& step) {
  step.edit = Edit::metaspace;
  step.behavior = Behavior::merged_with_next;
  step.symbol = object.text("replacement");
  object.text("str_rep", "");
  const bool has_scheme = object.value("prepend_scheme").is_string();
  const std::string scheme = object.text("prepend_scheme", "always");
  const bool prefix = object.flag("add_prefix_space", scheme != "never");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    object.fail(unsupported(object.where(), "the prepend_scheme '" + scheme + "'"));
  }
  // An older file has add_prefix_space alone; in one with both, "never" outweighs true.
  if (!prefix && has_scheme && scheme != "never") {
    object.fail(invalid(object.where() + ": add_prefix_space contradicts prepend_scheme"));
  }
  step.prepend = !prefix || scheme == "never" ? Prepend::never
                 : scheme == "first"          ? Prepend::first
                                              : Prepend::always;
  std::string_view one = step.symbol;
  if (object.ok() && (one.empty() || (take_character(one), !one.empty()))) {
    object.fail(invalid(object.where() + ": 'replacement' must be one character"));
  }
  return object.flag("split", true) && object.ok() ? escape_regex(step.symbol) : "";
}

Status PreTokenizer::add(const nlohmann::json& spec, const std::string& where, int depth) {
  if (depth > kMaxDepth) return unsupported(where, "so deep a Sequence");
  SpecObject object(spec, where);
  const std::string type = object.type();
  if (type == "Sequence") {
    const nlohmann::json& list = object.list("pretokenizers");
    if (Status status = object.finish(); !status.ok()) return status;
    for (std::size_t i = 0; i < list.size(); ++i) {
      Status status = add(list[i], where + "[" + std::to_string(i) + "]", depth + 1);
      if (!status.ok()) return status;
    }
    return {};
  }
  if (byte_level_) return unsupported(where, "a step behind ByteLevel");

  const auto behavior_of = [&](const std::string& name) {
    if (name == "Removed") return Behavior::removed;
    if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
    if (name == "MergedWithNext") return Behavior::merged_with_next;
    if (name == "Contiguous") return Behavior::contiguous;
    if (name != "Isolated") object.fail(unsupported(where, "the behavior '" + name + "'"));
    return Behavior::isolated;
  };
  Step step;
  std::string pattern;
  if (type == "ByteLevel") {
    if (object.flag("add_prefix_space")) step.edit = Edit::prefix_space;
    object.flag("trim_offsets", true);  // of positions, which nobody asks for
    if (object.flag("use_regex", true)) pattern = translate_regex(kByteLevelWords).value();
    byte_level_ = true;
  } else if (type == "Split") {
    const auto given = object.pattern("pattern");
    step.behavior = behavior_of(object.text("behavior"));
    step.invert = object.flag("invert");
    if (object.ok()) {
      auto regex = compile_split(given, where);
      if (!regex.ok()) return regex.status();
      step.regex = std::move(regex).value();
    }
  } else if (type == "Digits") {
    pattern = object.flag("individual_digits", false) ? "\\p{N}" : "\\p{N}+";
  } else if (type == "Punctuation") {
    step.behavior = behavior_of(object.text("behavior", "Isolated"));
    pattern = "[\\p{P}\\x{21}-\\x{2F}\\x{3A}-\\x{40}\\x{5B}-\\x{60}\\x{7B}-\\x{7E}]";
  } else if (type == "WhitespaceSplit") {
    step.behavior = Behavior::removed;
    pattern = set_of(kSpaceMembers);
  } else if (type == "Whitespace") {
    step.behavior = Behavior::removed;
    step.invert = true;
    pattern = whitespace_words();
  } else if (type == "Metaspace") {
    pattern = read_metaspace(object, step);
  } else if (object.ok()) {
    return unsupported(where, "the pre-tokenizer '" + type + "'");
  }
  if (Status status = object.finish(); !status.ok()) return status;
  if (!pattern.empty()) {
    auto regex = Regex::compile(pattern);
    if (!regex.ok()) return Status(regex.status().code(), where + ": " + regex.status().message());
    step.regex = std::move(regex).value();
  }
  steps_.push_back(std::move(step));
  return {};
}

bool PreTokenizer::keeps_everything() const {
  return std::none_of(steps_.begin(), steps_.end(), [](const Step& step) {
    return step.regex && step.behavior == Behavior::removed;
  });
}

bool PreTokenizer::minds_the_beginning() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const Step& step) { return step.prepend == Prepend::first; });
}

PreTokenizer::Outcome PreTokenizer::split(std::string_view text, bool at_beginning,
                                          const Sink& sink) const {
  return run(0, text, at_beginning, sink);
}

PreTokenizer::Outcome PreTokenizer::run(std::size_t index, std::string_view text, bool at_beginning,
                                        const Sink& sink) const {
  if (index == steps_.size()) return sink(text) ? Outcome::done : Outcome::stopped;
  const Step& step = steps_[index];
  std::string edited;
  if (step.edit == Edit::prefix_space && text.front() != ' ') {
    edited.reserve(text.size() + 1);
    edited += ' ';
    edited += text;
    text = edited;
  } else if (step.edit == Edit::metaspace) {
    const bool prepend =
        step.prepend == Prepend::always || (step.prepend == Prepend::first && at_beginning);
    edited.reserve(text.size() + text.size() / 2);
    if (prepend && text.front() != ' ' && text.substr(0, step.symbol.size()) != step.symbol) {
      edited += step.symbol;
    }
    for (const char c : text) {
      if (c == ' ') {
        edited += step.symbol;
      } else {
        edited += c;
      }
    }
    text = edited;
  }
  if (!step.regex) return run(index + 1, text, at_beginning, sink);
  return cut(index, text, at_beginning, sink);
}

PreTokenizer::Outcome PreTokenizer::cut(std::size_t index, std::string_view text, bool at_beginning,
                                        const Sink& sink) const {
  const Step& step = steps_[index];
  Cutter cutter(step.behavior);
  const auto pass = [&](Cutter::Range word) {
    if (word.empty()) return Outcome::done;
    const std::string_view part = text.substr(word.begin, word.end - word.begin);
    return run(index + 1, part, at_beginning && word.begin == 0, sink);
  };
  std::size_t done = 0;
  while (done < text.size()) {
    std::size_t begin = 0;
    std::size_t end = 0;
    const Regex::Found found = step.regex->find(text, done, begin, end);
    if (found == Regex::Found::gave_up) return Outcome::gave_up;
    if (found == Regex::Found::none) begin = end = text.size();
    const Cutter::Range stretches[] = {{done, begin}, {begin, end}};
    for (int i = 0; i < 2; ++i) {
      if (stretches[i].empty()) continue;
      const Outcome outcome = pass(cutter.take(stretches[i], (i == 1) != step.invert));
      if (outcome != Outcome::done) return outcome;
    }
    done = end;
  }
  return pass(cutter.rest());
}

}  // namespace baton
