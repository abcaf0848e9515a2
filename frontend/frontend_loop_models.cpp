// What the loop knows of models that cannot be loaded, and how they come to be served after all.
#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "frontend/frontend_loop.h"

namespace baton {
namespace {

constexpr TimeNs kLoadAgain = 5 * kSecond;  // pause between tries to load a model

}  // namespace

/// A model that cannot be loaded says why through its workers' supervisor.
void FrontendLoop::look_after(std::size_t model) {
  ModelLink& link = *links_[model];
  const bool idle = link.table.scheduler().workers_ready == 0;
  std::string fault;
  if (idle && link.options.workers_refused) {
    const std::string why = link.options.workers_refused();
    if (!why.empty()) fault = load_fault(why);
  }
  if (fault == link.workers_fault) return;
  if (!fault.empty()) spdlog::warn("{}{}", link.prefix(), fault);
  link.workers_fault = std::move(fault);
  if (options_.late == nullptr || !link.options.served.fault.empty()) return;
  ServedModel told = link.options.served;
  told.fault = link.workers_fault;
  options_.late->tell(model, told);
}

/// What could not be loaded here is tried again where a worker has loaded it: what was missing has
/// come.
void FrontendLoop::load_late() {
  if (options_.late == nullptr) return;
  take_late();
  for (std::size_t i = 0; i < links_.size(); ++i) {
    ModelLink& link = *links_[i];
    const bool loads = link.table.scheduler().workers_ready > 0;
    if (link.options.served.fault.empty() || !loads || now_ < link.next_load) continue;
    if (options_.late->begin(i)) link.next_load = now_ + kLoadAgain;
  }
}

void FrontendLoop::take_late() {
  auto loaded = options_.late->take();
  if (!loaded) return;
  ModelLink& link = *links_[loaded->model];
  ServedModel& served = link.options.served;
  if (loaded->result.ok()) {
    served = std::move(loaded->result).value();
    spdlog::info("{}its folder can be loaded by now: it is served", link.prefix());
    if (options_.journal != nullptr) note_place();
    link.table.describe(sources_of(served), link.out);
    act(link);
  } else {
    const std::string fault = load_fault(loaded->result.status().message());
    if (fault == served.fault) return;
    spdlog::warn("{}{}", link.prefix(), fault);
    served.fault = fault;
  }
  options_.late->tell(loaded->model, served);
}

}  // namespace baton
