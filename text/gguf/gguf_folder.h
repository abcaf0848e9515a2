// A GGUF file as the model folder that it was made from: its settings as config.json, its tokenizer
// as tokenizer.json or tokenizer.model, its chat template in tokenizer_config.json. Whoever reads a
// model's small files reads them here, whether the model is a folder or such a file.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ipc/status.h"
#include "text/gguf/gguf_file.h"

namespace baton {

/// read_regular_file() of `path`, MODEL/FILE: what a folder holds under this name, or what a GGUF
/// file becomes. Nothing where there is none.
Result<std::optional<std::string>> read_model_file(const std::string& path, std::size_t most);
/// The same as text for a JSON parser: read_json_text().
Result<std::optional<std::string>> read_model_json(const std::string& path, std::size_t most);
/// Whether read_model_file() would give something.
bool has_model_file(const std::string& path);

/// config.json. `name` is for messages. An architecture or a setting that is not read is an error
/// that names it.
Result<std::string> gguf_config(const GgufHead& head, const std::string& name);

/// The ids that end a text: those that the file names, and the well-known ends of turns in its
/// vocabulary.
std::vector<std::uint64_t> gguf_end_ids(const GgufHead& head);

/// Which of the two files the tokenizer becomes; an error for one that is neither.
Result<std::string> gguf_tokenizer_file(const GgufHead& head, const std::string& name);
Result<std::string> gguf_tokenizer_json(const GgufHead& head, const std::string& name);
Result<std::string> gguf_tokenizer_model(const GgufHead& head, const std::string& name);
/// tokenizer_config.json
Result<std::string> gguf_tokenizer_config(const GgufHead& head, const std::string& name);

}  // namespace baton
