// A front end dies at any byte of a reply, and its successor writes the rest: for each dialect's
// recorded exchanges, and for what else the OpenAI API can ask. The oracle is the reply that nobody
// disturbed.
#include "frontend/succession/replay.h"

#include <zlib.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <functional>
#include <random>
#include <set>

#include "api_fixture.h"
#include "frontend/chat/chat_template.h"
#include "frontend/core/model_choice.h"
#include "frontend/dialects/registry.h"

namespace baton {
namespace {

using Json = nlohmann::json;
using testing::ModelFolder;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// The tiny model under the name that the recorded exchanges use.
const ServedModel& demo_model() {
  static const ServedModel model = [] {
    ServedModel made = testing::tiny_model();
    made.name = "demo";
    return made;
  }();
  return model;
}

/// A model whose chats a template writes down, with reasoning and tool calls in its replies.
const ServedModel& templated_model() {
  static const ServedModel model = [] {
    const ModelFolder folder;
    folder.write("chat_template.jinja", R"(<think> </think> <tool_call> {"name"
        {% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}{{ tools }}{% endif %})");
    folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    ServedModel made = demo_model();
    made.chat = nullptr;
    auto loaded = ChatTemplate::load(folder.path(), *made.tokenizer);
    if (!loaded.ok()) throw std::runtime_error(loaded.status().message());
    made.chat_template = std::move(loaded).value();
    return made;
  }();
  return model;
}

/// Those that are served for vectors.
const ServedModel& pooling_model(ModelTask task) {
  static const std::vector<ServedModel> models = [] {
    std::vector<ServedModel> all(3, demo_model());
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].task = static_cast<ModelTask>(i);
      all[i].vector_size = 3;
      all[i].no_token = 5;
      all[i].yes_token = 6;
    }
    return all;
  }();
  return models[static_cast<std::size_t>(task)];
}

constexpr PartTimes kSpent = {1'000'000, 2'500'000, 0, 1'234, 30'000'000, 0, 7, 0, 0, 9'999};

/// One event that owns what it points at.
struct OwnedEvent {
  ReplyEvent event;
  TimeNs time = 0;
  LogprobReader::Entry entry = {};
  Logprobs prompt = {};
  std::vector<TimeNs> lifetime = {};
  std::vector<float> vector = {};
};

struct Case {
  std::string name, dialect, path, body;
  std::string text = "hello world, the block \xE2\x88\x80 and User: it";  // what the model says
  std::optional<ReplyFails> failure = {};
  std::optional<std::string> rendered = {};
  bool http_1_0 = false;
  bool gzip = false;  // the body is sent so
  ModelTask task = ModelTask::generate;
};

constexpr TimeNs kReceived = 5'000 * kSecond;

std::string gzipped(std::string_view text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// One reply of a live front end, and the journal that it kept.
class RecordedRun {
 public:
  RecordedRun(const Case& what, std::uint32_t seed) : dice_(seed) {
    dialects_ = {dialect_named(what.dialect)};
    opening_.facts = {"id-" + std::to_string(seed), kReceived, 1'700'000'000 * kSecond,
                      what.task == ModelTask::rerank ? 2000U : 250U, seed};
    const std::string body = what.gzip ? gzipped(what.body) : what.body;
    request_text_ = "POST " + what.path + (what.http_1_0 ? " HTTP/1.0" : " HTTP/1.1") +
                    "\r\nHost: localhost\r\nOrigin: https://page\r\n" +
                    (what.gzip ? "Content-Encoding: gzip\r\n" : "") +
                    "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    opening_.rendered = what.rendered;
    opening_.place = {500, 1000};
    opening_.first_counter = 40;
    model_ = what.rendered ? &templated_model() : &pooling_model(what.task);
    models_ = {*model_};
    opening_.fingerprint = model_->fingerprint;
    const auto request = parse(what);
    if (!request) return;
    served_ = true;
    grammar_ = request->sampling.grammar_kind != GrammarKind::none;
    beams_ = request->sampling.beams();
    streaming_ = request->stream;
    write_events(what, *request);
    render(what);
  }

  bool served() const { return served_; }
  bool streaming() const { return streaming_; }
  bool beams() const { return beams_; }
  bool grammar() const { return grammar_; }
  const std::string& whole() const { return whole_; }
  std::size_t events() const { return events_.size(); }
  /// The bytes that are made by the first `events` events.
  std::size_t made_by(std::size_t events) const { return made_[events]; }

  /// The process died after `events` events, when the client had `had` bytes. What the client has
  /// at the end if a successor goes on.
  std::string after_death(std::size_t events, std::size_t had) const {
    const std::vector<std::string> records(
        records_.begin(), records_.begin() + static_cast<std::ptrdiff_t>(events) + 1);
    auto replayed =
        replay(opening_, records, request_text_, opening_.place.begins_at + had, setup());
    if (!replayed.ok()) return "error: " + replayed.status().message();
    check_requests(replayed.value(), events);
    std::string all = whole_.substr(0, had) + replayed.value().unsent;
    RenderedReply& reply = *replayed.value().reply;
    for (std::size_t i = events; i < events_.size(); ++i) {
      reply.apply(events_[i].event, events_[i].time);
      all += reply.take_bytes();
    }
    return all;
  }

  const std::vector<std::string>& records() const { return records_; }
  const ReplyOpening& opening() const { return opening_; }
  const std::string& request() const { return request_text_; }

  ReplaySetup setup() const {
    return {models_,
            dialects_,
            cors_,
            {.max_choices = 300,
             .default_timeout = 600 * kSecond,
             .max_timeout = 3600 * kSecond,
             .any_model = takes_any_model(dialects_),
             .schemas = {}},
            {}};
  }

 private:
  /// Straight from the dialect: none of what is tested has a hand in it.
  std::optional<ParsedRequest> parse(const Case& what) {
    RequestReader reader{FramingLimits{}};
    reader.feed(request_text_);
    request_ = reader.take();
    RequestContext context = testing::lenient_context();
    context.request_id = opening_.facts.request_id;
    context.path = what.path;
    context.unix_seconds = opening_.facts.wall_offset / kSecond + kReceived / kSecond;
    context.received = kReceived;
    context.wall_offset = opening_.facts.wall_offset;
    context.max_context = opening_.facts.max_context;
    context.any_model = what.dialect == "tgi";
    for (const DialectRoute& route : dialects_[0]->routes()) {
      const std::string path = route.path;
      const auto* body = std::get_if<ParseBody>(&route.answer);
      if (body == nullptr || (path != what.path && path.find(':') == std::string::npos)) continue;
      ParseOutcome outcome = (*body)(what.body, context, *model_);
      if (auto* chat = std::get_if<std::unique_ptr<PendingChat>>(&outcome)) {
        ParseOutcome finished = (*chat)->finish(Result<std::string>(*what.rendered), *model_);
        outcome = std::move(finished);
      }
      if (auto* error = std::get_if<HttpError>(&outcome)) refusal = error->body;
      if (auto* parsed = std::get_if<ParsedRequest>(&outcome)) {
        parsed->sampling.seed = opening_.facts.seed;
        return std::move(*parsed);
      }
      return std::nullopt;
    }
    return std::nullopt;
  }

  OwnedEvent& add(const ReplyEvent& event) {
    now_ += dice_() % 3 * kMillisecond * 400;
    return events_.emplace_back(OwnedEvent{event, now_});
  }

  /// Twice, and the second time from the beginning: its worker has died.
  void get_on(std::uint32_t choice, const ParsedRequest& request) {
    const auto total = static_cast<std::uint32_t>(request.prompts[choice / request.choices].size());
    if (!request.progress) return;
    add(PromptGotOn{choice, total, total / 2, 5 * kMillisecond});
    add(PromptGotOn{choice, total / 2, 0, 1'500 * kMillisecond});
  }

  void begin(std::uint32_t choice, const ParsedRequest& request) {
    OwnedEvent& made = add(ChoiceBegins{choice, static_cast<std::uint32_t>(dice_() % 3)});
    const auto& prompt = request.prompts[choice / request.choices];
    if (request.sampling.prompt_logprobs < 0) return;
    for (std::uint32_t i = 1; i < prompt.size(); ++i) made.prompt.push(i, -0.5F, kTops, kValues);
    std::get<ChoiceBegins>(made.event).prompt = &made.prompt;
  }

  void token(std::uint32_t choice, Token id, const ParsedRequest& request) {
    OwnedEvent& made = add(TokenCame{choice, request.sampling.pools() ? 0 : id});
    if (request.sampling.pools()) {
      made.vector = {0.25F, -1.5F * static_cast<float>(choice + 1)};
      if (request.sampling.pooling == Pooling::last_hidden) made.vector.push_back(1.0F / 3);
      made.entry.vector = made.vector;
      std::get<TokenCame>(made.event).logprobs = &made.entry;
    }
    if (request.sampling.logprobs < 0) return;
    made.entry = {-0.25F * static_cast<float>(events_.size()), kTops, kValues, {}};
    std::get<TokenCame>(made.event).logprobs = &made.entry;
  }

  void end(std::uint32_t choice, FinishReason reason, const ParsedRequest& request) {
    OwnedEvent& made = add(ChoiceEnds{choice, reason});
    auto& ends = std::get<ChoiceEnds>(made.event);
    if (request.sampling.beams()) ends.score = -0.125F * static_cast<float>(choice + 1);
    if (!request.lifetime) return;
    for (std::size_t i = 0; i < kLifetimeMoments; ++i)
      made.lifetime.push_back(kReceived + static_cast<TimeNs>(i) * kMillisecond);
    ends.lifetime = made.lifetime;
  }

  /// Choices take turns at random; each says a text of its own length. Now and then the client is
  /// probed. A choice ends when its stop string matches.
  void write_events(const Case& what, const ParsedRequest& request) {
    const std::vector<Token> text = model_->tokenizer->encode(what.text, false);
    const auto choices = static_cast<std::uint32_t>(request.prompts.size()) * request.choices;
    std::vector<std::size_t> said(choices, 0);
    std::vector<std::uint32_t> open(choices);
    for (std::uint32_t i = 0; i < choices; ++i) open[i] = i;
    ParsedRequest copy = std::move(*parse(what));
    RenderedReply trial(*model_->tokenizer, copy, ReplyFrame{}, opening_.facts);
    const std::size_t fails_after =
        what.failure ? dice_() % (text.size() * choices) : std::size_t{1} << 30;
    while (!open.empty()) {
      if (events_.size() >= fails_after) {
        add(*what.failure);
        return;
      }
      if (dice_() % 9 == 0) add(ClientProbed{});
      if (dice_() % 9 == 0) add(StreamIdled{});
      const std::size_t at = request.sampling.beams() ? 0 : dice_() % open.size();
      const std::uint32_t choice = open[at];
      if (said[choice] == 0) get_on(choice, request);
      if (said[choice] == 0) begin(choice, request);
      if (said[choice] == 0) trial.apply(events_.back().event, events_.back().time);
      const Token id = text[said[choice]++];
      token(choice, id, request);
      const bool stopped = trial.apply(events_.back().event, events_.back().time);
      const bool last = request.sampling.pools() ||
                        said[choice] == std::min<std::size_t>(text.size(), 14 + choice);
      if (!stopped && !last) continue;
      if (open.size() == 1) add(ReplyTimed{kSpent, 13, 5 * kMillisecond});
      end(choice, stopped ? FinishReason::stop : FinishReason::length, request);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  /// What the scheduler would be asked to go on with: for each request the tokens that its choice
  /// has, counted here once more.
  void check_requests(const ReplayedReply& replayed, std::size_t events) const {
    std::vector<std::vector<Token>> tokens(replayed.requests.size() * replayed.choices_each);
    std::vector<bool> ended(tokens.size());
    bool failed = false;
    for (std::size_t i = 0; i < events; ++i) {
      const ReplyEvent& event = events_[i].event;
      if (const auto* token = std::get_if<TokenCame>(&event))
        tokens[token->choice].push_back(token->token);
      if (const auto* end = std::get_if<ChoiceEnds>(&event)) ended[end->choice] = true;
      failed = failed || std::holds_alternative<ReplyFails>(event);
    }
    ASSERT_EQ(replayed.first_counter, 40U);
    for (std::size_t i = 0; i < replayed.requests.size(); ++i) {
      const ReplayedRequest& one = replayed.requests[i];
      if (beams_) {
        ASSERT_TRUE(one.generated.empty());
        ASSERT_EQ(one.ended, failed || std::find(ended.begin(), ended.end(), false) == ended.end());
        continue;
      }
      ASSERT_EQ(one.generated, tokens[i]);
      ASSERT_EQ(one.ended, failed || ended[i]);
    }
  }

  void render(const Case& what) {
    ParsedRequest request = std::move(*parse(what));
    ReplyFrame frame;
    frame.request_id = opening_.facts.request_id;
    frame.keep_alive = request_.keep_alive;
    frame.minor = request_.minor;
    frame.dialect = dialects_[0];
    frame.cors = &cors_.reply_headers(request_);
    RenderedReply live(*model_->tokenizer, request, frame, opening_.facts);
    Journal journal(memory_, kGeometry, "test");
    records_.push_back(encode_opening(opening_));
    journal.open(kCookie, records_.back());
    made_.push_back(0);
    for (const OwnedEvent& one : events_) {
      live.apply(one.event, one.time);
      const std::string bytes = live.take_bytes();
      encode_event(one.event, one.time, made(bytes), records_.emplace_back());
      journal.append(kCookie, records_.back());
      whole_ += bytes;
      made_.push_back(whole_.size());
    }
    EXPECT_TRUE(live.over()) << what.name;
    EXPECT_EQ(journal.lost(), 0U);
    const auto contents = read_journal(memory_);
    EXPECT_EQ(contents.value().replies.at(0).records, records_);
  }

  static constexpr JournalGeometry kGeometry{4, 512, 256, 512};
  static constexpr std::uint64_t kCookie = 77;
  static constexpr Token kTops[] = {5, 6};
  static constexpr float kValues[] = {-0.125F, -0.5F};

 public:
  std::string refusal;

 private:
  std::mt19937 dice_;
  std::vector<const Dialect*> dialects_;
  const Cors cors_{std::vector<std::string>{"https://page"}};
  const ServedModel* model_ = nullptr;
  ServedModels models_;
  ReplyOpening opening_;
  std::string request_text_;
  HttpRequest request_;
  bool served_ = false, streaming_ = false, beams_ = false, grammar_ = false;
  TimeNs now_ = kReceived + 250 * kMillisecond;
  std::deque<OwnedEvent> events_;  // they point into themselves
  std::vector<std::string> records_;
  std::string whole_;
  std::vector<std::size_t> made_;
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(kGeometry.bytes() / 8 + 1);
  std::span<std::byte> memory_ = std::as_writable_bytes(std::span(words_));
};

// Sanitizers look for other faults, and take ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kBetweenCuts = 11;
#else
constexpr std::size_t kBetweenCuts = 1;
#endif

/// Cuts at every byte: with the fewest events in the journal that make it, and (at every seventh)
/// with all of them.
void cut_everywhere(const Case& what, const RecordedRun& run) {
  std::size_t events = 0;
  for (std::size_t had = 0; had <= run.whole().size(); had += kBetweenCuts) {
    while (run.made_by(events) < had) ++events;
    ASSERT_EQ(run.after_death(events, had), run.whole()) << what.name << " at byte " << had;
    if (had % 7 == 0) {
      ASSERT_EQ(run.after_death(run.events(), had), run.whole()) << what.name << " at " << had;
    }
  }
}

TEST(Replay, OfEveryRecordedExchange) {
  std::size_t streams = 0, wholes = 0;
  for (const Dialect* dialect : all_dialects()) {
    const std::string name = dialect->name();
    std::size_t of_dialect = 0;
    for (const Json& one : Json::parse(read_file("tests/golden/dialects/" + name + ".json"))) {
      if (one["status"] != 200 || one["method"] != "POST") continue;
      const Json body = one.value("body", Json());
      const Case what{.name = name + ": " + one["name"].get<std::string>(),
                      .dialect = name,
                      .path = one["path"],
                      .body = body.is_string() ? body.get<std::string>() : body.dump()};
      const RecordedRun run(what, 17);
      if (!run.served()) continue;  // answered without a worker
      ++of_dialect;
      ++(run.streaming() ? streams : wholes);
      cut_everywhere(what, run);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(of_dialect, 0U) << name;
  }
  EXPECT_GE(streams, 8U);
  EXPECT_GE(wholes, 20U);
}

std::string completion(const std::string& fields) { return R"({"prompt":"hello")" + fields + "}"; }
std::string chat(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"hello"}])" + fields + "}";
}

std::vector<Case> openai_cases() {
  const std::string texts = "/v1/completions", chats = "/v1/chat/completions";
  const ReplyFails failure{ErrorCode::worker_crashes, "it died \"here\"", 2};
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  const std::string said =
      "why not</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  std::vector<Case> cases;
  for (const std::string stream :
       {"", R"(,"stream":true)", R"(,"stream":true,"stream_options":{"include_usage":true})",
        R"(,"stream":true,"stream_options":{"include_timing":true})",
        R"(,"stream_options":{"include_timing":true})",
        R"(,"stream":true,"return_progress":true)"}) {
    cases.push_back({"plain" + stream, "openai", texts, completion(stream)});
    cases.push_back({"choices" + stream, "openai", texts, completion(R"(,"n":3)" + stream)});
    cases.push_back({"prompts" + stream, "openai", texts,
                     R"({"prompt":["hello","the block"],"n":2)" + stream + "}"});
    cases.push_back({"echo and logprobs" + stream, "openai", texts,
                     completion(R"(,"echo":true,"logprobs":2)" + stream)});
    cases.push_back({"stop strings" + stream, "openai", texts,
                     completion(R"(,"stop":["the bl","zzz"],"n":2)" + stream)});
    cases.push_back({"stop strings shown" + stream, "openai", texts,
                     completion(R"(,"stop":["blo"],"include_stop_str_in_output":true)" + stream)});
    cases.push_back({"fails" + stream, "openai", texts, completion(R"(,"n":2)" + stream),
                     "hello world", failure});
    cases.push_back(
        {"of HTTP/1.0" + stream, "openai", texts, completion(stream), "hello", {}, {}, true});
    cases.push_back({"compressed" + stream, "openai", texts, completion(stream)});
    cases.back().gzip = true;
    cases.push_back({"chat" + stream, "openai", chats,
                     chat(R"(,"n":2,"logprobs":true,"top_logprobs":2)" + stream)});
    cases.push_back({"grammar" + stream, "openai", chats,
                     chat(R"(,"response_format":{"type":"json_object"})" + stream), R"({"a": 1})"});
    cases.push_back({"tools" + stream,
                     "openai",
                     chats,
                     chat(tools + R"(,"n":2)" + stream),
                     said,
                     {},
                     "hello<think>"});
    cases.push_back({"reasoning" + stream,
                     "openai",
                     chats,
                     chat(stream),
                     "because</think> hello",
                     {},
                     "hello<think>"});
    cases.push_back({"fails in a call" + stream, "openai", chats, chat(tools + stream), said,
                     failure, "hello<think>"});
  }
  cases.push_back({"beams", "openai", texts,
                   completion(R"(,"use_beam_search":true,"n":2,"best_of":3,"temperature":0)")});
  return cases;
}

TEST(Replay, OfWhatTheOpenAiApiCanAsk) {
  bool beams = false, grammar = false;
  std::uint32_t seed = 1;
  for (const Case& what : openai_cases()) {
    const RecordedRun run(what, seed++);
    ASSERT_TRUE(run.served()) << what.name << ": " << run.refusal;
    beams = beams || run.beams();
    grammar = grammar || run.grammar();
    cut_everywhere(what, run);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_TRUE(beams);
  EXPECT_TRUE(grammar);
}

TEST(Replay, OfVectors) {
  const auto embed = [](const char* name, const char* dialect, const char* path, const char* body,
                        ModelTask task = ModelTask::embed) {
    Case what{name, dialect, path, body};
    what.task = task;
    return what;
  };
  const std::vector<Case> cases = {
      embed("one", "openai", "/v1/embeddings", R"({"input":"hello"})"),
      embed("two", "openai", "/v1/embeddings", R"({"input":["hello","the block"],"dimensions":2})"),
      embed("bytes", "openai", "/v1/embeddings",
            R"({"input":[[5,6],[7]],"encoding_format":"base64"})"),
      embed("ollama", "ollama", "/api/embed", R"({"model":"demo","input":["a","b"]})"),
      embed("rerank", "openai", "/v1/rerank",
            R"({"query":"a","documents":["b","c"],"return_documents":true})", ModelTask::rerank),
      embed("score", "openai", "/score", R"({"text_1":"a","text_2":["b","c"]})",
            ModelTask::rerank)};
  std::uint32_t seed = 1;
  for (const Case& what : cases) {
    const RecordedRun run(what, seed++);
    ASSERT_TRUE(run.served()) << what.name << ": " << run.refusal;
    ASSERT_EQ(run.whole().find("\"error\""), std::string::npos) << run.whole();
    cut_everywhere(what, run);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

/// The APIs that are translated into OpenAI's: thoughts, calls and failures, whole and as streams.
std::vector<Case> translated_cases() {
  struct Door {
    std::string dialect, path, body, tools;
  };
  const std::string ask = R"({"model":"demo","messages":[{"role":"user","content":"hello"}])";
  const std::string schema = R"({"type":"object"})";
  const std::vector<Door> doors = {
      {"anthropic", "/v1/messages", ask + R"(,"max_tokens":50)",
       R"(,"tools":[{"name":"f","input_schema":)" + schema + "}]"},
      {"openai", "/v1/responses", R"({"model":"demo","input":"hello")",
       R"(,"tools":[{"type":"function","name":"f","parameters":)" + schema + "}]"},
      {"ollama", "/api/chat", ask,
       R"(,"tools":[{"type":"function","function":{"name":"f","parameters":)" + schema + "}}]"}};
  const std::string said =
      "why</think>\nso\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const ReplyFails failure{ErrorCode::worker_crashes, "it died \"here\"", 2};
  std::vector<Case> cases;
  for (const Door& door : doors) {
    for (const char* stream : {R"(,"stream":false)", R"(,"stream":true)"}) {
      const std::string name = door.path + stream;
      const std::string body = door.body + door.tools + stream + "}";
      cases.push_back({name, door.dialect, door.path, body, said, {}, "hello<think>"});
      cases.push_back(
          {name + " fails", door.dialect, door.path, body, said, failure, "hello<think>"});
    }
  }
  return cases;
}

TEST(Replay, OfApisThatAreTranslated) {
  std::uint32_t seed = 1;
  for (const Case& what : translated_cases()) {
    const RecordedRun run(what, seed++);
    ASSERT_TRUE(run.served()) << what.name << ": " << run.refusal;
    cut_everywhere(what, run);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// What the test compares is not nothing: the parts that could differ are in the bytes.
TEST(Replay, TheBytesHoldWhatTheFactsSay) {
  const Case what{"chat", "openai", "/v1/chat/completions", chat(R"(,"stream":true)")};
  const std::string bytes = RecordedRun(what, 5).whole();
  for (const char* part :
       {"X-Request-Id: id-5", "\"created\":1700005000", "Date: Tue, 14 Nov 2023 23:36:4",
        "Access-Control-Allow-Origin: https://page", ": keep-alive", "[DONE]"}) {
    EXPECT_NE(bytes.find(part), std::string::npos) << part << "\n" << bytes;
  }
}

TEST(Replay, TheBytesHoldHowFarThePromptIs) {
  const Case what{"chat", "openai", "/v1/chat/completions",
                  chat(R"(,"stream":true,"return_progress":true)")};
  const std::string bytes = RecordedRun(what, 5).whole();
  const std::size_t first = bytes.find("\"prompt_progress\":{\"total\":");
  const std::size_t role = bytes.find("\"role\":\"assistant\"");
  ASSERT_NE(first, std::string::npos) << bytes;
  EXPECT_LT(first, role) << bytes;
  EXPECT_NE(bytes.find(",\"time_ms\":1500}"), std::string::npos) << bytes;
}

TEST(Replay, WhatCannotGoOnSaysWhy) {
  const Case what{"chat", "openai", "/v1/chat/completions", chat("")};
  const RecordedRun run(what, 5);
  const auto fails = [&](const std::vector<std::string>& records, std::uint64_t written,
                         const std::string& request) {
    const auto replayed = replay(run.opening(), records, request, written, run.setup());
    return replayed.ok() ? std::string() : replayed.status().message();
  };
  const std::vector<std::string>& good = run.records();
  EXPECT_EQ(fails(good, 1000, run.request()), "");
  EXPECT_EQ(fails(good, 999, run.request()),
            "the connection was sent less than came before this reply");
  EXPECT_EQ(fails(good, 1001 + run.whole().size(), run.request()),
            "the client has bytes that the journal does not make");
  auto bad = good;
  bad[1] = "?";
  EXPECT_EQ(fails(bad, 1000, run.request()), "journal: a record of no known kind");
  EXPECT_EQ(fails(good, 1000, run.request() + "GET"),
            "the journal's request is not one whole request");
  EXPECT_EQ(fails(good, 1000, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"),
            "the journal's request has a path of no dialect");
}

TEST(Replay, KnowsTheKeyOfEitherHeader) {
  const RecordedRun run({"chat", "openai", "/v1/chat/completions", chat("")}, 5);
  const ApiKeys keys = ApiKeys::parse("sk-0123456789abcdef\nsk-1123456789abcdef\n").value();
  ReplaySetup setup = run.setup();
  setup.keys = &keys;
  const std::pair<const char*, std::int32_t> table[] = {
      {"", -1},
      {"Authorization: Bearer sk-1123456789abcdef\r\n", 1},
      {"x-api-key: sk-1123456789abcdef\r\n", 1},
      {"x-api-key: sk-0123456789abcdef\r\n", 0},
      {"x-api-key: sk-2123456789abcdef\r\n", -1},
      {"Authorization: Basic a\r\nx-api-key: sk-1123456789abcdef\r\n", 1},
  };
  for (const auto& [header, slot] : table) {
    std::string request = run.request();
    request.insert(request.find("\r\n") + 2, header);
    const auto rebuilt = rebuild_reply(run.opening(), request, setup);
    ASSERT_TRUE(rebuilt.ok()) << rebuilt.status().message();
    EXPECT_EQ(rebuilt.value().reply->frame().api_key, slot) << header;
  }
}

TEST(Replay, AnotherBuildsBytesAreNoticed) {
  const Case what{"chat", "openai", "/v1/chat/completions", chat(R"(,"stream":true)")};
  const RecordedRun run(what, 5);
  ReplyOpening opening = run.opening();
  opening.facts.request_id = "another";  // stands for any difference of what is written
  const auto replayed = replay(opening, run.records(), run.request(), 1000, run.setup());
  ASSERT_FALSE(replayed.ok());
  EXPECT_EQ(replayed.status().message(), "this build, or its configuration, writes another reply");
}

TEST(Replay, AnotherBuildGoesOnUnderTheNameOfTheFirst) {
  const Case what{"chat", "openai", "/v1/chat/completions", chat(R"(,"stream":true)")};
  const RecordedRun run(what, 5);
  ServedModels newer = {demo_model()};
  newer.front().fingerprint = "baton-9.9.9";
  const ReplaySetup as_before = run.setup();
  const ReplaySetup setup{newer, as_before.dialects, as_before.cors, as_before.settings, {}};
  const auto replayed = replay(run.opening(), run.records(), run.request(), 1000, setup);
  ASSERT_TRUE(replayed.ok()) << replayed.status().message();
  EXPECT_EQ(replayed.value().unsent, run.whole());
}

/// Of several models, however names and order have changed: the entry that it began with makes the
/// rest, or nobody does.
TEST(Replay, GoesOnAtTheModelThatBeganIt) {
  const Case what{"chat", "openai", "/v1/chat/completions", chat(R"(,"stream":true)")};
  const RecordedRun run(what, 5);
  ReplyOpening opening = run.opening();
  opening.entry = "one";
  opening.identity = 11;
  const auto entry = [](const char* name, std::uint64_t identity) {
    ServedModel made = demo_model();  // each answers to what the request says
    made.entry = name;
    made.identity = identity;
    return made;
  };
  const ReplaySetup as_before = run.setup();
  const auto by = [&](const ServedModels& models) {
    const ReplaySetup setup{models, as_before.dialects, as_before.cors, as_before.settings, {}};
    const auto replayed = rebuild_reply(opening, run.request(), setup);
    return replayed.ok() ? std::to_string(replayed.value().model) : replayed.status().message();
  };
  EXPECT_EQ(by({entry("one", 11), entry("two", 22)}), "0");
  EXPECT_EQ(by({entry("two", 22), entry("one", 11)}), "1");
  EXPECT_EQ(by({entry("two", 22)}), "the model 'one' is not served any more");
  EXPECT_EQ(by({entry("two", 22), entry("one", 12)}), "the model 'one' is another one now");
  EXPECT_EQ(by({demo_model()}), "the model 'one' is not served any more");
  ServedModel faulty = entry("one", 0);
  faulty.tokenizer = nullptr;
  faulty.fault = "it cannot be loaded: x";
  EXPECT_EQ(by({faulty}), "the model 'one': it cannot be loaded: x");
  opening.entry.clear();
  opening.identity = 0;
  EXPECT_EQ(by({demo_model()}), "0");
  EXPECT_EQ(by({entry("one", 11)}), "the one model that was served has no entry now");
}

/// A client reads on under the name that its reply began with.
TEST(Replay, UnderTheNameThatItBeganWith) {
  const Case what{"chat", "openai", "/v1/chat/completions", chat(R"(,"stream":true)")};
  const RecordedRun run(what, 5);
  ReplyOpening opening = run.opening();
  opening.entry = "one";
  opening.identity = 11;
  ServedModels models{demo_model()};
  models[0].entry = "one";
  models[0].identity = 11;
  const std::string before = models[0].name;
  models[0].name = "another";
  const ReplaySetup as_before = run.setup();
  const ReplaySetup setup{models, as_before.dialects, as_before.cors, as_before.settings, {}};
  EXPECT_FALSE(replay(opening, run.records(), run.request(), 1000, setup).ok())
      << "an older build noted no name";
  opening.model = before;
  const auto replayed = replay(opening, run.records(), run.request(), 1000, setup);
  ASSERT_TRUE(replayed.ok()) << replayed.status().message();
  EXPECT_EQ(replayed.value().unsent, run.whole());
}

/// An entry of another name goes on with the old one's replies where nothing else can be meant.
TEST(Replay, GoesOnAtAnEntryThatWasRenamed) {
  const Case what{"chat", "openai", "/v1/chat/completions", chat(R"(,"stream":true)")};
  const RecordedRun run(what, 5);
  const std::uint32_t vocabulary = demo_model().tokenizer->vocab_size();
  const auto entry = [&](const char* name, const char* folder) {
    ServedModel made = demo_model();
    made.entry = name;
    made.folder = folder;
    made.identity = model_identity(name, folder, vocabulary);
    return made;
  };
  ReplyOpening opening = run.opening();
  opening.entry = "one";
  opening.identity = entry("one", "/a").identity;
  const ReplaySetup as_before = run.setup();
  const auto by = [&](const ServedModels& models, const ServedModels& before) {
    ReplaySetup setup{models, as_before.dialects, as_before.cors, as_before.settings, {}};
    for (const ServedModel& model : before) setup.known.push_back(model.identity);
    const auto replayed = rebuild_reply(opening, run.request(), setup);
    return replayed.ok() ? std::to_string(replayed.value().model) : replayed.status().message();
  };
  const ServedModels before{entry("one", "/a"), entry("two", "/b")};
  const std::string gone = "the model 'one' is not served any more";
  EXPECT_EQ(by({entry("two", "/b"), entry("uno", "/a")}, before), "1");
  EXPECT_EQ(by({entry("two", "/b"), entry("uno", "/c")}, before), gone);
  EXPECT_EQ(by({entry("two", "/a")}, before), gone) << "its workers may still have /b";
  EXPECT_EQ(by({entry("two", "/a"), entry("uno", "/b")}, before), gone) << "likewise";
  EXPECT_EQ(by({entry("two", "/b"), entry("uno", "/a"), entry("x", "/a")}, before), gone);
  EXPECT_EQ(by({entry("two", "/b"), entry("uno", "/a")}, {}), gone);
}

TEST(Replay, OfAWholeReply) {
  const WholeReply whole{{7, 100}, true, "HTTP/1.1 200 OK\r\n\r\n"};
  EXPECT_EQ(unsent_of(whole, 100).value(), whole.bytes);
  EXPECT_EQ(unsent_of(whole, 109).value(), whole.bytes.substr(9));
  EXPECT_EQ(unsent_of(whole, 100 + whole.bytes.size()).value(), "");
  EXPECT_FALSE(unsent_of(whole, 99).ok());
  EXPECT_FALSE(unsent_of(whole, 101 + whole.bytes.size()).ok());
}

TEST(Replay, AttemptsComeBack) {
  const Case what{"choices", "openai", "/v1/completions", completion(R"(,"n":2)")};
  const RecordedRun run(what, 5);
  auto records = run.records();
  std::string attempt;
  encode_attempt({1, 3}, attempt);
  records.insert(records.begin() + 1, attempt);
  const auto replayed = replay(run.opening(), records, run.request(), 1000, run.setup());
  ASSERT_TRUE(replayed.ok()) << replayed.status().message();
  EXPECT_EQ(replayed.value().requests.at(0).attempt, 0U);
  EXPECT_EQ(replayed.value().requests.at(1).attempt, 3U);
}

}  // namespace
}  // namespace baton
