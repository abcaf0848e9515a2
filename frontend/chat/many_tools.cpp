#include "frontend/chat/many_tools.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/core/json_reader.h"

namespace baton {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool in_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

/// What texts of one shape have in common around the part that tells them apart.
struct Frame {
  std::string_view front;
  std::string_view back;
};

Frame frame_of(const std::vector<std::string_view>& texts) {
  Frame frame{texts.front(), texts.front()};
  std::size_t least = texts.front().size();
  for (const std::string_view text : texts) {
    least = std::min(least, text.size());
    const auto front =
        std::mismatch(frame.front.begin(), frame.front.end(), text.begin(), text.end());
    frame.front =
        frame.front.substr(0, static_cast<std::size_t>(front.first - frame.front.begin()));
    const auto back =
        std::mismatch(frame.back.rbegin(), frame.back.rend(), text.rbegin(), text.rend());
    frame.back.remove_prefix(frame.back.size() -
                             static_cast<std::size_t>(back.first - frame.back.rbegin()));
  }
  const std::size_t spare = least - std::min(least, frame.front.size());
  if (frame.back.size() > spare) frame.back.remove_prefix(frame.back.size() - spare);
  // No alternative is empty: a name that others begin with keeps its last character.
  if (frame.front.size() + frame.back.size() == least && !frame.front.empty()) {
    frame.front.remove_suffix(1);
  }
  return frame;
}

/// The names' own parts, one of them: characters of names alone, or nothing.
std::string one_of(const std::vector<std::string_view>& texts, const Frame& frame) {
  std::string pattern = "(?:";
  for (const std::string_view text : texts) {
    const std::string_view name =
        text.substr(frame.front.size(), text.size() - frame.front.size() - frame.back.size());
    if (!std::all_of(name.begin(), name.end(), in_name)) return {};
    if (pattern.size() > 3) pattern += '|';
    for (const char c : name) {
      if (c == '.') pattern += '\\';
      pattern += c;
    }
  }
  return pattern + ")";
}

void join_tags(OrderedJson& list) {
  OrderedJson& tags = list["tags"];
  std::vector<std::string_view> begins;
  for (const OrderedJson& tag : tags) {
    const bool same = tag.value("type", "") == "tag" && tag["begin"].is_string() &&
                      tag["end"] == tags.front()["end"] && tag["content"].is_object();
    if (!same) return;
    begins.push_back(tag["begin"].get_ref<const std::string&>());
  }
  if (begins.size() < 2) return;
  const Frame frame = frame_of(begins);
  const std::string names = one_of(begins, frame);
  if (names.empty()) return;
  OrderedJson any = {{"type", "json_schema"}};
  const OrderedJson& content = tags.front()["content"];
  if (content.contains("style")) any["style"] = content["style"];
  any["objects"] = "open";
  any["json_schema"] = {{"type", "object"}};
  OrderedJson elements = OrderedJson::array({{{"type", "regex"}, {"pattern", names}}});
  if (!frame.back.empty()) {
    elements.push_back({{"type", "const_string"}, {"value", std::string(frame.back)}});
  }
  elements.push_back(std::move(any));
  OrderedJson joined = {{"type", "tag"},
                        {"begin", std::string(frame.front)},
                        {"content", {{"type", "sequence"}, {"elements", std::move(elements)}}},
                        {"end", tags.front()["end"]}};
  tags = OrderedJson::array({std::move(joined)});
}

/// Formats are nested a few levels deep; schemas are not looked into.
void join_all(OrderedJson& format) {
  if (format.is_array()) {
    for (OrderedJson& one : format) join_all(one);
  } else if (format.is_object() && format.contains("tags") && format["tags"].is_array()) {
    join_tags(format);
  } else if (format.is_object() && format.contains("elements")) {
    join_all(format["elements"]);
  } else if (format.is_object() && format.contains("format")) {
    join_all(format["format"]);
  }
}

}  // namespace

std::string names_only(const std::string& grammar) {
  OrderedJson tag = parse_ordered_json(grammar);
  if (!tag.is_object()) return grammar;
  join_all(tag);
  return tag.dump();
}

}  // namespace baton
