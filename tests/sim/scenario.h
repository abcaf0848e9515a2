// What one seed stands for: the cluster, its load, its network and the blows it gets. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/types.h"
#include "scheduler/state/cluster_state.h"

namespace baton::sim {

/// Times of a process: how long it takes to do what it does.
struct Pace {
  TimeNs step = 8 * kMillisecond;  // longest
  TimeNs pull = 8 * kMillisecond;
  TimeNs compile = kSecond / 2;  // a grammar
  TimeNs load = 300 * kMillisecond;
  std::uint32_t host_block_us = 0;  // as workers say; copies themselves take no time
  TimeNs restart = kSecond;
};

/// Every link; probabilities in 1/1000 a message. Only while faults are on.
struct LinkQuality {
  TimeNs delay = kMillisecond;  // longest, of an ordinary message
  TimeNs late = 0;              // longest, of a late one
  std::uint32_t late_permille = 0;
  std::uint32_t lost_from_worker = 0;
  std::uint32_t lost_to_worker = 0;
  std::uint32_t lost_from_frontend = 0;
  std::uint32_t lost_to_frontend = 0;
  bool same_link_id = true;  // a reconnected peer keeps its id (as ZeroMQ routing ids do)
};

/// Weights of what may happen next; 0: never.
struct Blows {
  std::uint32_t kill_worker = 0;
  std::uint32_t kill_scheduler = 0;
  std::uint32_t kill_frontend = 0;
  std::uint32_t freeze_worker = 0;
  std::uint32_t freeze_scheduler = 0;
  std::uint32_t freeze_frontend = 0;
  std::uint32_t relink = 0;        // a link breaks and comes back
  std::uint32_t terminate = 0;     // SIGTERM to a worker
  std::uint32_t leave = 0;         // SIGTERM to a front end
  std::uint32_t set_draining = 0;  // by an operator
  std::uint32_t set_role = 0;      // by an operator
  std::uint32_t admin_cancel = 0;
  std::uint32_t kill_memory = 0;
  std::uint32_t replace_frontend = 0;  // its successor starts while it is frozen
  std::uint32_t double_start = 0;      // a second process of a name while the first one lives
  TimeNs gap = 500 * kMillisecond;     // longest time between two
  TimeNs freeze = kSecond;             // longest
  std::uint32_t pull_fails = 0;        // 1/1000 a pull
  std::uint32_t other_layout = 0;      // 1/1000 a worker's start: it reads kept pools differently
  bool told_of_death = true;           // pidfds work: one pid namespace
  std::uint32_t stays_dead = kNobody;  // worker that is not started again after a later death

  std::uint32_t total() const {
    return kill_worker + kill_scheduler + kill_frontend + freeze_worker + freeze_scheduler +
           freeze_frontend + relink + terminate + leave + set_draining + set_role + admin_cancel +
           double_start + kill_memory + replace_frontend;
  }
};

/// The work that a striker's harm is bound to: whoever does it for the striker dies of it, or
/// hangs.
enum class Strike : std::uint8_t { none, prefill, decode, pull, compile, scheduler };

struct Load {
  std::uint32_t requests = 20;
  TimeNs gap = 200 * kMillisecond;  // longest time between two bursts
  std::uint32_t burst = 3;
  std::uint32_t max_prompt = 12;
  std::uint32_t max_output = 8;
  std::uint32_t cancel = 0;    // 1/1000 a request, each of them
  std::uint32_t stop = 0;      // the client's stop string matches at some token
  std::uint32_t deadline = 0;  // a short one
  std::uint32_t bad_row = 0;   // a row of it fails
  std::uint32_t killer = 0;    // its worker dies whenever it gets to a certain token
  std::uint32_t striker = 0;   // whoever works for it at `strike` dies
  Strike strike = Strike::none;
  bool strikers_hang = false;   // instead
  bool strikers_share = false;  // some have the grammar, the prompt and the cache of the one before
  std::uint32_t grammar = 200;  // with a grammar; four of them
  bool priorities = false;
  std::uint32_t too_long = 0;   // its prompt does not fit every pool
  std::uint32_t endless = 0;    // its answer does not
  std::uint32_t beams = 0;      // a beam search
  std::uint32_t repeat = 0;     // with a prefix cache: it begins like an earlier one
  std::uint32_t next_turn = 0;  // ... and goes on behind the earlier one's answer
};

struct WorkerSpec {
  std::string name;
  Role role = Role::mixed;
  std::uint32_t blocks = 0;
  std::uint32_t host_blocks = 0;
};

struct Scenario {
  std::uint64_t seed = 0;
  Settings settings;
  std::uint32_t tokens_per_block = 4;
  std::vector<std::uint32_t> windows;  // of the model's groups of layers; 0: none. Empty: one group
  std::uint32_t max_context = 0;       // of the model
  std::uint32_t vocab = 64;
  std::uint32_t step_room = 0;  // tokens of a step that workers have room for; 0: all of the budget
  std::vector<WorkerSpec> workers;
  std::uint32_t frontends = 1;
  TimeNs tick = 50 * kMillisecond;
  Pace pace;
  LinkQuality network;
  Blows blows;
  Load load;
  /// Nothing goes wrong but by strikers: every wait, every blame and every end has one right
  /// answer.
  bool calm = false;
  bool codec = false;          // messages travel as bytes
  bool weighed = false;        // every message is encoded and held against a limit
  std::size_t most_bytes = 0;  // of an encoded message
  bool leases = false;         // there is a memory process: pools outlive their workers
  bool successors = false;     // front ends have journals, and most that die a successor
  std::uint32_t tenants = 0;   // that requests belong to; 0: they name none
  /// Tenants that all want more than there is, and nothing that may set one before the other but
  /// what each has been given: their shares have bounds.
  bool fair = false;

  std::uint32_t groups() const {
    return windows.empty() ? 1 : static_cast<std::uint32_t>(windows.size());
  }
  /// The first position that a query at `position` sees in that group.
  std::uint32_t first_seen(std::uint32_t group, std::uint32_t position) const {
    const std::uint32_t window = windows.empty() ? 0 : windows[group];
    return window == 0 || position + 1 < window ? 0 : position + 1 - window;
  }
  /// Blocks that a sequence of so many tokens must be able to live in.
  std::uint32_t lives_in(std::uint32_t tokens) const;
  /// Prompt + output tokens that fit a pool of so many blocks.
  std::uint32_t fits_into(std::uint32_t blocks) const;
  /// ... every pool.
  std::uint32_t fits() const;
  /// Prompt + output tokens that some pool of those who decode holds.
  std::uint32_t fits_somewhere() const;
  /// Beams that fit every pool to their end.
  bool fits_beams(std::uint32_t prompt, const SamplingParams& sampling) const;
  /// One line for a person.
  std::string text() const;
};

/// Draws everything from the seed.
Scenario draw_scenario(std::uint64_t seed);

/// Likewise, one of fair shares.
Scenario draw_fair_scenario(std::uint64_t seed);

}  // namespace baton::sim
