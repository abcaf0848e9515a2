#include "frontend/openai/infill.h"

#include <array>
#include <string>
#include <string_view>

namespace baton {
namespace {

struct Marks {
  std::string_view begin, hole, end;
  bool suffix_first = false;
};

// As the families' own model cards write them.
constexpr auto kFamilies = std::to_array<Marks>({
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},  // Qwen2.5-Coder, CodeGemma
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},        // StarCoder
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},  // DeepSeek-Coder
    {"[SUFFIX]", "[PREFIX]", "", true},                      // Codestral
});

/// The one token that is written so; -1: there is none.
Token token_of(std::string_view mark, const Tokenizer& tokenizer) {
  std::size_t length = 0;
  const Token special = tokenizer.special_at(mark, &length);
  if (special >= 0 && length == mark.size()) return special;
  const auto ids = tokenizer.encode_within(mark, false, 4);  // Qwen's are no special tokens
  return ids && ids->size() == 1 && tokenizer.token_bytes(ids->front()) == mark ? ids->front() : -1;
}

bool append(std::vector<Token>& ids, std::string_view text, const Tokenizer& tokenizer,
            std::size_t limit) {
  if (ids.size() > limit) return false;
  const auto more = tokenizer.encode_plain_within(text, true, limit - ids.size());
  if (more) ids.insert(ids.end(), more->begin(), more->end());
  return more.has_value();
}

}  // namespace

std::optional<InfillMarks> infill_marks(const Tokenizer& tokenizer) {
  for (const Marks& family : kFamilies) {
    InfillMarks marks;
    marks.begin = token_of(family.begin, tokenizer);
    marks.hole = marks.begin < 0 ? -1 : token_of(family.hole, tokenizer);
    if (marks.hole < 0) continue;
    if (!family.end.empty()) {
      marks.end = token_of(family.end, tokenizer);
      if (marks.end < 0) continue;
    }
    marks.suffix_first = family.suffix_first;
    return marks;
  }
  return std::nullopt;
}

void read_suffix(FieldReader& fields, const ServedModel& model, bool echo, AskedPrompts& prompts) {
  const nlohmann::json* suffix = fields.take("suffix");
  if (suffix == nullptr) return;
  if (!suffix->is_string()) {
    fields.fail("suffix", std::string("must be a string, not ") + kind_of(*suffix));
    return;
  }
  const std::string& text = suffix->get_ref<const std::string&>();
  if (text.empty()) return;
  if (!infill_marks(*model.tokenizer)) {
    fields.fail("suffix",
                "is not supported by this model: its tokenizer has no tokens that mark the text "
                "before and behind what is to be filled in");
  } else if (echo) {
    fields.fail("suffix", "cannot be used together with 'echo'");
  }
  prompts.suffix = text;
}

bool infill_prompts(const AskedPrompts& asked, const Tokenizer& tokenizer, std::size_t limit,
                    std::vector<std::vector<Token>>& prompts) {
  const InfillMarks marks = infill_marks(tokenizer).value();
  for (const AskedPrompt& prompt : asked.list) {
    std::vector<Token> ids;
    if (asked.add_special_tokens && tokenizer.add_bos() && tokenizer.bos() >= 0) {
      ids.push_back(tokenizer.bos());
    }
    const auto add_prompt = [&] {
      if (prompt.text) return append(ids, *prompt.text, tokenizer, limit);
      ids.insert(ids.end(), prompt.ids.begin(), prompt.ids.end());
      return true;
    };
    ids.push_back(marks.begin);
    if (marks.suffix_first ? !append(ids, *asked.suffix, tokenizer, limit) : !add_prompt()) {
      return false;
    }
    ids.push_back(marks.hole);
    if (marks.suffix_first ? !add_prompt() : !append(ids, *asked.suffix, tokenizer, limit)) {
      return false;
    }
    if (marks.end >= 0) ids.push_back(marks.end);
    prompts.push_back(std::move(ids));
  }
  return true;
}

}  // namespace baton
