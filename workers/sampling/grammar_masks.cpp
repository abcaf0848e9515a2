#include "workers/sampling/grammar_masks.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <limits>
#include <stdexcept>
#include <utility>

#include "text/tokenizer/tokenizer.h"

namespace baton {
namespace {

/// Of this thread: what else runs on the machine is not counted.
TimeNs thread_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

pthread_t start_thread(void* (*entry)(void*), void* argument) {
  pthread_attr_t attributes;
  pthread_t thread{};
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kCompileStackBytes);
  const int failed = pthread_create(&thread, &attributes, entry, argument);
  pthread_attr_destroy(&attributes);
  if (failed != 0) throw std::runtime_error("a thread for grammars cannot be started");
  return thread;
}

std::string name_of(GrammarKind kind, const std::string& text) {
  return static_cast<char>(kind) + text;
}

Status failed(const std::string& why) {
  return Status(ErrorCode::internal, "the grammar cannot be served: " + why);
}

}  // namespace

FailedRow failed_draw(std::uint32_t row, const Status& why) {
  return {
      .row = row, .reason = why.message(), .grammar_missing = why.code() == ErrorCode::unavailable};
}

void mask_logits(std::span<float> logits, std::span<const std::uint32_t> allowed) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  for (std::size_t at = 0; at < logits.size(); at += 32) {
    const std::uint32_t word = at / 32 < allowed.size() ? allowed[at / 32] : 0U;
    if (word == ~0U) continue;
    const std::size_t end = std::min(at + 32, logits.size());
    for (std::size_t i = at; i < end; ++i) {
      if ((word >> (i - at) & 1U) == 0) logits[i] = kMasked;
    }
  }
}

GrammarMasks::GrammarMasks(std::string model_folder, std::uint32_t vocab_size, Options options,
                           Tell tell)
    : model_folder_(std::move(model_folder)),
      vocab_size_(vocab_size),
      options_(options),
      tell_(std::move(tell)) {
  threads_.push_back(start_thread(compile_entry, this));
  threads_.push_back(start_thread(match_entry, this));
}

GrammarMasks::~GrammarMasks() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
}

void* GrammarMasks::compile_entry(void* self) {
  static_cast<GrammarMasks*>(self)->compile_loop();
  return nullptr;
}
void* GrammarMasks::match_entry(void* self) {
  static_cast<GrammarMasks*>(self)->match_loop();
  return nullptr;
}

void GrammarMasks::begin(const RunStep& step) {
  const std::lock_guard lock(mutex_);
  ++step_;
  rows_.clear();
  bool any = false;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const BatchRow& row = step.rows[i];
    if (row.sampling == nullptr || row.sampling->grammar_kind == GrammarKind::none) continue;
    any = true;
    const auto known = grammars_.find(name_of(row.sampling->grammar_kind, row.sampling->grammar));
    std::shared_ptr<Grammar> grammar = known == grammars_.end() ? nullptr : known->second;
    if (grammar != nullptr) grammar->used = step_;
    if (!row.samples()) continue;
    auto made = std::make_shared<Row>();
    made->index = i;
    made->sequence = row.sequence;
    made->grammar = std::move(grammar);
    const auto generated =
        row.history.subspan(std::min<std::size_t>(row.n_prompt, row.history.size()));
    made->generated.assign(generated.begin(), generated.end());
    made->stop_ids = row.sampling->stop_ids;
    rows_.push_back(made);
    if (made->grammar != nullptr && made->grammar->compiled) {
      to_match_.push_back(std::move(made));
    } else {
      made->status = Status(ErrorCode::unavailable, "its grammar is not compiled here");
      made->done = true;
    }
  }
  if (any) changed_.notify_all();
}

void GrammarMasks::prepare(std::uint64_t key, GrammarKind kind, const std::string& text,
                           bool awaited) {
  {
    const std::lock_guard lock(mutex_);
    const bool known = grammars_.contains(name_of(kind, text));
    if (!known && !awaited && to_compile_.size() >= options_.max_announced) return tell(key, false);
    const std::shared_ptr<Grammar> grammar = find(kind, text, awaited);
    grammar->key = key;
    if (grammar->compiled) tell(key, true);
  }
  changed_.notify_all();
}

void GrammarMasks::tell(std::uint64_t key, bool ready) const {
  if (key != 0 && tell_) tell_(key, ready);
}

std::size_t GrammarMasks::compiled() {
  const std::lock_guard lock(mutex_);
  return n_compiled_;
}

/// `at_once`: somebody waits for it, so it is compiled before those that were only announced.
std::shared_ptr<GrammarMasks::Grammar> GrammarMasks::find(GrammarKind kind, const std::string& text,
                                                          bool at_once) {
  std::shared_ptr<Grammar>& grammar = grammars_[name_of(kind, text)];
  if (grammar == nullptr) {
    grammar = std::make_shared<Grammar>();
    grammar->kind = kind;
    grammar->text = text;
    to_compile_.push_back(grammar);
  }
  if (at_once && !grammar->awaited) {
    grammar->awaited = true;
    std::stable_partition(to_compile_.begin(), to_compile_.end(),
                          [](const std::shared_ptr<Grammar>& g) { return g->awaited; });
  }
  grammar->used = step_;
  return grammar;
}

/// The ones used longest ago go first. Those that a sequence follows, or a row is about to, stay:
/// forgotten, they would be compiled again, and be twice in memory.
void GrammarMasks::forget_grammars() {
  std::size_t bytes = 0;
  std::vector<std::pair<std::uint64_t, const std::string*>> by_age;
  const auto size_of = [](const std::string& name, const Grammar& grammar) {
    return 2 * name.size() + (grammar.compiled->ok() ? grammar.compiled->value().bytes() : 0);
  };
  for (const auto& [name, grammar] : grammars_) {
    if (!grammar->compiled || grammar.use_count() > 1) continue;
    bytes += size_of(name, *grammar);
    by_age.emplace_back(grammar->used, &name);
  }
  std::sort(by_age.begin(), by_age.end());
  for (const auto& [used, name] : by_age) {
    if (bytes <= options_.cache_bytes) return;
    const auto it = grammars_.find(*name);
    bytes -= size_of(it->first, *it->second);
    tell(it->second->key, false);
    grammars_.erase(it);
  }
}

void GrammarMasks::compile_loop() {
  Status status;
  std::optional<GrammarEngine> engine;
  auto tokenizer = Tokenizer::load(model_folder_);
  if (tokenizer.ok()) {
    engine.emplace(*tokenizer.value(), vocab_size_);
    tokenizer.value().reset();
  } else {
    status = failed("this worker's model has no tokenizer: " + tokenizer.status().message());
  }
  for (;;) {
    std::shared_ptr<Grammar> grammar;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !to_compile_.empty(); });
      if (stopping_) return;
      grammar = std::move(to_compile_.front());
      to_compile_.pop_front();
    }
    Result<CompiledGrammar> compiled = status;
    if (engine) {
      try {
        compiled = engine->compile(grammar->kind, grammar->text);
        if (!compiled.ok()) compiled = failed(compiled.status().message());
      } catch (const std::exception& e) {
        compiled = failed(e.what());
      }
    }
    {
      const std::lock_guard lock(mutex_);
      grammar->compiled.emplace(std::move(compiled));
      grammar->used = step_ + 1;  // the youngest: its rows are about to come
      ++n_compiled_;
      tell(grammar->key, true);
      forget_grammars();  // not this one: we hold it
    }
    changed_.notify_all();
  }
}

void GrammarMasks::match_loop() {
  for (;;) {
    std::shared_ptr<Row> row;
    std::uint64_t step = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !to_match_.empty(); });
      if (stopping_) return;
      row = std::move(to_match_.front());
      to_match_.pop_front();
      step = step_;
    }
    serve(*row, step);
    if (step - swept_ >= options_.idle_steps) forget_followers(step);
    {
      const std::lock_guard lock(mutex_);
      row->done = true;
    }
    changed_.notify_all();
  }
}

void GrammarMasks::forget_followers(std::uint64_t step) {
  swept_ = step;
  std::erase_if(followers_,
                [&](const auto& entry) { return entry.second.step + options_.idle_steps <= step; });
}

void GrammarMasks::serve(Row& row, std::uint64_t step) {
  const Result<CompiledGrammar>& compiled = *row.grammar->compiled;
  if (!compiled.ok()) {
    row.status = compiled.status();
    return;
  }
  Follower& follower = followers_[row.sequence];
  follower.step = step;
  try {
    const bool goes_on =
        follower.matcher && follower.grammar == row.grammar &&
        follower.taken.size() <= row.generated.size() &&
        std::equal(follower.taken.begin(), follower.taken.end(), row.generated.begin());
    if (!goes_on) {
      follower.grammar = row.grammar;
      follower.matcher.emplace(compiled.value(), row.stop_ids);
      follower.taken.clear();
    }
    row.status = follow(follower, row);
  } catch (const std::exception& e) {
    row.status = failed(e.what());
  }
  if (!row.status.ok()) followers_.erase(row.sequence);
}

Status GrammarMasks::follow(Follower& follower, Row& row) {
  const Status too_slow = failed("a token took more than " +
                                 std::to_string(options_.token_time / kMillisecond) + " ms");
  while (follower.taken.size() < row.generated.size()) {
    const Token token = row.generated[follower.taken.size()];
    const TimeNs began = thread_time();
    if (!follower.matcher->accept(token)) {
      return failed("the output's token " + std::to_string(follower.taken.size()) + " (" +
                    std::to_string(token) + ") is not what it allows");
    }
    if (thread_time() - began > options_.token_time) return too_slow;
    follower.taken.push_back(token);
  }
  const TimeNs began = thread_time();
  row.words.resize((vocab_size_ + 31U) / 32U);
  row.must_end = !follower.matcher->fill(row.words);
  return thread_time() - began > options_.token_time ? too_slow : Status();
}

Result<RowMask> GrammarMasks::wait(std::size_t index) {
  std::unique_lock lock(mutex_);
  const auto found =
      std::lower_bound(rows_.begin(), rows_.end(), index,
                       [](const auto& row, std::size_t wanted) { return row->index < wanted; });
  if (found == rows_.end() || (*found)->index != index) return failed("its mask was not asked for");
  const std::shared_ptr<Row> row = *found;
  const bool done = changed_.wait_for(lock, std::chrono::nanoseconds(options_.patience),
                                      [&] { return row->done; });
  if (!done) return failed("its mask took too long");
  if (!row->status.ok()) return row->status;
  return RowMask{row->words, row->must_end};
}

}  // namespace baton
