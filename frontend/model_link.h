// What the front end's loop has of each model that it serves: the link to that model's scheduler
// (docs/adr/0023-several-models.md). Lives on the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "frontend/core/live_feed.h"
#include "frontend/core/metrics.h"
#include "frontend/core/request_table.h"
#include "frontend/core/scheduler_client.h"
#include "frontend/core/served_model.h"
#include "frontend/http/console.h"
#include "ipc/process.h"

namespace baton {

struct LinkOptions {
  ServedModel served;
  /// Of its processes, in logs and before names of files; empty: it is the only model.
  std::string name = {};
  bool no_workers = false;      // the configuration has none for it
  /// Why none of its workers can run, if that is known; null: nobody can tell. Takes about 0.1 ms.
  std::function<std::string()> workers_refused = {};
  std::uint32_t max_batch = 0;  // sequences that a worker decodes together
  /// The file by which front ends take turns with trials (RequestTable).
  std::string turn_lock = {};
  /// What the console shows of it; outlives the loop. null: there is no console.
  LiveFeed* live = nullptr;
  std::unique_ptr<ClientChannel> channel = nullptr;
};

ModelSources sources_of(const ServedModel& model);

struct ModelLink {
  /// `identity`: of the front end; what is said of a model in it is this one's.
  ModelLink(LinkOptions link, FrontendIdentity identity, const RequestTableLimits& limits,
            Metrics::Among among, StreamWriter& writer);

  /// "small: " before what the log says of several models; "" of one.
  std::string prefix() const { return options.name.empty() ? "" : options.name + ": "; }

  /// Why it cannot be served, and will not before somebody mends something; empty: it can.
  const std::string& fault() const {
    return options.served.fault.empty() ? workers_fault : options.served.fault;
  }

  LinkOptions options;
  std::string workers_fault;  // as of the last second; while a worker is ready, empty
  RequestTable table;
  SchedulerClient client;
  Metrics metrics;
  Watchers watchers;
  TableOutput out;
  TableOutput follow;   // what finishing a choice leads to, while `out` is carried out
  TableOutput carried;  // what of that is carried out at the moment
  TimeNs next_turn = 0;
  TimeNs next_load = 0;  // of a model that could not be loaded
  std::optional<LockFile> turn;
  EventRate rate;  // of requests that generate
};

}  // namespace baton
