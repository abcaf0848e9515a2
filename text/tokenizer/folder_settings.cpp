#include "text/tokenizer/folder_settings.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/gguf/gguf_folder.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxSettingsBytes = 64U << 20U;

/// The JSON object in a file; null when there is no file, an error when it holds something else.
Result<Json> read_json_object(const std::string& path) {
  const auto text = read_model_json(path, kMaxSettingsBytes);
  if (!text.ok()) return text.status();
  if (!text.value()) return Json();
  Json value = Json::parse(*text.value(), nullptr, false);
  if (!value.is_object()) return invalid(path + ": not a JSON object");
  return value;
}

/// Reads a token id, or a list of them, under `key`; what is not there leaves `ids` alone.
Status read_ids(const Json& object, const char* key, const std::string& path, std::uint32_t vocab,
                std::vector<Token>& ids) {
  if (!object.is_object() || !object.contains(key) || object[key].is_null()) return {};
  Json list = object[key];
  if (!list.is_array()) list = Json::array({list});
  std::vector<Token> found;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 ||
        id.get<std::int64_t>() >= static_cast<std::int64_t>(vocab)) {
      return invalid(path + ": " + key + " must hold ids below " + std::to_string(vocab));
    }
    found.push_back(id.get<Token>());
  }
  if (!found.empty()) ids = std::move(found);
  return {};
}

Status read_flag(const Json& object, const char* key, const std::string& path,
                 std::optional<bool>& flag) {
  if (!object.is_object() || !object.contains(key) || object[key].is_null()) return {};
  if (!object[key].is_boolean()) return invalid(path + ": " + key + " must be true or false");
  flag = object[key].get<bool>();
  return {};
}

/// Reads a token that is given as text, or as an object with its "content".
Status read_token(const Json& object, const char* key, const std::string& path,
                  const std::function<Token(std::string_view)>& id_of, Token& id) {
  if (!id_of || !object.is_object() || !object.contains(key) || object[key].is_null()) return {};
  const Json& value = object[key];
  const Json& text = value.is_object() && value.contains("content") ? value["content"] : value;
  if (!text.is_string()) return invalid(path + ": " + key + " must be a token");
  id = id_of(text.get_ref<const std::string&>());
  return {};
}

}  // namespace

Result<FolderSettings> read_folder_settings(const std::string& dir,
                                            const TokenizerDefaults& defaults) {
  const std::string config_path = dir + "/config.json";
  const std::string generation_path = dir + "/generation_config.json";
  const std::string tokenizer_path = dir + "/tokenizer_config.json";
  const auto config = read_json_object(config_path);
  const auto generation = read_json_object(generation_path);
  const auto settings = read_json_object(tokenizer_path);
  for (const auto* file : {&config, &generation, &settings}) {
    if (!file->ok()) return file->status();
  }

  FolderSettings out;
  TokenFacts& facts = out.facts;
  facts.vocab_size = defaults.piece_count;
  if (config.value().is_object() && config.value().contains("vocab_size")) {
    const Json& size = config.value()["vocab_size"];
    if (!size.is_number_integer() || size.get<std::int64_t>() < facts.vocab_size ||
        size.get<std::int64_t>() > std::numeric_limits<Token>::max()) {
      return invalid(config_path + ": vocab_size must be a number of at least " +
                     std::to_string(facts.vocab_size) + ", the pieces of " + defaults.file);
    }
    facts.vocab_size = size.get<std::uint32_t>();
  }

  std::optional<bool> legacy;
  std::vector<Token> bos;
  if (defaults.bos >= 0) bos = {defaults.bos};
  if (defaults.eos >= 0) facts.eos_ids = {defaults.eos};
  const std::uint32_t vocab = facts.vocab_size;
  for (Status status :
       {read_ids(config.value(), "bos_token_id", config_path, vocab, bos),
        read_ids(config.value(), "eos_token_id", config_path, vocab, facts.eos_ids),
        read_ids(generation.value(), "eos_token_id", generation_path, vocab, facts.eos_ids),
        read_flag(settings.value(), "add_bos_token", tokenizer_path, out.add_bos_token),
        read_flag(settings.value(), "add_eos_token", tokenizer_path, out.add_eos_token),
        read_flag(settings.value(), "legacy", tokenizer_path, legacy),
        read_token(settings.value(), "bos_token", tokenizer_path, defaults.id_of, out.bos_token),
        read_token(settings.value(), "eos_token", tokenizer_path, defaults.id_of, out.eos_token)}) {
    if (!status.ok()) return status;
  }
  if (settings.value().is_object()) {
    const auto found = settings.value().find("tokenizer_class");
    if (found != settings.value().end() && found->is_string())
      out.tokenizer_class = found->get<std::string>();
  }
  out.legacy = legacy.value_or(true);
  facts.bos = out.bos_token >= 0 ? out.bos_token : bos.empty() ? -1 : bos.front();
  // A chat model's own end of turn often stands in tokenizer_config.json alone.
  if (out.eos_token >= 0 &&
      std::find(facts.eos_ids.begin(), facts.eos_ids.end(), out.eos_token) == facts.eos_ids.end()) {
    facts.eos_ids.push_back(out.eos_token);
  }
  if (facts.eos_ids.empty()) {
    return invalid(dir + ": neither config.json nor " + defaults.file + " has an eos id");
  }
  return out;
}

}  // namespace baton
