#include "text/tokenizer/added_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/tokenizer/spec_object.h"
#include "text/tokenizer/unicode.h"

namespace baton {
namespace {

constexpr std::size_t kMaxContentBytes = 1024;  // bounds what one place in a text may cost

}  // namespace

AddedTokenSet::AddedTokenSet(std::vector<const AddedToken*> tokens) : sorted_(std::move(tokens)) {
  std::stable_sort(sorted_.begin(), sorted_.end(),
                   [](const AddedToken* a, const AddedToken* b) { return a->form < b->form; });
  for (const AddedToken* token : sorted_)
    begins_[static_cast<unsigned char>(token->form[0])] = true;
}

AddedTokenSet::Match AddedTokenSet::find(std::string_view text, std::size_t from) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!begins_[static_cast<unsigned char>(text[at])]) continue;
    // The tokens that agree with the text up to `depth` are neighbours.
    auto low = sorted_.begin();
    auto high = sorted_.end();
    const AddedToken* longest = nullptr;
    for (std::size_t depth = 0; low != high && at + depth < text.size(); ++depth) {
      const auto next = static_cast<unsigned char>(text[at + depth]);
      const auto letter = [depth](const AddedToken* token) {
        return depth < token->form.size() ? static_cast<unsigned char>(token->form[depth]) : -1;
      };
      low =
          std::partition_point(low, high, [&](const auto* token) { return letter(token) < next; });
      high =
          std::partition_point(low, high, [&](const auto* token) { return letter(token) == next; });
      if (low != high && (*low)->form.size() == depth + 1) longest = *low;
    }
    if (longest != nullptr) return {longest, at, at + longest->form.size()};
  }
  return {};
}

Result<AddedTokens> AddedTokens::parse(const nlohmann::json& list, const Bpe& bpe,
                                       const TextNormalizer& normalizer, const std::string& where) {
  AddedTokens made;
  if (!list.is_array()) return invalid(where + ": must be a list");
  auto next = static_cast<std::int64_t>(bpe.vocab_size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    SpecObject object(list[i], where + "[" + std::to_string(i) + "]");
    AddedToken token;
    const std::int64_t id = object.number("id");
    token.content = object.text("content");
    token.single_word = object.flag("single_word");
    token.lstrip = object.flag("lstrip");
    token.rstrip = object.flag("rstrip");
    token.normalized = object.flag("normalized");
    token.special = object.flag("special");
    if (Status status = object.finish(); !status.ok()) return status;
    if (token.content.empty()) continue;
    token.form = token.content;
    if (token.normalized && !normalizer.apply(token.form)) {
      return invalid(object.where() + ": cannot be normalised");
    }
    if (token.form.empty() || token.form.size() > kMaxContentBytes) {
      return unsupported(object.where(), "a token of more than 1,024 bytes or of none");
    }
    const Token known = std::max(made.id_of(token.content), bpe.id_of(token.content));
    const std::int64_t wanted = known >= 0 ? known : next++;
    if (id != wanted) {
      return unsupported(object.where(), "the id " + std::to_string(id) + " of '" + token.content +
                                             "', which should be " + std::to_string(wanted) + ",");
    }
    token.id = static_cast<Token>(id);
    made.tokens_.push_back(std::move(token));
  }
  std::vector<const AddedToken*> raw;
  std::vector<const AddedToken*> normalised;
  for (const AddedToken& token : made.tokens_)
    (token.normalized ? normalised : raw).push_back(&token);
  made.raw_ = AddedTokenSet(std::move(raw));
  made.normalised_ = AddedTokenSet(std::move(normalised));
  return made;
}

Token AddedTokens::id_of(std::string_view content) const {
  for (const AddedToken& token : tokens_) {
    if (token.content == content) return token.id;
  }
  return -1;
}

bool settle_match(std::string_view text, std::size_t from, AddedTokenSet::Match& match) {
  const std::string_view before = text.substr(0, match.begin);
  const std::string_view behind = text.substr(match.end);
  const AddedToken& token = *match.token;
  if (token.single_word &&
      (ends_with_word_character(before) || begins_with_word_character(behind))) {
    return false;
  }
  if (token.lstrip) {
    match.begin -= trailing_whitespace(before.substr(std::min(from, match.begin)));
  }
  if (token.rstrip) match.end += leading_whitespace(behind);
  return true;
}

}  // namespace baton
