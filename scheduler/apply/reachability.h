// Which worker can map the pool of which other one.
#pragma once

#include <string>

#include "scheduler/apply/events.h"

namespace baton {

/// False: `importer` has said that it cannot map the pool of `exporter`.
bool reaches(const Worker& exporter, const Worker& importer);
/// `importer` is asked to read the pool of `exporter` in place, too (`elastic`).
bool may_read_in_place(const State& state, const Worker& exporter, const Worker& importer);
/// Somebody who decodes, and takes work, can read the pool of `exporter`.
bool reaches_some_decoder(const State& state, const Worker& exporter);
/// Some prefill worker that takes work has a pool that `importer` can read.
bool is_fed(const State& state, const Worker& importer);
/// Asks `importer` whether it can read the pool of `exporter`, unless it is being asked.
void probe(State& state, WorkerIndex exporter, WorkerIndex importer, TimeNs now, Outbox& out);
/// Asks about every pair that `joined` makes with others.
void probe_peers(State& state, WorkerIndex joined, TimeNs now, Outbox& out);
/// Asks again about pools that `importer` could not read, when it is time, and about those that it
/// could read in place and has closed since.
void probe_again(State& state, WorkerIndex importer, TimeNs now, Outbox& out);
void probe_answered(State& state, const OpenPull& pull, const std::string& failure, TimeNs now,
                    Outbox& out);

}  // namespace baton
