#include "text/tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "text/gguf/gguf_folder.h"
#include "text/tokenizer/folder_settings.h"
#include "text/tokenizer/sentencepiece_model.h"
#include "text/tokenizer/space_symbol.h"

namespace baton {
namespace {

using sentencepiece::SentencePieceProcessor;

constexpr std::size_t kMaxModelBytes = 256U << 20U;
// sentencepiece's work for BPE grows faster than the text (6 s for 1.2 MB of words, 0.2 s in such
// parts). For unigram models it does not, and parts would differ: the library adds scores up in
// floats, so that a long text's near-ties fall otherwise.
constexpr std::size_t kPartBytes = 8192;

/// Turn markers look like <|user|>, </think> or [INST]. Byte pieces look alike but have their own
/// type.
bool looks_like_marker(std::string_view piece) {
  return piece.size() >= 3 && ((piece.front() == '<' && piece.back() == '>') ||
                               (piece.front() == '[' && piece.back() == ']'));
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

/// `rest` is for text that does not begin a prompt: no dummy prefix. Null: as `first`.
struct PieceEncoder {
  std::unique_ptr<SentencePieceProcessor> first;
  std::unique_ptr<SentencePieceProcessor> rest;
};

Status load_encoder(const std::string& bytes, const std::string& path, bool dummy_prefix,
                    PieceEncoder& encoder) {
  Status status = load_processor(bytes, path, encoder.first);
  if (!status.ok() || !dummy_prefix) return status;
  return load_processor(without_dummy_prefix(bytes), path, encoder.rest);
}

/// What is known about a model before a text is seen.
struct Bounds {
  bool splits_at_spaces = false;    // no piece reaches over the space between two words
  std::size_t max_piece_bytes = 0;  // no token covers more of a text; 0: not known
};

Bounds find_bounds(const SentencePieceFacts& facts, const PieceTable& table) {
  std::size_t bytes = 0;
  std::size_t longest = 0;
  bool inner_space = false;
  bool space = false;
  for (std::size_t id = 0; id < facts.pieces.size(); ++id) {
    const std::string& piece = facts.pieces[id];
    longest = std::max({longest, table.bytes(static_cast<Token>(id)).size(), piece.size()});
    bytes += table.kind(static_cast<Token>(id)) == PieceKind::bytes ? 1 : 0;
    inner_space = inner_space || has_inner_space(piece);
    space = space || piece == kSpaceSymbol;
  }
  Bounds bounds;
  // The normalizer must leave the text alone, and an unknown run must not become one token.
  const bool exact = !facts.remove_extra_whitespaces && !facts.has_charsmap && bytes == 256;
  bounds.max_piece_bytes = exact ? longest : 0;
  bounds.splits_at_spaces =
      facts.is_bpe && !facts.remove_extra_whitespaces && !inner_space && space;
  return bounds;
}

LeadingSpace leading_space_of(const SentencePieceFacts& facts) {
  if (facts.remove_extra_whitespaces) return LeadingSpace::drop_all;
  return facts.add_dummy_prefix ? LeadingSpace::drop_one : LeadingSpace::keep;
}

/// Adds the piece of `id`; false when it is damaged.
bool add_piece(const SentencePieceFacts& facts, std::size_t id, bool marker,
               const SentencePieceProcessor& processor, PieceTable& table) {
  const std::string& piece = facts.pieces[id];
  const bool space = piece.compare(0, kSpaceSymbol.size(), kSpaceSymbol) == 0;
  if ((marker || facts.types[id] == SentencePieceType::control) && !piece.empty()) {
    table.add_special(piece, static_cast<Token>(id));
  }
  switch (facts.types[id]) {
    case SentencePieceType::control:
      return table.add(PieceKind::special, piece, false);
    case SentencePieceType::byte: {
      const auto byte = byte_of(piece);
      return byte && table.add(PieceKind::bytes, {&*byte, 1}, false);
    }
    case SentencePieceType::unknown:
      return table.add(PieceKind::text, processor.DecodeIds({static_cast<int>(id)}), false);
    default:
      if (marker) return table.add(PieceKind::special, piece, false);
      return table.add(PieceKind::text, with_spaces(piece), space);
  }
}

class SentencepieceTokenizer final : public Tokenizer {
 public:
  struct Model {
    PieceEncoder whole;  // markers parse
    PieceEncoder plain;  // markers are letters; empty when the model has none
    Bounds bounds;
    bool prefix_after_special = true;
  };
  SentencepieceTokenizer(PieceTable pieces, TokenFacts facts, Model model)
      : Tokenizer(std::move(pieces), std::move(facts)), model_(std::move(model)) {}

  std::optional<std::vector<Token>> encode_within(std::string_view text, bool add_bos,
                                                  std::size_t limit) const override {
    std::vector<Token> ids;
    if (add_bos && bos() >= 0) ids.push_back(bos());
    if (!encode_into(model_.whole, true, text, limit, ids)) return std::nullopt;
    return ids;
  }

  std::optional<std::vector<Token>> encode_plain_within(std::string_view text, bool after_special,
                                                        std::size_t limit) const override {
    std::vector<Token> ids;
    const bool begins = !after_special || model_.prefix_after_special;
    const PieceEncoder& encoder = model_.plain.first ? model_.plain : model_.whole;
    if (!encode_into(encoder, begins, text, limit, ids)) return std::nullopt;
    return ids;
  }

 private:
  bool encode_into(const PieceEncoder& encoder, bool begins, std::string_view text,
                   std::size_t limit, std::vector<Token>& ids) const;

  Model model_;
};

// Appends the ids of `text`; false when there would be more than `limit` in `ids`. `begins`: the
// text begins a prompt, and gets the dummy prefix if the model has one.
bool SentencepieceTokenizer::encode_into(const PieceEncoder& encoder, bool begins,
                                         std::string_view text, std::size_t limit,
                                         std::vector<Token>& ids) const {
  const SentencePieceProcessor& rest = encoder.rest ? *encoder.rest : *encoder.first;
  const Bounds& bounds = model_.bounds;
  std::vector<int> part;
  do {
    const std::size_t room = limit - std::min(limit, ids.size());
    if (bounds.max_piece_bytes > 0 && text.size() / bounds.max_piece_bytes > room) return false;
    const std::size_t cut = bounds.splits_at_spaces && text.size() > kPartBytes
                                ? find_cut(text, kPartBytes)
                                : text.size();
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

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_sentencepiece_tokenizer(const std::string& dir) {
  const std::string path = dir + "/tokenizer.model";
  const auto file = read_model_file(path, kMaxModelBytes);
  if (!file.ok()) return file.status();
  const std::optional<std::string>& bytes = file.value();
  if (!bytes) return invalid(path + ": is not there");
  const auto read = read_sentencepiece_model(*bytes);
  if (!read.ok()) return invalid(path + ": " + read.status().message());
  const SentencePieceFacts& facts = read.value();
  if (facts.whitespace_as_suffix || facts.has_denormalizer) {
    return invalid(path + ": treat_whitespace_as_suffix and denormalizers are not supported");
  }

  SentencepieceTokenizer::Model model;
  Status status = load_encoder(*bytes, path, facts.add_dummy_prefix, model.whole);
  if (!status.ok()) return status;
  std::vector<bool> marker(facts.pieces.size());
  for (std::size_t id = 0; id < marker.size(); ++id) {
    marker[id] =
        facts.types[id] == SentencePieceType::user_defined && looks_like_marker(facts.pieces[id]);
  }
  if (std::find(marker.begin(), marker.end(), true) != marker.end()) {
    status = load_encoder(with_control_pieces(*bytes, marker), path, facts.add_dummy_prefix,
                          model.plain);
    if (!status.ok()) return status;
  }

  const SentencePieceProcessor& processor = *model.whole.first;
  PieceTable table({.leading_space = leading_space_of(facts)});
  for (std::size_t id = 0; id < facts.pieces.size(); ++id) {
    if (!add_piece(facts, id, marker[id], processor, table)) {
      return invalid(path + ": a piece is damaged");
    }
  }
  model.bounds = find_bounds(facts, table);

  auto settings =
      read_folder_settings(dir, {.file = "tokenizer.model",
                                 .piece_count = static_cast<std::uint32_t>(table.size()),
                                 .bos = processor.bos_id(),
                                 .eos = processor.eos_id(),
                                 .id_of = nullptr});
  if (!settings.ok()) return settings.status();
  model.prefix_after_special = settings.value().legacy;
  TokenFacts token_facts = settings.value().facts;
  token_facts.add_bos = settings.value().add_bos_token.value_or(true) && token_facts.bos >= 0;
  return std::unique_ptr<Tokenizer>(std::make_unique<SentencepieceTokenizer>(
      std::move(table), std::move(token_facts), std::move(model)));
}

}  // namespace baton
