#include "frontend/dialects/registry.h"

#include "frontend/dialects/lab.h"
#include "frontend/openai/openai_dialect.h"

namespace baton {

const std::vector<const Dialect*>& all_dialects() {
  static const std::vector<const Dialect*> kAll = {
      &openai_dialect(),
      &lab_dialect(),
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
