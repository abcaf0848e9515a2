// Every option of every process: values here, their names, meanings, defaults and bounds in one
// table (options.cpp), from which the YAML reader, the command line and --help are made.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

enum class Batching : std::uint8_t { continuous = 0, static_batch = 1 };
enum class NoDecode : std::uint8_t { run = 0, wait = 1 };
enum class QueueOrder : std::uint8_t { arrival = 0, shortest = 1, fair = 2 };
enum class Preempted : std::uint8_t { in_place = 0, first = 1, front = 2, automatic = 3 };
enum class Admission : std::uint8_t { watermark = 0, future = 1 };
enum class Victim : std::uint8_t { last = 0, shortest = 1, tail = 2 };
enum class Swap : std::uint8_t { automatic = 0, always = 1, never = 2 };
enum class Roles : std::uint8_t { fixed = 0, automatic = 1 };
enum class Elastic : std::uint8_t { off = 0, automatic = 1 };

/// Tokens of one step, prompt and decode together, by the worker's role.
struct TokenBudget {
  std::uint32_t prefill = 512;
  std::uint32_t decode = 512;
  std::uint32_t mixed = 512;

  /// The same for every role.
  TokenBudget& operator=(std::uint32_t tokens) {
    prefill = decode = mixed = tokens;
    return *this;
  }
  std::uint32_t of(Role role) const {
    return role == Role::prefill ? prefill : role == Role::decode ? decode : mixed;
  }
  bool operator==(const TokenBudget&) const = default;
};

/// Which prompts prefill where they will decode and are not handed off; any of the three will do, 0
/// is never.
struct LocalPrefill {
  std::uint32_t tokens = 0;  // prompts of up to so many tokens
  double cached = 0;         // those of which a decode worker has that share in its prefix cache
  double wait_ms = 0;        // those that have waited so long for a prefill worker

  bool operator==(const LocalPrefill&) const = default;
};

// The defaults live in the structs alone; the table reads them from a default-constructed Config.

struct SchedulerConfig {
  std::string admin_socket;  // default: run_dir/[ENTRY.]admin.sock (load_config)
  Batching batching = Batching::continuous;
  double priority_age_s = 5;
  std::uint32_t static_batch_size = 4;
  double static_interval_s = 3;
  bool static_same_config = false;
  std::uint32_t max_waiting = 20'000;
  std::uint32_t max_running = 256;
  TokenBudget token_budget;
  std::uint32_t prompt_chunk = 256;
  std::vector<std::uint32_t> prefill_batch_size;  // ascending; empty: no limit
  std::vector<std::uint32_t> decode_batch_size;   // likewise
  bool prompts_pause_decode = false;
  double delay_factor = 0;
  QueueOrder queue_order = QueueOrder::arrival;
  double input_age_ms = 10;
  double fair_output_cost = 2;
  Preempted preempted = Preempted::automatic;
  Victim victim = Victim::last;
  Admission admission = Admission::watermark;
  double watermark = 0;
  double pull_watermark = 1;
  LocalPrefill local_prefill;
  NoDecode no_decode = NoDecode::run;
  Roles roles = Roles::fixed;
  double role_queue_s = 0.5;
  double role_dwell_s = 10;
  Elastic elastic = Elastic::off;
  std::uint32_t elastic_degree = 8;
  std::uint32_t elastic_prompt_tokens = 4096;
  Elastic elastic_gather = Elastic::automatic;
  double worker_timeout_s = 3;
  double frontend_timeout_s = 15;
  double successor_wait_s = 10;
  std::uint32_t max_deaths = 3;
  double drain_s = 4;
  double close_timeout_s = 12;
  double kept_wait_s = 5;
  std::uint32_t steps_in_flight = 2;
  bool prefix_cache = true;
  std::uint32_t prefix_pull_tokens = 64;
  Swap swap = Swap::automatic;
  std::uint32_t swap_step_blocks = 8;
  std::string event_log;
  std::string kv_events;         // ZeroMQ endpoint; empty: off
  std::string kv_events_replay;  // likewise
  std::string kv_events_pod = "{worker}";
  bool kv_events_arrays = false;
};

/// Tokens that a step of such a worker can have at the most: its budget (where roles change by
/// themselves, the largest one), or one for each sequence that decodes there. (On a prefill worker
/// they do when no decode worker is left; one beam search may be wider than the budget.)
std::uint32_t largest_step(const SchedulerConfig& scheduler, Role role);

/// One port of a front end, and the HTTP dialects that are spoken there (configs/dialects.h). No
/// two of them own the same path.
struct ListenConfig {
  std::string host;  // default: frontend.host (filled in by load_config)
  std::uint16_t port = 8000;
  std::vector<std::string> dialects = {"openai", "lab", "anthropic", "ollama"};
};

struct FrontendConfig {
  std::string name = "frontend0";
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::vector<std::string> dialects = {"openai", "lab", "anthropic", "ollama"};
  /// After load_config at least one; the first has `port` and `dialects`, whoever gave them.
  std::vector<ListenConfig> listen;
  std::uint32_t threads = 2;
  std::uint64_t max_body_bytes = 4'194'304;
  std::uint32_t max_streams = 4096;
  double timeout_s = 600;
  double max_timeout_s = 3600;
  std::uint32_t default_max_tokens = 0;
  std::string generation_config = "auto";
  std::uint64_t write_buffer_bytes = 262'144;
  double stall_timeout_s = 30;
  double sse_keepalive_s = 15;
  double drain_s = 8;
  std::string api_keys;
  bool cache_salt_by_key = false;
  std::vector<std::string> allowed_origins;
  bool strict_fields = false;
  bool drop_billing_header = true;
  bool distserve_zero_bytes = false;
  std::string schema_objects = "closed";
  std::string schema_unenforceable = "report";
  std::vector<std::string> allowed_hosts;
  double peer_share = 0.5;
  double grammar_cpu_s = 10;
  bool twin = true;
  std::string fault_text;
  std::string client_url;
  std::string tokenizer = "auto";
  std::string chat_template;
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
};

struct WorkerConfig {
  /// What its process is called in the run directory: NAME, or of several ranks NAME.RANK.
  std::string process_name() const { return process_name(rank); }
  std::string process_name(std::uint32_t of_rank) const {
    return ranks > 1 ? name + "." + std::to_string(of_rank) : name;
  }

  /// Whether products with weights that stay integers take activations rounded to eight bits.
  bool rounds_activations() const {
    return activations == "int8" || (activations == "auto" && !deterministic && device == "cpu");
  }

  std::string name;
  Role role = Role::mixed;
  std::string device = "cpu";
  std::string gpu = "auto";
  std::string load_format = "auto";
  std::string dtype = "auto";
  std::string activations = "auto";
  bool deterministic = false;
  std::string layer_kernel = "auto";
  double memory_fraction = 0.9;
  std::uint32_t mps_thread_percentage = 0;
  std::string mps_priority = "auto";
  std::uint32_t ranks = 1;
  std::uint32_t rank = 0;  // of this process; set by whoever starts it
  double rank_timeout_s = 5;
  std::uint32_t threads = 0;
  std::uint64_t memory_mib = 0;
  std::uint32_t pool_blocks = 0;
  std::uint64_t pool_mib = 0;
  std::uint32_t host_pool_blocks = 0;
  std::uint64_t host_pool_mib = 0;
  std::uint32_t tokens_per_block = 16;
  std::string kv_groups = "auto";
  std::uint32_t in_place_keys = 4096;
  bool check_pulls = false;
  bool fake = false;
  Token fault_token = -1;
  bool fault_unmappable = false;
  std::uint32_t fault_wrong_block = 0;
  std::uint32_t pull_delay_ms = 0;
  std::uint32_t step_delay_ms = 0;
  std::string sample_log;
  std::string step_log;
  double drain_s = 8;
};

/// Where front ends send spans of requests.
struct TelemetryConfig {
  std::string otlp_url;  // empty: nowhere
  double sample_ratio = 1;
  std::string service_name = "baton";
};

struct Config {
  /// Of what belongs to one entry of `models`: its name. Empty: there is no such list, or this is
  /// about all of it.
  std::string entry;
  std::string run_dir;  // default: /tmp/baton-<uid> (filled in by load_config)
  std::string
      model;  // folder; relative to the YAML file's folder there, to the cwd on the command line
  std::string model_name;  // default: the entry's name, or else the model folder's (load_config)
  std::string model_task = "auto";
  std::string log_level = "info";
  std::string log_format = "text";  // or json (ipc/log_line.h)
  std::uint32_t max_context = 0;
  std::uint32_t awake_ms = 0;
  SchedulerConfig scheduler;
  FrontendConfig frontend;
  TelemetryConfig telemetry;
  WorkerConfig worker;                // defaults for all workers
  std::vector<WorkerConfig> workers;  // each with the defaults applied; where there are `models`
                                      // all of theirs, called ENTRY.NAME
  /// Each entry of `models` as its scheduler and its workers have it, in the order of the file.
  std::vector<Config> models;
  /// baton-worker only: the entry of `workers` called --name, with the command line applied.
  WorkerConfig self;
  /// Of an entry of `models`: the workers of all of them, which share the machine.
  std::vector<WorkerConfig> all_workers;

  /// What a process, or a file of it, of this model is called: NAME, or ENTRY.NAME. The names that
  /// a configuration gives have no dot.
  std::string named(const std::string& name) const {
    return entry.empty() ? name : entry + "." + name;
  }
  /// Who takes memory and processors here, this model's workers among them.
  const std::vector<WorkerConfig>& neighbours() const {
    return all_workers.empty() ? workers : all_workers;
  }
  /// The models that are served, one configuration each.
  std::vector<const Config*> served() const {
    std::vector<const Config*> all;
    for (const Config& one : models) all.push_back(&one);
    if (all.empty()) all.push_back(this);
    return all;
  }

  std::string scheduler_name() const { return named("scheduler"); }
  std::string scheduler_lock() const { return run_dir + "/" + scheduler_name() + ".lock"; }
  std::string frontends_socket() const { return run_dir + "/" + named("frontends.sock"); }
  std::string workers_socket() const { return run_dir + "/" + named("workers.sock"); }
  /// `name`: of a memory process.
  std::string memory_lock(const std::string& name = "memory") const {
    return run_dir + "/" + name + ".lock";
  }
  std::string memory_socket(const std::string& name = "memory") const {
    return run_dir + "/" + name + ".sock";
  }
};

/// Whose command line: its own section's options also have short names (--threads for
/// --worker.threads). A tool has none.
enum class Program : std::uint8_t { scheduler, frontend, worker, tool };

/// Either a config, or the exit code after --help, --version or an error (already printed).
struct Loaded {
  std::optional<Config> config;
  int exit_code = 0;
};

/// Reads --config FILE if given, applies the command line on top, validates. Help and version go to
/// `out`, errors to `err`; exit codes: 0 help or version, 2 error.
Loaded load_config(Program who, int argc, const char* const* argv, std::ostream& out,
                   std::ostream& err);
/// The same with stdout and stderr.
Loaded load_config(Program who, int argc, const char* const* argv);

/// YAML text -> Config, as load_config does it. `file` is named in errors, and its folder is what
/// relative paths start from. The error is "FILE:LINE: KEY: what is wrong", the first one found.
Result<Config> parse_config(const std::string& yaml, const std::string& file);

/// The text of --help.
std::string help_text(Program who);

constexpr std::size_t kMaxConfigBytes = 1U << 20U;
constexpr std::size_t kMaxWorkers = 64;
constexpr std::size_t kMaxModels = 16;
constexpr std::size_t kMaxListen = 16;

/// Seconds of the config as nanoseconds.
inline TimeNs seconds_to_ns(double seconds) { return static_cast<TimeNs>(seconds * 1e9); }

}  // namespace baton
