#include "frontend/openai/prompt_fields.h"

#include "frontend/openai/choice_fields.h"

namespace baton {
namespace {

using Json = nlohmann::json;

void read_one(FieldReader& fields, const Json& value, const std::string& name,
              const ServedModel& model, AskedPrompts& prompts) {
  AskedPrompt& prompt = prompts.list.emplace_back();
  if (value.is_string()) {
    prompt.text = value.get_ref<const std::string&>();
  } else if (value.is_array()) {
    prompt.ids = read_token_ids(fields, value, name, model);
  } else {
    fields.fail(name,
                std::string("must be a string or an array of token ids, not ") + kind_of(value));
  }
}

}  // namespace

std::string prompt_name(std::size_t index, std::size_t count) {
  return count == 1 ? "prompt" : "prompt[" + std::to_string(index) + "]";
}

void read_prompts(FieldReader& fields, const ServedModel& model, AskedPrompts& prompts) {
  prompts.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  const Json* prompt = fields.take("prompt");
  if (prompt == nullptr) {
    fields.fail("prompt", "is missing");
    return;
  }
  const bool several = prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number();
  if (!several) {
    read_one(fields, *prompt, "prompt", model, prompts);
    return;
  }
  if (prompt->size() > kMaxPrompts) {
    fields.fail("prompt", "may hold at most " + std::to_string(kMaxPrompts) + " prompts, not " +
                              std::to_string(prompt->size()));
    return;
  }
  for (std::size_t i = 0; i < prompt->size() && fields.ok(); ++i) {
    read_one(fields, (*prompt)[i], "prompt[" + std::to_string(i) + "]", model, prompts);
  }
}

}  // namespace baton
