#include "tests/sim/scenario.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "scheduler/state/message_size.h"
#include "tests/sim/random.h"

namespace baton::sim {

namespace {

void draw_settings(Scenario& s, Random& random) {
  Settings& t = s.settings;
  if (random.permille(60)) {
    t.batching = Batching::static_batch;
    t.static_batch_size = random.between(1, 5);
    t.static_interval = random.time(50 * kMillisecond, kSecond);
  }
  t.max_waiting = random.permille(80) ? random.between(1, 4) : 20000;
  t.max_running = random.permille(300) ? random.between(1, 6) : 256;
  t.token_budget = random.pick<std::uint32_t>({4, 8, 16, 64, 512});
  t.prompt_chunk = random.pick<std::uint32_t>({1, 3, 4, 8, 16, 256});
  t.local_prefill.tokens = random.pick<std::uint32_t>({0, 0, 0, 0, 4, 10, 1000});
  t.worker_timeout = random.time(1200 * kMillisecond, 3 * kSecond);
  t.frontend_timeout = random.time(2 * kSecond, 6 * kSecond);
  t.drain = random.time(100 * kMillisecond, 2 * kSecond);
  t.close_timeout = random.time(2 * kSecond, 6 * kSecond);
  t.max_deaths = random.permille(800) ? 3 : random.between(1, 4);
  t.steps_in_flight = random.between(1, 2);
  t.prefix_cache = random.permille(700);
  t.prefix_pull_tokens = random.pick<std::uint32_t>({0, 1, 1, 1, 4, 16});
}

/// Conversations whose turns follow one another, with blocks that they fill: most prefixes are
/// pulled here.
void draw_chats(Scenario& s, Random& random) {
  s.tokens_per_block = random.pick<std::uint32_t>({1, 2, 4});
  s.settings.prefix_cache = true;
  s.settings.prefix_pull_tokens = random.between(1, 4);
  s.load.requests = random.between(20, 60);
  s.load.repeat = s.load.next_turn = 1000;
  s.load.beams = 0;
}

/// Policies other than the defaults. Drawn last: without them a seed is what it was.
void draw_policies(Scenario& s, Random& random) {
  Settings& t = s.settings;
  if (random.permille(400)) return;
  using Sizes = std::vector<std::uint32_t>;
  const auto sizes = [&](std::uint32_t chance) {
    if (!random.permille(chance)) return Sizes();
    const std::uint32_t smallest = random.between(1, 4);
    return random.permille(500) ? Sizes{smallest}
                                : Sizes{smallest, smallest + random.between(1, 8)};
  };
  t.prefill_batch_size = sizes(300);
  t.decode_batch_size = sizes(300);
  t.prompts_pause_decode = random.permille(300);
  if (random.permille(300)) t.delay_factor = random.between(1, 40) * 0.1;
  if (random.permille(400)) t.queue_order = QueueOrder::shortest;
  t.input_age = random.time(0, 20 * kMillisecond);
  t.preempted = random.pick({Preempted::in_place, Preempted::first, Preempted::front});
  if (random.permille(400)) t.admission = Admission::future;
  if (random.permille(200)) t.watermark = random.between(1, 50) * 0.01;
  if (random.permille(300)) t.pull_watermark = random.between(1, 99) * 0.01;
  if (random.permille(300)) t.local_prefill.cached = random.between(1, 100) * 0.01;
  if (random.permille(300)) t.local_prefill.wait = random.time(1, 200 * kMillisecond);
  if (random.permille(200)) t.token_budget.prefill = random.between(1, 64);
  if (random.permille(200)) t.token_budget.decode = random.between(1, 64);
  t.static_same_config = random.permille(500);
  t.victim = random.pick({Victim::last, Victim::shortest, Victim::tail});
}

/// Host parts, and pools that need them. Of numbers of its own: nothing else about a seed depends
/// on it.
void draw_host_parts(Scenario& s) {
  Random random(mix(s.seed) ^ 0x5A4B0B0C5ULL);
  if (!s.settings.prefix_cache || random.permille(350)) return;
  Settings& t = s.settings;
  t.swap = random.pick({Swap::automatic, Swap::always, Swap::always, Swap::never});
  t.swap_step_blocks = random.pick<std::uint32_t>({0, 1, 4, 64});
  if (random.permille(500)) t.preempted = Preempted::automatic;
  s.pace.host_block_us = random.pick<std::uint32_t>({0, 10, 200, 5000});
  const std::uint32_t longest = s.load.max_prompt + s.load.max_output;
  const std::uint32_t one = (longest + s.tokens_per_block - 1) / s.tokens_per_block;
  for (WorkerSpec& w : s.workers) {
    w.host_blocks = random.permille(800) ? random.between(1, 4 * one) : 0;
    if (s.load.beams == 0 && random.permille(300)) w.blocks = one + random.between(0, one);
  }
  // What was said comes back, so that what was forgotten is asked for.
  if (random.permille(500)) s.load.repeat = s.load.next_turn = 1000;
}

/// Nobody is killed, frozen, cut off or unheard.
void make_calm(Scenario& s, Random& random) {
  s.calm = true;
  const TimeNs gap = s.blows.gap;
  s.blows = Blows{};
  s.blows.gap = gap;
  s.blows.told_of_death = random.permille(700);
  LinkQuality& n = s.network;
  n.late_permille = n.lost_from_worker = n.lost_to_worker = n.lost_from_frontend =
      n.lost_to_frontend = 0;
  s.load.killer = 0;
  s.settings.max_deaths = random.between(2, 4);
}

/// Steps, pulls and grammars that take seconds: longer than the time after which silence is death.
void make_slow(Scenario& s, Random& random) {
  const auto slow = [&](TimeNs most) {
    return random.permille(500) ? random.time(kSecond, most) : 0;
  };
  s.pace.step = std::max(s.pace.step, slow(2 * kSecond));
  s.pace.pull = std::max(s.pace.pull, slow(6 * kSecond));
  s.pace.compile = std::max(s.pace.compile, slow(10 * kSecond));
  s.load.requests = random.between(4, 10);
  s.load.burst = random.between(1, 10);
  s.load.max_output = random.between(1, 8);
  s.load.deadline = 0;
}

/// Seeds in which nothing happens but slowness and strikers. Of numbers of its own: nothing else
/// about a seed depends on it.
void draw_calm(Scenario& s) {
  Random random(mix(s.seed) ^ 0xCA1CA1CA1ULL);
  s.load.priorities = random.permille(300);
  s.codec = random.permille(100);
  if (!random.permille(350)) return;
  make_calm(s, random);
  Load& l = s.load;
  switch (random.below(4)) {
    case 0:
      make_slow(s, random);
      break;
    case 1:
    case 2:
      l.strike = random.pick(
          {Strike::prefill, Strike::decode, Strike::pull, Strike::compile, Strike::scheduler});
      break;
    default:
      l.strike = random.pick({Strike::prefill, Strike::decode, Strike::pull, Strike::compile});
      l.strikers_hang = true;
      l.requests = random.between(4, 20);
      if (random.permille(500)) {  // steps go on while something hangs
        s.pace.step = random.time(kSecond, 2 * kSecond);
        l.max_output = 20;
        l.gap = 3 * kSecond;
      }
  }
  if (l.strike == Strike::none) return;
  l.striker = random.between(50, 300);
  if (l.strike == Strike::decode) l.beams = 0;
  if (l.strike == Strike::compile) l.grammar = 400;
}

/// Strikers that share what they strike by: one request with several choices, or a client's second
/// try. Of numbers of its own, likewise.
void draw_shared_strikes(Scenario& s) {
  Random random(mix(s.seed) ^ 0x54A3ED57ULL);
  if (s.load.strike == Strike::none || s.load.strike == Strike::scheduler) return;
  s.load.strikers_share = random.permille(500);
}

/// Pools that outlive their workers. Of numbers of its own, likewise.
void draw_leases(Scenario& s) {
  Random random(mix(s.seed) ^ 0x1EA5E1EA5EULL);
  s.leases = random.permille(600);
  if (!s.leases) return;
  s.settings.kept_wait = random.pick<TimeNs>({0, 500 * kMillisecond, 5 * kSecond, 5 * kSecond});
  if (s.blows.kill_worker == 0) return;
  if (random.permille(300)) s.blows.kill_memory = random.between(1, 5);
  if (random.permille(300)) s.blows.other_layout = random.between(50, 300);
}

void draw_workers(Scenario& s, Random& random) {
  const auto add = [&](const char* name, Role role, std::uint32_t n) {
    for (std::uint32_t i = 0; i < n; ++i) {
      s.workers.push_back({std::string(name) + std::to_string(i), role, 0});
    }
  };
  switch (random.below(8)) {
    case 0:
      add("mixed", Role::mixed, random.between(1, 3));
      break;
    case 1:
      add("decode", Role::decode, random.between(1, 2));
      break;
    case 2:
      add("prefill", Role::prefill, random.between(1, 2));
      break;
    case 3:
      add("prefill", Role::prefill, 1);
      add("decode", Role::decode, 1);
      add("mixed", Role::mixed, 1);
      break;
    case 4:
    case 5:
      add("prefill", Role::prefill, random.between(1, 2));
      add("decode", Role::decode, random.between(1, 2));
      break;
    default:
      add("prefill", Role::prefill, 1);
      add("decode", Role::decode, 1);
  }
  // Waiting for a decode worker needs one that will come.
  const bool decoder = std::any_of(s.workers.begin(), s.workers.end(),
                                   [](const WorkerSpec& w) { return w.role != Role::prefill; });
  s.settings.no_decode = decoder && random.permille(400) ? NoDecode::wait : NoDecode::run;

  const std::uint32_t longest = s.load.max_prompt + s.load.max_output;
  const std::uint32_t one = (longest + s.tokens_per_block - 1) / s.tokens_per_block;
  const bool tiny = random.permille(500);
  // Beams want blocks of their own beside each other.
  const std::uint32_t more =
      s.load.beams != 0 && random.permille(700) ? random.between(0, 3 * one) : 0;
  for (WorkerSpec& w : s.workers) {
    w.blocks = tiny ? one + random.between(0, std::max(2U, one / 2)) : one * random.between(2, 5);
    w.blocks += more;
  }
  s.max_context = random.permille(500) ? longest : 4096;
}

void draw_network(Scenario& s, Random& random) {
  LinkQuality& n = s.network;
  n.delay =
      random.pick<TimeNs>({kMillisecond / 4, kMillisecond, 5 * kMillisecond, 20 * kMillisecond});
  n.same_link_id = random.permille(600);
  if (random.permille(350)) {
    n.late_permille = random.between(1, 60);
    n.late = random.time(20 * kMillisecond, s.settings.worker_timeout / 5);
  }
  if (random.permille(400)) {
    const std::uint32_t rate = random.pick<std::uint32_t>({2, 10, 40});
    const auto draw = [&] { return random.permille(500) ? rate : 0U; };
    n.lost_from_worker = draw();
    n.lost_to_worker = draw();
    n.lost_from_frontend = draw();
    n.lost_to_frontend = draw();
  }
}

void draw_blows(Scenario& s, Random& random) {
  Blows& b = s.blows;
  const auto weight = [&](std::uint32_t chance) {
    return random.permille(chance) ? random.between(1, 10) : 0U;
  };
  if (random.permille(850)) {
    b.kill_worker = weight(500);
    b.kill_scheduler = weight(300);
    b.kill_frontend = weight(200);
    b.freeze_worker = weight(400);
    b.freeze_scheduler = weight(200);
    b.freeze_frontend = weight(200);
    b.double_start = weight(100);
    b.terminate = weight(200);
  }
  b.relink = weight(350);
  b.leave = weight(80);
  b.set_draining = weight(150);
  b.admin_cancel = weight(80);
  b.gap = random.pick<TimeNs>({100 * kMillisecond, 400 * kMillisecond, 1500 * kMillisecond});
  b.freeze = random.pick<TimeNs>({100 * kMillisecond, kSecond, 8 * kSecond});
  b.pull_fails = random.permille(150) ? random.between(5, 300) : 0;
  b.told_of_death = random.permille(750);
  if (random.permille(150) && s.workers.size() > 1) {
    b.stays_dead = static_cast<std::uint32_t>(random.below(s.workers.size()));
    // Somebody must be left who may decode.
    s.settings.no_decode = NoDecode::run;
  }
}

void draw_load(Scenario& s, Random& random) {
  Load& l = s.load;
  l.requests = random.between(6, 40);
  l.gap = random.pick<TimeNs>({5 * kMillisecond, 50 * kMillisecond, 300 * kMillisecond});
  l.burst = random.between(1, 8);
  l.max_prompt = random.between(1, 24);
  l.max_output = random.between(1, 20);
  const auto share = [&](std::uint32_t chance) {
    return random.permille(chance) ? random.between(20, 400) : 0U;
  };
  l.cancel = share(300);
  l.stop = share(300);
  l.deadline = share(150);
  l.bad_row = share(80);
  l.killer = random.permille(60) ? random.between(10, 80) : 0;
  l.too_long = share(80);
  l.endless = share(80);
  l.beams = share(400);
  l.repeat = random.between(0, 1000);
  l.next_turn = random.between(0, 1000);
}

/// Drawn by itself, so that what else a seed does is as it was. Not where something fits some
/// workers only: those who decode may be the small ones then.
void draw_role_switches(Scenario& s) {
  Random random(mix(s.seed) ^ 0x401E5ULL);
  if (s.calm || s.workers.size() < 2 || s.blows.total() == 0 || s.load.too_long != 0) return;
  if (random.permille(200)) s.blows.set_role = random.between(1, 10);
}

/// Front ends that die, and have successors. Drawn by itself, likewise.
void draw_successors(Scenario& s) {
  Random random(mix(s.seed) ^ 0x5CCE5505ULL);
  if (s.calm || s.blows.total() == 0 || !random.permille(250)) return;
  s.successors = true;
  s.settings.successor_wait =
      random.pick<TimeNs>({0, kSecond / 2, 2 * kSecond, 10 * kSecond, 10 * kSecond});
  s.blows.kill_frontend = random.between(3, 20);
  if (random.permille(400)) s.blows.replace_frontend = random.between(1, 6);
  // Most deaths meet requests.
  s.load.requests = random.between(20, 60);
  s.load.gap = random.pick<TimeNs>({100 * kMillisecond, 300 * kMillisecond, kSecond});
  s.pace.step = random.pick<TimeNs>({5 * kMillisecond, 20 * kMillisecond, 60 * kMillisecond});
}

/// Requests of several tenants, and a queue that is fair between them. By itself, likewise.
void draw_tenants(Scenario& s) {
  Random random(mix(s.seed) ^ 0x7E4A475ULL);
  if (!random.permille(120)) return;
  s.tenants = random.between(2, 4);
  s.settings.queue_order = QueueOrder::fair;
  s.settings.fair_output_cost = random.between(0, 4);
}

/// Workers that change their roles by themselves, now and then of pools as large as each other:
/// else few may. By itself, and not where something fits some workers only, likewise.
void draw_auto_roles(Scenario& s) {
  Random random(mix(s.seed) ^ 0xA0701E6ULL);
  if (s.calm || s.workers.size() < 2 || s.load.too_long != 0 || !random.permille(150)) return;
  Settings& t = s.settings;
  t.roles = Roles::automatic;
  t.role_queue = random.pick<TimeNs>({kMillisecond, 10 * kMillisecond, 100 * kMillisecond});
  t.role_dwell = random.time(200 * kMillisecond, 2 * kSecond);
  if (random.permille(300)) return;
  std::uint32_t most = 0;
  for (const WorkerSpec& w : s.workers) most = std::max(most, w.blocks);
  for (WorkerSpec& w : s.workers) w.blocks = most;
}

/// Mixed workers whose pools one request may lie in, most of them smaller than the longest one. By
/// itself, and drawn last, since it draws the workers anew.
void draw_elastic(Scenario& s) {
  Random random(mix(s.seed) ^ 0xE1A573A6ULL);
  if (s.load.too_long != 0 || s.settings.roles == Roles::automatic || s.blows.set_role != 0) return;
  if (!random.permille(150)) return;
  Settings& t = s.settings;
  t.elastic = true;
  t.elastic_degree = random.pick<std::uint32_t>({2, 3, 8, 8});
  t.no_decode = NoDecode::run;
  if (random.permille(700)) t.local_prefill = {};
  if (random.permille(700)) t.watermark = 0;
  if (random.permille(500)) s.load.beams = 0;
  s.load.max_prompt = random.between(8, 32);
  s.load.max_output = random.between(4, 24);
  const std::uint32_t longest = s.load.max_prompt + s.load.max_output;
  const std::uint32_t one = (longest + s.tokens_per_block - 1) / s.tokens_per_block;
  const std::uint32_t workers = random.between(2, 4);
  const std::uint32_t host_blocks = s.workers.front().host_blocks;
  const std::uint32_t least = one / std::min(workers, t.elastic_degree) + 1;
  s.workers.clear();
  for (std::uint32_t i = 0; i < workers; ++i) {
    const std::uint32_t blocks = std::max(2U, random.between(least, std::max(least, one)));
    s.workers.push_back({"mixed" + std::to_string(i), Role::mixed, blocks, host_blocks});
  }
  if (s.blows.stays_dead != kNobody) s.blows.stays_dead %= workers;
  s.max_context = random.permille(500) ? longest : 4096;
}

/// An operator, or the scheduler by itself, changes the roles of workers whose pools requests
/// share. By itself, likewise.
void draw_elastic_roles(Scenario& s) {
  Random random(mix(s.seed) ^ 0xE1A57201E5ULL);
  if (!s.settings.elastic || s.calm || s.blows.total() == 0 || !random.permille(300)) return;
  s.blows.set_role = random.between(1, 10);
  if (!random.permille(300)) return;
  s.settings.roles = Roles::automatic;
  s.settings.role_queue = random.pick<TimeNs>({kMillisecond, 100 * kMillisecond});
  s.settings.role_dwell = random.time(200 * kMillisecond, 2 * kSecond);
}

/// What lies in several pools comes together again. Some pools have room for that. By itself.
void draw_gathers(Scenario& s) {
  Random random(mix(s.seed) ^ 0x6A73E4ULL);
  s.settings.elastic_gather = random.permille(600);
  if (!s.settings.elastic || !s.settings.elastic_gather || !random.permille(700)) return;
  for (WorkerSpec& w : s.workers) w.blocks += random.between(0, w.blocks);
  if (!random.permille(400)) return;
  // One of them takes in what lies in two others, by pulls that take different times.
  s.workers[random.below(s.workers.size())].blocks *= 3;
  s.pace.pull = 60 * kMillisecond;
}

/// Prompts that several workers compute at the same time, also where one pool holds them. By
/// itself, likewise.
void draw_spreads(Scenario& s) {
  Random random(mix(s.seed) ^ 0x59EADULL);
  if (!s.settings.elastic || !random.permille(650)) return;
  s.settings.elastic_prompt_tokens = random.between(2, 10);
  s.settings.prompt_chunk = random.pick<std::uint32_t>({1, 2, 4, 8});
  const std::uint32_t per_block = random.pick<std::uint32_t>({1, 2});
  if (!random.permille(500) || s.tokens_per_block <= per_block) return;
  for (WorkerSpec& w : s.workers) w.blocks *= s.tokens_per_block / per_block;
  s.tokens_per_block = per_block;
}

/// Models whose layers have windows, and pools of another size for them. By itself, likewise.
void draw_windows(Scenario& s) {
  Random random(mix(s.seed) ^ 0x3170D187ULL);
  if (s.settings.elastic || !random.permille(250)) return;  // what spans has one group
  s.tokens_per_block = random.pick<std::uint32_t>({1, 2, 4});
  const bool everywhere = random.permille(500);
  if (!everywhere) s.windows.push_back(0);
  const std::uint32_t others = random.between(1, everywhere ? 2 : 3);
  for (std::uint32_t g = 0; g < others; ++g) s.windows.push_back(random.between(2, 10));
  std::sort(s.windows.begin(), s.windows.end());
  // Most tokens are out of sight in the end.
  s.load.max_prompt = random.between(8, 40);
  s.load.max_output = random.between(4, 30);
  const std::uint32_t longest = s.load.max_prompt + s.load.max_output;
  s.max_context = random.pick({longest, 2 * longest});
  const std::uint32_t one = s.lives_in(longest);
  const bool tiny = random.permille(500);
  for (WorkerSpec& w : s.workers)
    w.blocks = tiny ? one + random.between(0, one / 2) : one * random.between(2, 4);
  if (s.load.beams != 0) {
    for (WorkerSpec& w : s.workers) w.blocks += random.between(0, 3 * one);
  }
}

/// In some of the seeds each message is held against a limit that is as small beside what the
/// simulation sends as the real one is: some lines for each request. By itself, likewise.
void draw_limits(Scenario& s) {
  Random random(mix(s.seed) ^ 0x11317B17E5ULL);
  s.weighed = random.permille(300);
  const bool crowded = !s.fair && random.permille(400);
  if (s.weighed && crowded) {
    s.load.requests = random.between(20, 50);
    s.load.burst = random.between(10, 25);
  }
  s.most_bytes = 8192 + std::size_t{512} * s.load.requests;
  if (!s.weighed) return;
  // Plans keep to a limit that is as small as the longest sequences allow.
  std::uint32_t longest = s.settings.elastic ? s.fits_somewhere() : 0;
  for (const WorkerSpec& w : s.workers) longest = std::max(longest, s.fits_into(w.blocks));
  Hello hello;
  hello.windows = s.windows;
  hello.tokens_per_block = s.tokens_per_block;
  std::size_t& most = s.settings.message_bytes;
  most = 1024;
  while (context_in_a_message(hello, most) <= longest) most += 256;
  most *= random.pick<std::size_t>({1, 1, 2, 4});
}

/// Workers with shared pools that die often, while prompts are spread over them, and whose pools
/// outlive them. By itself, likewise.
void draw_elastic_deaths(Scenario& s) {
  Random random(mix(s.seed) ^ 0xE1A57DEA7ULL);
  if (!s.settings.elastic || s.calm || !random.permille(400)) return;
  s.leases = true;
  s.settings.kept_wait = random.pick<TimeNs>({500 * kMillisecond, 5 * kSecond});
  s.blows.kill_worker = random.between(5, 20);
  s.blows.gap = random.pick<TimeNs>({100 * kMillisecond, 400 * kMillisecond});
  s.pace.step = random.pick<TimeNs>({20 * kMillisecond, 60 * kMillisecond});
  s.load.requests = random.between(20, 60);
  if (random.permille(500)) s.settings.elastic_prompt_tokens = random.between(2, 6);
  // Some stay away for longer than requests wait for their pools.
  s.pace.restart = random.pick<TimeNs>({20 * kMillisecond, 500 * kMillisecond, 20 * kSecond});
  if (s.pace.restart <= kSecond) return;
  s.load.gap = 2 * kSecond;
  s.blows.gap = 3 * kSecond;
  if (random.permille(500))
    s.blows.stays_dead = static_cast<std::uint32_t>(random.below(s.workers.size()));
}

}  // namespace

std::uint32_t Scenario::lives_in(std::uint32_t tokens) const {
  const std::uint32_t whole = (tokens + tokens_per_block - 1) / tokens_per_block;
  std::uint32_t blocks = 0;
  for (std::uint32_t g = 0; g < groups(); ++g) {
    const std::uint32_t window = windows.empty() ? 0 : windows[g];
    // The window, which may begin and end inside a block, and one to grow into.
    const std::uint32_t live = (window + tokens_per_block - 1) / tokens_per_block + 2;
    blocks += window == 0 ? whole : std::min(whole, live);
  }
  return blocks;
}

std::uint32_t Scenario::fits_into(std::uint32_t blocks) const {
  if (windows.empty()) return std::min(max_context, blocks * tokens_per_block);
  std::uint32_t tokens = 0;
  while (tokens < max_context && lives_in(tokens + 1) <= blocks) ++tokens;
  return tokens;
}

std::uint32_t Scenario::fits() const {
  std::uint32_t smallest = max_context;
  for (const WorkerSpec& w : workers) smallest = std::min(smallest, fits_into(w.blocks));
  return smallest;
}

std::uint32_t Scenario::fits_somewhere() const {
  if (settings.elastic) {  // all of them are mixed
    std::vector<std::uint32_t> pools;
    for (const WorkerSpec& w : workers) pools.push_back(w.blocks * tokens_per_block);
    std::sort(pools.begin(), pools.end(), std::greater<>());
    pools.resize(std::min<std::size_t>(pools.size(), settings.elastic_degree));
    return std::min(max_context, std::accumulate(pools.begin(), pools.end(), 0U));
  }
  std::uint32_t decoders = 0;
  std::uint32_t all = 0;
  for (const WorkerSpec& w : workers) {
    const std::uint32_t context = fits_into(w.blocks);
    all = std::max(all, context);
    if (w.role != Role::prefill) decoders = std::max(decoders, context);
  }
  return decoders != 0 ? decoders : all;
}

bool Scenario::fits_beams(std::uint32_t prompt, const SamplingParams& sampling) const {
  if (step_room != 0 && sampling.num_beams > step_room) return false;
  if (sampling.max_tokens <= 1) return prompt + 1 <= fits();
  const std::uint32_t shared = prompt / tokens_per_block * tokens_per_block;
  const std::uint32_t longest = std::max(prompt + sampling.max_tokens - 1, prompt + 1);
  const std::uint32_t most = lives_in(shared) + sampling.num_beams * lives_in(longest - shared);
  return std::all_of(workers.begin(), workers.end(),
                     [&](const WorkerSpec& w) { return most <= w.blocks; });
}

Scenario draw_scenario(std::uint64_t seed) {
  Random random(mix(seed) ^ 0x5CE4A510ULL);
  Scenario s;
  s.seed = seed;
  s.tokens_per_block = random.pick<std::uint32_t>({1, 2, 4, 16});
  s.frontends = random.permille(300) ? 2 : 1;
  s.tick = random.time(20 * kMillisecond, 100 * kMillisecond);
  draw_load(s, random);
  draw_settings(s, random);
  if (random.permille(200)) draw_chats(s, random);
  draw_workers(s, random);
  draw_network(s, random);
  draw_blows(s, random);
  s.pace.step = random.pick<TimeNs>({kMillisecond, 5 * kMillisecond, 20 * kMillisecond});
  s.pace.pull = random.pick<TimeNs>({kMillisecond, 10 * kMillisecond, 60 * kMillisecond});
  s.pace.load = random.pick<TimeNs>({5 * kMillisecond, 200 * kMillisecond, kSecond});
  s.pace.restart = random.pick<TimeNs>({20 * kMillisecond, 500 * kMillisecond, 3 * kSecond});
  draw_policies(s, random);
  draw_host_parts(s);
  draw_calm(s);
  draw_shared_strikes(s);
  if (random.permille(150)) s.step_room = random.pick<std::uint32_t>({2, 5, 9});
  draw_leases(s);
  draw_role_switches(s);
  draw_successors(s);
  draw_auto_roles(s);
  draw_tenants(s);
  draw_elastic(s);
  draw_elastic_roles(s);
  draw_spreads(s);
  draw_gathers(s);
  draw_elastic_deaths(s);
  draw_windows(s);
  draw_limits(s);
  return s;
}

Scenario draw_fair_scenario(std::uint64_t seed) {
  Random random(mix(seed) ^ 0xFA1457A4EULL);
  Scenario s;
  s.seed = seed;
  s.fair = s.calm = true;
  s.tenants = random.between(2, 4);
  s.tokens_per_block = random.pick<std::uint32_t>({1, 2, 4});
  s.frontends = random.between(1, 2);
  s.codec = random.permille(100);
  s.pace.step = random.pick<TimeNs>({kMillisecond, 5 * kMillisecond});
  s.pace.pull = kMillisecond;
  s.network.delay = random.pick<TimeNs>({kMillisecond / 4, kMillisecond});
  Load& l = s.load;
  l.requests = random.between(80, 160);
  l.gap = random.pick<TimeNs>({5 * kMillisecond, 20 * kMillisecond});
  l.burst = random.between(4, 10);
  l.max_prompt = random.between(4, 12);
  l.max_output = random.between(4, 12);
  l.grammar = 0;
  Settings& t = s.settings;
  t.queue_order = QueueOrder::fair;
  t.fair_output_cost = random.between(1, 3);
  t.max_running = random.between(1, 4);
  t.token_budget = random.pick<std::uint32_t>({4, 16, 64});
  t.prompt_chunk = random.pick<std::uint32_t>({2, 4, 256});
  t.steps_in_flight = random.between(1, 2);
  t.preempted = random.pick({Preempted::in_place, Preempted::first});
  t.victim = random.pick({Victim::last, Victim::shortest, Victim::tail});
  // What is found in a cache, or goes where some of it is, goes before others.
  t.prefix_cache = false;
  const bool pair = random.permille(300);
  if (pair) {
    s.workers = {{"prefill0", Role::prefill, 0}, {"decode0", Role::decode, 0}};
  } else {
    s.workers = {{"mixed0", Role::mixed, 0}};
  }
  const std::uint32_t longest = l.max_prompt + l.max_output;
  const std::uint32_t one = (longest + s.tokens_per_block - 1) / s.tokens_per_block;
  const bool tight = random.permille(500);
  for (WorkerSpec& w : s.workers) w.blocks = tight ? one + random.between(1, one) : 5 * one;
  s.max_context = 4096;
  draw_limits(s);
  return s;
}

std::string Scenario::text() const {
  std::string line = "workers";
  for (const WorkerSpec& w : workers)
    line += " " + w.name + ":" + std::to_string(w.blocks) + "+" + std::to_string(w.host_blocks);
  const auto field = [&](const char* name, std::uint64_t value) {
    line += std::string(", ") + name + " " + std::to_string(value);
  };
  field("tokens/block", tokens_per_block);
  for (const std::uint32_t window : windows) field("window", window);
  field("front ends", frontends);
  field("static", settings.batching == Batching::continuous ? 0 : settings.static_batch_size);
  field("max_waiting", settings.max_waiting);
  field("max_running", settings.max_running);
  field("budget", settings.token_budget.mixed);
  field("chunk", settings.prompt_chunk);
  field("local", settings.local_prefill.tokens);
  field("no_decode wait", settings.no_decode == NoDecode::wait ? 1 : 0);
  const auto sizes = [&](const char* name, const std::vector<std::uint32_t>& values) {
    for (const std::uint32_t value : values) field(name, value);
  };
  sizes("prefill_batch", settings.prefill_batch_size);
  sizes("decode_batch", settings.decode_batch_size);
  field("prompts pause", settings.prompts_pause_decode ? 1 : 0);
  field("delay permille", static_cast<std::uint64_t>(settings.delay_factor * 1000));
  field("shortest", settings.queue_order == QueueOrder::shortest ? 1 : 0);
  field("fair", settings.queue_order == QueueOrder::fair ? 1 : 0);
  field("preempted", static_cast<std::uint64_t>(settings.preempted));
  field("victim", static_cast<std::uint64_t>(settings.victim));
  field("future", settings.admission == Admission::future ? 1 : 0);
  field("watermark %", static_cast<std::uint64_t>(settings.watermark * 100));
  field("pull_watermark %", static_cast<std::uint64_t>(settings.pull_watermark * 100));
  field("local wait us", static_cast<std::uint64_t>(settings.local_prefill.wait / 1000));
  field("local cached %", static_cast<std::uint64_t>(settings.local_prefill.cached * 100));
  field("prefill budget", settings.token_budget.prefill);
  field("decode budget", settings.token_budget.decode);
  field("deaths", settings.max_deaths);
  field("depth", settings.steps_in_flight);
  field("worker_timeout ms", static_cast<std::uint64_t>(settings.worker_timeout / kMillisecond));
  field("prompt", load.max_prompt);
  field("output", load.max_output);
  field("prefix cache", settings.prefix_cache ? load.repeat : 0);
  field("pulled from", settings.prefix_pull_tokens);
  field("swap", static_cast<std::uint64_t>(settings.swap));
  field("ahead", settings.swap_step_blocks);
  field("host block us", pace.host_block_us);
  field("told of death", blows.told_of_death ? 1 : 0);
  field("calm", calm ? 1 : 0);
  field("strike", static_cast<std::uint64_t>(load.strike));
  field("strikers hang", load.strikers_hang ? 1 : 0);
  field("strikers share", load.strikers_share ? 1 : 0);
  field("pull ms", static_cast<std::uint64_t>(pace.pull / kMillisecond));
  field("step ms", static_cast<std::uint64_t>(pace.step / kMillisecond));
  field("codec", codec ? 1 : 0);
  field("message bytes", weighed ? settings.message_bytes : 0);
  field("step room", step_room);
  field("leases", leases ? 1 : 0);
  field("kept_wait ms", static_cast<std::uint64_t>(settings.kept_wait / kMillisecond));
  field("auto roles", settings.roles == Roles::automatic ? 1 : 0);
  field("roles set", blows.set_role);
  field("role_dwell ms", static_cast<std::uint64_t>(settings.role_dwell / kMillisecond));
  field("same link id", network.same_link_id ? 1 : 0);
  field("successors", successors ? 1 : 0);
  field("tenants", tenants);
  field("elastic", settings.elastic ? settings.elastic_degree : 0);
  field("gathered", settings.elastic && settings.elastic_gather ? 1 : 0);
  field("spread from", settings.elastic ? settings.elastic_prompt_tokens : 0);
  field("successor_wait ms", static_cast<std::uint64_t>(settings.successor_wait / kMillisecond));
  return line;
}

}  // namespace baton::sim
