#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <map>
#include <sstream>

#include "configs/assignment.h"
#include "configs/options.h"
#include "configs/yaml_list.h"
#include "ipc/utf8.h"

namespace baton {
namespace {

constexpr std::array<const char*, 4> kSections = {"scheduler", "frontend", "telemetry", "worker"};

std::string folder_of(const std::string& file) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(file, error);
  return error ? "/" : absolute.parent_path().string();
}

class YamlReader {
 public:
  explicit YamlReader(const std::string& file) : file_(file), base_(folder_of(file)) {}

  /// Of one entry of `models`, whose keys are those of a file for one model.
  Status read_model(const YAML::Node& entry, const std::string& prefix) {
    prefix_ = prefix;
    content_.mark.where = where(entry);
    return each_key(entry, prefix_,
                    [this](const std::string& key, const YAML::Node& at, const YAML::Node& value) {
                      if (key == "models") return error(at, prefix_ + key, "stands within models");
                      return top(key, at, value);
                    });
  }

  Status read(const YAML::Node& root) {
    if (root.IsNull()) {
      return {};
    }
    if (!root.IsMap()) {
      return error(root, "", "the file is not a map of options");
    }
    return each_key(root, "",
                    [this](const std::string& key, const YAML::Node& at, const YAML::Node& value) {
                      return top(key, at, value);
                    });
  }

  YamlContent take() { return std::move(content_); }

  Status read_list(const YAML::Node& root, const std::string& name, std::size_t most,
                   std::vector<YamlEntry>& entries) {
    if (!root.IsMap()) return error(root, "", "the file is not a map with the list '" + name + "'");
    return each_key(root, "",
                    [&](const std::string& key, const YAML::Node& at, const YAML::Node& value) {
                      if (key != name)
                        return error(at, key, "not known; the file has '" + name + "' alone");
                      return list_entries(name, most, at, value, entries);
                    });
  }

 private:
  Status list_entries(const std::string& name, std::size_t most, const YAML::Node& at,
                      const YAML::Node& list, std::vector<YamlEntry>& entries) {
    if (list.IsNull()) return {};
    if (!list.IsSequence()) return error(at, name, "expected a list");
    if (list.size() > most) {
      return error(
          at, name,
          "has " + std::to_string(list.size()) + " entries; at most " + std::to_string(most));
    }
    for (const YAML::Node& node : list) {
      YamlEntry& entry = entries.emplace_back();
      entry.where = where(node);
      const std::string prefix = name + "[" + std::to_string(entries.size() - 1) + "]";
      if (!node.IsMap()) return error(node, prefix, "expected a map of fields");
      Status status = each_key(
          node, prefix + ".",
          [&](const std::string& key, const YAML::Node& key_at, const YAML::Node& value) -> Status {
            if (!value.IsScalar()) return error(key_at, prefix + "." + key, "expected one value");
            entry.fields.push_back({key, value.Scalar(), where(key_at)});
            return {};
          });
      if (!status.ok()) return status;
    }
    return {};
  }

  std::string where(const YAML::Node& node) const {
    const YAML::Mark mark = node.Mark();
    return file_ + (mark.is_null() ? "" : ":" + std::to_string(mark.line + 1));
  }

  Status error(const YAML::Node& node, const std::string& label, const std::string& what) const {
    return invalid(where(node) + ": " + (label.empty() ? "" : label + ": ") + what);
  }

  /// Calls `visit(key, key node, value)` for each key of a map; a key that is no scalar, or stands
  /// there twice, is an error.
  template <typename Visit>
  Status each_key(const YAML::Node& map, const std::string& prefix, Visit visit) {
    std::map<std::string, std::string> seen;
    for (const auto& pair : map) {
      if (!pair.first.IsScalar()) {
        return error(pair.first, "", "a key must be a plain word");
      }
      const std::string key = pair.first.Scalar().substr(0, 64);
      const auto [first, fresh] = seen.emplace(key, where(pair.first));
      if (!fresh) {
        return error(pair.first, prefix + key,
                     "stands here for the second time; first at " + first->second);
      }
      Status status = visit(key, pair.first, pair.second);
      if (!status.ok()) {
        return status;
      }
    }
    return {};
  }

  Status top(const std::string& key, const YAML::Node& at, const YAML::Node& value) {
    if (key == "workers") {
      return workers(at, value);
    }
    if (key == "models") {
      return models(at, value);
    }
    if (std::find(kSections.begin(), kSections.end(), key) != kSections.end()) {
      return section(key, -1, prefix_ + key + ".", at, value);
    }
    if (value.IsMap() || value.IsSequence()) {
      return error(at, prefix_ + key,
                   "no such section; there are scheduler, frontend, telemetry, worker, workers and "
                   "models");
    }
    return scalar("", -1, prefix_, key, at, value);
  }

  Status models(const YAML::Node& at, const YAML::Node& list) {
    if (list.IsNull()) return {};
    if (!list.IsSequence()) return error(at, "models", "expected a list of models");
    if (list.size() > kMaxModels) {
      return error(
          at, "models",
          "has " + std::to_string(list.size()) + " entries; at most " + std::to_string(kMaxModels));
    }
    for (const YAML::Node& entry : list) {
      const std::string label = "models[" + std::to_string(content_.models.size()) + "]";
      if (!entry.IsMap()) return error(entry, label, "expected a map of options");
      YamlReader reader(file_);
      Status status = reader.read_model(entry, label + ".");
      if (!status.ok()) return status;
      content_.models.push_back(reader.take());
    }
    return {};
  }

  static bool takes_list(const std::string& key) {
    return key == "dialects" || key == "allowed_origins" || key == "allowed_hosts" ||
           key == "prefill_batch_size" || key == "decode_batch_size";
  }

  static bool takes_map(const std::string& key) {
    return key == "token_budget" || key == "local_prefill";
  }

  Status section(const std::string& name, int entry, const std::string& prefix,
                 const YAML::Node& at, const YAML::Node& map) {
    if (map.IsNull()) {
      return {};  // a heading with everything below it commented out
    }
    if (!map.IsMap()) {
      return error(at, prefix.substr(0, prefix.size() - 1), "expected a map of options");
    }
    return each_key(map, prefix,
                    [&](const std::string& key, const YAML::Node& key_at, const YAML::Node& value) {
                      if (name == "frontend" && key == "listen") return listen(key_at, value);
                      if (value.IsSequence() && takes_list(key)) {
                        return words(name, entry, prefix, key, key_at, value);
                      }
                      if (value.IsMap() && takes_map(key)) {
                        return parts(name, entry, prefix, key, key_at, value);
                      }
                      return scalar(name, entry, prefix, key, key_at, value);
                    });
  }

  Status workers(const YAML::Node& at, const YAML::Node& list) {
    content_.says_workers = list.IsSequence();
    return maps("workers", prefix_ + "workers", "workers", kMaxWorkers, content_.entries, at, list);
  }

  Status listen(const YAML::Node& at, const YAML::Node& list) {
    return maps("listen", prefix_ + "frontend.listen", "ports", kMaxListen, content_.listen, at,
                list);
  }

  /// A list of maps of options, each an entry of `name`.
  Status maps(const std::string& name, const std::string& label, const std::string& what,
              std::size_t most, std::vector<EntryMark>& marks, const YAML::Node& at,
              const YAML::Node& list) {
    if (list.IsNull()) {
      return {};
    }
    if (!list.IsSequence()) {
      return error(at, label, "expected a list of " + what);
    }
    if (list.size() > most) {
      return error(
          at, label,
          "has " + std::to_string(list.size()) + " entries; at most " + std::to_string(most));
    }
    int index = 0;
    for (const YAML::Node& entry : list) {
      marks.push_back({where(entry)});
      const std::string prefix = label + "[" + std::to_string(index) + "].";
      if (!entry.IsMap()) {
        return error(entry, prefix.substr(0, prefix.size() - 1), "expected a map of options");
      }
      Status status = section(name, index, prefix, entry, entry);
      if (!status.ok()) {
        return status;
      }
      ++index;
    }
    return {};
  }

  /// [a, b] as "a,b".
  Status words(const std::string& section, int entry, const std::string& prefix,
               const std::string& key, const YAML::Node& at, const YAML::Node& list) {
    std::string text;
    for (const YAML::Node& word : list) {
      if (!word.IsScalar()) {
        return error(at, prefix + key, "expected a list of words");
      }
      text += (text.empty() ? "" : ",") + word.Scalar();
    }
    return assign(section, entry, prefix, key, at, text);
  }

  /// {a: 1, b: 2} as "a=1,b=2".
  Status parts(const std::string& section, int entry, const std::string& prefix,
               const std::string& key, const YAML::Node& at, const YAML::Node& map) {
    std::string text;
    Status status = each_key(
        map, prefix + key + ".",
        [&](const std::string& part, const YAML::Node& part_at, const YAML::Node& value) -> Status {
          if (!value.IsScalar())
            return error(part_at, prefix + key + "." + part, "expected a number");
          const std::string quote = value.Tag() == "!" ? "'" : "";  // no number
          text += (text.empty() ? "" : ",") + part + "=" + quote + value.Scalar() + quote;
          return {};
        });
    if (!status.ok()) return status;
    return assign(section, entry, prefix, key, at, text);
  }

  Status scalar(const std::string& section, int entry, const std::string& prefix,
                const std::string& key, const YAML::Node& at, const YAML::Node& value) {
    if (value.IsNull()) {
      return error(at, prefix + key, "has no value");
    }
    if (!value.IsScalar()) {
      return error(at, prefix + key, "expected one value, not a map or a list");
    }
    return assign(section, entry, prefix, key, at, value.Scalar(), value.Tag() == "!");
  }

  Status assign(const std::string& section, int entry, const std::string& prefix,
                const std::string& key, const YAML::Node& at, const std::string& text,
                bool quoted = false) {
    content_.assignments.push_back({.section = section,
                                    .entry = entry,
                                    .key = key,
                                    .text = text,
                                    .quoted = quoted,
                                    .where = where(at),
                                    .label = prefix + key,
                                    .base = base_});
    return {};
  }

  std::string file_;
  std::string base_;
  std::string prefix_;  // of labels: "models[0]." within an entry
  YamlContent content_;
};

/// Takes whatever a document holds.
class Nothing : public YAML::EventHandler {
 public:
  using Mark = YAML::Mark;
  using Anchor = YAML::anchor_t;
  void OnDocumentStart(const Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const Mark&, Anchor) override {}
  void OnAlias(const Mark&, Anchor) override {}
  void OnScalar(const Mark&, const std::string&, Anchor, const std::string&) override {}
  void OnSequenceStart(const Mark&, const std::string&, Anchor,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const Mark&, const std::string&, Anchor, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

/// 0, 1 or 2, which stands for more. YAML::LoadAll finds documents without end behind a stray
/// bracket.
int count_documents(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Nothing nothing;
  int found = 0;
  while (found < 2 && parser.HandleNextDocument(nothing)) ++found;
  return found;
}

/// Calls `read(root)` with the one document of a text, if there is one.
template <typename Read>
Status read_document(const std::string& text, const std::string& file, Read read) {
  if (text.size() > kMaxConfigBytes) {
    return invalid(file + ": has " + std::to_string(text.size()) + " bytes; at most " +
                   std::to_string(kMaxConfigBytes));
  }
  // yaml-cpp finds documents without end in a text that ends within a character.
  if (const std::size_t bad = first_non_utf8(text); bad != text.size()) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<long>(bad), '\n');
    return invalid(file + ":" + std::to_string(line) + ": is not UTF-8");
  }
  try {
    const int documents = count_documents(text);
    if (documents > 1) return invalid(file + ": holds several documents; one is expected");
    return documents == 0 ? Status() : read(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    const std::string line = error.mark.is_null() ? "" : ":" + std::to_string(error.mark.line + 1);
    return invalid(file + line + ": not valid YAML: " + error.msg);
  } catch (const std::exception& error) {
    return invalid(file + ": not valid YAML: " + error.what());
  }
}

}  // namespace

Result<YamlContent> read_yaml(const std::string& text, const std::string& file) {
  YamlReader reader(file);
  const Status status =
      read_document(text, file, [&](const YAML::Node& root) { return reader.read(root); });
  if (!status.ok()) return status;
  return reader.take();
}

Result<std::vector<YamlEntry>> read_yaml_list(const std::string& text, const std::string& file,
                                              const std::string& name, std::size_t most) {
  std::vector<YamlEntry> entries;
  const Status status = read_document(text, file, [&](const YAML::Node& root) {
    return YamlReader(file).read_list(root, name, most, entries);
  });
  if (!status.ok()) return status;
  return entries;
}

}  // namespace baton
