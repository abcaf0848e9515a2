#include "scheduler/admin/memory_ctl.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <variant>

#include "ipc/codec.h"
#include "ipc/packet_socket.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr TimeNs kPatience = 5 * kSecond;

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
  if (receive_packet(link.value().get(), kPatience, bytes) != Received::packet) return silent;
  auto message = decode_from_memory(bytes);
  if (!message.ok()) return message.status();
  auto* report = std::get_if<MemoryReport>(&message.value());
  if (report == nullptr) return silent;
  return std::move(*report);
}

double seconds(const MemoryEntry& entry) { return static_cast<double>(entry.since_ns) / 1e9; }

void print_json(const MemoryReport& report) {
  json list = json::array();
  for (const MemoryEntry& entry : report.entries) {
    list.push_back({{"what", entry.what},
                    {"state", entry.state},
                    {"workers", entry.workers},
                    {"pids", entry.pids},
                    {"bytes", entry.bytes},
                    {"mib", entry.bytes >> 20U},
                    {"since_s", seconds(entry)},
                    {"kept_by", "memory"},
                    {"kept_by_pid", report.pid}});
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

void print_table(const MemoryReport& report) {
  if (report.entries.empty()) std::cout << "none\n";
  std::vector<std::array<std::string, 5>> rows;
  if (!report.entries.empty()) rows.push_back({"what", "state", "MiB", "since", "workers"});
  for (const MemoryEntry& entry : report.entries) {
    char since[32];
    std::snprintf(since, sizeof since, "%.1f s", seconds(entry));
    rows.push_back(
        {entry.what, entry.state, std::to_string(entry.bytes >> 20U), since, holders(entry)});
  }
  std::array<std::size_t, 4> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) row[i].resize(widths[i] + 2, ' ');
    for (const std::string& cell : row) std::cout << cell;
    std::cout << "\n";
  }
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
    return failed("memory drop pool:NAME or memory drop weights:NUMBER (show memory names them)");
  const auto report = ask(socket, drop ? words[2] : "");
  if (!report.ok()) return failed(report.status().message());
  if (!report.value().error.empty())
    return failed(words[2] + " is not dropped: " + report.value().error);
  if (drop) {
    std::cout << "dropped " << words[2] << "\n";
    return 0;
  }
  n == 3 ? print_json(report.value()) : print_table(report.value());
  if (report.value().left_out > 0)
    std::cerr << "baton-ctl: " << report.value().left_out << " more are not shown\n";
  return 0;
}

}  // namespace baton
