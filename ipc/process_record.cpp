#include "ipc/process_record.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>

#include "ipc/fnv1a.h"
#include "ipc/process.h"
#include "ipc/run_files.h"

namespace baton {
namespace {

constexpr std::size_t kMostRecords = 1000;
constexpr std::string_view kSuffix = ".process";
constexpr std::size_t kLongestReason = 1000;  // a record is read in one piece of 4,096 bytes

std::string path_of(const std::string& run_dir, const std::string& name) {
  return run_dir + "/" + name + std::string(kSuffix);
}

void put_life(std::string& text, const char* key, const ProcessLife& life) {
  std::array<char, 160> line{};
  std::snprintf(line.data(), line.size(), "%s %d %llu %.3f %llu\n", key, life.pid,
                static_cast<unsigned long long>(life.start), life.since,
                static_cast<unsigned long long>(life.restarts));
  text += line.data();
}

template <typename Number>
bool take(std::string_view& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return true;
}

bool read_life(std::string_view text, ProcessLife& life) {
  return take(text, life.pid) && take(text, life.start) && take(text, life.since) &&
         take(text, life.restarts) && text.empty() && life.pid >= 0 && std::isfinite(life.since);
}

struct UpMark {
  std::int32_t pid = 0;
  std::uint32_t protocol = 0;
};

/// Of a mark that is being written only a part may be there: then nothing is said yet.
UpMark read_up_mark(const std::string& run_dir, const std::string& name) {
  const std::string whole = read_run_file(run_dir + "/" + name + ".up");
  std::string_view text = whole;
  UpMark mark;
  if (text.empty() || text.back() != '\n' || !take(text, mark.pid)) return {};
  take(text, mark.protocol);
  return mark;
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 200 &&
         name.find_first_of("/ \n") == std::string_view::npos && name.front() != '.';
}

}  // namespace

std::uint64_t command_fingerprint(const std::vector<std::string>& argv) {
  std::uint64_t hash = fnv1a("");
  for (const std::string& arg : argv) {
    hash = fnv1a({arg.c_str(), arg.size() + 1}, hash);  // with the 0 behind it
  }
  return hash;
}

std::string reason_line(std::string_view text) {
  std::string line(text.substr(0, kLongestReason));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  const std::size_t begin = line.find_first_not_of(' ');
  return begin == std::string::npos ? ""
                                    : line.substr(begin, line.find_last_not_of(' ') + 1 - begin);
}

std::string encode_process_record(const ProcessRecord& record) {
  std::string text = "name " + record.name + "\nkind " + record.kind + "\n";
  put_life(text, "process", record.life);
  put_life(text, "supervisor", record.supervisor);
  text += "boot " + boot_id() + "\ntells_up " + std::to_string(int{record.tells_up}) +
          "\ncommand " + std::to_string(record.command) + "\n";
  if (!record.admin_socket.empty()) text += "admin " + record.admin_socket + "\n";
  const std::string refused = reason_line(record.refused);
  if (!refused.empty()) text += "refused " + refused + "\n";
  text += "end\n";
  return text;
}

std::optional<ProcessRecord> parse_process_record(std::string_view text) {
  constexpr std::string_view kEnd = "\nend\n";
  if (text.size() < kEnd.size() || text.substr(text.size() - kEnd.size()) != kEnd) return {};
  text.remove_suffix(kEnd.size() - 1);
  std::map<std::string_view, std::string_view> values;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || space + 1 == line.size()) return {};
    values[line.substr(0, space)] = line.substr(space + 1);
    text.remove_prefix(end + 1);
  }
  ProcessRecord record;
  record.name = values["name"];
  record.kind = values["kind"];
  int tells_up = 0;
  if (values["boot"] != boot_id() || !is_name(record.name) || !is_name(record.kind) ||
      !read_life(values["process"], record.life) ||
      !read_life(values["supervisor"], record.supervisor) || !take(values["tells_up"], tells_up) ||
      !take(values["command"], record.command)) {
    return {};
  }
  record.tells_up = tells_up != 0;
  record.admin_socket = values["admin"];
  record.refused = values["refused"];
  return record;
}

Status write_process_record(const std::string& run_dir, const ProcessRecord& record) {
  return replace_file(path_of(run_dir, record.name), encode_process_record(record));
}

std::optional<ProcessRecord> read_process_record(const std::string& run_dir,
                                                 const std::string& name) {
  auto record = parse_process_record(read_run_file(path_of(run_dir, name)));
  return record && record->name == name ? record : std::nullopt;
}

std::vector<ProcessRecord> read_process_records(const std::string& run_dir) {
  std::vector<ProcessRecord> records;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(run_dir, error), end;
       !error && entry != end && records.size() < kMostRecords; entry.increment(error)) {
    const std::string file = entry->path().filename();
    if (file.size() <= kSuffix.size() || !file.ends_with(kSuffix)) continue;
    auto record = read_process_record(run_dir, file.substr(0, file.size() - kSuffix.size()));
    if (record) records.push_back(*std::move(record));
  }
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return records;
}

std::optional<ProcessLife> read_twin(const std::string& run_dir, const std::string& name) {
  const std::string path = run_dir + "/" + name + ".twin.pid";
  const std::string text = read_run_file(path);
  std::string_view numbers = text;
  ProcessLife life;
  if (!take(numbers, life.pid) || !take(numbers, life.start) ||
      !process_alive(life.pid, life.start))
    return std::nullopt;
  struct stat facts {};
  if (::stat(path.c_str(), &facts) == 0) life.since = static_cast<double>(facts.st_mtime);
  return life;
}

void remove_process_record(const std::string& run_dir, const std::string& name) {
  ::unlink(path_of(run_dir, name).c_str());
}

bool is_up(const std::string& run_dir, const ProcessRecord& record) {
  if (!process_alive(record.life.pid, record.life.start)) return false;
  return !record.tells_up || read_up_mark(run_dir, record.name).pid == record.life.pid;
}

std::uint32_t spoken_protocol(const std::string& run_dir, const ProcessRecord& record) {
  const bool tells = record.tells_up && is_up(run_dir, record);
  return tells ? read_up_mark(run_dir, record.name).protocol : 0;
}

std::string process_state(const std::string& run_dir, const ProcessRecord& record) {
  const ProcessLife& life = record.life;
  if (life.pid == 0) {
    const ProcessLife& supervisor = record.supervisor;
    return process_alive(supervisor.pid, supervisor.start) ? "waiting" : "gone";
  }
  if (!process_alive(life.pid, life.start)) return "gone";
  if (process_stopped(life.pid)) return "frozen";
  return is_up(run_dir, record) ? "up" : "starting";
}

std::string refused_now(const std::string& run_dir, const ProcessRecord& record) {
  return is_up(run_dir, record) ? "" : record.refused;
}

std::string refused_now(const std::string& run_dir, const std::string& name) {
  const auto record = read_process_record(run_dir, name);
  return record ? refused_now(run_dir, *record) : "";
}

std::string refused_by_all(const std::string& run_dir, const std::vector<std::string>& names) {
  std::string first;
  for (const std::string& name : names) {
    const std::string why = refused_now(run_dir, name);
    if (why.empty()) return {};
    if (first.empty()) first = name + ": " + why;
  }
  return first;
}

}  // namespace baton
