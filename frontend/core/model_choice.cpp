#include "frontend/core/model_choice.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "frontend/core/percent_decoded.h"
#include "frontend/core/surrogates.h"
#include "frontend/http/http_error.h"
#include "ipc/fnv1a.h"
#include "ipc/joined.h"

namespace baton {
namespace {

/// What an object says of itself under one of a few keys, without what else stands in it. Anything
/// that is no such object ends the walk: the dialect that reads it has the words for that.
class NameWalk : public nlohmann::json_sax<nlohmann::json> {
 public:
  /// `keys`: the first of them counts most.
  explicit NameWalk(std::vector<std::string_view> keys) : keys_(std::move(keys)) {}

  /// Nothing: no key is there, or each is null. Some other value than a string is "said" as well.
  bool said() const { return said_; }
  const std::optional<std::string>& name() const { return name_; }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return other(); }
  bool number_integer(number_integer_t /*value*/) override { return other(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return other(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return other(); }
  bool binary(binary_t& /*value*/) override { return other(); }
  bool string(string_t& value) override {
    if (!at_key()) return true;
    said_ = true;
    name_ = value;
    rank_ = key_;
    return rank_ != 0;  // nothing counts more
  }
  bool start_object(std::size_t /*elements*/) override { return begin(); }
  bool end_object() override { return end(); }
  bool start_array(std::size_t /*elements*/) override { return begin(); }
  bool end_array() override { return end(); }
  bool key(string_t& value) override {
    if (depth_ != 1) return true;
    key_ = 0;
    while (key_ < keys_.size() && keys_[key_] != value) ++key_;
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    return false;
  }

 private:
  /// Whether a value of the outer object is one that counts.
  bool at_key() const { return depth_ == 1 && key_ < rank_ && key_ < keys_.size(); }
  bool other() {
    if (at_key()) said_ = true;
    return true;
  }
  bool begin() {
    if (at_key()) said_ = true;
    ++depth_;
    return true;
  }
  bool end() {
    --depth_;
    return true;
  }

  std::vector<std::string_view> keys_;
  std::size_t key_ = static_cast<std::size_t>(-1);   // which of them stands before the value
  std::size_t rank_ = static_cast<std::size_t>(-1);  // of the key that the name is of
  std::size_t depth_ = 0;
  bool said_ = false;
  std::optional<std::string> name_;
};

std::variant<std::size_t, HttpError> among(std::string_view name, const ServedModels& models,
                                           ModelNamed where, bool any_model) {
  std::size_t at = find_model(name, models);
  constexpr std::string_view kTag = ":latest";
  if (at == models.size() && where == ModelNamed::by_tag && name.ends_with(kTag)) {
    at = find_model(name.substr(0, name.size() - kTag.size()), models);
  }
  if (at < models.size()) return at;
  if (any_model) return std::size_t{0};
  return no_such_model(name, models);
}

}  // namespace

std::string names_of(const ServedModels& models) { return joined(models, &ServedModel::name); }

HttpError no_such_model(std::string_view name, const ServedModels& models) {
  const std::string names =
      joined(models, [](const ServedModel& model) { return "'" + model.name + "'"; });
  return http_error(404,
                    "the model '" + std::string(name.substr(0, 200)) +
                        "' does not exist here; this server has " + names,
                    "model_not_found", "model");
}

std::size_t find_model(std::string_view name, const ServedModels& models) {
  std::size_t at = 0;
  while (at < models.size() && models[at].name != name) ++at;
  return at;
}

std::uint64_t model_identity(std::string_view entry, std::string_view folder,
                             std::uint32_t vocabulary) {
  if (entry.empty()) return 0;
  const std::string text =
      std::string(entry) + '\n' + std::string(folder) + '\n' + std::to_string(vocabulary);
  const std::uint64_t sum = fnv1a(text);  // another build must come to the same
  return sum == 0 ? 1 : sum;
}

std::variant<std::size_t, HttpError> choose_model(const ServedModels& models, ModelNamed where,
                                                  const RequestContext& context,
                                                  std::string_view body) {
  if (models.size() == 1 || where == ModelNamed::nowhere) return std::size_t{0};
  if (where == ModelNamed::in_path) {
    const std::string_view path = context.path;
    const std::string name = percent_decoded(path.substr(path.rfind('/') + 1));
    return among(name, models, where, context.any_model);
  }
  NameWalk walk(where == ModelNamed::by_tag ? std::vector<std::string_view>{"name", "model"}
                                            : std::vector<std::string_view>{"model"});
  const auto mended = without_lone_surrogates(body);
  const bool whole = nlohmann::json::sax_parse(mended ? std::string_view(*mended) : body, &walk);
  if (walk.name() && !walk.name()->empty()) {
    return among(*walk.name(), models, where, context.any_model);
  }
  // What is no JSON, or no name, its dialect refuses with the words for it.
  const bool refused = !walk.name() && (!whole || walk.said());
  if (refused || context.any_model) return std::size_t{0};
  return http_error(400, "'model' is missing; this server has several: " + names_of(models),
                    "model_missing", "model");
}

}  // namespace baton
