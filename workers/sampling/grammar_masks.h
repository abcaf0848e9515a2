// Which tokens the rows of a step may draw, where requests have grammars: found on threads of its
// own while the step's forward pass runs.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"
#include "text/grammar/grammar_engine.h"
#include "workers/protocol/step_batch.h"

namespace baton {

/// A row's mask: bit (t % 32) of allowed[t / 32] says whether token t may be drawn.
struct RowMask {
  std::span<const std::uint32_t> allowed;  // valid until the next begin()
  bool must_end = false;                   // nothing but a stop token is left
};

/// The row `row`, which drew nothing because of `why`.
FailedRow failed_draw(std::uint32_t row, const Status& why);

/// -infinity for every token that the mask excludes.
void mask_logits(std::span<float> logits, std::span<const std::uint32_t> allowed);

/// A sequence's place in its grammar follows from its generated tokens alone, so that one that
/// comes from another worker, or was preempted, goes on as if it had never been away. What is kept
/// here from step to step only saves work: matchers of the sequences at hand, and the grammars used
/// last.
///
/// The front end has tried each grammar within limits before a worker sees it. Compilation takes
/// tenths of a second with large vocabularies, or seconds, and no step waits for it: the scheduler
/// announces a grammar, and plans rows that draw by it when it has been told that it is ready. A
/// row whose grammar is not compiled when its step begins draws nothing (ErrorCode::unavailable).
/// A grammar that a sequence waits for goes before what was only announced.
class GrammarMasks {
 public:
  struct Options {
    std::size_t cache_bytes =
        256U << 20U;                  // compiled grammars kept, besides those that sequences follow
    TimeNs token_time = kSecond / 4;  // processor time for one token of one row: more fails the row
    TimeNs patience =
        20 * kSecond;  // for one mask, on the wall; less than makes a worker look dead
    std::uint32_t idle_steps = 256;   // a matcher without a row for so long is forgotten
    std::size_t max_announced = 256;  // grammars that wait for the compiler; more are passed over
  };
  /// The grammar of that key is compiled (or cannot be: its rows fail); not `ready`: it has been
  /// forgotten. Called on any thread, one at a time, under a lock: it must not call back.
  using Tell = std::function<void(std::uint64_t key, bool ready)>;

  /// Starts two threads, which begin to read the tokenizer of `model_folder`. Does not wait.
  GrammarMasks(std::string model_folder, std::uint32_t vocab_size, Options options, Tell tell = {});
  ~GrammarMasks();
  GrammarMasks(const GrammarMasks&) = delete;
  GrammarMasks& operator=(const GrammarMasks&) = delete;

  /// Compiles the grammar when nothing else is to be compiled; tells, also if it was compiled
  /// before. `awaited`: a sequence waits for it, so it goes first, and never too many are waiting.
  /// Thread-safe; does not wait.
  void prepare(std::uint64_t key, GrammarKind kind, const std::string& text, bool awaited);
  /// How many grammars have been compiled, for tests.
  std::size_t compiled();
  /// Begins the masks of `step`, which may change as soon as this returns. Called by the step
  /// thread.
  void begin(const RunStep& step);
  /// The mask of a row that samples and has a grammar. An error says why the row cannot be served;
  /// `unavailable`: its grammar is not compiled.
  /// Several threads may wait at a time, but none during begin().
  Result<RowMask> wait(std::size_t row);

 private:
  struct Grammar {
    GrammarKind kind = GrammarKind::none;
    std::string text;
    std::uint64_t key = 0;                            // what it was announced as; 0: it was not
    std::uint64_t used = 0;                           // the step that used it last
    bool awaited = false;                             // by a sequence, not only announced
    std::optional<Result<CompiledGrammar>> compiled;  // set once, by the compiling thread
  };
  struct Follower {
    std::shared_ptr<Grammar> grammar;
    std::optional<GrammarMatcher> matcher;
    std::vector<Token> taken;
    std::uint64_t step = 0;
  };
  struct Row {
    std::size_t index = 0;
    SequenceId sequence = 0;
    std::shared_ptr<Grammar> grammar;
    std::vector<Token> generated;
    std::vector<Token> stop_ids;
    std::vector<std::uint32_t> words;
    bool must_end = false;
    Status status;
    bool done = false;
  };

  static void* compile_entry(void* self);
  static void* match_entry(void* self);
  void compile_loop();
  void match_loop();
  std::shared_ptr<Grammar> find(GrammarKind kind, const std::string& text, bool at_once);
  void forget_grammars();
  void tell(std::uint64_t key, bool ready) const;
  void forget_followers(std::uint64_t step);
  void serve(Row& row, std::uint64_t step);
  Status follow(Follower& follower, Row& row);

  const std::string model_folder_;
  const std::uint32_t vocab_size_;
  const Options options_;
  const Tell tell_;

  std::unordered_map<SequenceId, Follower> followers_;  // the matching thread's own,
  std::uint64_t swept_ = 0;  // as is the step that last looked for idle ones

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<std::string, std::shared_ptr<Grammar>> grammars_;  // by kind and text
  std::deque<std::shared_ptr<Grammar>> to_compile_;
  std::vector<std::shared_ptr<Row>> rows_;  // of the step at hand
  std::deque<std::shared_ptr<Row>> to_match_;
  std::uint64_t step_ = 0;
  std::size_t n_compiled_ = 0;
  bool stopping_ = false;
  std::vector<pthread_t> threads_;
};

}  // namespace baton
