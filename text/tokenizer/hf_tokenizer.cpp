#include "text/tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/gguf/gguf_folder.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/folder_settings.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/spec_object.h"
#include "text/tokenizer/template_ids.h"
#include "text/tokenizer/text_normalizer.h"
#include "text/tokenizer/token_decoder.h"
#include "text/tokenizer/unicode.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxFileBytes = 256U << 20U;

/// The parts that encode.
struct Encoder {
  TextNormalizer normalizer;
  AddedTokens added;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  TemplateIds around;
  std::size_t max_token_bytes = 0;  // no token covers more of a normalised text; 0: not known
};

/// Where special tokens parse.
struct Trust {
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  bool covers(std::size_t begin, std::size_t end) const {
    return std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
      return range.first <= begin && end <= range.second;
    });
  }
};

/// One text on its way to ids. The order of things is that of the tokenizers library: added tokens
/// that are not normalised, the normalizer on what is between them, the other added tokens, words.
class Run {
 public:
  Run(const Encoder& encoder, const Trust& trust, std::size_t limit, std::vector<Token>& ids)
      : encoder_(encoder), trust_(trust), limit_(limit), ids_(ids) {}

  /// False: more ids than the limit, or an expression gave up. `text` is valid UTF-8.
  bool whole(std::string_view text, bool at_beginning) {
    const auto allowed = [&](const AddedTokenSet::Match& match) {
      return trust_.covers(match.begin, match.end);
    };
    return cut(encoder_.added.in_raw_text(), text, allowed,
               [&](std::size_t begin, std::size_t end) {
                 return between(text.substr(begin, end - begin), begin, at_beginning && begin == 0);
               });
  }

 private:
  /// Ids of the added tokens in `text`; `rest` gets what is between them.
  template <typename Allowed, typename Rest>
  bool cut(const AddedTokenSet& set, std::string_view text, const Allowed& allowed,
           const Rest& rest) {
    std::size_t done = 0;
    std::size_t from = 0;
    while (!set.empty()) {
      AddedTokenSet::Match match = set.find(text, from);
      if (match.token == nullptr) break;
      from = match.end;
      if (match.token->special && !allowed(match)) continue;
      if (!settle_match(text, done, match)) continue;
      if (done < match.begin && !rest(done, match.begin)) return false;
      if (ids_.size() >= limit_) return false;
      ids_.push_back(match.token->id);
      done = match.end;
    }
    return done >= text.size() || rest(done, text.size());
  }

  bool between(std::string_view raw, std::size_t offset, bool at_beginning) {
    std::string normalised;
    std::string_view text = raw;
    const bool same = encoder_.normalizer.changes_nothing();
    if (!same) {
      // Unless it holds tokens that take white space along, which no bound covers.
      const bool plain = encoder_.added.in_normalised_text().empty();
      if (plain && encoder_.normalizer.never_shortens() && too_long(raw)) return false;
      normalised = raw;
      if (!encoder_.normalizer.apply(normalised)) return false;
      text = normalised;
    }
    const auto allowed = [&](const AddedTokenSet::Match& match) {
      return same ? trust_.covers(offset + match.begin, offset + match.end)
                  : trust_.covers(offset, offset + raw.size());
    };
    return cut(encoder_.added.in_normalised_text(), text, allowed,
               [&](std::size_t begin, std::size_t end) {
                 return words(text.substr(begin, end - begin), at_beginning && begin == 0);
               });
  }

  /// More tokens than there is room for must come out of normalised text as long as this.
  bool too_long(std::string_view text) const {
    const std::size_t room = limit_ - std::min(limit_, ids_.size());
    const std::size_t widest = encoder_.max_token_bytes;
    return widest > 0 && text.size() / widest > room;
  }

  bool words(std::string_view text, bool at_beginning) {
    if (too_long(text)) return false;
    const auto outcome =
        encoder_.pre_tokenizer.split(text, at_beginning, [this](std::string_view word) {
          encoder_.bpe.encode(word, ids_);
          return ids_.size() <= limit_;
        });
    return outcome == PreTokenizer::Outcome::done;
  }

  const Encoder& encoder_;
  const Trust& trust_;
  std::size_t limit_;
  std::vector<Token>& ids_;
};

class HfTokenizer final : public Tokenizer {
 public:
  HfTokenizer(PieceTable pieces, TokenFacts facts, Encoder encoder)
      : Tokenizer(std::move(pieces), std::move(facts)), encoder_(std::move(encoder)) {}

  std::optional<std::vector<Token>> encode_within(std::string_view text, bool add_bos,
                                                  std::size_t limit) const override {
    static const Trust everything{{{0, SIZE_MAX}}};
    std::vector<Token> ids;
    if (add_bos) ids = encoder_.around.before;
    if (!encode(text, everything, true, limit, ids)) return std::nullopt;
    if (add_bos)
      ids.insert(ids.end(), encoder_.around.behind.begin(), encoder_.around.behind.end());
    if (ids.size() > limit) return std::nullopt;
    return ids;
  }

  std::optional<std::vector<Token>> encode_plain_within(std::string_view text, bool after_special,
                                                        std::size_t limit) const override {
    std::vector<Token> ids;
    if (!encode(text, {}, !after_special, limit, ids)) return std::nullopt;
    return ids;
  }

  std::optional<std::vector<Token>> encode_parts_within(std::span<const PromptPart> parts,
                                                        std::size_t limit) const override {
    std::string text;
    Trust trust;
    for (const PromptPart& part : parts) {
      const std::size_t begin = text.size();
      // Repaired by itself: two broken parts must not make a character.
      std::string repaired;
      text += repair_utf8(part.text, repaired) ? std::string_view(repaired) : part.text;
      if (!part.trusted) continue;
      if (!trust.ranges.empty() && trust.ranges.back().second == begin) {
        trust.ranges.back().second = text.size();
      } else {
        trust.ranges.emplace_back(begin, text.size());
      }
    }
    std::vector<Token> ids;
    if (!encode(text, trust, true, limit, ids)) return std::nullopt;
    return ids;
  }

 private:
  bool encode(std::string_view text, const Trust& trust, bool at_beginning, std::size_t limit,
              std::vector<Token>& ids) const {
    std::string repaired;
    if (repair_utf8(text, repaired)) text = repaired;
    return Run(encoder_, trust, limit, ids).whole(text, at_beginning);
  }

  Encoder encoder_;
};

Result<PieceTable> make_table(const Encoder& encoder, const TokenDecoder& decoder,
                              const std::string& path) {
  std::vector<const AddedToken*> added(encoder.bpe.tokens().size());
  for (const AddedToken& token : encoder.added.all()) {
    const auto id = static_cast<std::size_t>(token.id);
    if (id >= added.size()) added.resize(id + 1);
    added[id] = &token;
  }
  PieceTable table(decoder.rule());
  for (std::size_t id = 0; id < added.size(); ++id) {
    const AddedToken* token = added[id];
    const std::string& text = token != nullptr ? token->form : encoder.bpe.tokens()[id];
    TokenDecoder::Piece piece;
    if (text.empty()) {
      piece.kind = PieceKind::special;  // an id that is not taken is silent
    } else if (token != nullptr && token->special) {
      // As it is written, so that what shows it and what looks for it agree.
      piece = {PieceKind::special, token->content, false};
      table.add_special(token->content, static_cast<Token>(id));
    } else {
      piece = decoder.piece(text);
    }
    if (!table.add(piece.kind, piece.bytes, piece.space)) {
      return unsupported(path, "the token " + std::to_string(id) + " of more than 65,535 bytes");
    }
  }
  return table;
}

/// Reads the parts out of the file. `path` names it in errors.
Status read_parts(const Json& root, const std::string& path, std::optional<Encoder>& encoder,
                  std::optional<TokenDecoder>& decoder) {
  SpecObject object(root, path);
  const std::string version = object.text("version", "1.0");
  if (object.ok() && version != "1.0") return unsupported(path, "version '" + version + "'");
  object.value("truncation");
  object.value("padding");
  const Json& added = object.value("added_tokens");
  const Json& normalizer_spec = object.value("normalizer");
  const Json& pre_spec = object.value("pre_tokenizer");
  const Json& post_spec = object.value("post_processor");
  const Json& decoder_spec = object.value("decoder");
  const Json& model_spec = object.value("model");
  if (Status status = object.finish(); !status.ok()) return status;

  auto normalizer = TextNormalizer::parse(normalizer_spec, path + ": normalizer");
  if (!normalizer.ok()) return normalizer.status();
  auto pre_tokenizer = PreTokenizer::parse(pre_spec, path + ": pre_tokenizer");
  if (!pre_tokenizer.ok()) return pre_tokenizer.status();
  if (pre_tokenizer.value().minds_the_beginning() && normalizer.value().may_strip()) {
    return unsupported(path, "prepend_scheme 'first' behind a normalizer that strips");
  }
  auto bpe = Bpe::parse(model_spec, pre_tokenizer.value().byte_level(), path + ": model");
  if (!bpe.ok()) return bpe.status();
  auto tokens = AddedTokens::parse(added.is_null() ? Json::array() : added, bpe.value(),
                                   normalizer.value(), path + ": added_tokens");
  if (!tokens.ok()) return tokens.status();
  auto around = read_template(post_spec, path + ": post_processor");
  if (!around.ok()) return around.status();
  auto made = TokenDecoder::parse(decoder_spec, path + ": decoder");
  if (!made.ok()) return made.status();
  decoder.emplace(std::move(made).value());

  const std::size_t widest =
      pre_tokenizer.value().keeps_everything() ? bpe.value().max_token_bytes() : 0;
  encoder.emplace(Encoder{std::move(normalizer).value(), std::move(tokens).value(),
                          std::move(pre_tokenizer).value(), std::move(bpe).value(),
                          std::move(around).value(), widest});
  return {};
}

/// tokenizer_config.json's add_bos_token and add_eos_token, where they are given, take the place of
/// the post-processor, as in transformers 5. Qwen's class knows no such flags: its files have
/// add_bos_token: false beside a post-processor that counts (Qwen3-Embedding's appends a token).
void apply_flags(const FolderSettings& settings, TemplateIds& around) {
  if (settings.tokenizer_class.rfind("Qwen2Tokenizer", 0) == 0) return;
  if (!settings.add_bos_token && !settings.add_eos_token) return;
  around = {};
  if (settings.add_bos_token.value_or(false) && settings.facts.bos >= 0) {
    around.before = {settings.facts.bos};
  }
  if (settings.add_eos_token.value_or(false) && settings.eos_token >= 0) {
    around.behind = {settings.eos_token};
  }
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_hf_tokenizer(const std::string& dir) {
  const std::string path = dir + "/tokenizer.json";
  const auto text = read_model_json(path, kMaxFileBytes);
  if (!text.ok()) return text.status();
  const Json root = Json::parse(text.value().value_or(""), nullptr, false);
  if (!root.is_object()) return invalid(path + ": not a JSON object");
  std::optional<Encoder> encoder;
  std::optional<TokenDecoder> decoder;
  if (Status status = read_parts(root, path, encoder, decoder); !status.ok()) return status;
  auto table = make_table(*encoder, *decoder, path);
  if (!table.ok()) return table.status();

  const auto id_of = [&](std::string_view token) {
    return std::max(encoder->added.id_of(token), encoder->bpe.id_of(token));
  };
  auto settings =
      read_folder_settings(dir, {.file = "tokenizer.json",
                                 .piece_count = static_cast<std::uint32_t>(table.value().size()),
                                 .id_of = id_of});
  if (!settings.ok()) return settings.status();
  apply_flags(settings.value(), encoder->around);
  for (const auto* ids : {&encoder->around.before, &encoder->around.behind}) {
    for (const Token id : *ids) {
      if (id < 0 || static_cast<std::uint32_t>(id) >= settings.value().facts.vocab_size) {
        return invalid(path + ": post_processor names an id outside of the vocabulary");
      }
    }
  }
  TokenFacts facts = settings.value().facts;
  facts.add_bos = !encoder->around.before.empty() || !encoder->around.behind.empty();
  return std::unique_ptr<Tokenizer>(std::make_unique<HfTokenizer>(
      std::move(table).value(), std::move(facts), std::move(*encoder)));
}

bool hf_tokens_are_below(const std::string& dir, std::size_t count) {
  const auto text = read_model_json(dir + "/tokenizer.json", kMaxFileBytes);
  const Json root = Json::parse(text.ok() ? text.value().value_or("") : "", nullptr, false);
  if (!root.is_object() || !root.contains("added_tokens")) return root.is_object();
  const Json& added = root["added_tokens"];
  return added.is_array() && std::all_of(added.begin(), added.end(), [count](const Json& token) {
           return token.is_object() && token.contains("id") && token["id"].is_number_unsigned() &&
                  token["id"].get<std::uint64_t>() < count;
         });
}

}  // namespace baton
