#include "frontend/dialects/registry.h"

#include "frontend/dialects/anthropic.h"
#include "frontend/dialects/distserve.h"
#include "frontend/dialects/energonai.h"
#include "frontend/dialects/lab.h"
#include "frontend/dialects/lightllm.h"
#include "frontend/dialects/mii.h"
#include "frontend/dialects/mindspore.h"
#include "frontend/dialects/ollama.h"
#include "frontend/dialects/tgi.h"
#include "frontend/dialects/tutorial.h"
#include "frontend/openai/openai_dialect.h"

namespace baton {

const std::vector<const Dialect*>& all_dialects() {
  static const std::vector<const Dialect*> kAll = {
      &openai_dialect(),    &lab_dialect(),       &mindspore_dialect(), &tutorial_dialect(),
      &tgi_dialect(),       &lightllm_dialect(),  &mii_dialect(),       &distserve_dialect(),
      &energonai_dialect(), &anthropic_dialect(), &ollama_dialect(),
  };
  return kAll;
}

const Dialect* dialect_named(std::string_view name) {
  for (const Dialect* dialect : all_dialects()) {
    if (dialect->name() == name) return dialect;
  }
  return nullptr;
}

std::vector<const Dialect*> dialects_named(const std::vector<std::string>& names) {
  std::vector<const Dialect*> dialects;
  for (const std::string& name : names) {
    if (const Dialect* dialect = dialect_named(name)) dialects.push_back(dialect);
  }
  return dialects;
}

}  // namespace baton
