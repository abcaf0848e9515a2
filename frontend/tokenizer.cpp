#include "frontend/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "frontend/sentencepiece_model.h"
#include "frontend/text_stream.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using sentencepiece::SentencePieceProcessor;

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581
constexpr std::size_t kMaxModelBytes = 256U << 20U;

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// The JSON object in a file; null when there is no file, an error when it holds something else.
Result<Json> read_json_object(const std::string& path) {
  const auto text = read_file(path);
  if (!text) return Json();
  Json value = Json::parse(*text, nullptr, false);
  if (!value.is_object()) return invalid(path + ": not a JSON object");
  return value;
}

/// Turn markers look like <|user|>, </think> or [INST]. Byte pieces look alike but have their own
/// type.
bool looks_like_marker(std::string_view piece) {
  return piece.size() >= 3 && ((piece.front() == '<' && piece.back() == '>') ||
                               (piece.front() == '[' && piece.back() == ']'));
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

Status read_flag(const Json& object, const char* key, const std::string& path, bool& flag) {
  if (!object.is_object() || !object.contains(key) || object[key].is_null()) return {};
  if (!object[key].is_boolean()) return invalid(path + ": " + key + " must be true or false");
  flag = object[key].get<bool>();
  return {};
}

Status load_processor(const std::string& bytes, const std::string& path,
                      std::unique_ptr<SentencePieceProcessor>& out) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto(bytes);
  if (!status.ok()) return invalid(path + ": " + status.ToString());
  out = std::move(processor);
  return {};
}

std::vector<Token> encode_with(const SentencePieceProcessor& processor, std::string_view text) {
  std::vector<int> ids;
  // It fails only when no model is loaded.
  if (!processor.Encode(text, &ids).ok()) ids.clear();
  return ids;
}

std::string with_spaces(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    if (piece.substr(0, kSpaceSymbol.size()) == kSpaceSymbol) {
      text.push_back(' ');
      piece.remove_prefix(kSpaceSymbol.size());
    } else {
      text.push_back(piece.front());
      piece.remove_prefix(1);
    }
  }
  return text;
}

/// "<0x0A>" -> 10.
std::optional<char> byte_of(const std::string& piece) {
  if (piece.size() != 6 || piece.compare(0, 3, "<0x") != 0 || piece[5] != '>') return std::nullopt;
  const std::string digits = piece.substr(3, 2);
  if (digits.find_first_not_of("0123456789ABCDEFabcdef") != std::string::npos) return std::nullopt;
  return static_cast<char>(std::stoi(digits, nullptr, 16));
}

}  // namespace

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& dir) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  const std::string path = dir + "/tokenizer.model";
  const auto bytes = read_file(path);
  if (!bytes) return invalid(path + ": cannot be read");
  if (bytes->size() > kMaxModelBytes) return invalid(path + ": larger than 256 MiB");
  if (Status status = tokenizer->load_model(*bytes, path); !status.ok()) return status;
  if (Status status = tokenizer->load_settings(dir); !status.ok()) return status;
  if (!tokenizer->prefix_after_special_ && tokenizer->dummy_prefix_) {
    const std::string inner = without_dummy_prefix(tokenizer->plain().serialized_model_proto());
    if (Status status = load_processor(inner, path, tokenizer->inner_); !status.ok()) return status;
  }
  return tokenizer;
}

Status Tokenizer::load_model(const std::string& bytes, const std::string& path) {
  const auto read = read_sentencepiece_model(bytes);
  if (!read.ok()) return invalid(path + ": " + read.status().message());
  const SentencePieceFacts& facts = read.value();
  if (facts.whitespace_as_suffix || facts.has_denormalizer) {
    return invalid(path + ": treat_whitespace_as_suffix and denormalizers are not supported");
  }
  if (Status status = load_processor(bytes, path, whole_); !status.ok()) return status;

  std::vector<bool> marker(facts.pieces.size());
  for (std::size_t id = 0; id < marker.size(); ++id) {
    marker[id] = facts.types[id] == SentencePieceType::user_defined &&
                 looks_like_marker(facts.pieces[id]);
  }
  if (std::find(marker.begin(), marker.end(), true) != marker.end()) {
    const std::string plain = with_control_pieces(bytes, marker);
    if (Status status = load_processor(plain, path, plain_); !status.ok()) return status;
  }
  if (!fill_table(facts, marker)) return invalid(path + ": a piece is damaged");

  dummy_prefix_ = facts.add_dummy_prefix;
  leading_space_ = facts.remove_extra_whitespaces ? LeadingSpace::drop_all
                   : facts.add_dummy_prefix       ? LeadingSpace::drop_one
                                                  : LeadingSpace::keep;
  return {};
}

bool Tokenizer::fill_table(const SentencePieceFacts& facts, const std::vector<bool>& marker) {
  pieces_.reserve(facts.pieces.size());
  for (std::size_t id = 0; id < facts.pieces.size(); ++id) {
    const std::string& piece = facts.pieces[id];
    Entry entry;
    std::string text;
    switch (facts.types[id]) {
      case SentencePieceType::control: break;
      case SentencePieceType::byte: {
        const auto byte = byte_of(piece);
        if (!byte) return false;
        entry.kind = PieceKind::byte;
        text.assign(1, *byte);
        break;
      }
      case SentencePieceType::unknown:
        entry.kind = PieceKind::text;
        text = whole_->DecodeIds({static_cast<int>(id)});
        break;
      default:
        if (marker[id]) break;
        entry.kind = PieceKind::text;
        entry.space = piece.compare(0, kSpaceSymbol.size(), kSpaceSymbol) == 0;
        text = with_spaces(piece);
    }
    if (text.size() > std::numeric_limits<std::uint16_t>::max()) return false;
    if (entry.kind == PieceKind::special && !piece.empty()) {
      specials_.emplace_back(piece, static_cast<Token>(id));
    }
    entry.offset = static_cast<std::uint32_t>(text_.size());
    entry.length = static_cast<std::uint16_t>(text.size());
    text_ += text;
    pieces_.push_back(entry);
  }
  std::stable_sort(specials_.begin(), specials_.end(), [](const auto& a, const auto& b) {
    return a.first.size() > b.first.size();
  });
  return true;
}

Status Tokenizer::load_settings(const std::string& dir) {
  const std::string config_path = dir + "/config.json";
  const std::string generation_path = dir + "/generation_config.json";
  const std::string tokenizer_path = dir + "/tokenizer_config.json";
  const auto config = read_json_object(config_path);
  const auto generation = read_json_object(generation_path);
  const auto settings = read_json_object(tokenizer_path);
  for (const auto* file : {&config, &generation, &settings}) {
    if (!file->ok()) return file->status();
  }

  vocab_size_ = static_cast<std::uint32_t>(pieces_.size());
  if (config.value().is_object() && config.value().contains("vocab_size")) {
    const Json& size = config.value()["vocab_size"];
    if (!size.is_number_integer() || size.get<std::int64_t>() < vocab_size_ ||
        size.get<std::int64_t>() > std::numeric_limits<Token>::max()) {
      return invalid(config_path + ": vocab_size must be a number of at least " +
                     std::to_string(vocab_size_) + ", the pieces of tokenizer.model");
    }
    vocab_size_ = size.get<std::uint32_t>();
  }

  std::vector<Token> bos;
  if (whole_->bos_id() >= 0) bos = {whole_->bos_id()};
  if (whole_->eos_id() >= 0) eos_ids_ = {whole_->eos_id()};
  const std::uint32_t vocab = vocab_size_;
  for (Status status : {read_ids(config.value(), "bos_token_id", config_path, vocab, bos),
                        read_ids(config.value(), "eos_token_id", config_path, vocab, eos_ids_),
                        read_ids(generation.value(), "eos_token_id", generation_path, vocab, eos_ids_),
                        read_flag(settings.value(), "add_bos_token", tokenizer_path, add_bos_),
                        read_flag(settings.value(), "legacy", tokenizer_path, prefix_after_special_)}) {
    if (!status.ok()) return status;
  }
  if (!bos.empty()) bos_ = bos.front();
  add_bos_ = add_bos_ && bos_ >= 0;
  if (eos_ids_.empty()) return invalid(dir + ": neither config.json nor tokenizer.model has an eos id");
  return {};
}

const SentencePieceProcessor& Tokenizer::plain() const { return plain_ ? *plain_ : *whole_; }

std::vector<Token> Tokenizer::encode(std::string_view text, bool add_bos) const {
  std::vector<Token> ids = encode_with(*whole_, text);
  if (add_bos && bos_ >= 0) ids.insert(ids.begin(), bos_);
  return ids;
}

std::vector<Token> Tokenizer::encode_plain(std::string_view text, bool after_special) const {
  return encode_with(after_special && inner_ ? *inner_ : plain(), text);
}

Token Tokenizer::special_at(std::string_view text, std::size_t* length) const {
  for (const auto& [piece, id] : specials_) {
    if (text.substr(0, piece.size()) == piece) {
      *length = piece.size();
      return id;
    }
  }
  return -1;
}

PieceKind Tokenizer::kind(Token id) const {
  const auto index = static_cast<std::size_t>(static_cast<std::uint32_t>(id));
  return index < pieces_.size() ? pieces_[index].kind : PieceKind::special;
}

std::string_view Tokenizer::piece_text(Token id) const {
  const auto index = static_cast<std::size_t>(static_cast<std::uint32_t>(id));
  if (index >= pieces_.size()) return {};
  return std::string_view(text_).substr(pieces_[index].offset, pieces_[index].length);
}

bool Tokenizer::begins_with_space(Token id) const {
  const auto index = static_cast<std::size_t>(static_cast<std::uint32_t>(id));
  return index < pieces_.size() && pieces_[index].space;
}

std::string Tokenizer::decode(std::span<const Token> ids) const {
  TextStream stream(*this, {});
  std::string text(stream.feed(ids).text);
  text += stream.flush().text;
  return text;
}

}  // namespace baton
