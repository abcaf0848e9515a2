#include "frontend/dialects/distserve.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "frontend/dialects/common.h"
#include "frontend/http/sse.h"

namespace baton {
namespace distserve {
namespace {

constexpr std::int64_t kDefaultMaxTokens = 16;
constexpr std::int64_t kMaxBeams = SamplingParams::kMaxBeams;

/// Monotonic time as unix seconds.
std::string unix_time(TimeNs time, TimeNs wall_offset) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6f", static_cast<double>(time + wall_offset) / kSecond);
  return text;
}

struct Facts {
  std::string prompt;
  TimeNs received = 0;
  TimeNs wall_offset = 0;
};

/// {"text": prompt and reply, "timestamps": of each token, "lifetime_events"}
class WholeReply : public ReplyWriter {
 public:
  explicit WholeReply(Facts facts) : facts_(std::move(facts)), text_(facts_.prompt) {}

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }
  std::string text(const ReplyPiece& piece) override {
    text_ += piece.text;
    if (piece.token < 0) return {};
    last_ = piece.time;
    times_ += (times_.empty() ? "" : ",") + unix_time(piece.time, facts_.wall_offset);
    return {};
  }
  std::string end(std::uint32_t, const Ending& ending) override {
    lifetime_ = ending.lifetime;
    return {};
  }
  std::string finish(const Usage&) override {
    std::string events;
    for (const auto& [time, type] : moments()) {
      events += (events.empty() ? "" : ",") + std::string("{\"timestamp\":") +
                unix_time(time, facts_.wall_offset) + ",\"event_type\":\"" + type + "\"}";
    }
    return "{\"text\":" + json_string(text_) + ",\"timestamps\":[" + times_ +
           "],\"lifetime_events\":[" + events + "]}";
  }
  std::string fail(const Status& status) override { return error_json(status); }

 private:
  using Moment = std::pair<TimeNs, const char*>;

  /// In order of time; of equal times in order of DistServe's phases.
  std::vector<Moment> moments() const {
    static constexpr std::array<const char*, kLifetimeMoments> kNames = {
        "context_begin", "context_end", "migration_begin", "migration_end", "decoding_begin"};
    std::vector<Moment> moments = {{facts_.received, "issued"}};
    for (std::size_t i = 0; i < lifetime_.size(); ++i) {
      if (lifetime_[i] != 0) moments.emplace_back(lifetime_[i], kNames[i]);
    }
    if (last_ != 0) moments.emplace_back(last_, "decoding_end");
    std::stable_sort(moments.begin(), moments.end(),
                     [](const Moment& a, const Moment& b) { return a.first < b.first; });
    return moments;
  }

  Facts facts_;
  std::string text_;
  std::string times_;
  std::vector<TimeNs> lifetime_;
  TimeNs last_ = 0;
};

/// One JSON object a token, each with all the text so far, and in the old form with a zero byte
/// behind it.
class StreamReply : public ReplyWriter {
 public:
  explicit StreamReply(bool zero_bytes) : zero_bytes_(zero_bytes) {}

  std::string begin(std::uint32_t, const Logprobs*) override { return {}; }
  std::string text(const ReplyPiece& piece) override {
    text_ += piece.text;
    if (piece.token >= 0 && piece.text.empty()) return {};
    return frame("{\"text\":" + json_string(text_) + "}");
  }
  std::string end(std::uint32_t, const Ending&) override { return {}; }
  std::string finish(const Usage&) override { return {}; }
  std::string fail(const Status& status) override {
    return frame("{\"detail\":" + json_string(status.message()) + "}");
  }

 private:
  std::string frame(std::string json) const {
    if (zero_bytes_) json.push_back('\0');
    return json;
  }

  bool zero_bytes_;
  std::string text_;
};

/// As in vLLM, whose parameters these are: `best_of` is the number of beams. The one text is the
/// best.
void read_beams(FieldReader& fields, const RequestContext& context, ParsedRequest& request) {
  refuse_unless(fields, "n", 1, "a reply has one text");
  if (!fields.boolean("use_beam_search").value_or(false)) {
    return refuse_unless(fields, "best_of", 1, "a reply has one text");
  }
  const std::int64_t beams = fields.integer("best_of", 1, kMaxBeams).value_or(1);
  SamplingParams& sampling = request.sampling;
  if (sampling.top_p < 1 || sampling.top_k > 0) {
    fields.fail(sampling.top_p < 1 ? "top_p" : "top_k",
                "goes with no beam search, which draws no tokens");
  }
  // 1, which is the default, asks for nothing.
  if (sampling.temperature == 1) sampling.temperature = 0;
  if (sampling.temperature != 0) {
    fields.fail("temperature", "must be 0 or 1 with beam search, which draws no tokens");
  }
  ask_for_beams(fields, context, "use_beam_search", beams, 1, request);
}

void read_fields(FieldReader& fields, const RequestContext& context, const ServedModel& model,
                 ParsedRequest& request) {
  SamplingParams& sampling = request.sampling;
  const double temperature = fields.number("temperature", 0, 100).value_or(1);
  sampling.temperature = temperature < 1e-5 ? 0 : static_cast<float>(temperature);
  sampling.top_p =
      std::max(static_cast<float>(fields.number("top_p", 0, 1, true).value_or(1)), 1e-6F);
  set_top_k(fields.integer("top_k", -1, kMaxCount).value_or(-1), model, sampling);
  for (const auto& [name, value] : {std::pair("presence_penalty", &sampling.presence_penalty),
                                    std::pair("frequency_penalty", &sampling.frequency_penalty)}) {
    *value = static_cast<float>(fields.number(name, -kMaxPenalty, kMaxPenalty).value_or(0));
  }
  read_stop(fields, "stop", request);
  if (fields.boolean("ignore_eos").value_or(false)) sampling.stop_ids.clear();
  read_beams(fields, context, request);
  refuse_unless(fields, "logprobs", nullptr, "this dialect has no place for them");
}

ParseOutcome parse(std::string_view body, const RequestContext& context, const ServedModel& model) {
  const auto json = parse_json_object(body);
  if (!json.ok()) return http_error(json.status());
  FieldReader fields(json.value());
  ParsedRequest request = begin_request(context, model);
  const auto prompt = required_string(fields, "prompt");
  request.stream = fields.boolean("stream").value_or(false);
  read_fields(fields, context, model, request);
  const auto max = fields.integer("max_tokens", 1, kMaxCount).value_or(kDefaultMaxTokens);
  if (const auto& error = fields.finish()) return refused(*error);
  const Status status = add_prompt(*prompt, {.max = max}, context, model, request);
  if (!status.ok()) return prompt_error(status, "prompt");
  if (request.stream) {
    request.content_type = "application/octet-stream";  // neither events nor one JSON text
    request.reply = std::make_unique<StreamReply>(context.zero_bytes);
  } else {
    request.lifetime = true;
    request.reply = std::make_unique<WholeReply>(
        Facts{std::string(*prompt), context.received, context.wall_offset});
  }
  return request;
}

class DistServe : public Dialect {
 public:
  const char* name() const override { return "distserve"; }
  std::vector<DialectRoute> routes() const override { return {{"POST", "/generate", &parse}}; }
  HttpError shape(HttpError error) const override { return fastapi_error(std::move(error)); }
};

}  // namespace
}  // namespace distserve

const Dialect& distserve_dialect() {
  static const distserve::DistServe kDialect;
  return kDialect;
}

}  // namespace baton
