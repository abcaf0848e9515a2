#include "scheduler/admin/explain_ctl.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <utility>

#include "ipc/explained.h"

namespace baton {
namespace {

std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

double ms(TimeNs time) { return static_cast<double>(time) * 1e-6; }
std::string ms_text(TimeNs time) { return fixed(ms(time), 3); }

std::string padded(std::string text, std::size_t width, bool right = false) {
  if (text.size() >= width) return text;
  const std::string space(width - text.size(), ' ');
  return right ? space + text : text + space;
}

TimeNs spent(const ExplainedRequest& request, Part part) {
  const auto i = static_cast<std::size_t>(part);
  return i < request.spent.size() ? request.spent[i] : 0;
}

std::string time_text(std::uint64_t unix_ns) {
  const auto seconds = static_cast<std::time_t>(unix_ns / kSecond);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[64];
  const std::size_t n = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  char rest[16];
  std::snprintf(rest, sizeof rest, ".%03d UTC", static_cast<int>(unix_ns % kSecond / kMillisecond));
  return std::string(text, n) + rest;
}

std::string queue_note(const RequestTiming& timing, const RequestNames& others) {
  std::string note;
  if (timing.ahead > 0) {
    note = "behind " + std::to_string(timing.ahead) + ", the first one " +
           name_of(timing.behind, others);
  }
  for (const QueueReason& reason : timing.reasons) {
    if (reason.took < kMillisecond / 10) continue;
    note += (note.empty() ? "" : "; ") + reason.why + " (" + ms_text(reason.took) + ")";
  }
  return note;
}

std::string note_of(Part part, const ExplainedRequest& request, const RequestNames& others) {
  const RequestTiming& timing = request.timing;
  switch (part) {
    case Part::unsent:
      return request.attempts > 1 ? "attempts at schedulers: " + std::to_string(request.attempts)
                                  : "no scheduler was there";
    case Part::queue:
      return queue_note(timing, others);
    case Part::requeue:
      return (timing.preemptions > 0 ? "preempted " + std::to_string(timing.preemptions) + " times"
              : timing.deaths > 0    ? "workers lost: " + std::to_string(timing.deaths)
                                     : "moved") +
             (spent(request, Part::queue) < kMillisecond / 10 ? "; " + queue_note(timing, others)
                                                              : "");
    case Part::prefill:
      return std::to_string(timing.computed_tokens) + " tokens computed, " +
             std::to_string(timing.cached_tokens) + " cached, " +
             std::to_string(timing.pulled_tokens) + " pulled";
    case Part::decode:
      return std::to_string(timing.decode_steps) + " steps, median gap " +
             ms_text(timing.median_gap) + " ms";
    default:
      return "";
  }
}

std::string moment_text(const Moment& moment, const RequestTiming& timing,
                        const RequestNames& others) {
  const std::string worker = worker_name(timing, moment.worker);
  const std::string took = ms_text(moment.took) + " ms";
  const std::string tokens = std::to_string(moment.tokens);
  const std::string other = name_of(moment.other, others);
  switch (static_cast<MomentKind>(moment.kind)) {
    case MomentKind::chunk:
      return worker + " computed " + tokens + " tokens of its prompt in " + took +
             (moment.count > 1 ? " (" + std::to_string(moment.count) + " chunks)" : "");
    case MomentKind::pull:
      return worker + " pulled " + tokens + " blocks in " + took +
             (moment.count > 1 ? " (" + std::to_string(moment.count) + " pulls)" : "");
    case MomentKind::decodes:
      return worker + " decodes it";
    case MomentKind::died:
      return worker + " was lost under it";
    case MomentKind::preempted:
      return worker + " gave its blocks to others";
    case MomentKind::moved:
      return worker + " gave up its place";
    case MomentKind::gap:
      break;
  }
  const std::string gap = "a gap of " + took + " on " + worker + ": ";
  switch (static_cast<GapCause>(moment.cause)) {
    case GapCause::step:
      return gap + "the step itself took so long";
    case GapCause::prompt:
      return gap + tokens + " tokens of the prompt of " + other + " ran beside it";
    case GapCause::pull:
      return gap + "blocks of " + other + " were pulled";
    case GapCause::suspect:
      return gap + "steps of their own for requests that have killed workers";
    case GapCause::unknown:
      break;
  }
  return gap + "not the step itself: messages or processors were waited for";
}

std::string why_text(MoveCause cause, const std::string& from) {
  switch (cause) {
    case MoveCause::handoff:
      return "it was handed over to decode there";
    case MoveCause::grew:
      return "no block was left for it, and those that it had stayed";
    case MoveCause::died:
      return from + " was lost under it";
    case MoveCause::preempted:
      return from + " needed its blocks for others";
    case MoveCause::drained:
      return from + " was told to leave";
    case MoveCause::pull:
      return "its blocks did not come across";
    case MoveCause::grammar:
      return from + " no longer had its compiled grammar";
  }
  return "nobody knows why";
}

std::string moves_text(const ExplainedRequest& request) {
  const RequestTiming& timing = request.timing;
  if (timing.moves.empty()) return "";
  std::string text = "\n  moves";
  if (timing.all_moves > timing.moves.size())
    text += " (" + std::to_string(timing.all_moves) + "; those in the middle are left out)";
  text += "\n";
  for (const Move& move : timing.moves) {
    const std::string from = worker_name(timing, move.from);
    text += padded(ms_text(time_before_scheduler(request) + move.at), 14, true) + "  " + from +
            " -> " + worker_name(timing, move.to) + ": " +
            why_text(static_cast<MoveCause>(move.cause), from);
    if (move.away > 0) text += "; no place for " + ms_text(move.away) + " ms";
    text += "\n";
  }
  return text;
}

}  // namespace

std::string explain_text(const ExplainedRequest& request, const RequestNames& others) {
  const RequestTiming& timing = request.timing;
  std::string text = request.request_id + "  " + request.asked + "  " + time_text(request.at) +
                     "  " + request.front_end;
  if (request.generation > 0) text += ", process " + std::to_string(request.generation + 1);
  text += "\n" + std::to_string(request.prompt_tokens) + " prompt tokens, " +
          std::to_string(request.tokens) + " tokens, " + request.end;
  if (request.status != 0) text += ", status " + std::to_string(request.status);
  if (request.choices > 1)
    text += ", " + std::to_string(request.choices) + " choices (this is the way of the last one)";
  if (request.first_token != 0)
    text += ", first token after " + ms_text(request.first_token) + " ms";
  text += "\n\n";
  for (std::size_t i = 0; i < request.spent.size(); ++i) {
    const TimeNs took = request.spent[i];
    if (took < 500) continue;
    const auto part = static_cast<Part>(i);
    const double share =
        100.0 * static_cast<double>(took) / static_cast<double>(std::max<TimeNs>(1, request.total));
    const std::string note = note_of(part, request, others);
    text += "  " + padded(to_string(part), 12) + padded(ms_text(took), 14, true) + " ms" +
            padded(fixed(share, 1), 7, true) + " %" + (note.empty() ? "" : "  " + note) + "\n";
  }
  text += "  " + padded("total", 12) + padded(ms_text(request.total), 14, true) + " ms\n";
  if (!request.told) text += "\nThe scheduler has told nothing of it.\n";
  if (!timing.moments.empty()) text += "\n  ms since the first byte\n";
  const TimeNs before = time_before_scheduler(request);
  for (const Moment& moment : timing.moments) {
    text += padded(ms_text(before + moment.at), 14, true) + "  " +
            moment_text(moment, timing, others) + "\n";
  }
  return text + moves_text(request);
}

std::optional<int> explain_command(const std::vector<std::string>& words,
                                   const std::string& run_dir, bool json) {
  if (words.empty() || words[0] != "explain") return std::nullopt;
  json = json || (words.size() == 3 && words[2] == "json");
  if (words.size() < 2 || words.size() > 3 || (words.size() == 3 && words[2] != "json")) {
    std::cerr << "baton-ctl: explain ID [json], where ID is a reply's X-Request-Id\n";
    return 1;
  }
  const TimingSearch search = find_timing(run_dir, words[1]);
  for (const std::string& complaint : search.complaints)
    std::cerr << "baton-ctl: " << complaint << "\n";
  if (!search.found) {
    std::cerr << "baton-ctl: "
              << (search.files == 0
                      ? run_dir + " has no file of a front end's requests (NAME.timing)"
                      : "no request that is called " + words[1] +
                            " is among the last ones that have ended in " + run_dir +
                            " (those that run: show requests)")
              << "\n";
    return 1;
  }
  std::cout << (json ? explain_json(*search.found, search.names)
                     : explain_text(*search.found, search.names));
  return 0;
}

}  // namespace baton
