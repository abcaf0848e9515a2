// The one table of options: name, meaning, bounds and the member that holds the value. The YAML
// reader, the command line and --help are made from it; defaults come from the structs themselves.
// Private to configs/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "configs/config.h"
#include "ipc/status.h"

namespace baton {

enum class TextRule : std::uint8_t {
  any,      // up to 256 printable characters
  name,     // [a-z0-9_-]{1,32}: part of file names and routing ids
  path,     // up to 4096 bytes; a relative one is made absolute
  origins,  // a list: * or origins of web pages (configs/origins.h)
  hosts,    // a list: * or hosts (configs/origins.h)
};

template <typename Section>
struct Option {
  using Member = std::variant<
      std::string Section::*, bool Section::*, std::uint16_t Section::*, std::uint32_t Section::*,
      std::uint64_t Section::*, std::int32_t Section::*, double Section::*,
      std::vector<std::string> Section::*, std::vector<std::uint32_t> Section::*,
      TokenBudget Section::*, LocalPrefill Section::*, Batching Section::*, NoDecode Section::*,
      QueueOrder Section::*, Preempted Section::*, Victim Section::*, Admission Section::*,
      Swap Section::*, Roles Section::*, Elastic Section::*, Role Section::*>;

  const char* name;
  const char* meaning;
  Member member;
  double min = 0;  // numbers, and each of a list of numbers (0: an empty list)
  double max = 0;
  TextRule text = TextRule::any;  // strings, and lists without choices
  const char* choices = nullptr;  // "a|b": strings that may be one of a few; enums in their order;
                                  // lists that may hold each of them once
  const char* default_note = nullptr;  // --help, when the default is worked out at start-up
};

const std::vector<Option<Config>>& top_options();
const std::vector<Option<SchedulerConfig>>& scheduler_options();
const std::vector<Option<FrontendConfig>>& frontend_options();
const std::vector<Option<TelemetryConfig>>& telemetry_options();
/// Without `name`, which only an entry of `workers` has.
const std::vector<Option<WorkerConfig>>& worker_options();
const Option<WorkerConfig>& worker_name_option();
/// An entry of frontend.listen.
const std::vector<Option<ListenConfig>>& listen_options();

/// Reads `text` into the option's member, within its bounds. `quoted`: the text stood in quotes, so
/// it is no number and no bool. `base`: the folder that a relative path starts from. The error says
/// what the value is and what it may be ("is 0; it may be 1 to 256"), without the key.
template <typename Section>
Status set_option(const Option<Section>& option, Section& section, const std::string& text,
                  bool quoted, const std::string& base);

/// The value as it would stand in a file.
template <typename Section>
std::string value_text(const Option<Section>& option, const Section& section);

/// "1 to 256", "continuous or static", "true or false", "" for free text.
template <typename Section>
std::string bounds_text(const Option<Section>& option);

/// Where a key lives: "scheduler", "frontend or worker", "the top level"; empty if nowhere.
std::string home_of(std::string_view key);
/// What says now what a key said that is no more: "token_budget: prefill=TOKENS"; empty if it never
/// was one.
std::string successor(std::string_view key);
/// The nearest of `names` if it is near enough to be a slip of the finger, else empty.
std::string nearest(std::string_view key, const std::vector<std::string>& names);

}  // namespace baton
