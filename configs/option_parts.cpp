#include "configs/option_parts.h"

#include <algorithm>
#include <string_view>
#include <variant>
#include <vector>

#include "configs/option_numbers.h"

namespace baton {
namespace {

template <typename T>
struct Part {
  const char* name;
  std::variant<std::uint32_t T::*, double T::*> member;
  double min;
  double max;
};

constexpr double kMostTokens = 65'536;

const std::vector<Part<TokenBudget>>& parts_of(const TokenBudget& /*value*/) {
  using B = TokenBudget;
  static const std::vector<Part<B>> kParts = {{"prefill", &B::prefill, 1, kMostTokens},
                                              {"decode", &B::decode, 1, kMostTokens},
                                              {"mixed", &B::mixed, 1, kMostTokens}};
  return kParts;
}

const std::vector<Part<LocalPrefill>>& parts_of(const LocalPrefill& /*value*/) {
  using P = LocalPrefill;
  static const std::vector<Part<P>> kParts = {{"tokens", &P::tokens, 0, 16'777'216},
                                              {"cached", &P::cached, 0, 1},
                                              {"wait_ms", &P::wait_ms, 0, 3'600'000}};
  return kParts;
}

/// "prefill=2048,decode=512": each part once at the most.
template <typename T>
Status set_named(T& value, std::string_view text, const std::string& wanted) {
  T set = value;
  std::vector<std::string> seen;
  while (true) {
    const std::string_view entry = text.substr(0, text.find(','));
    const std::size_t equals = entry.find('=');
    const std::string name = trimmed(entry.substr(0, equals));
    const auto& parts = parts_of(value);
    const auto part =
        std::find_if(parts.begin(), parts.end(), [&](const Part<T>& p) { return name == p.name; });
    if (equals == std::string_view::npos || part == parts.end()) {
      return is("'" + std::string(text.substr(0, 64)) + "'", wanted);
    }
    if (std::find(seen.begin(), seen.end(), name) != seen.end())
      return invalid("names " + name + " twice");
    seen.push_back(name);
    const Status status = std::visit(
        [&](auto member) {
          return set_number(set.*member, trimmed(entry.substr(equals + 1)), /*quoted=*/false,
                            part->min, part->max);
        },
        part->member);
    if (!status.ok()) return invalid(name + " " + status.message());
    if (entry.size() == text.size()) break;
    text.remove_prefix(entry.size() + 1);
  }
  value = set;
  return {};
}

template <typename T>
std::string named_text(const T& value, bool zeros) {
  std::string text;
  for (const Part<T>& part : parts_of(value)) {
    const double number =
        std::visit([&](auto member) { return static_cast<double>(value.*member); }, part.member);
    if (number == 0 && !zeros) continue;
    text += (text.empty() ? "" : ",") + std::string(part.name) + "=" + number_text(number);
  }
  return text;
}

template <typename T>
std::string named_bounds(const T& value) {
  std::string text = "some of ";
  for (const Part<T>& part : parts_of(value)) {
    text += (&part == &parts_of(value).front() ? "" : ",") + std::string(part.name) + "=" +
            number_text(part.min) + ".." + number_text(part.max);
  }
  return text;
}

}  // namespace

Status set_parts(TokenBudget& value, const std::string& text, bool quoted) {
  if (text.find('=') != std::string::npos) return set_named(value, text, parts_bounds(value));
  std::uint32_t tokens = 0;
  Status status = set_number(tokens, text, quoted, 1, kMostTokens);
  if (status.ok()) value = tokens;
  return status;
}

Status set_parts(LocalPrefill& value, const std::string& text, bool /*quoted*/) {
  if (text != "never") return set_named(value, text, parts_bounds(value));
  value = {};
  return {};
}

std::string parts_text(const TokenBudget& value) {
  const bool same = value.prefill == value.decode && value.decode == value.mixed;
  return same ? number_text(value.mixed) : named_text(value, /*zeros=*/true);
}

std::string parts_text(const LocalPrefill& value) {
  return value == LocalPrefill() ? "never" : named_text(value, /*zeros=*/false);
}

std::string parts_bounds(const TokenBudget& value) {
  return range_text(1, kMostTokens) + ", or " + named_bounds(value);
}

std::string parts_bounds(const LocalPrefill& value) { return "never, or " + named_bounds(value); }

}  // namespace baton
