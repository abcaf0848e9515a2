#include "scheduler/admin/trace_json.h"

#include <algorithm>
#include <utility>

#include "scheduler/admin/trace_writer.h"

namespace baton {

// ------------------------------------------------------------------------------- pieces of JSON

/// `name` happens on a track of a process; it gets the args that the caller sets.
TraceWriter::Json& TraceWriter::slice(TracedLife& life, int track, const char* trackname,
                                      std::string name, TimeNs begin, TimeNs end) {
  life.tracks.try_emplace(track, trackname);
  events_.push_back({{"ph", "X"},
                     {"name", std::move(name)},
                     {"pid", life.number},
                     {"tid", track},
                     {"ts", us(begin)},
                     {"dur", static_cast<double>(std::max<TimeNs>(0, end - begin)) * 1e-3},
                     {"args", Json::object()}});
  return events_.back()["args"];
}

void TraceWriter::instant(TracedLife& life, std::string name, TimeNs at, Json args,
                          bool everywhere) {
  life.tracks.try_emplace(kLoop, "loop");
  events_.push_back({{"ph", "i"},
                     {"name", std::move(name)},
                     {"pid", life.number},
                     {"tid", static_cast<int>(kLoop)},
                     {"ts", us(at)},
                     {"s", everywhere ? "g" : "t"},
                     {"args", std::move(args)}});
}

void TraceWriter::arrow(const char* what, const TracedLife& from, int from_track, TimeNs left,
                        const TracedLife& to, int to_track, TimeNs arrived) {
  ++arrows_;
  events_.push_back({{"ph", "s"},
                     {"cat", what},
                     {"name", what},
                     {"id", arrows_},
                     {"pid", from.number},
                     {"tid", from_track},
                     {"ts", us(left)}});
  events_.push_back({{"ph", "f"},
                     {"bp", "e"},
                     {"cat", what},
                     {"name", what},
                     {"id", arrows_},
                     {"pid", to.number},
                     {"tid", to_track},
                     {"ts", us(std::max(left, arrived))}});
}

TraceWriter::Json& TraceWriter::async(const char* phase, const RequestId& id, std::string name,
                                      TimeNs at, int process) {
  events_.push_back({{"ph", phase},
                     {"cat", "request"},
                     {"name", std::move(name)},
                     {"id", std::to_string(id.frontend) + "-" + std::to_string(id.counter)},
                     {"pid", process},
                     {"tid", 0},
                     {"ts", us(at)},
                     {"args", Json::object()}});
  return events_.back()["args"];
}

// --------------------------------------------------------------------------------- who there was

void TraceWriter::find_lives() {
  for (const auto& [name, records] : trace_.processes) {
    for (const TraceRecord& record : records) {
      if (lives_.empty() || lives_.back().name != name || lives_.back().pid != record.pid) {
        lives_.push_back({name,
                          record.pid,
                          static_cast<int>(lives_.size()) + 1,
                          record.at,
                          trace_.ended,
                          {},
                          {},
                          {}});
      }
      lives_.back().records.push_back(&record);
      lives_.back().first = std::min(lives_.back().first, record.at);
    }
  }
  counts_.processes = lives_.size();
}

/// The process that had the name then.
TracedLife* TraceWriter::life_at(const std::string& name, TimeNs at) {
  TracedLife* found = nullptr;
  for (TracedLife& life : lives_) {
    if (life.name != name) continue;
    if (found == nullptr || life.records.front()->at <= at) found = &life;
  }
  return found;
}

/// Several may tell of one death: the first who saw it is right about its time.
void TraceWriter::died(const std::string& name, std::uint32_t pid, TimeNs at,
                       const std::string& how) {
  for (TracedLife& life : lives_) {
    if (life.name != name || life.pid != pid) continue;
    life.end = std::min(life.end, at);
    // What the process itself told must not lie behind its end.
    for (const TraceRecord* record : life.records)
      life.end = std::max(life.end, record->at + record->took);
    if (life.how.empty() || how.size() > life.how.size()) life.how = how;
  }
}

void TraceWriter::find_deaths() {
  for (const SeenDeath& death : trace_.deaths) died(death.name, death.pid, death.at, "it is gone");
  std::vector<const TraceRecord*> told;
  for (const TracedLife& life : lives_) {
    for (const TraceRecord* record : life.records) {
      if (record->kind == TraceKind::lost || record->kind == TraceKind::ended)
        told.push_back(record);
    }
  }
  for (const TraceRecord* record : told) {
    const std::string text(record->words());
    if (record->kind == TraceKind::ended) {  // "NAME (pid N) was killed by signal 9 ..."
      died(text.substr(0, text.find(' ')), lower_half(record->args[0]), record->at, text);
    } else if (const TracedLife* life = life_at(text, record->at)) {
      died(text, life->pid, record->at, "it is gone");
    }
  }
}

void TraceWriter::find_base() {
  base_ = trace_.began;
  for (const TracedLife& life : lives_) base_ = std::min(base_, life.first);
}

void TraceWriter::processes() {
  for (TracedLife& life : lives_) {
    if (!life.how.empty()) {
      const bool well = life.how.find("ended with status 0") != std::string::npos;
      instant(life, life.name + (well ? " ended" : " died"), life.end, {{"how", life.how}}, true);
      ++counts_.deaths;
    }
    const auto meta = [&](const char* what, Json args, int track = 0) {
      events_.push_back(
          {{"ph", "M"}, {"name", what}, {"pid", life.number}, {"tid", track}, {"args", args}});
    };
    meta("process_name", {{"name", life.name + " (process " + std::to_string(life.pid) + ")"}});
    meta("process_sort_index", {{"sort_index", life.number}});
    for (const auto& [track, name] : life.tracks) {
      meta("thread_name", {{"name", name}}, track);
      meta("thread_sort_index", {{"sort_index", track}}, track);
    }
  }
}

std::string TraceWriter::write() {
  find_lives();
  find_deaths();
  find_base();
  gather_requests();
  for (TracedLife& life : lives_) scheduler(life);
  for (TracedLife& life : lives_) worker(life);
  cross();
  for (TracedLife& life : lives_) others(life);
  requests();
  processes();
  const Json all = {{"displayTimeUnit", "ms"},
                    {"otherData",
                     {{"version", trace_.version},
                      {"began_unix_ns", trace_.began + trace_.wall_offset},
                      {"monotonic_ns_at_0", base_},
                      {"records_lost", trace_.lost}}},
                    {"traceEvents", std::move(events_)}};
  return all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string trace_json(const Trace& trace, TraceCounts* counts) {
  TraceCounts own;
  return TraceWriter(trace, counts == nullptr ? own : *counts).write();
}

}  // namespace baton
