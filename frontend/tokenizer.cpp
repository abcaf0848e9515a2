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
// sentencepiece's work for BPE grows faster than the text (6 s for 1.2 MB of words, 0.2 s in such
// parts). For unigram models it does not, and parts would differ: the library adds scores up in
// floats, so that a long text's near-ties fall otherwise.
constexpr std::size_t kPartBytes = 8192;

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

/// Where a text may be cut without changing its tokens: before a space between two printable ASCII
/// characters, at or behind `from`. The end if there is none.
std::size_t find_cut(std::string_view text, std::size_t from) {
  const auto is_graph = [](char c) { return c > 0x20 && c < 0x7F; };
  for (std::size_t i = from; i + 1 < text.size(); ++i) {
    if (text[i] == ' ' && is_graph(text[i - 1]) && is_graph(text[i + 1])) return i;
  }
  return text.size();
}

/// A space symbol behind something else than one.
bool has_inner_space(std::string_view piece) {
  while (piece.substr(0, kSpaceSymbol.size()) == kSpaceSymbol)
    piece.remove_prefix(kSpaceSymbol.size());
  return piece.find(kSpaceSymbol) != std::string_view::npos;
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
  return tokenizer;
}

Status Tokenizer::load_encoder(const std::string& bytes, const std::string& path,
                               Encoder& encoder) const {
  Status status = load_processor(bytes, path, encoder.first);
  if (!status.ok() || !dummy_prefix_) return status;
  return load_processor(without_dummy_prefix(bytes), path, encoder.rest);
}

Status Tokenizer::load_model(const std::string& bytes, const std::string& path) {
  const auto read = read_sentencepiece_model(bytes);
  if (!read.ok()) return invalid(path + ": " + read.status().message());
  const SentencePieceFacts& facts = read.value();
  if (facts.whitespace_as_suffix || facts.has_denormalizer) {
    return invalid(path + ": treat_whitespace_as_suffix and denormalizers are not supported");
  }
  dummy_prefix_ = facts.add_dummy_prefix;
  leading_space_ = facts.remove_extra_whitespaces ? LeadingSpace::drop_all
                   : facts.add_dummy_prefix       ? LeadingSpace::drop_one
                                                  : LeadingSpace::keep;
  if (Status status = load_encoder(bytes, path, whole_); !status.ok()) return status;

  std::vector<bool> marker(facts.pieces.size());
  for (std::size_t id = 0; id < marker.size(); ++id) {
    marker[id] =
        facts.types[id] == SentencePieceType::user_defined && looks_like_marker(facts.pieces[id]);
  }
  if (std::find(marker.begin(), marker.end(), true) != marker.end()) {
    const std::string plain = with_control_pieces(bytes, marker);
    if (Status status = load_encoder(plain, path, plain_); !status.ok()) return status;
  }
  if (!fill_table(facts, marker)) return invalid(path + ": a piece is damaged");
  find_bounds(facts);
  return {};
}

void Tokenizer::find_bounds(const SentencePieceFacts& facts) {
  std::size_t bytes = 0;
  std::size_t longest = 0;
  bool inner_space = false;
  bool space = false;
  for (std::size_t id = 0; id < pieces_.size(); ++id) {
    const std::string& piece = facts.pieces[id];
    // A marker counts with its own length, though its text is empty.
    longest = std::max({longest, std::size_t{pieces_[id].length}, piece.size()});
    bytes += pieces_[id].kind == PieceKind::byte ? 1 : 0;
    inner_space = inner_space || has_inner_space(piece);
    space = space || piece == kSpaceSymbol;
  }
  // The normalizer must leave the text alone, and an unknown run must not become one token.
  const bool exact = !facts.remove_extra_whitespaces && !facts.has_charsmap && bytes == 256;
  max_piece_bytes_ = exact ? longest : 0;
  splits_at_spaces_ = facts.is_bpe && !facts.remove_extra_whitespaces && !inner_space && space;
}

bool Tokenizer::fill_table(const SentencePieceFacts& facts, const std::vector<bool>& marker) {
  pieces_.reserve(facts.pieces.size());
  for (std::size_t id = 0; id < facts.pieces.size(); ++id) {
    const std::string& piece = facts.pieces[id];
    Entry entry;
    std::string text;
    switch (facts.types[id]) {
      case SentencePieceType::control:
        break;
      case SentencePieceType::byte: {
        const auto byte = byte_of(piece);
        if (!byte) return false;
        entry.kind = PieceKind::byte;
        text.assign(1, *byte);
        break;
      }
      case SentencePieceType::unknown:
        entry.kind = PieceKind::text;
        text = whole_.first->DecodeIds({static_cast<int>(id)});
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
  std::stable_sort(specials_.begin(), specials_.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
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
  if (whole_.first->bos_id() >= 0) bos = {whole_.first->bos_id()};
  if (whole_.first->eos_id() >= 0) eos_ids_ = {whole_.first->eos_id()};
  const std::uint32_t vocab = vocab_size_;
  for (Status status :
       {read_ids(config.value(), "bos_token_id", config_path, vocab, bos),
        read_ids(config.value(), "eos_token_id", config_path, vocab, eos_ids_),
        read_ids(generation.value(), "eos_token_id", generation_path, vocab, eos_ids_),
        read_flag(settings.value(), "add_bos_token", tokenizer_path, add_bos_),
        read_flag(settings.value(), "legacy", tokenizer_path, prefix_after_special_)}) {
    if (!status.ok()) return status;
  }
  if (!bos.empty()) bos_ = bos.front();
  add_bos_ = add_bos_ && bos_ >= 0;
  if (eos_ids_.empty())
    return invalid(dir + ": neither config.json nor tokenizer.model has an eos id");
  return {};
}

// Appends the ids of `text`; false when there would be more than `limit` in `ids`. `begins`: the
// text begins a prompt, and gets the dummy prefix if the model has one.
bool Tokenizer::encode_into(const Encoder& encoder, bool begins, std::string_view text,
                            std::size_t limit, std::vector<Token>& ids) const {
  const SentencePieceProcessor& rest = encoder.rest ? *encoder.rest : *encoder.first;
  std::vector<int> part;
  do {
    const std::size_t room = limit - std::min(limit, ids.size());
    if (max_piece_bytes_ > 0 && text.size() / max_piece_bytes_ > room) return false;
    const std::size_t cut =
        splits_at_spaces_ && text.size() > kPartBytes ? find_cut(text, kPartBytes) : text.size();
    // It fails only when no model is loaded.
    const auto status = (begins ? *encoder.first : rest).Encode(text.substr(0, cut), &part);
    if (!status.ok()) part.clear();
    if (part.size() > room) return false;
    ids.insert(ids.end(), part.begin(), part.end());
    text.remove_prefix(cut);
    begins = false;
  } while (!text.empty());
  return true;
}

std::optional<std::vector<Token>> Tokenizer::encode_within(std::string_view text, bool add_bos,
                                                           std::size_t limit) const {
  std::vector<Token> ids;
  if (add_bos && bos_ >= 0) ids.push_back(bos_);
  if (!encode_into(whole_, true, text, limit, ids)) return std::nullopt;
  return ids;
}

std::optional<std::vector<Token>> Tokenizer::encode_plain_within(std::string_view text,
                                                                 bool after_special,
                                                                 std::size_t limit) const {
  std::vector<Token> ids;
  const bool begins = !after_special || prefix_after_special_;
  if (!encode_into(plain_.first ? plain_ : whole_, begins, text, limit, ids)) return std::nullopt;
  return ids;
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
