// What a token costs between the scheduler's message and the bytes of its event:
//   ninja -C build/cpu text_path_benchmark && build/cpu/tests/text_path_benchmark [model folder]
// Not a test: prints nanoseconds.
#include <chrono>
#include <cstdio>
#include <string>

#include "frontend/core/text_stream_options.h"
#include "frontend/openai/openai_api.h"
#include "model_folder.h"
#include "text/text_stream.h"

namespace {

using namespace baton;

double now_ns() {
  return std::chrono::duration<double, std::nano>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void measure(const ServedModel& model, const char* what, const std::string& fields) {
  RequestContext context;
  context.request_id = "0123456789abcdef";
  context.max_context = 4096;
  context.max_timeout = context.default_timeout = kSecond;
  const std::string body =
      R"({"messages":[{"role":"user","content":"hello"}],"stream":true)" + fields + "}";
  auto outcome = parse_chat_completion(body, context, model);
  auto& request = std::get<ParsedRequest>(outcome);
  const auto ids = model.tokenizer->encode_plain(
      "The scheduler owns every block; the worker reads the prompt and 你是谁 makes the tokens. ",
      true);
  constexpr int kRounds = 20000;
  std::size_t bytes = 0;
  std::size_t count = 0;
  TextStream stream(*model.tokenizer,
                    text_stream_options(*model.tokenizer, request, request.prompts.front()));
  const double begin = now_ns();
  for (int round = 0; round < kRounds; ++round) {
    for (const Token id : ids) {
      bytes += request.reply->text({0, stream.feed({&id, 1}).text, id}).size();
      ++count;
    }
  }
  const double each = (now_ns() - begin) / static_cast<double>(count);
  std::printf("%-34s %7.0f ns a token, %zu bytes an event\n", what, each, bytes / count);
}

}  // namespace

int main(int argc, char** argv) {
  ServedModel model = baton::testing::tiny_model();
  if (argc > 1) {
    auto loaded = Tokenizer::load(argv[1]);
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", loaded.status().message().c_str());
      return 1;
    }
    model.tokenizer = std::move(loaded).value();
  }
  std::string sixteen;
  for (int i = 0; i < 16; ++i)
    sixteen += (i > 0 ? ",\"the end " : "\"the end ") + std::to_string(i) + "\"";
  measure(model, "chat event", R"(,"ignore_eos":true)");
  measure(model, "chat event, a stop string", R"(,"ignore_eos":true,"stop":"\n\n\n")");
  measure(model, "chat event, 16 stop strings", ",\"ignore_eos\":true,\"stop\":[" + sixteen + "]");

  const double begin = now_ns();
  constexpr int kParses = 2000;
  for (int i = 0; i < kParses; ++i) {
    RequestContext context;
    context.max_context = 4096;
    context.max_timeout = context.default_timeout = kSecond;
    (void)parse_chat_completion(
        R"({"messages":[{"role":"user","content":"hello you"}],"temperature":0.5})", context,
        model);
  }
  std::printf("%-34s %7.1f us\n", "parse of a short chat request",
              (now_ns() - begin) / kParses / 1000);
  return 0;
}
