#include "frontend/core/metrics.h"

#include <algorithm>
#include <cstdio>

namespace baton {
namespace {

double seconds(TimeNs time) { return static_cast<double>(time) * 1e-9; }

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g",
                value);  // whole numbers stay exact: bytes, tokens, unix time
  return text;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out.push_back('\\');
    if (c == '\n') {
      out.append("\\n");
    } else {
      out.push_back(c);
    }
  }
  return out;
}

void head(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out.append("# HELP ").append(name).append(" ").append(help);
  out.append("\n# TYPE ").append(name).append(" ").append(type).append("\n");
}

void line(std::string& out, std::string_view name, std::string_view labels,
          const std::string& value) {
  out.append(name);
  if (!labels.empty()) out.append("{").append(labels).append("}");
  out.append(" ").append(value).append("\n");
}

/// A metric with one value under our name and, where dashboards know it by another, under that too.
void single(std::string& out, std::string_view name, std::string_view alias, std::string_view type,
            std::string_view help, std::string_view labels, double value) {
  for (const std::string_view exposed : {name, alias}) {
    if (exposed.empty()) continue;
    head(out, exposed, type, help);
    line(out, exposed, labels, number(value));
  }
}

/// Seconds of a phase: from what an idle server takes to what a full one does.
std::vector<double> phase_bounds() {
  return {.001, .0025, .005, .01, .025, .05, .1, .3, .5, .8,  1,   1.5, 2,
          2.5,  5,     10,   15,  20,   30,  40, 50, 60, 120, 240, 480, 960};
}

}  // namespace

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<std::size_t>(at - bounds_.begin())];
  ++count_;
  sum_ += value;
}

void Histogram::expose(std::string& out, std::string_view name, std::string_view labels) const {
  const std::string bucket = std::string(name) + "_bucket";
  const std::string prefix = std::string(labels) + ",le=\"";
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < bounds_.size(); ++i) {
    total += counts_[i];
    line(out, bucket, prefix + number(bounds_[i]) + "\"", std::to_string(total));
  }
  line(out, bucket, prefix + "+Inf\"", std::to_string(count_));
  line(out, std::string(name) + "_sum", labels, number(sum_));
  line(out, std::string(name) + "_count", labels, std::to_string(count_));
}

Metrics::Metrics(std::string model_name, Among among)
    : model_("model_name=\"" + escaped(model_name) + "\""),
      process_(among == Among::alone ? model_ : ""),
      among_(among),
      ttft_(
          {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}),
      itl_({.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .075,
            .1,    .15,    .2,    .3,   .4,    .5,   .75, 1,    2.5, 5}),
      tpot_({.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .075,
             .1,    .15,    .2,    .3,   .4,    .5,   .75, 1,    2.5, 5}),
      e2e_(
          {.05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960}),
      queue_(phase_bounds()),
      prefill_(phase_bounds()),
      decode_(phase_bounds()),
      inference_(phase_bounds()),
      prompt_size_({1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000}),
      reply_size_({1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000}),
      parts_(kParts, Histogram({.0001, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5,
                                10, 30, 60, 300})) {}

void Metrics::request_accepted(std::uint32_t prompt_tokens) {
  prompt_tokens_ += prompt_tokens;
  prompt_size_.observe(prompt_tokens);
}

void Metrics::first_token(TimeNs since_received) { ttft_.observe(seconds(since_received)); }

void Metrics::next_token(TimeNs since_last_token) { itl_.observe(seconds(since_last_token)); }

void Metrics::request_parts(const std::vector<TimeNs>& spent) {
  for (std::size_t i = 0; i < std::min(spent.size(), kParts); ++i)
    parts_[i].observe(seconds(spent[i]));
}

void Metrics::request_ended(FinishReason reason, std::uint32_t tokens, const PhaseTimes& times,
                            TimeNs now) {
  ++ended_[static_cast<std::size_t>(reason)];
  reply_size_.observe(tokens);
  e2e_.observe(seconds(now - times.received));
  if (times.begun != 0) {
    queue_.observe(seconds(times.begun - times.received));
    inference_.observe(seconds(now - times.begun));
  }
  if (times.first_token == 0) return;
  if (times.begun != 0) prefill_.observe(seconds(times.first_token - times.begun));
  decode_.observe(seconds(now - times.first_token));
  if (tokens > 1) tpot_.observe(seconds(now - times.first_token) / (tokens - 1));
}

std::string Metrics::expose(const MetricsView& view) const {
  std::string out;
  out.reserve(24 * 1024);
  head(out, "baton_build_info", "gauge", "Builds of this front end and of its scheduler.");
  line(out, "baton_build_info",
       (among_ == Among::alone ? "" : model_ + ",") + "version=\"" + escaped(view.version) +
           "\",scheduler=\"" + escaped(view.scheduler_build) + "\"",
       "1");
  expose_gauges(out, view);
  expose_pools(out, view.scheduler, view.unix_time);
  expose_counters(out, view);
  if (of_process()) expose_keys(out, view.keys);
  expose_histograms(out);
  return out;
}

void Metrics::expose_gauges(std::string& out, const MetricsView& view) const {
  const auto gauge = [&](std::string_view name, std::string_view alias, std::string_view help,
                         double value) { single(out, name, alias, "gauge", help, model_, value); };
  const auto& s = view.scheduler;
  gauge("baton_scheduler_connected", "", "1 while a scheduler answers.", view.scheduler_live);
  gauge("baton_workers_ready", "", "Workers that can take work.", s.workers_ready);
  gauge("baton_requests_running", "vllm:num_requests_running",
        "Requests in the cluster that have a place on a worker.",
        s.running > s.waiting ? s.running - s.waiting : 0);
  gauge("baton_requests_waiting", "vllm:num_requests_waiting",
        "Requests in the cluster that wait for a place.", s.waiting);
  gauge("baton_kv_host_blocks", "", "Blocks in the host parts of all KV pools.",
        static_cast<double>(s.host_blocks));
  gauge("baton_kv_host_blocks_used", "", "Of these, blocks that keep something.",
        static_cast<double>(s.host_blocks_used));
  gauge("baton_max_context_tokens", "", "Prompt and reply tokens that fit together.",
        s.max_context);
  gauge("baton_open_streams", "", "Requests that clients of this front end wait for.",
        static_cast<double>(view.open_streams));
  if (of_process()) expose_process_gauges(out, view);
}

void Metrics::expose_process_gauges(std::string& out, const MetricsView& view) const {
  const auto gauge = [&](std::string_view name, std::string_view help, double value) {
    single(out, name, "", "gauge", help, process_, value);
  };
  gauge("baton_connections", "Client connections.", static_cast<double>(view.http.open));
  gauge("baton_held_request_bytes",
        "Bytes of requests that clients' connections hold: of unfinished ones, of those that wait "
        "for their turn, and of those that are being answered. The scrape's own are left out.",
        static_cast<double>(view.http.held_bytes));
  gauge("baton_unowned_request_bytes",
        "Bytes among these that no connection has held for 10 s; above 0, GET /health fails.",
        static_cast<double>(view.http.unowned_bytes));
  gauge("baton_write_queue_bytes", "Bytes that wait for clients to read.",
        static_cast<double>(view.queued_bytes));
  const ProcessUsage& process = view.process;
  single(out, "process_resident_memory_bytes", "", "gauge", "Resident memory of this front end.",
         "", static_cast<double>(process.resident_bytes));
  single(out, "process_cpu_seconds_total", "", "counter",
         "Processor time that this front end has taken.", "", process.cpu_seconds);
  single(out, "process_start_time_seconds", "", "gauge", "When this front end began, in unix time.",
         "", process.started);
}

/// vLLM's names are about all pools together, as if they were one.
void Metrics::expose_pools(std::string& out, const SchedulerView& scheduler,
                           double unix_time) const {
  std::uint64_t blocks = 0;
  std::uint64_t used = 0;
  head(out, "baton_kv_blocks", "gauge",
       "Blocks of a worker's KV pool: owned by running requests, fenced by what is in flight, "
       "cached, or free.");
  for (const PoolUse& pool : scheduler.pools) {
    blocks += pool.blocks;
    used += pool.owned + pool.fenced;
    const std::string labels = model_ + ",worker=\"" + escaped(pool.worker) + "\",role=\"" +
                               to_string(pool.role) + "\",state=\"";
    const std::uint32_t free = pool.blocks - pool.owned - pool.fenced - pool.cached;
    const std::pair<const char*, std::uint32_t> states[] = {
        {"owned", pool.owned}, {"fenced", pool.fenced}, {"cached", pool.cached}, {"free", free}};
    for (const auto& [state, count] : states) {
      line(out, "baton_kv_blocks", labels + state + "\"", std::to_string(count));
    }
  }
  single(out, "baton_kv_used_ratio", "vllm:kv_cache_usage_perc", "gauge",
         "Part of all pools' blocks that are owned or fenced; 1 is full.", model_,
         blocks == 0 ? 0 : static_cast<double>(used) / static_cast<double>(blocks));
  head(out, "vllm:cache_config_info", "gauge", "Tokens of a block, and the blocks of all pools.");
  line(out, "vllm:cache_config_info",
       model_ + ",block_size=\"" + std::to_string(scheduler.tokens_per_block) +
           "\",num_gpu_blocks=\"" + std::to_string(blocks) + "\"",
       "1");
  if (!of_process()) return;
  // What the Gateway API's inference extension asks every server. There are no adapters here.
  head(out, "vllm:lora_requests_info", "gauge",
       "Adapters that requests run or wait with (none), as of the unix time in the value.");
  line(out, "vllm:lora_requests_info",
       "max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"", number(unix_time));
}

void Metrics::expose_counters(std::string& out, const MetricsView& view) const {
  const auto counter = [&](std::string_view name, std::string_view alias, std::string_view help,
                           std::uint64_t value) {
    single(out, name, alias, "counter", help, model_, static_cast<double>(value));
  };
  // What is of the process is told once, and of several models under none of their names.
  const auto own = [&](std::string_view name, std::string_view help, std::uint64_t value) {
    if (of_process()) single(out, name, "", "counter", help, process_, static_cast<double>(value));
  };
  counter("baton_prompt_tokens_total", "vllm:prompt_tokens_total", "Prompt tokens accepted.",
          prompt_tokens_);
  counter("baton_looked_up_prompt_tokens_total", "vllm:prefix_cache_queries_total",
          "Prompt tokens of ended requests that were looked for in a prefix cache.",
          looked_up_prompt_tokens_);
  counter("baton_cached_prompt_tokens_total", "vllm:prefix_cache_hits_total",
          "Prompt tokens of ended requests that were in a prefix cache.", cached_prompt_tokens_);
  counter("baton_generation_tokens_total", "vllm:generation_tokens_total",
          "Tokens written to clients.", generation_tokens_);
  counter("baton_preemptions_total", "vllm:num_preemptions_total",
          "Requests that gave up their blocks to others, to be computed again.",
          view.scheduler.preemptions);
  counter("baton_prompt_tokens_computed_total", "",
          "Tokens of prompts, and of answers that are computed again, in steps of workers.",
          view.scheduler.computed_tokens);
  counter("baton_sequences_resumed_total", "",
          "Sequences that went on in a KV pool that outlived their worker.",
          view.scheduler.resumed);
  own("baton_replies_unkept_total",
      "Replies that found no room in the journal: their front end's death would end them.",
      view.replies_unkept);
  if (view.spans && of_process()) {
    own("baton_spans_exported_total", "Spans of requests that the collector took.",
        view.spans->exported);
    const std::string labels = process_.empty() ? "" : process_ + ",";
    head(out, "baton_span_requests_lost_total", "counter",
         "Requests whose spans found no room, or that the collector did not take.");
    line(out, "baton_span_requests_lost_total", labels + "reason=\"queue_full\"",
         std::to_string(view.spans->dropped));
    line(out, "baton_span_requests_lost_total", labels + "reason=\"not_taken\"",
         std::to_string(view.spans->failed));
  }
  counter("baton_role_changes_total", "",
          "Changes of workers' roles, by an operator or by scheduler.roles: auto.",
          view.scheduler.role_changes);
  counter("baton_handoffs_total", "", "Requests handed over from one worker to another.",
          view.scheduler.handoffs);
  counter("baton_growths_total", "",
          "Times that a request went on at another worker while its KV blocks stayed where they "
          "were (scheduler.elastic).",
          view.scheduler.growths);
  counter("baton_worker_terms_ended_total", "",
          "Times that a worker lost its place: it died, fell silent, hung or left.",
          view.scheduler.terms_ended);
  counter("baton_worker_deaths_total", "", "Processes of workers that ended without a goodbye.",
          view.scheduler.worker_deaths);
  own("baton_replies_taken_over_total",
      "Replies that this front end has gone on with after its predecessor's death.",
      view.replies_taken_over);
  own("baton_replies_lost_total",
      "Replies and connections of its predecessor that it could not go on with.",
      view.replies_lost);
  counter("baton_kv_blocks_out_total", "", "Blocks copied from KV pools to their host parts.",
          view.scheduler.blocks_out);
  counter("baton_kv_blocks_in_total", "", "Blocks copied from host parts back to KV pools.",
          view.scheduler.blocks_in);
  counter(
      "baton_kv_blocks_damaged_total", "",
      "Blocks pulled from another pool that were not what had been computed (worker.check_pulls).",
      view.scheduler.damaged_blocks);
  own("baton_connections_total", "Connections accepted.", view.http.accepted);
  own("baton_connections_evicted_total", "Idle connections closed to make room.",
      view.http.evicted);
  own("baton_connections_timed_out_total", "Clients too slow with a request.", view.http.timed_out);
  own("baton_bytes_written_total", "Bytes that clients' sockets took.", view.writer.bytes);
  counter("baton_requests_resubmitted_total", "",
          "Attempts after a scheduler's death or a lost message.", view.table.resubmitted);
  counter("baton_tokens_repeated_total", "", "Tokens that came twice and were dropped.",
          view.table.duplicates);
  counter("baton_token_gaps_total", "", "Resends asked for.", view.table.gaps);
  counter("baton_messages_malformed_total", "", "Messages of the scheduler that made no sense.",
          view.table.malformed + view.link.undecodable);
  counter("baton_messages_unsent_total", "", "Messages that found no scheduler.", view.link.unsent);

  for (const std::string_view name :
       {"baton_request_success_total", "vllm:request_success_total"}) {
    head(out, name, "counter", "Requests that ended by themselves, by reason.");
    for (const FinishReason reason : {FinishReason::stop, FinishReason::length}) {
      line(out, name, model_ + ",finished_reason=\"" + to_string(reason) + "\"",
           std::to_string(ended_[static_cast<std::size_t>(reason)]));
    }
  }
  head(out, "baton_requests_ended_total", "counter", "Requests by how they ended.");
  for (std::size_t i = 1; i < ended_.size(); ++i) {
    line(out, "baton_requests_ended_total",
         model_ + ",reason=\"" + to_string(static_cast<FinishReason>(i)) + "\"",
         std::to_string(ended_[i]));
  }
  if (!of_process()) return;
  head(out, "baton_clients_dropped_total", "counter", "Clients lost in the middle of a reply.");
  for (std::size_t i = 0; i < drops_.size(); ++i) {
    line(out, "baton_clients_dropped_total",
         std::string("reason=\"") + to_string(static_cast<DropReason>(i)) + "\"",
         std::to_string(drops_[i]));
  }
  head(out, "baton_http_replies_total", "counter", "Replies by route and status.");
  for (const auto& [key, value] : replies_) {
    line(out, "baton_http_replies_total",
         "route=\"" + std::string(key.first) + "\",code=\"" + std::to_string(key.second) + "\"",
         std::to_string(value));
  }
}

void Metrics::expose_keys(std::string& out, const std::vector<KeyUse>& keys) {
  if (keys.empty()) return;
  const auto each = [&](std::string_view name, std::string_view type, std::string_view help,
                        auto&& value) {
    head(out, name, type, help);
    for (const KeyUse& key : keys)
      line(out, name, "key=\"" + escaped(key.name) + "\"", std::to_string(value(key.totals)));
  };
  using Totals = KeyMeter::Totals;
  each("baton_key_requests_total", "counter",
       "Requests that the limits a minute of an API key let in, on every route that costs work.",
       [](const Totals& t) { return t.requests; });
  each("baton_key_prompt_tokens_total", "counter", "Prompt tokens of those that generate.",
       [](const Totals& t) { return t.prompt_tokens; });
  each("baton_key_generation_tokens_total", "counter", "Tokens of an API key's replies.",
       [](const Totals& t) { return t.reply_tokens; });
  each("baton_key_open_streams", "gauge", "Choices that an API key has open.",
       [](const Totals& t) { return t.streams; });
  head(out, "baton_key_refused_total", "counter",
       "Requests of an API key that were refused, by the limit that stood against them.");
  for (const KeyUse& key : keys) {
    for (std::size_t i = 1; i < kKeyLimits; ++i) {
      line(
          out, "baton_key_refused_total",
          "key=\"" + escaped(key.name) + "\",limit=\"" + to_string(static_cast<KeyLimit>(i)) + "\"",
          std::to_string(key.totals.refused[i]));
    }
  }
}

void Metrics::expose_histograms(std::string& out) const {
  const auto histogram = [&](std::string_view name, std::string_view alias, std::string_view help,
                             const Histogram& values) {
    for (const std::string_view exposed : {name, alias}) {
      if (exposed.empty()) continue;
      head(out, exposed, "histogram", help);
      values.expose(out, exposed, model_);
    }
  };
  histogram("baton_time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
            "From the whole request to its first token.", ttft_);
  histogram("baton_inter_token_latency_seconds", "vllm:inter_token_latency_seconds",
            "Between two tokens of a stream.", itl_);
  histogram("baton_time_per_output_token_seconds", "vllm:time_per_output_token_seconds",
            "Mean time between tokens of a request.", tpot_);
  histogram("baton_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds",
            "From the whole request to its end.", e2e_);
  histogram("baton_request_queue_time_seconds", "vllm:request_queue_time_seconds",
            "From the whole request to the plan of its first step.", queue_);
  histogram("baton_request_prefill_time_seconds", "vllm:request_prefill_time_seconds",
            "From the plan of a request's first step to its first token.", prefill_);
  histogram("baton_request_decode_time_seconds", "vllm:request_decode_time_seconds",
            "From a request's first token to its end.", decode_);
  histogram("baton_request_inference_time_seconds", "vllm:request_inference_time_seconds",
            "From the plan of a request's first step to its end.", inference_);
  head(out, "baton_request_part_seconds", "histogram",
       "Where requests' time went; one observation a part and request, so that the sums of the "
       "parts "
       "add up to the sum of what clients waited, from a request's first byte to its last.");
  for (std::size_t i = 0; i < kParts; ++i) {
    parts_[i].expose(out, "baton_request_part_seconds",
                     model_ + ",part=\"" + to_string(static_cast<Part>(i)) + "\"");
  }
  histogram("baton_request_prompt_tokens", "vllm:request_prompt_tokens",
            "Prompt tokens of a request.", prompt_size_);
  histogram("baton_request_generation_tokens", "vllm:request_generation_tokens",
            "Tokens of a reply.", reply_size_);
}

}  // namespace baton
