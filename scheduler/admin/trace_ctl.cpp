#include "scheduler/admin/trace_ctl.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <utility>

#include "ipc/process.h"
#include "ipc/process_record.h"
#include "ipc/trace_ring.h"
#include "scheduler/admin/trace_json.h"

namespace baton {
namespace {

constexpr int kLookEveryMs = 50;  // a ring holds 16,000 records
/// Of all processes: 120 MB here, and a file that browsers still open.
constexpr std::size_t kMostRecords = 1'000'000;

int refuse(const std::string& text) {
  std::cerr << "baton-ctl: " << text << "\n";
  return 1;
}

/// Reads all rings of a folder while they are written.
class Collector {
 public:
  explicit Collector(std::string run_dir) : run_dir_(std::move(run_dir)) {}

  /// Before the trace begins: what lies there is not of it.
  void skip_old() { scan(/*from_start=*/false); }
  void look() {
    scan(/*from_start=*/true);
    for (auto& [name, reader] : readers_) drain(name, reader);
    watch();
  }
  bool full() const { return records_ >= kMostRecords; }
  std::size_t records() const { return records_; }
  /// All that was found, and nothing is left behind.
  void finish(Trace& trace) {
    for (const auto& [name, reader] : readers_) {
      trace.lost += reader.lost();
      ::unlink(path_of(name).c_str());
    }
    trace.lost += lost_;
    trace.processes = std::move(found_);
    trace.deaths = std::move(deaths_);
  }

 private:
  std::string path_of(const std::string& name) const { return run_dir_ + "/" + name + ".trace"; }

  void scan(bool from_start) {
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator(run_dir_, gone)) {
      if (entry.path().extension() != ".trace") continue;
      const std::string name = entry.path().stem().string();
      struct stat facts {};
      if (::lstat(entry.path().c_str(), &facts) != 0) continue;
      const auto known = readers_.find(name);
      if (known != readers_.end() && known->second.file() == facts.st_ino) continue;
      auto reader = TraceReader::open(entry.path().string(), from_start);
      if (!reader.ok()) continue;
      if (known != readers_.end()) {
        drain(name, known->second);
        lost_ += known->second.lost();
      }
      readers_.insert_or_assign(name, std::move(reader).value());
    }
  }

  void drain(const std::string& name, TraceReader& reader) {
    reader.drain([&](const TraceRecord& record) {
      if (full()) return;
      ++records_;
      found_[name].push_back(record);
      if (record.kind != TraceKind::life) return;
      const auto pid = static_cast<std::int32_t>(record.pid);
      // Whoever writes has the lock of the one before, which may have died between two looks.
      const auto [writer, first] = writers_.emplace(name, record.pid);
      if (!first && writer->second != record.pid)
        deaths_.push_back({name, writer->second, record.at});
      writer->second = record.pid;
      if (process_alive(pid, record.args[0])) alive_[{name, pid}] = record.args[0];
    });
  }

  /// Those whose pids mean something here: of another container they do not.
  void watch() {
    std::erase_if(alive_, [&](const auto& entry) {
      const auto& [name, pid] = entry.first;
      if (process_alive(pid, entry.second)) return false;
      deaths_.push_back({name, static_cast<std::uint32_t>(pid), now_ns()});
      return true;
    });
  }

  const std::string run_dir_;
  std::map<std::string, TraceReader> readers_;
  std::map<std::string, std::vector<TraceRecord>> found_;
  std::map<std::pair<std::string, std::int32_t>, std::uint64_t>
      alive_;  // name, pid: its start time
  std::map<std::string, std::uint32_t> writers_;  // the pid that each ring's last writer has told
  std::vector<SeenDeath> deaths_;
  std::size_t records_ = 0;
  std::uint64_t lost_ = 0;
};

/// Ends the trace whatever happens here.
class Session {
 public:
  Session(TraceControl& control, TimeNs until) : control_(control) {
    control_.layout.store(kTraceLayout);
    control_.session.fetch_add(1);
    control_.until.store(until, std::memory_order_release);
  }
  ~Session() { end(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  void end() { control_.until.store(0); }

 private:
  TraceControl& control_;
};

bool write_file(const std::string& path, const std::string& text) {
  if (path == "-") return static_cast<bool>(std::cout << text << std::flush);
  const std::string part = path + ".part";
  {
    std::ofstream file(part, std::ios::binary | std::ios::trunc);
    file << text << std::flush;
    if (!file) return false;
  }
  return std::rename(part.c_str(), path.c_str()) == 0;
}

std::string counted(std::size_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

/// Processes that a supervisor says are there and that have told nothing.
std::string silent_ones(const std::string& run_dir, const Trace& trace) {
  std::string names;
  for (const ProcessRecord& record : read_process_records(run_dir)) {
    if (record.life.pid == 0 || trace.processes.count(record.name) != 0) continue;
    names += (names.empty() ? "" : ", ") + record.name;
  }
  return names;
}

void say(const std::string& path, const std::string& text, const Trace& trace,
         const TraceCounts& counts) {
  char size[64];
  std::snprintf(size, sizeof size, "%.1f MB, %.1f s", static_cast<double>(text.size()) * 1e-6,
                static_cast<double>(trace.ended - trace.began) * 1e-9);
  std::cerr << path << ": " << size << ": " << counted(counts.processes, "process", "processes")
            << ", " << counted(counts.steps, "step", "steps") << ", "
            << counted(counts.pulls, "pull", "pulls") << ", "
            << counted(counts.requests, "request", "requests") << ", "
            << counted(counts.deaths, "death", "deaths")
            << ". Open it at https://ui.perfetto.dev or in chrome://tracing\n";
}

}  // namespace

int run_trace(const TraceCommand& command) {
  struct stat facts {};
  if (::stat(command.run_dir.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode))
    return refuse(command.run_dir + " is no folder: no Baton has run there (--run-dir DIR)");
  const auto lock = LockFile::acquire(command.run_dir + "/trace.lock");
  if (!lock.ok()) return refuse("another trace runs: " + lock.status().message());
  if (command.output != "-") {  // now, not after the seconds
    std::ofstream probe(command.output + ".part", std::ios::binary | std::ios::trunc);
    if (!probe) return refuse(command.output + ": cannot be written: " + std::strerror(errno));
  }
  auto control = open_trace_control(command.run_dir);
  if (!control.ok()) return refuse(control.status().message());

  SignalFd signals;
  Trace trace;
  trace.version = build_version();
  Collector collector(command.run_dir);
  collector.skip_old();
  trace.began = now_ns();
  trace.wall_offset = wall_ns() - trace.began;
  const TimeNs until = trace.began + command.length;
  {
    Session session(control_of(control.value()), until);
    while (now_ns() < until && !signals.requested() && !collector.full()) {
      pollfd fd{signals.fd(), POLLIN, 0};
      const TimeNs left = (until - now_ns()) / kMillisecond + 1;
      ::poll(&fd, 1, static_cast<int>(std::clamp<TimeNs>(left, 1, kLookEveryMs)));
      collector.look();
    }
  }
  trace.ended = now_ns();
  ::usleep(2000);  // a record that was being written
  collector.look();
  const bool full = collector.full();
  collector.finish(trace);

  TraceCounts counts;
  const std::string text = trace_json(trace, &counts);
  if (!write_file(command.output, text))
    return refuse(command.output + ": cannot be written: " + std::strerror(errno));
  say(command.output, text, trace, counts);
  if (full) {
    std::cerr << "  it ended early: " << kMostRecords
              << " records are the most that a file takes\n";
  }
  if (trace.lost > 0)
    std::cerr << "  " << trace.lost << " records were overwritten before they were read\n";
  if (const std::string names = silent_ones(command.run_dir, trace); !names.empty())
    std::cerr << "  nothing was told by " << names << "\n";
  if (counts.processes == 0)
    return refuse("no process of " + command.run_dir + " has told anything: does Baton run there?");
  return 0;
}

}  // namespace baton
