#include "frontend/model_link.h"

#include <utility>

#include "frontend/chat/chat_template.h"

namespace baton {
namespace {

std::string template_source(const ServedModel& model) {
  if (model.chat != nullptr) return "chat_format.json";
  return model.chat_template != nullptr ? model.chat_template->source() : "none";
}

FrontendIdentity for_model(FrontendIdentity identity, const ServedModel& model) {
  identity.model = sources_of(model);
  return identity;
}

}  // namespace

ModelSources sources_of(const ServedModel& model) {
  const std::string drawn = model.sampling.described();
  return {model.tokenizer ? model.tokenizer->source() : "none", template_source(model),
          to_string(model.task) + (drawn.empty() ? "" : "; " + drawn)};
}

ModelLink::ModelLink(LinkOptions link, FrontendIdentity identity, const RequestTableLimits& limits,
                     Metrics::Among among, StreamWriter& writer)
    : options(std::move(link)),
      table(for_model(std::move(identity), options.served), limits),
      client(std::move(options.channel)),
      metrics(options.served.name, among),
      watchers(writer) {}

}  // namespace baton
