#include "text/gguf/gguf_folder.h"

#include <filesystem>
#include <utility>

#include "ipc/files.h"

namespace baton {
namespace {

/// What the file says under this name of a folder.
Result<std::optional<std::string>> made_up(const GgufHead& head, const std::string& name,
                                           const std::string& file) {
  const auto some = [](Result<std::string> text) -> Result<std::optional<std::string>> {
    if (!text.ok()) return text.status();
    return std::optional<std::string>(std::move(text).value());
  };
  if (file == "config.json") return some(gguf_config(head, name));
  if (file == "tokenizer_config.json") return some(gguf_tokenizer_config(head, name));
  if (file == "tokenizer.json" || file == "tokenizer.model") {
    const auto which = gguf_tokenizer_file(head, name);
    if (!which.ok()) return which.status();
    if (which.value() != file) return std::optional<std::string>();
    return some(file == "tokenizer.json" ? gguf_tokenizer_json(head, name)
                                         : gguf_tokenizer_model(head, name));
  }
  return std::optional<std::string>();
}

/// MODEL/FILE, apart.
std::pair<std::string, std::string> parts_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

}  // namespace

Result<std::optional<std::string>> read_model_file(const std::string& path, std::size_t most) {
  const auto [model, file] = parts_of(path);
  if (!names_gguf(model)) return read_regular_file(path, most);
  const auto opened = GgufFile::open(model);
  if (!opened.ok()) return opened.status();
  auto text = made_up(opened.value()->head(), model, file);
  if (text.ok() && text.value() && text.value()->size() > most) {
    return invalid(model + ": what becomes " + file + " is longer than " + std::to_string(most) +
                   " bytes");
  }
  return text;
}

Result<std::optional<std::string>> read_model_json(const std::string& path, std::size_t most) {
  if (!names_gguf(parts_of(path).first)) return read_json_text(path, most);
  return read_model_file(path, most);
}

bool has_model_file(const std::string& path) {
  const auto [model, file] = parts_of(path);
  if (!names_gguf(model)) return std::filesystem::exists(path);
  const auto opened = GgufFile::open(model);
  if (!opened.ok()) return false;
  if (file == "config.json" || file == "tokenizer_config.json") return true;
  const auto which = gguf_tokenizer_file(opened.value()->head(), model);
  return which.ok() && which.value() == file;
}

}  // namespace baton
