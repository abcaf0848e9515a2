#include "scheduler/admin/top_view.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <utility>

namespace baton {
namespace {

using nlohmann::json;

constexpr std::size_t kHistory = 512;
constexpr int kMostMapRows = 6;
constexpr const char* kPlain = "\x1b[0m";
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kBlue = "\x1b[34m";
constexpr const char* kCyan = "\x1b[36m";
constexpr const char* kYellow = "\x1b[33m";
constexpr const char* kRed = "\x1b[31m";
constexpr const char* kGreen = "\x1b[32m";

/// One line: clipped, and counted in columns.
class Line {
 public:
  Line(const TopStyle& style, int columns) : style_(style), room_(columns) {}

  /// Bytes of others may be anything: what is no printable ASCII is shown as '?'.
  Line& add(std::string_view text, const char* colour = nullptr) {
    open(colour);
    for (const char c : text.substr(0, static_cast<std::size_t>(std::max(0, room_)))) {
      text_.push_back(c >= 0x20 && c < 0x7F ? c : '?');
      --room_;
    }
    close(colour);
    return *this;
  }
  /// A character that is one column wide, so many times.
  Line& glyph(std::string_view character, std::size_t times, const char* colour) {
    times = std::min(times, static_cast<std::size_t>(std::max(0, room_)));
    if (times == 0) return *this;
    open(colour);
    for (std::size_t i = 0; i < times; ++i) text_ += character;
    room_ -= static_cast<int>(times);
    close(colour);
    return *this;
  }
  Line& padded(std::string text, std::size_t width, const char* colour = nullptr) {
    text.resize(width, ' ');
    return add(text, colour);
  }
  int room() const { return room_; }
  std::string take() { return std::move(text_); }

 private:
  void open(const char* colour) {
    if (colour != nullptr && style_.colour) text_ += colour;
  }
  void close(const char* colour) {
    if (colour != nullptr && style_.colour) text_ += kPlain;
  }

  const TopStyle& style_;
  int room_;
  std::string text_;
};

std::string top_number(double value, int digits = 0) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// "950", "12.3k", "4.6M"
std::string short_number(double value) {
  if (value < 10'000) return top_number(value);
  return value < 10'000'000 ? top_number(value / 1e3, value < 100'000 ? 1 : 0) + "k"
                            : top_number(value / 1e6, 1) + "M";
}

std::string rate(double value) { return value < 10 ? top_number(value, 1) : short_number(value); }

std::string right(std::string text, std::size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

/// "12.3 s", "4:05", "3:04:05"
std::string age(double seconds) {
  if (seconds < 60) return top_number(seconds, 1) + " s";
  const auto all = static_cast<long>(seconds);
  char text[64];
  if (all < 3600) {
    std::snprintf(text, sizeof text, "%ld:%02ld", all / 60, all % 60);
  } else {
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", all / 3600, all / 60 % 60, all % 60);
  }
  return text;
}

/// A front end's incarnation is a long number: the last digits tell requests apart.
std::string short_id(const std::string& id) {
  const std::size_t dash = id.find('-');
  if (dash == std::string::npos || dash <= 4) return id;
  return id.substr(dash - 4);
}

std::string text_of(const json& value, const char* key) {
  const auto at = value.find(key);
  return at != value.end() && at->is_string() ? at->get<std::string>() : "";
}

double number_of(const json& value, const char* key) {
  const auto at = value.find(key);
  return at != value.end() && at->is_number() ? at->get<double>() : 0;
}

const json& part_of(const json& value, const char* key) {
  static const json kNothing = json::array();
  const auto at = value.find(key);
  return at == value.end() ? kNothing : *at;
}

struct Cell {
  char letter;
  const char* utf8;
  const char* ascii;
  const char* colour;
  const char* name;
};
constexpr std::array<Cell, 5> kCells = {{{'o', "█", "#", kBlue, "owned"},
                                         {'c', "░", "+", kCyan, "cached"},
                                         {'x', "▚", "x", kYellow, "fenced"},
                                         {'f', "·", ".", kDim, "free"},
                                         {'p', "▒", "%", kBlue, "partly owned"}}};

const Cell& cell_of(char letter) {
  const auto at = std::find_if(kCells.begin(), kCells.end(),
                               [letter](const Cell& cell) { return cell.letter == letter; });
  return at == kCells.end() ? kCells[3] : *at;
}

const char* state_colour(const std::string& state) {
  if (state == "ready") return kGreen;
  return state == "gone" || state == "fenced" ? kRed : kYellow;
}

class Page {
 public:
  Page(const TopStyle& style, const TopSize& size) : style_(style), size_(size) {}

  Line line() const { return {style_, size_.columns}; }
  void put(Line& line) {
    if (full()) return;
    lines_.push_back(line.take());
  }
  void put(std::string_view text, const char* colour = nullptr) {
    Line one = line();
    one.add(text, colour);
    put(one);
  }
  bool full() const { return size_.rows > 0 && left() == 0; }
  int left() const { return size_.rows - static_cast<int>(lines_.size()); }
  std::vector<std::string> take() { return std::move(lines_); }

  void map(const std::string& map, int rows) {
    constexpr int kIndent = 2;
    const auto width = static_cast<std::size_t>(std::max(8, size_.columns - kIndent));
    const std::string cells = expand_map(map, width * static_cast<std::size_t>(rows));
    for (std::size_t at = 0; at < cells.size(); at += width) {
      Line one = line();
      one.add("  ");
      const std::string_view row = std::string_view(cells).substr(at, width);
      for (std::size_t i = 0; i < row.size();) {
        const std::size_t end = std::min(row.find_first_not_of(row[i], i), row.size());
        const Cell& cell = cell_of(row[i]);
        one.glyph(style_.utf8 ? cell.utf8 : cell.ascii, end - i, cell.colour);
        i = end;
      }
      put(one);
    }
  }

  void spark(const std::deque<double>& history) {
    static constexpr std::array<const char*, 8> kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static constexpr std::string_view kAscii = "_.,-=+*#";
    const double most = history.empty() ? 0 : *std::max_element(history.begin(), history.end());
    Line one = line();
    one.add("  tokens/s ", kDim);
    const auto room = static_cast<std::size_t>(std::max(0, one.room() - 8));
    const std::size_t skip = history.size() > room ? history.size() - room : 0;
    for (std::size_t i = skip; i < history.size(); ++i) {
      const double share = most > 0 ? history[i] / most : 0;
      const auto bar = static_cast<std::size_t>(std::clamp(share * 7.999, 0.0, 7.0));
      one.glyph(style_.utf8 ? std::string_view(kBars[bar]) : kAscii.substr(bar, 1), 1, kBlue);
    }
    one.add(" " + short_number(most), kDim);
    put(one);
  }

 private:
  const TopStyle& style_;
  const TopSize& size_;
  std::vector<std::string> lines_;
};

void draw_head(Page& page, const json& live, const TopRates& rates, bool on_terminal) {
  Line first = page.line();
  first.add("Baton", kBold).add(" " + text_of(live, "build"), kDim);
  first.add("  up " + age(number_of(live, "at_s")), kDim);
  first.add("  front ends " + short_number(number_of(live, "frontends")), kDim);
  if (on_terminal) first.add("  q leaves", kDim);
  page.put(first);
  Line second = page.line();
  const auto figure = [&](const std::string& value, const char* what) {
    second.add(value, kBold).add(std::string(" ") + what + "   ");
  };
  figure(rate(rates.tokens), "tokens/s");
  figure(short_number(number_of(live, "running")), "running");
  figure(short_number(number_of(live, "waiting")), "waiting");
  figure(rate(rates.handoffs), "hand-offs/s");
  figure(rate(rates.finished), "done/s");
  page.put(second);
}

void draw_legend(Page& page, const TopStyle& style) {
  Line line = page.line();
  line.add("  ");
  for (const Cell& cell : kCells) {
    line.glyph(style.utf8 ? cell.utf8 : cell.ascii, 1, cell.colour)
        .add(std::string(" ") + cell.name + "  ", kDim);
  }
  page.put(line);
}

void draw_worker(Page& page, const json& worker, const json& live, const TopRates& rates,
                 int map_rows) {
  const std::string name = text_of(worker, "name");
  const auto found = rates.workers.find(name);
  const TopRates::OfWorker own =
      found == rates.workers.end() ? TopRates::OfWorker{} : found->second;
  const std::string state = text_of(worker, "state");
  Line line = page.line();
  line.padded(name, std::max<std::size_t>(10, name.size() + 1), kBold)
      .padded(text_of(worker, "role"), 8)
      .padded(state == "loading"
                  ? "loading " + short_number(number_of(worker, "loading_percent")) + " %"
                  : state,
              12, state_colour(state))
      .add(right(rate(own.steps), 6) + " steps/s" + right(rate(own.tokens), 7) + " tokens/s")
      .add(right(short_number(number_of(worker, "rows")), 5) + " rows");
  if (line.room() > 16) {
    line.add(right(short_number(number_of(worker, "sequences")), 6) + " sequences  ")
        .add(text_of(worker, "device"), kDim);
  }
  page.put(line);
  for (const json& pool : part_of(live, "pools")) {
    if (text_of(pool, "worker") != name) continue;
    const bool host = text_of(pool, "part") == "host";
    page.map(text_of(pool, "map"), host ? 1 : map_rows);
    Line counts = page.line();
    counts.add("  ").add(host ? "host part: " : "", kDim);
    for (const char* state_name : {"owned", "cached", "fenced", "free"}) {
      counts.add(short_number(number_of(pool, state_name)) + " " + state_name + "  ", kDim);
    }
    counts.add("of " + short_number(number_of(pool, "total")) + " blocks", kDim);
    page.put(counts);
  }
}

void draw_requests(Page& page, const json& live) {
  const json& requests = part_of(live, "requests");
  const json& queue = part_of(live, "queue");
  if (requests.empty() && queue.empty()) {
    page.put("  no request runs", kDim);
    return;
  }
  page.put("  request      phase       prompt      tokens  where                   age", kDim);
  const auto row = [&](const json& request, const std::string& where, const char* colour) {
    Line line = page.line();
    line.add("  ")
        .padded(short_id(text_of(request, "id")), 13)
        .padded(text_of(request, "phase"), 10, colour)
        .add(right(short_number(number_of(request, "prompt_tokens")), 8))
        .add(right(short_number(number_of(request, "tokens")) + "/" +
                       short_number(number_of(request, "max_tokens")),
                   12))
        .add("  ")
        .padded(where.substr(0, 19), 19)
        .add(right(age(number_of(request, "age_s")), 9));
    page.put(line);
  };
  // The queue is told in its own line unless there is room for both.
  const auto waiting = number_of(live, "waiting");
  std::size_t left = requests.size();
  for (const json& request : requests) {
    if (page.left() == 1 && left > 1) break;
    const std::string target = text_of(request, "target");
    std::string where = text_of(request, "worker");
    if (!target.empty() && target != where) where += " > " + target;
    const std::string phase = text_of(request, "phase");
    row(request, where, phase == "decode" ? kGreen : kYellow);
    --left;
  }
  std::size_t shown = 0;
  for (const json& request : queue) {
    if (left > 0 || (page.left() == 1 && queue.size() - shown > 1)) break;
    row(request, text_of(request, "waits_for"), kDim);
    ++shown;
  }
  const double more = number_of(live, "running") - static_cast<double>(requests.size() - left) +
                      waiting - static_cast<double>(shown);
  if (more > 0) page.put("  and " + short_number(more) + " more", kDim);
}

}  // namespace

std::string expand_map(const std::string& map, std::size_t cells) {
  std::string all;
  std::size_t run = 0;
  for (const char c : map) {
    if (c >= '0' && c <= '9') {
      run = std::min<std::size_t>(run * 10 + static_cast<std::size_t>(c - '0'), 1U << 20U);
      continue;
    }
    all.append(run == 0 ? 1 : run, c);
    run = 0;
  }
  if (all.size() <= cells || cells == 0) return all;
  std::string few;
  for (std::size_t i = 0; i < cells; ++i) {
    const std::size_t begin = i * all.size() / cells, end = (i + 1) * all.size() / cells;
    const std::string_view part = std::string_view(all).substr(begin, end - begin);
    char chosen = 'f';
    std::size_t most = 0;
    for (const char letter : {'o', 'x', 'p', 'c', 'f'}) {
      const auto count = static_cast<std::size_t>(std::count(part.begin(), part.end(), letter));
      if (count > most) {
        most = count;
        chosen = letter;
      }
    }
    const bool some_owned = chosen != 'o' && part.find_first_of("op") != std::string_view::npos;
    few.push_back(some_owned ? 'p' : chosen);
  }
  return few;
}

void TopView::take(json live) {
  const double seconds = number_of(live, "at_s") - number_of(live_, "at_s");
  const bool same = !live_.is_null() && text_of(live, "epoch") == text_of(live_, "epoch");
  rates_ = {};
  if (same && seconds > 0) {
    const auto by_second = [seconds](const json& now, const json& before, const char* key) {
      return std::max(0.0, number_of(now, key) - number_of(before, key)) / seconds;
    };
    const json& counters = part_of(live, "counters");
    const json& earlier = part_of(live_, "counters");
    rates_.tokens = by_second(counters, earlier, "tokens");
    rates_.handoffs = by_second(counters, earlier, "handoffs");
    rates_.finished = by_second(counters, earlier, "finished");
    rates_.prompt_tokens = by_second(counters, earlier, "computed_tokens");
    for (const json& worker : part_of(live, "workers")) {
      for (const json& before : part_of(live_, "workers")) {
        if (text_of(before, "name") != text_of(worker, "name")) continue;
        rates_.workers[text_of(worker, "name")] = {by_second(worker, before, "steps"),
                                                   by_second(worker, before, "tokens")};
      }
    }
    history_.push_back(rates_.tokens);
    if (history_.size() > kHistory) history_.pop_front();
  } else if (!same) {
    history_.clear();
  }
  // As requests pass through them.
  if (auto list = live.find("workers"); list != live.end() && list->is_array()) {
    const auto rank = [](const json& worker) {
      const std::string role = text_of(worker, "role");
      return std::make_pair(role == "prefill" ? 0
                            : role == "mixed" ? 1
                                              : 2,
                            text_of(worker, "name"));
    };
    std::sort(list->begin(), list->end(),
              [&](const json& a, const json& b) { return rank(a) < rank(b); });
  }
  live_ = std::move(live);
}

std::vector<std::string> TopView::draw(const TopSize& size) const {
  Page page(style_, size);
  draw_head(page, live_, rates_, size.rows > 0);
  if (history_.size() > 1) page.spark(history_);
  page.put("");
  const json& workers = part_of(live_, "workers");
  // A worker's line, its counts and one row of its map; what is left of half the page is shared.
  const int parts = std::max(1, static_cast<int>(part_of(live_, "pools").size()));
  const int spare = size.rows == 0 ? parts * 2 : size.rows / 2 - 4 - 3 * parts;
  const int map_rows = std::clamp(1 + spare / parts, 1, kMostMapRows);
  for (const json& worker : workers) draw_worker(page, worker, live_, rates_, map_rows);
  if (workers.empty()) page.put("  no worker has registered", kDim);
  draw_legend(page, style_);
  page.put("");
  draw_requests(page, live_);
  return page.take();
}

}  // namespace baton
