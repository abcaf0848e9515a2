// How a trace becomes a file of trace events: the pieces of trace_json(). Private to it: its parts
// are in trace_json.cpp (who there was, and the pieces of JSON), trace_tracks.cpp (what lies on
// tracks of processes) and trace_requests.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ipc/trace_ring.h"
#include "ipc/types.h"
#include "scheduler/admin/trace_json.h"

namespace baton {

/// Tracks of a process, in the order in which they are shown.
enum Track : int { kLoop = 1, kSteps = 2, kPulls = 3, kFirstReader = 10 };

constexpr std::uint32_t upper_half(std::uint64_t both) {
  return static_cast<std::uint32_t>(both >> 32U);
}
constexpr std::uint32_t lower_half(std::uint64_t both) { return static_cast<std::uint32_t>(both); }

inline RequestId request_of(const TraceRecord& record) { return {record.args[0], record.args[1]}; }

/// One process from its start to its end. Processes of several containers may have one pid, so that
/// a trace numbers its processes itself.
struct TracedLife {
  std::string name;
  std::uint32_t pid = 0;
  int number = 0;
  TimeNs first = 0;
  TimeNs end = 0;   // its death's, else the trace's
  std::string how;  // it died; empty: it lives
  std::vector<const TraceRecord*> records;
  std::map<int, std::string> tracks;
};

/// One reading of a pool's blocks.
struct TracedPull {
  TracedLife* importer = nullptr;
  std::uint64_t id = 0;
  AllocationId allocation = 0;
  std::uint64_t blocks = 0;
  TimeNs begin = 0;
  TimeNs end = 0;
  std::string failure;
  bool unfinished = false;
};

struct TracedRequest {
  TracedLife* front_end = nullptr;
  const TraceRecord* begun = nullptr;
  const TraceRecord* first_token = nullptr;
  const TraceRecord* ended = nullptr;
  std::vector<std::pair<const TracedLife*, const TraceRecord*>> parts;  // of schedulers
};

class TraceWriter {
 public:
  using Json = nlohmann::ordered_json;
  TraceWriter(const Trace& trace, TraceCounts& counts) : trace_(trace), counts_(counts) {}
  std::string write();

 private:
  void find_lives();
  void find_deaths();
  void died(const std::string& name, std::uint32_t pid, TimeNs at, const std::string& how);
  void find_base();
  void worker(TracedLife& life);
  void steps(TracedLife& life);
  void pulls(TracedLife& life);
  void scheduler(TracedLife& life);
  void others(TracedLife& life);
  void cross();
  void gather_requests();
  void requests();
  void request(const RequestId& id, TracedRequest& request);
  void parts(const RequestId& id, TracedRequest& request, TimeNs begin, TimeNs end, int process);
  void processes();

  Json& slice(TracedLife& life, int track, const char* trackname, std::string name, TimeNs begin,
              TimeNs end);
  void instant(TracedLife& life, std::string name, TimeNs at, Json args, bool everywhere = false);
  void arrow(const char* what, const TracedLife& from, int from_track, TimeNs left,
             const TracedLife& to, int to_track, TimeNs arrived);
  Json& async(const char* phase, const RequestId& id, std::string name, TimeNs at, int process);
  std::string called(const RequestId& id) const;
  double us(TimeNs at) const { return static_cast<double>(at - base_) * 1e-3; }
  TracedLife* life_at(const std::string& name, TimeNs at);

  const Trace& trace_;
  TraceCounts& counts_;
  TimeNs base_ = 0;
  std::vector<TracedLife> lives_;
  Json events_ = Json::array();
  std::uint64_t arrows_ = 0;
  std::vector<TracedPull> pulls_;
  std::map<AllocationId, TracedLife*> pools_;
  /// Of (worker's name, term, step): when its plan was sent, and by whom.
  std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, std::pair<TracedLife*, TimeNs>>
      plans_;
  /// Of a pull: who asked for it, when, and for which request.
  std::map<std::uint64_t, std::tuple<TracedLife*, TimeNs, RequestId>> asked_;
  std::map<RequestId, TracedRequest> requests_;
  std::map<RequestId, RequestId> choices_;  // those after a request's first
};

}  // namespace baton
