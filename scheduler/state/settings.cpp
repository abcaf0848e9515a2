#include "scheduler/state/cluster_state.h"

namespace baton {

Settings make_settings(const SchedulerConfig& config) {
  Settings s;
  s.batching = config.batching;
  s.static_batch_size = config.static_batch_size;
  s.priority_age = seconds_to_ns(config.priority_age_s);
  s.static_same_config = config.static_same_config;
  s.static_interval = seconds_to_ns(config.static_interval_s);
  s.max_waiting = config.max_waiting;
  s.max_running = config.max_running;
  s.token_budget = config.token_budget;
  s.prompt_chunk = config.prompt_chunk;
  s.prefill_batch_size = config.prefill_batch_size;
  s.decode_batch_size = config.decode_batch_size;
  s.prompts_pause_decode = config.prompts_pause_decode;
  s.delay_factor = config.delay_factor;
  s.queue_order = config.queue_order;
  s.input_age = seconds_to_ns(config.input_age_ms / 1000);
  s.fair_output_cost = config.fair_output_cost;
  s.preempted = config.preempted;
  s.victim = config.victim;
  s.admission = config.admission;
  s.watermark = config.watermark;
  s.pull_watermark = config.pull_watermark;
  s.local_prefill.tokens = config.local_prefill.tokens;
  s.local_prefill.cached = config.local_prefill.cached;
  s.local_prefill.wait = seconds_to_ns(config.local_prefill.wait_ms / 1000);
  s.no_decode = config.no_decode;
  s.roles = config.roles;
  s.role_queue = seconds_to_ns(config.role_queue_s);
  s.role_dwell = seconds_to_ns(config.role_dwell_s);
  s.elastic = config.elastic == Elastic::automatic;
  s.elastic_degree = config.elastic_degree;
  s.elastic_prompt_tokens = config.elastic_prompt_tokens;
  s.elastic_gather = config.elastic_gather == Elastic::automatic;
  s.worker_timeout = seconds_to_ns(config.worker_timeout_s);
  s.frontend_timeout = seconds_to_ns(config.frontend_timeout_s);
  s.successor_wait = seconds_to_ns(config.successor_wait_s);
  s.max_deaths = config.max_deaths;
  s.drain = seconds_to_ns(config.drain_s);
  s.close_timeout = seconds_to_ns(config.close_timeout_s);
  s.kept_wait = seconds_to_ns(config.kept_wait_s);
  s.steps_in_flight = config.steps_in_flight;
  s.prefix_cache = config.prefix_cache;
  s.prefix_pull_tokens = config.prefix_pull_tokens;
  s.swap = config.swap;
  s.swap_step_blocks = config.swap_step_blocks;
  s.kv_events = !config.kv_events.empty();
  return s;
}

}  // namespace baton
