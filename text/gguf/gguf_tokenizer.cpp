// The tokenizer of a GGUF file as the files of a model folder.
#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "text/gguf/gguf_folder.h"

namespace baton {
namespace {

using Json = nlohmann::json;

// tokenizer.ggml.token_type; the same numbers as sentencepiece's.
constexpr int kNormal = 1;
constexpr int kControl = 3;
constexpr int kUserDefined = 4;
constexpr int kMaxKind = 6;

constexpr std::size_t kMaxTokens = 4U << 20U;

constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4oWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// How texts are cut into words before they are merged, by the file's word for it.
struct Cut {
  const char* name;
  const char* words;
  bool digits_apart = false;  // each is a word of its own
  bool whole_words = false;   // a word that is a token is not merged from its letters
  bool nfc = false;
  bool add_bos = false;  // where the file does not say
};

constexpr Cut kCuts[] = {
    {"llama-bpe", kLlama3Words, false, true, false, true},
    {"llama3", kLlama3Words, false, true, false, true},
    {"llama-v3", kLlama3Words, false, true, false, true},
    {"falcon3", kLlama3Words, false, true, false, true},
    {"smaug-bpe", kLlama3Words},
    {"dbrx", kLlama3Words},
    {"qwen2", kQwen2Words, false, false, true},
    {"deepseek-r1-qwen", kQwen2Words, false, false, true},
    {"gpt-2", kGpt2Words},
    {"olmo", kGpt2Words},
    {"mpt", kGpt2Words},
    {"starcoder", kGpt2Words, true},
    {"refact", kGpt2Words, true},
    {"smollm", kGpt2Words, true},
    {"tekken", kTekkenWords, false, true, false, true},
    {"pixtral", kTekkenWords, false, true, false, true},
    {"gpt-4o", kGpt4oWords},
    {"llama4", kGpt4oWords, false, false, false, true},
};

/// Ends of turns by their text, as llama.cpp knows them.
constexpr std::string_view kEnds[] = {"<|eot_id|>",      "<|im_end|>",    "<|end|>",
                                      "<end_of_turn>",   "<|endoftext|>", "<|eom_id|>",
                                      "<|end_of_text|>", "<EOT>",         "<|return|>"};

/// Tokens with their kinds.
struct Vocabulary {
  std::vector<std::string_view> tokens;
  std::vector<double> kinds;
  int kind(std::size_t id) const { return kinds.empty() ? kNormal : static_cast<int>(kinds[id]); }
};

Result<Vocabulary> read_vocabulary(const GgufHead& head, const std::string& name) {
  Vocabulary v;
  auto tokens = head.texts("tokenizer.ggml.tokens");
  if (!tokens || tokens->empty() || tokens->size() > kMaxTokens) {
    return invalid(name + ": tokenizer.ggml.tokens: missing, empty or more than 4,194,304");
  }
  v.tokens = std::move(*tokens);
  if (head.has("tokenizer.ggml.token_type")) {
    auto kinds = head.numbers("tokenizer.ggml.token_type");
    const auto good = [](double k) { return k >= kNormal && k <= kMaxKind; };
    if (!kinds || kinds->size() != v.tokens.size() ||
        !std::all_of(kinds->begin(), kinds->end(), good)) {
      return invalid(name + ": tokenizer.ggml.token_type: not one kind from 1 to 6 for each token");
    }
    v.kinds = std::move(*kinds);
  }
  return v;
}

Result<const Cut*> cut_of(const GgufHead& head, const std::string& name) {
  const std::string said(head.text("tokenizer.ggml.pre").value_or("(none)"));
  std::string known;
  for (const Cut& cut : kCuts) {
    if (said == cut.name) return &cut;
    known += std::string(known.empty() ? "" : ", ") + cut.name;
  }
  return invalid(name + ": tokenizer.ggml.pre: '" + said.substr(0, 100) +
                 "' is not supported, only " + known + " are");
}

Json pre_tokenizer(const Cut& cut) {
  const auto split = [](const char* regex) {
    return Json{{"type", "Split"},
                {"pattern", {{"Regex", regex}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  };
  Json steps = Json::array();
  if (cut.digits_apart) steps.push_back(split(R"(\p{N})"));
  steps.push_back(split(cut.words));
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

/// Bytes of JSON; a token that is no UTF-8 gets replacement characters.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Protobuf, as sentencepiece_model.proto has it.

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_number(std::string& out, std::uint32_t field, std::uint64_t value) {
  put_varint(out, field << 3U);
  put_varint(out, value);
}

void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_varint(out, field << 3U | 2U);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_float(std::string& out, std::uint32_t field, float value) {
  put_varint(out, field << 3U | 5U);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  for (unsigned i = 0; i < 4; ++i) out.push_back(static_cast<char>(bits >> (8 * i)));
}

std::string_view token_of(const Vocabulary& v, std::optional<std::uint64_t> id) {
  return id && *id < v.tokens.size() ? v.tokens[*id] : std::string_view();
}

}  // namespace

std::vector<std::uint64_t> gguf_end_ids(const GgufHead& head) {
  std::vector<std::uint64_t> ids;
  const auto tokens = head.texts("tokenizer.ggml.tokens").value_or(std::vector<std::string_view>());
  const auto add = [&](std::uint64_t id) {
    if (id < tokens.size() && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  for (const char* key : {"eos", "eot", "eom"}) {
    const auto id = head.count("tokenizer.ggml." + std::string(key) + "_token_id");
    if (id) add(*id);
  }
  const auto kinds = head.numbers("tokenizer.ggml.token_type").value_or(std::vector<double>());
  for (std::size_t id = 0; id < std::min(tokens.size(), kinds.size()); ++id) {
    if (kinds[id] != kControl && kinds[id] != kUserDefined) continue;
    if (std::find(std::begin(kEnds), std::end(kEnds), tokens[id]) != std::end(kEnds)) add(id);
  }
  return ids;
}

Result<std::string> gguf_tokenizer_file(const GgufHead& head, const std::string& name) {
  const std::string model(head.text("tokenizer.ggml.model").value_or("(none)"));
  if (model == "gpt2") return std::string("tokenizer.json");
  if (model == "llama") return std::string("tokenizer.model");
  return invalid(name + ": tokenizer.ggml.model: '" + model.substr(0, 100) +
                 "' is not supported, only gpt2 and llama are");
}

Result<std::string> gguf_tokenizer_json(const GgufHead& head, const std::string& name) {
  const auto read = read_vocabulary(head, name);
  if (!read.ok()) return read.status();
  const Vocabulary& v = read.value();
  const auto cut = cut_of(head, name);
  if (!cut.ok()) return cut.status();
  const auto merges = head.texts("tokenizer.ggml.merges");
  if (!merges) return invalid(name + ": tokenizer.ggml.merges: missing or no list of texts");
  Json vocab = Json::object();
  Json added = Json::array();
  for (std::size_t id = 0; id < v.tokens.size(); ++id) {
    const std::string token(v.tokens[id]);
    if (token.empty()) continue;
    if (!vocab.emplace(token, id).second) continue;  // the first of two counts
    const int kind = v.kind(id);
    if (kind != kControl && kind != kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", kind == kControl}});
  }
  const Json level = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", false},
                      {"use_regex", false}};
  Json root;
  root["version"] = "1.0";
  root["added_tokens"] = added;
  root["normalizer"] = cut.value()->nfc ? Json{{"type", "NFC"}} : Json();
  root["pre_tokenizer"] = pre_tokenizer(*cut.value());
  root["post_processor"] = level;
  root["decoder"] = level;
  Json pairs = Json::array();
  for (const std::string_view merge : *merges) pairs.push_back(std::string(merge));
  root["model"] = {{"type", "BPE"}, {"ignore_merges", cut.value()->whole_words}};
  root["model"]["vocab"] = std::move(vocab);
  root["model"]["merges"] = std::move(pairs);
  return dump(root);
}

Result<std::string> gguf_tokenizer_model(const GgufHead& head, const std::string& name) {
  const auto read = read_vocabulary(head, name);
  if (!read.ok()) return read.status();
  const Vocabulary& v = read.value();
  const auto scores = head.numbers("tokenizer.ggml.scores");
  if (!scores || scores->size() != v.tokens.size()) {
    return invalid(name + ": tokenizer.ggml.scores: not one score for each token");
  }
  std::string model;
  std::string piece;
  std::set<std::string_view> seen;
  for (std::size_t id = 0; id < v.tokens.size(); ++id) {
    piece.clear();
    // The library refuses a piece without letters and one that comes twice: those never parse.
    std::string text(v.tokens[id]);
    const bool again = text.empty() || !seen.insert(v.tokens[id]).second;
    if (again) text = "<|unused_" + std::to_string(id) + "|>";
    put_bytes(piece, 1, text);
    put_float(piece, 2, static_cast<float>((*scores)[id]));
    put_number(piece, 3, static_cast<std::uint64_t>(again ? kControl : v.kind(id)));
    put_bytes(model, 1, piece);
  }
  std::string trainer;
  put_number(trainer, 3, 2);   // model_type: BPE
  put_number(trainer, 35, 1);  // byte_fallback
  const auto name_piece = [&](std::uint32_t field, const char* key) {
    const std::string_view text = token_of(v, head.count(key));
    if (!text.empty()) put_bytes(trainer, field, text);
  };
  name_piece(45, "tokenizer.ggml.unknown_token_id");
  name_piece(46, "tokenizer.ggml.bos_token_id");
  name_piece(47, "tokenizer.ggml.eos_token_id");
  put_bytes(model, 2, trainer);
  std::string normalizer;
  put_bytes(normalizer, 1, "identity");
  put_number(normalizer, 3, head.flag("tokenizer.ggml.add_space_prefix").value_or(true) ? 1 : 0);
  put_number(normalizer, 4,
             head.flag("tokenizer.ggml.remove_extra_whitespaces").value_or(false) ? 1 : 0);
  put_number(normalizer, 5, 1);  // spaces become U+2581
  put_bytes(model, 3, normalizer);
  return model;
}

Result<std::string> gguf_tokenizer_config(const GgufHead& head, const std::string& name) {
  const auto read = read_vocabulary(head, name);
  if (!read.ok()) return read.status();
  const auto which = gguf_tokenizer_file(head, name);
  if (!which.ok()) return which.status();
  bool add_bos = true;
  if (which.value() == "tokenizer.json") {
    const auto cut = cut_of(head, name);
    if (!cut.ok()) return cut.status();
    add_bos = cut.value()->add_bos;
  }
  Json json;
  json["add_bos_token"] = head.flag("tokenizer.ggml.add_bos_token").value_or(add_bos);
  json["add_eos_token"] = head.flag("tokenizer.ggml.add_eos_token").value_or(false);
  const std::array<std::pair<const char*, const char*>, 4> kTokens = {{
      {"bos_token", "tokenizer.ggml.bos_token_id"},
      {"eos_token", "tokenizer.ggml.eos_token_id"},
      {"unk_token", "tokenizer.ggml.unknown_token_id"},
      {"pad_token", "tokenizer.ggml.padding_token_id"},
  }};
  for (const auto& [key, id] : kTokens) {
    const std::string_view token = token_of(read.value(), head.count(id));
    if (!token.empty()) json[key] = std::string(token);
  }
  const auto named =
      head.texts("tokenizer.chat_templates").value_or(std::vector<std::string_view>());
  const auto main = head.text("tokenizer.chat_template");
  if (named.empty() && main) json["chat_template"] = std::string(*main);
  if (!named.empty()) {
    Json list = Json::array();
    if (main) list.push_back({{"name", "default"}, {"template", std::string(*main)}});
    for (const std::string_view one : named) {
      const auto text = head.text("tokenizer.chat_template." + std::string(one));
      if (text && one != "default") {
        list.push_back({{"name", std::string(one)}, {"template", std::string(*text)}});
      }
    }
    json["chat_template"] = list;
  }
  return dump(json);
}

}  // namespace baton
