#include "text/schema/tag_nfa.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "text/schema/mark_search.h"
#include "text/schema/text_sets.h"

namespace baton::schema {
namespace {

using Json = nlohmann::ordered_json;

/// What ends a format that holds free text; without any, that text may end anywhere.
struct Ends {
  std::vector<std::string> texts;
  std::vector<std::uint32_t> tokens;
  bool empty() const { return texts.empty() && tokens.empty(); }
};

/// An object where the schema says so; else anything.
std::string fallback_of(const Json& schema) {
  const bool object = schema.is_object() && schema.value("type", Json()) == "object";
  return object ? R"({"type":"object"})" : "{}";
}

}  // namespace

class TagBuilder {
 public:
  TagBuilder(TagNfa& nfa, SchemaModes modes, const SpecialIds& specials)
      : nfa_(nfa), modes_(modes), specials_(specials) {
    node();  // start
    node();  // accepting
  }

  /// The whole tag. False: nothing matches it.
  bool build(const Json& format) {
    jump(add(format, nfa_.start(), {}, "/format"), nfa_.accepting());
    return prune();
  }
  /// Texts of one schema lead from `from` to the node that is returned.
  std::uint32_t add_schema(TagSchema schema, std::uint32_t from);

 private:
  static constexpr std::size_t kWholeBegin = SIZE_MAX;  // of a tag: it has come
  struct FreeText {
    std::vector<Mark> marks;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> tokens;
    bool any_special = false;
    bool may_end = false;  // anywhere
  };
  std::uint32_t node();
  void jump(std::uint32_t from, std::uint32_t to) { nfa_.nodes_[from].jumps.push_back(to); }
  std::uint32_t add(const Json& of, std::uint32_t from, const Ends& ends, const std::string& path);
  std::uint32_t add_plain(const Json& of, std::uint32_t from, const std::string& path);
  std::uint32_t add_text(std::string_view text, std::uint32_t from);
  std::uint32_t add_token(const Json& of, std::uint32_t from);
  std::uint32_t add_ends(const Ends& ends, std::uint32_t from);
  std::uint32_t add_tag(const Json& of, std::uint32_t from, std::size_t skipped, const Ends& ends,
                        const std::string& path);
  std::uint32_t add_tags(const Json& of, std::uint32_t from, const std::string& path);
  std::uint32_t add_triggered(const Json& of, std::uint32_t from, const Ends& ends,
                              const std::string& path);
  std::uint32_t add_separated(const Json& of, std::uint32_t from, const std::string& path);
  void add_triggered_tags(const Json& of, const Json& trigger, std::uint32_t from,
                          std::uint32_t behind, const std::string& path, bool token = false);
  static FreeText free_text(const Json& of, const Ends& ends, std::uint32_t exit);
  std::uint32_t add_free(const FreeText& free, std::uint32_t exit);
  bool prune();
  std::uint32_t id_of(const Json& token) const {
    return specials_(token["token"].get_ref<const std::string&>()).value();
  }
  Ends ends_of(const Json& end) const;

  TagNfa& nfa_;
  const SchemaModes modes_;
  const SpecialIds& specials_;
  std::map<std::tuple<std::string, bool, bool, std::string, std::string>, std::uint32_t> known_;
};

std::uint32_t TagBuilder::node() {
  if (nfa_.nodes_.size() >= TagNfa::kMaxNodes) throw LimitError("it is too long");
  nfa_.nodes_.emplace_back();
  return static_cast<std::uint32_t>(nfa_.nodes_.size() - 1);
}

std::uint32_t TagBuilder::add_text(std::string_view text, std::uint32_t from) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const std::uint32_t next = node();
    std::uint32_t own = from;
    if (!nfa_.nodes_[from].edges.empty()) jump(from, own = node());
    nfa_.nodes_[own].edges.push_back({byte, byte, next});
    from = next;
  }
  return from;
}

std::uint32_t TagBuilder::add_token(const Json& of, std::uint32_t from) {
  const std::uint32_t next = node();
  const std::uint32_t own = node();
  jump(from, own);
  nfa_.nodes_[own].tokens.emplace_back(id_of(of), next);
  return next;
}

std::uint32_t TagBuilder::add_schema(TagSchema schema, std::uint32_t from) {
  const auto [known, added] =
      known_.try_emplace(schema.key(), static_cast<std::uint32_t>(nfa_.schemas_.size()));
  if (added) nfa_.schemas_.push_back(std::move(schema));
  const std::uint32_t next = node();
  const std::uint32_t own = node();
  jump(from, own);
  nfa_.nodes_[own].schema = known->second;
  nfa_.nodes_[own].after = next;
  return next;
}

Ends TagBuilder::ends_of(const Json& end) const {
  Ends ends;
  if (end.is_object()) {
    ends.tokens.push_back(id_of(end));
  } else if (end.is_string()) {
    ends.texts.push_back(end.get<std::string>());
  } else {
    ends.texts = end.get<std::vector<std::string>>();
  }
  // An empty end: whatever comes next ends the text.
  if (std::find(ends.texts.begin(), ends.texts.end(), "") != ends.texts.end()) ends.texts.clear();
  return ends;
}

std::uint32_t TagBuilder::add_ends(const Ends& ends, std::uint32_t from) {
  if (ends.empty()) return from;
  const std::uint32_t exit = node();
  for (const std::string& text : ends.texts) jump(add_text(text, from), exit);
  for (const std::uint32_t token : ends.tokens) {
    const std::uint32_t own = node();
    jump(from, own);
    nfa_.nodes_[own].tokens.emplace_back(token, exit);
  }
  return exit;
}

/// A format and what ends it; returns the node behind both.
std::uint32_t TagBuilder::add(const Json& of, std::uint32_t from, const Ends& ends,
                              const std::string& path) {
  const Json type = of.value("type", Json());
  if (type == "any_text") {
    const std::uint32_t exit = node();
    jump(from, add_free(free_text(of, ends, exit), exit));
    return exit;
  }
  if (type == "triggered_tags" || type == "token_triggered_tags") {
    return add_triggered(of, from, ends, path);
  }
  if (type == "tag" && !ends.empty() && ends_of(of["end"]).empty()) {
    return add_tag(of, from, 0, ends, path);
  }
  if (type == "sequence") {
    const Json& elements = of["elements"];
    for (std::size_t i = 0; i < elements.size(); ++i) {
      from = add(elements[i], from, i + 1 == elements.size() ? ends : Ends{},
                 path + "/elements/" + std::to_string(i));
    }
    return from;
  }
  if (type == "or") {
    const std::uint32_t exit = node();
    for (std::size_t i = 0; i < of["elements"].size(); ++i) {
      jump(add(of["elements"][i], from, ends, path + "/elements/" + std::to_string(i)), exit);
    }
    return exit;
  }
  return add_ends(ends, add_plain(of, from, path));
}

std::uint32_t TagBuilder::add_plain(const Json& of, std::uint32_t from, const std::string& path) {
  const std::string type = of["type"];
  if (type == "const_string") return add_text(of["value"].get_ref<const std::string&>(), from);
  if (type == "token") return add_token(of, from);
  if (type == "tag") return add_tag(of, from, 0, {}, path);
  if (type == "tags_with_separator") return add_separated(of, from, path);
  if (type == "json_schema") {
    const std::string objects = of.value("objects", modes_.closed ? "closed" : "open");
    const std::string asked = of.value("unenforceable", modes_.refuse ? "refuse" : "report");
    return add_schema({of["json_schema"].dump(),
                       {objects == "closed", asked == "refuse"},
                       of.value("best_effort", false) ? fallback_of(of["json_schema"]) : "",
                       of.value("name", path + "/json_schema")},
                      from);
  }
  // optional, plus, star
  const std::uint32_t begin = node();
  jump(from, begin);
  const std::uint32_t end = add(of["content"], begin, {}, path + "/content");
  const std::uint32_t exit = node();
  jump(end, exit);
  if (type != "optional") jump(end, begin);
  if (type != "plus") jump(begin, exit);
  return exit;
}

/// `skipped`: bytes of the beginning that have come.
std::uint32_t TagBuilder::add_tag(const Json& of, std::uint32_t from, std::size_t skipped,
                                  const Ends& ends, const std::string& path) {
  const Json& begin = of["begin"];
  if (begin.is_string()) {
    const std::string_view text = begin.get_ref<const std::string&>();
    from = add_text(text.substr(std::min(skipped, text.size())), from);
  } else if (skipped == 0) {
    from = add_token(begin, from);
  }
  const Ends own = ends_of(of["end"]);
  return add(of["content"], from, own.empty() ? ends : own, path + "/content");
}

std::uint32_t TagBuilder::add_tags(const Json& of, std::uint32_t from, const std::string& path) {
  const std::uint32_t exit = node();
  for (std::size_t i = 0; i < of["tags"].size(); ++i) {
    jump(add_tag(of["tags"][i], from, 0, {}, path + "/tags/" + std::to_string(i)), exit);
  }
  return exit;
}

std::uint32_t TagBuilder::add_separated(const Json& of, std::uint32_t from,
                                        const std::string& path) {
  const std::uint32_t begin = node();
  jump(from, begin);
  const std::uint32_t exit = add_tags(of, begin, path);
  if (!of.value("stop_after_first", false)) {
    jump(add_text(of["separator"].get_ref<const std::string&>(), exit), begin);
  }
  const std::uint32_t end = node();
  jump(exit, end);
  if (!of.value("at_least_one", false)) jump(from, end);
  return end;
}

/// The tags of a trigger, which has come, lead to `behind`.
void TagBuilder::add_triggered_tags(const Json& of, const Json& trigger, std::uint32_t from,
                                    std::uint32_t behind, const std::string& path, bool token) {
  const Json& tags = of["tags"];
  const auto& mark = trigger.get_ref<const std::string&>();
  for (std::size_t i = 0; i < tags.size(); ++i) {
    const Json& begin = tags[i]["begin"];
    const bool fits = begin.is_object()
                          ? token && begin["token"] == trigger
                          : !token && begin.get_ref<const std::string&>().starts_with(mark);
    if (!fits) continue;
    jump(add_tag(tags[i], from, token ? kWholeBegin : mark.size(), {},
                 path + "/tags/" + std::to_string(i)),
         behind);
  }
}

/// Free text with tags that their triggers begin.
std::uint32_t TagBuilder::add_triggered(const Json& of, std::uint32_t from, const Ends& ends,
                                        const std::string& path) {
  const bool one = of.value("stop_after_first", false);
  const std::uint32_t behind = node();  // a tag
  const std::uint32_t exit = node();
  const bool at_once = of.value("at_least_one", false);
  if (at_once) jump(add_tags(of, from, path), behind);
  if (one) jump(add_ends(ends, behind), exit);
  if (at_once && one) return exit;
  FreeText free = free_text(of, ends, exit);
  free.any_special = free.any_special || of["type"] == "token_triggered_tags";
  for (const Json& trigger : of.value("triggers", Json::array())) {
    const std::uint32_t begun = node();
    free.marks.push_back({trigger.get<std::string>(), begun});
    add_triggered_tags(of, trigger, begun, behind, path);
  }
  for (const Json& trigger : of.value("trigger_tokens", Json::array())) {
    const std::uint32_t begun = node();
    free.tokens.emplace_back(specials_(trigger.get_ref<const std::string&>()).value(), begun);
    add_triggered_tags(of, trigger, begun, behind, path, true);
  }
  const std::uint32_t root = add_free(free, exit);
  jump(at_once ? behind : from, root);
  if (!one && !at_once) jump(behind, root);
  return exit;
}

/// Free text that `ends` end; behind these is `exit`.
TagBuilder::FreeText TagBuilder::free_text(const Json& of, const Ends& ends, std::uint32_t exit) {
  FreeText free;
  free.any_special = of.value("any_special", false);
  free.may_end = ends.empty();
  for (const std::string& text : ends.texts) free.marks.push_back({text, exit});
  for (const std::uint32_t token : ends.tokens) free.tokens.emplace_back(token, exit);
  for (const Json& text : of.value("excludes", Json::array())) {
    free.marks.push_back({text.get<std::string>(), TagNfa::kNone});
  }
  return free;
}

/// The node at which it begins.
std::uint32_t TagBuilder::add_free(const FreeText& free, std::uint32_t exit) {
  const MarkSearch search(free.marks);
  const auto root = static_cast<std::uint32_t>(nfa_.nodes_.size());
  for (std::size_t i = 0; i < search.size(); ++i) node();
  for (std::uint32_t i = 0; i < search.size(); ++i) {
    TagNfa::Node& made = nfa_.nodes_[root + i];
    made.text_root = root;
    made.tokens = free.tokens;
    if (free.any_special) made.any_special = root;
    if (free.may_end) made.jumps.push_back(exit);
    for (unsigned byte = 0; byte < 256; ++byte) {
      const MarkSearch::Step step = search.step(i, static_cast<unsigned char>(byte));
      const std::uint32_t to = step.to != nullptr ? *step.to : root + step.node;
      if (to == TagNfa::kNone) continue;
      const auto at = static_cast<unsigned char>(byte);
      if (!made.edges.empty() && made.edges.back().to == to && made.edges.back().last + 1 == at) {
        made.edges.back().last = at;
      } else {
        made.edges.push_back({at, at, to});
      }
    }
  }
  return root;
}

/// Removes what leads to nodes that cannot reach the accepting one. False: the start cannot.
bool TagBuilder::prune() {
  std::vector<std::vector<std::uint32_t>> before(nfa_.nodes_.size());
  const auto each = [&](std::uint32_t id, const auto& visit) {
    const TagNfa::Node& of = nfa_.nodes_[id];
    for (const TagNfa::Edge& edge : of.edges) visit(edge.to);
    for (const std::uint32_t to : of.jumps) visit(to);
    for (const auto& [token, to] : of.tokens) visit(to);
    if (of.any_special != TagNfa::kNone) visit(of.any_special);
    if (of.after != TagNfa::kNone) visit(of.after);
  };
  for (std::uint32_t id = 0; id < before.size(); ++id) {
    each(id, [&](std::uint32_t to) { before[to].push_back(id); });
  }
  std::vector<bool> live(before.size());
  std::vector<std::uint32_t> open = {nfa_.accepting()};
  live[nfa_.accepting()] = true;
  while (!open.empty()) {
    const std::uint32_t id = open.back();
    open.pop_back();
    for (const std::uint32_t from : before[id]) {
      if (!live[from]) open.push_back(from);
      live[from] = true;
    }
  }
  for (TagNfa::Node& of : nfa_.nodes_) {
    std::erase_if(of.edges, [&](const TagNfa::Edge& edge) { return !live[edge.to]; });
    std::erase_if(of.jumps, [&](std::uint32_t to) { return !live[to]; });
    std::erase_if(of.tokens, [&](const auto& token) { return !live[token.second]; });
    if (of.any_special != TagNfa::kNone && !live[of.any_special]) of.any_special = TagNfa::kNone;
    if (of.after != TagNfa::kNone && !live[of.after]) of.schema = of.after = TagNfa::kNone;
  }
  return live[nfa_.start()];
}

Result<TagNfa> TagNfa::build(const Json& tag, SchemaModes modes, const SpecialIds& specials) {
  TagNfa nfa;
  try {
    if (!TagBuilder(nfa, modes, specials).build(tag["format"])) {
      return invalid("nothing matches the structural tag");
    }
  } catch (const LimitError& error) {
    return invalid(std::string("the structural tag is too complex: ") + error.what());
  }
  return nfa;
}

TagNfa TagNfa::of_schema(TagSchema schema) {
  TagNfa nfa;
  TagBuilder builder(nfa, schema.modes, {});
  nfa.nodes_[builder.add_schema(std::move(schema), nfa.start())].jumps.push_back(nfa.accepting());
  return nfa;
}

std::size_t TagNfa::bytes() const {
  std::size_t bytes = 0;
  for (const Node& node : nodes_) {
    bytes += sizeof(Node) + 12 * node.edges.size() + 4 * node.jumps.size();
  }
  for (const TagSchema& schema : schemas_) bytes += schema.text.size() + sizeof(TagSchema);
  return bytes;
}

}  // namespace baton::schema
