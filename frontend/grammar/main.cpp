// baton-grammar MODEL_FOLDER MILLISECONDS: says whether grammars can be served, within so much of a
// processor's time each. Started by the front end, which talks to it over descriptor 3: an empty
// frame, which is answered when the vocabulary has been read; then a frame a grammar, which is
// answered by a status. An empty frame meanwhile says that nobody waits for the answer.
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "frontend/core/helper_process.h"
#include "frontend/grammar/grammar_check.h"
#include "ipc/process.h"
#include "ipc/types.h"
#include "text/tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  using namespace baton;
  GrammarLimits limits;
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::printf("baton-grammar %s\n", build_version());
    return 0;
  }
  if (argc == 3) limits.cpu = std::atoll(argv[2]) * kMillisecond;
  if (argc != 3 || limits.cpu <= 0) {
    std::fprintf(
        stderr, "usage: baton-grammar MODEL_FOLDER MILLISECONDS (with a socket as descriptor 3)\n");
    return 2;
  }
  constexpr int kSocket = HelperProcess::kSocketFd;
  std::string frame;
  if (!read_frame(kSocket, 0, frame)) return 2;
  auto tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    write_frame(kSocket, status_frame(tokenizer.status()));
    return 1;
  }
  GrammarEngine engine(*tokenizer.value(), tokenizer.value()->vocab_size());
  const std::vector<Token> eos_ids = tokenizer.value()->eos_ids();
  tokenizer.value().reset();
  malloc_trim(0);
  if (!write_frame(kSocket, status_frame({}))) return 0;
  while (read_frame(kSocket, SamplingParams::kMaxGrammarBytes + 1, frame)) {
    if (frame.empty()) continue;  // it came when the answer was out
    const GrammarKind kind = grammar_kind_of(frame);
    const Status status = kind == GrammarKind::none
                              ? Status(ErrorCode::internal, "no grammar")
                              : check_grammar(engine, eos_ids, kind,
                                              std::string(grammar_text_of(frame)), limits, kSocket);
    if (!write_frame(kSocket, status_frame(status))) break;
  }
  return 0;
}
