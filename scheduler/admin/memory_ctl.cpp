#include "scheduler/admin/memory_ctl.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <variant>

#include "ipc/codec.h"
#include "ipc/packet_socket.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr TimeNs kAnswerPatience = 5 * kSecond;

int failed(const std::string& why) {
  std::cerr << "baton-ctl: " << why << "\n";
  return 1;
}

Result<MemoryReport> ask(const std::string& socket, const std::string& drop) {
  const auto link = connect_packets(socket);
  if (!link.ok())
    return Status(ErrorCode::unavailable, link.status().message() + " (is baton-memory running?)");
  MemoryCommand command;
  command.drop = drop;
  std::string bytes;
  encode(command, bytes);
  const auto silent = Status(ErrorCode::unavailable, "the memory process does not answer");
  if (!send_packet(link.value().get(), bytes)) return silent;
  if (receive_packet(link.value().get(), kAnswerPatience, bytes) != Received::packet) return silent;
  auto message = decode_from_memory(bytes);
  if (!message.ok()) return message.status();
  auto* report = std::get_if<MemoryReport>(&message.value());
  if (report == nullptr) return silent;
  return std::move(*report);
}

/// A memory process, by its socket's name, and what it says.
struct Keeper {
  std::string name;
  MemoryReport report;
};

/// The sockets of all memory processes of the folder: memory.sock, memory-gpu0.sock. `socket`
/// itself if there is none, so that somebody says why.
std::vector<std::string> sockets_beside(const std::string& socket) {
  std::vector<std::string> all;
  std::error_code unreadable;
  const auto folder = std::filesystem::path(socket).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder, unreadable)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("memory") && name.ends_with(".sock")) all.push_back(entry.path().string());
  }
  if (all.empty()) all.push_back(socket);
  std::sort(all.begin(), all.end());
  return all;
}

double seconds(const MemoryEntry& entry) { return static_cast<double>(entry.since_ns) / 1e9; }

void print_json(const std::vector<Keeper>& keepers) {
  json list = json::array();
  for (const Keeper& keeper : keepers) {
    for (const MemoryEntry& entry : keeper.report.entries) {
      list.push_back({{"what", entry.what},
                      {"state", entry.state},
                      {"workers", entry.workers},
                      {"pids", entry.pids},
                      {"bytes", entry.bytes},
                      {"mib", entry.bytes >> 20U},
                      {"since_s", seconds(entry)},
                      {"kept_by", keeper.name},
                      {"kept_by_pid", keeper.report.pid}});
    }
  }
  std::cout << list.dump(-1, ' ', false, json::error_handler_t::replace) << "\n";
}

std::string holders(const MemoryEntry& entry) {
  std::string text;
  for (std::size_t i = 0; i < entry.workers.size(); ++i) {
    text += (i > 0 ? ", " : "") + entry.workers[i];
    if (i < entry.pids.size()) text += " (" + std::to_string(entry.pids[i]) + ")";
  }
  return text.empty() ? "nobody" : text;
}

void print_table(const std::vector<Keeper>& keepers) {
  constexpr std::size_t kColumns = 6;
  std::vector<std::array<std::string, kColumns>> rows;
  for (const Keeper& keeper : keepers) {
    for (const MemoryEntry& entry : keeper.report.entries) {
      char since[32];
      std::snprintf(since, sizeof since, "%.1f s", seconds(entry));
      rows.push_back({entry.what, entry.state, std::to_string(entry.bytes >> 20U), since,
                      keeper.name, holders(entry)});
    }
  }
  if (rows.empty()) {
    std::cout << "none\n";
    return;
  }
  rows.insert(rows.begin(), {"what", "state", "MiB", "since", "kept by", "workers"});
  std::array<std::size_t, kColumns - 1> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) row[i].resize(widths[i] + 2, ' ');
    for (const std::string& cell : row) std::cout << cell;
    std::cout << "\n";
  }
}

/// Every process that listens. The error is of the last one, where none does.
Result<std::vector<Keeper>> ask_all(const std::string& socket) {
  std::vector<Keeper> keepers;
  Status last;
  for (const std::string& each : sockets_beside(socket)) {
    auto report = ask(each, "");
    if (report.ok()) {
      keepers.push_back({std::filesystem::path(each).stem().string(), std::move(report).value()});
    } else {
      last = report.status();
    }
  }
  if (keepers.empty()) return last;
  return keepers;
}

/// It is told to who has it; to the first one if nobody has, which says so.
int drop_one(const std::string& socket, const std::string& what) {
  const auto keepers = ask_all(socket);
  if (!keepers.ok()) return failed(keepers.status().message());
  const auto has_it = [&](const Keeper& keeper) {
    const auto& entries = keeper.report.entries;
    return std::any_of(entries.begin(), entries.end(),
                       [&](const MemoryEntry& entry) { return entry.what == what; });
  };
  const auto& all = keepers.value();
  auto keeper = std::find_if(all.begin(), all.end(), has_it);
  if (keeper == all.end()) keeper = all.begin();
  const auto folder = std::filesystem::path(socket).parent_path();
  const auto report = ask((folder / (keeper->name + ".sock")).string(), what);
  if (!report.ok()) return failed(report.status().message());
  if (!report.value().error.empty())
    return failed(what + " is not dropped: " + report.value().error);
  std::cout << "dropped " << what << "\n";
  return 0;
}

}  // namespace

std::optional<int> memory_command(const std::vector<std::string>& words,
                                  const std::string& socket) {
  const std::size_t n = words.size();
  const bool show = n >= 2 && words[0] == "show" && words[1] == "memory" &&
                    (n == 2 || (n == 3 && words[2] == "json"));
  const bool drop = n >= 1 && words[0] == "memory";
  if (!show && !drop) return std::nullopt;
  if (drop && (n != 3 || words[1] != "drop" || words[2].empty()))
    return failed("memory drop pool:NAME or memory drop weights:NAME (show memory names them)");
  if (drop) return drop_one(socket, words[2]);
  const auto keepers = ask_all(socket);
  if (!keepers.ok()) return failed(keepers.status().message());
  n == 3 ? print_json(keepers.value()) : print_table(keepers.value());
  for (const Keeper& keeper : keepers.value()) {
    if (keeper.report.left_out > 0)
      std::cerr << "baton-ctl: " << keeper.report.left_out << " more are not shown\n";
  }
  return 0;
}

}  // namespace baton
