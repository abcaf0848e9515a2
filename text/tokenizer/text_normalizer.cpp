#include "text/tokenizer/text_normalizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/tokenizer/spec_object.h"

namespace baton {
namespace {

constexpr int kMaxNormalizerDepth = 8;

std::optional<NormalForm> form_of(const std::string& type) {
  if (type == "NFC") return NormalForm::nfc;
  if (type == "NFD") return NormalForm::nfd;
  if (type == "NFKC") return NormalForm::nfkc;
  if (type == "NFKD") return NormalForm::nfkd;
  return std::nullopt;
}

}  // namespace

Result<TextNormalizer> TextNormalizer::parse(const nlohmann::json& spec, const std::string& where) {
  TextNormalizer normalizer;
  if (spec.is_null()) return normalizer;
  if (Status status = normalizer.add(spec, where, 0); !status.ok()) return status;
  return normalizer;
}

Status TextNormalizer::add(const nlohmann::json& spec, const std::string& where, int depth) {
  if (depth > kMaxNormalizerDepth) return unsupported(where, "so deep a Sequence");
  SpecObject object(spec, where);
  const std::string type = object.type();
  Step step;
  if (type == "Sequence") {
    const nlohmann::json& list = object.list("normalizers");
    if (Status status = object.finish(); !status.ok()) return status;
    for (std::size_t i = 0; i < list.size(); ++i) {
      Status status = add(list[i], where + "[" + std::to_string(i) + "]", depth + 1);
      if (!status.ok()) return status;
    }
    return {};
  }
  if (const auto form = form_of(type)) {
    step.form = *form;
  } else if (type == "Lowercase") {
    step.kind = Kind::lowercase;
  } else if (type == "Prepend") {
    step.kind = Kind::prepend;
    step.text = object.text("prepend");
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.left = object.flag("strip_left");
    step.right = object.flag("strip_right");
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    step.text = object.text("content");
    const auto pattern = object.pattern("pattern");
    step.literal = pattern.regex ? "" : pattern.text;
    if (object.ok() && pattern.text.empty()) object.fail(unsupported(where, "an empty pattern"));
    if (object.ok() && pattern.regex) {
      auto translated = translate_regex(pattern.text);
      if (!translated.ok())
        return Status(translated.status().code(), where + ": " + translated.status().message());
      auto regex = Regex::compile(translated.value());
      if (!regex.ok())
        return Status(regex.status().code(), where + ": " + regex.status().message());
      step.regex = std::move(regex).value();
    }
  } else if (object.ok()) {
    return unsupported(where, "the normalizer '" + type + "'");
  }
  if (Status status = object.finish(); !status.ok()) return status;
  steps_.push_back(std::move(step));
  return {};
}

bool TextNormalizer::may_strip() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    return step.left || (step.kind == Kind::replace && step.text.empty());
  });
}

bool TextNormalizer::never_shortens() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const Step& step) {
    return step.kind == Kind::prepend ||
           (step.kind == Kind::replace && !step.regex && step.text.size() >= step.literal.size());
  });
}

bool TextNormalizer::apply(std::string& text) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::form:
        normalize(step.form, text);
        break;
      case Kind::lowercase:
        lowercase(text);
        break;
      case Kind::prepend:
        if (!text.empty()) text.insert(0, step.text);
        break;
      case Kind::strip:
        if (step.left) text.erase(0, leading_whitespace(text));
        if (step.right) text.resize(text.size() - trailing_whitespace(text));
        break;
      case Kind::replace:
        if (!replace(step, text)) return false;
        break;
    }
  }
  return true;
}

bool TextNormalizer::replace(const Step& step, std::string& text) {
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;
  for (;;) {
    std::size_t begin = 0;
    std::size_t end = 0;
    if (step.regex) {
      const Regex::Found found = step.regex->find(text, done, begin, end);
      if (found == Regex::Found::gave_up) return false;
      if (found == Regex::Found::none) break;
    } else {
      begin = text.find(step.literal, done);
      if (begin == std::string::npos) break;
      end = begin + step.literal.size();
    }
    out.append(text, done, begin - done);
    out += step.text;
    done = end;
  }
  if (done == 0) return true;
  out.append(text, done);
  text = std::move(out);
  return true;
}

}  // namespace baton
