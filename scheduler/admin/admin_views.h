// What the admin socket shows: the state as text for a terminal, or as JSON for a program. Pure.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/admin/admin_commands.h"

namespace baton {

/// `what`: info, workers, frontends, setup, requests, kv, queue, tenants, errors or live (with
/// `pulls`, if any); nothing for anything else.
std::optional<std::string> show(const std::string& what, bool json, const State& state,
                                const AdminStats& stats, TimeNs now,
                                const PullWatch* pulls = nullptr);

/// loading, ready, draining, fenced, gone, ...
std::string describe_state(const Worker& worker);

/// The worker of a sequence; "" if there is none any more.
std::string worker_of(const State& state, SequenceId id);

/// "FRONTEND-COUNTER", as shown and as `cancel` takes it.
std::string request_name(const RequestId& id);
std::optional<RequestId> parse_request_name(const std::string& text);

/// Adds a line for every sequence of a worker's own tables that contradicts the books. Steps may be
/// in flight: a worker's table may be shorter than the books, but never different.
void compare_tables(const State& state, WorkerIndex index, const Tables& tables,
                    std::vector<std::string>& faults);

}  // namespace baton
