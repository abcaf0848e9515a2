#include "text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

namespace baton {
namespace {

// PCRE2's own defaults are as large; written down so that a system's build options do not matter.
constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::uint32_t kHeapLimitKib = 64 << 10;
constexpr std::size_t kJitStackBytes = 1 << 20;

/// What one thread needs to match.
struct Scratch {
  Scratch() {
    data = pcre2_match_data_create(1, nullptr);
    context = pcre2_match_context_create(nullptr);
    stack = pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr);
    if (context == nullptr) return;
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
};

Scratch& scratch() {
  thread_local Scratch scratch;
  return scratch;
}

}  // namespace

struct Regex::Code {
  pcre2_code* compiled = nullptr;
  bool jit = false;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(compiled); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(const std::string& pattern) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  if (context != nullptr) pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                 &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code->compiled == nullptr) {
    unsigned char text[160] = {};
    pcre2_get_error_message(error, text, sizeof(text));
    return Status(ErrorCode::unavailable, std::string("the expression does not compile: ") +
                                              reinterpret_cast<const char*>(text) + " at " +
                                              std::to_string(offset) + " of " + pattern);
  }
  std::uint32_t empty = 0;
  pcre2_pattern_info(code->compiled, PCRE2_INFO_MATCHEMPTY, &empty);
  if (empty != 0) {
    return Status(ErrorCode::unavailable,
                  "an expression that matches an empty text is not supported: " + pattern);
  }
  code->jit = pcre2_jit_compile(code->compiled, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(code));
}

Regex::Found Regex::find(std::string_view text, std::size_t from, std::size_t& begin,
                         std::size_t& end) const {
  Scratch& own = scratch();
  if (own.data == nullptr || own.context == nullptr) return Found::gave_up;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = code_->jit ? pcre2_jit_match(code_->compiled, subject, text.size(), from,
                                                 PCRE2_NO_UTF_CHECK, own.data, own.context)
                               : pcre2_match(code_->compiled, subject, text.size(), from,
                                             PCRE2_NO_UTF_CHECK, own.data, own.context);
  if (found == PCRE2_ERROR_NOMATCH) return Found::none;
  if (found < 0) return Found::gave_up;
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(own.data);
  begin = bounds[0];
  end = bounds[1];
  return end > begin ? Found::match : Found::gave_up;
}

}  // namespace baton
