// `suffix` of /v1/completions: the model fills in what stands between prompt and suffix. Only
// models that were trained for it can, which shows by the tokens of their own that mark the parts.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "frontend/core/json_reader.h"
#include "frontend/core/served_model.h"
#include "frontend/openai/prompt_fields.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// Ids around the parts of a prompt: begin, prompt, hole, suffix, end (or, of one family, suffix
/// and prompt in the other order).
struct InfillMarks {
  Token begin = -1;
  Token hole = -1;
  Token end = -1;  // -1: nothing stands at the end
  bool suffix_first = false;
};

/// Nothing if the tokenizer has none of the known sets of marks.
std::optional<InfillMarks> infill_marks(const Tokenizer& tokenizer);

/// Takes the field. An empty one asks for nothing; another one is refused for models without marks,
/// and with `echo`.
void read_suffix(FieldReader& fields, const ServedModel& model, bool echo, AskedPrompts& prompts);

/// The prompts with their suffix; false: one has more than `limit` tokens. What the texts say never
/// becomes a mark.
bool infill_prompts(const AskedPrompts& asked, const Tokenizer& tokenizer, std::size_t limit,
                    std::vector<std::vector<Token>>& prompts);

}  // namespace baton
