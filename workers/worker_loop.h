// The I/O thread of a worker: carries messages, step results and pull results to the protocol core
// and carries out what it says. No rules of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configs/config.h"
#include "ipc/channel.h"
#include "ipc/process.h"
#include "workers/execute/executor.h"
#include "workers/execute/step_thread.h"
#include "workers/pool/kv_handoff.h"
#include "workers/protocol/worker_core.h"
#include "workers/worker_trace.h"

namespace baton {

class WorkerLoop {
 public:
  /// `config.self` is this worker. `channel` leads to the scheduler.
  WorkerLoop(const Config& config, std::unique_ptr<ClientChannel> channel, SignalFd& signals,
             Executor& executor, Incarnation incarnation);

  /// Until the core says Exit; returns its code (WorkerExit). The process must then end by _exit():
  /// a step or a pull may still run, and nothing that it uses may be taken away.
  int run();

 private:
  template <typename F>
  void input(F&& f);
  void wait();
  void fill_poller();
  void look_after_lease();
  void take_messages();
  void take_step_events();
  void take_handoff_events();
  void take_grammar_states();
  void take_loss();
  Executor& listening(Executor& executor);
  void touch_alive();
  void tell_term();

  void carry_out(worker_action::Send& a);
  void carry_out(worker_action::AllocatePool& a);
  void carry_out(worker_action::StartStep& a);
  void carry_out(worker_action::LackRows& a);
  void carry_out(worker_action::StartPull& a);
  void carry_out(worker_action::CloseMapping& a);
  void carry_out(worker_action::PrepareGrammar& a);
  void carry_out(worker_action::Exit& a);
  void carry_out(worker_action::Log& a);

  const Config& config_;
  std::unique_ptr<ClientChannel> channel_;
  SignalFd& signals_;
  Executor& executor_;
  const Incarnation incarnation_;
  AliveFile alive_;
  WorkerTrace trace_;
  Waker waker_;
  std::mutex told_mutex_;
  std::vector<std::pair<std::uint64_t, bool>> grammars_;  // told by the executor: key, ready
  std::string lost_;                                      // likewise: a rank, and why
  WorkerCore core_;
  StepThread steps_;
  std::unique_ptr<KvHandoff> handoff_;  // from PoolReady on
  Term term_told_ = 0;                  // to the executor

  Poller poller_;
  Poller::Index channel_index_ = 0;
  Poller::Index waker_index_ = 0;
  Poller::Index lease_index_ = 0;
  UniqueFd lease_;  // none: the pool is this process's own
  TimeNs now_ = 0;
  WorkerActions actions_;
  WorkerActions running_actions_;
  std::vector<StepEvent> step_events_;
  std::vector<HandoffEvent> handoff_events_;
  std::string bytes_;
  bool send_failed_ = false;
  TimeNs step_since_ = 0;             // 0: no step runs
  int steps_out_ = 0;                 // given to the step thread and not ended
  std::vector<std::string> handles_;  // of the pool's parts
  std::string progress_handle_;       // of this process
  bool up_ = false;                   // it has been in a term
  std::optional<worker_action::Exit> exit_;
};

}  // namespace baton
