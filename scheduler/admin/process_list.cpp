#include "scheduler/admin/process_list.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ipc/process.h"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

/// Ranks end together: what one cannot do, the worker cannot.
void share_refusals(std::vector<ListedProcess>& all) {
  for (ListedProcess& each : all) {
    if (!each.refused.empty() || each.state == "up") continue;
    for (const ListedProcess& other : all) {
      const bool rank = other.process.kind == "rank" || each.process.kind == "rank";
      if (rank && RankName(other.process.name).worker == RankName(each.process.name).worker &&
          !other.refused.empty()) {
        each.refused = other.refused;
      }
    }
  }
}

}  // namespace

RankName::RankName(const std::string& process) : worker(process) {
  const std::size_t n = process.size();
  if (n < 3 || process[n - 2] != '.' || process[n - 1] < '0' || process[n - 1] > '9') return;
  worker.resize(n - 2);
  rank = process[n - 1] - '0';
}

std::vector<ListedProcess> list_processes(const std::string& run_dir) {
  std::vector<ListedProcess> all;
  const std::vector<ProcessRecord> records = read_process_records(run_dir);
  for (const ProcessRecord& record : records) {
    const ProcessLife& life = record.supervisor;
    const auto known = [&](const ListedProcess& shown) { return same_life(shown.life, life); };
    if (std::any_of(all.begin(), all.end(), known)) continue;
    const bool lives = process_alive(life.pid, life.start);
    const char* state = !lives ? "gone" : process_stopped(life.pid) ? "frozen" : "up";
    all.push_back({{"supervisor", "supervisor", 0}, life, state, {}});
  }
  for (const ProcessRecord& record : records) {
    all.push_back({{record.name, record.kind, spoken_protocol(run_dir, record)},
                   record.life,
                   process_state(run_dir, record),
                   refused_now(run_dir, record)});
    if (record.kind != "frontend") continue;
    if (const auto twin = read_twin(run_dir, record.name)) {
      all.push_back({{record.name + ".twin", "twin", spoken_protocol(run_dir, record)},
                     *twin,
                     process_stopped(twin->pid) ? "frozen" : "up",
                     {}});
    }
  }
  share_refusals(all);
  return all;
}

void print_processes_json(const std::vector<ListedProcess>& all) {
  Json list = Json::array();
  for (const ListedProcess& each : all) {
    list.push_back({{"name", each.process.name},
                    {"kind", each.process.kind},
                    {"rank", RankName(each.process.name).rank},
                    {"pid", each.life.pid},
                    {"state", each.state},
                    {"since", each.life.since},
                    {"restarts", each.life.restarts},
                    {"protocol", each.process.protocol}});
    if (!each.refused.empty()) list.back()["refused"] = each.refused;
  }
  std::cout << list.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
}

void print_processes(const std::vector<ListedProcess>& all) {
  std::vector<std::array<std::string, 6>> rows{
      {"name", "kind", "pid", "state", "since", "restarts"}};
  const double now = static_cast<double>(wall_ns()) / 1e9;
  for (const ListedProcess& each : all) {
    char since[32];
    std::snprintf(since, sizeof since, "%.1f s", std::max(0.0, now - each.life.since));
    rows.push_back({each.process.name, each.process.kind,
                    each.life.pid == 0 ? "-" : std::to_string(each.life.pid), each.state, since,
                    std::to_string(each.life.restarts)});
  }
  std::array<std::size_t, 6> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (auto& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) row[i].resize(widths[i] + 2, ' ');
    for (const std::string& cell : row) std::cout << cell;
    std::cout << "\n";
  }
  for (const ListedProcess& each : all) {
    if (!each.refused.empty()) {
      std::cout << each.process.name << " cannot run: " << each.refused << "\n";
    }
  }
}

}  // namespace baton
