#include "configs/options.h"

#include <algorithm>
#include <filesystem>
#include <type_traits>

#include "configs/dialects.h"
#include "configs/option_numbers.h"
#include "configs/option_parts.h"
#include "configs/origins.h"
#include "ipc/max_ranks.h"

namespace baton {

const std::vector<Option<Config>>& top_options() {
  using C = Config;
  static const std::vector<Option<C>> kOptions = {
      {.name = "run_dir",
       .meaning = "folder of sockets, locks and logs; private to the user",
       .member = &C::run_dir,
       .text = TextRule::path,
       .default_note = "/tmp/baton-<uid>"},
      {.name = "model",
       .meaning = "folder of the model (config.json, model.safetensors, tokenizer.json or .model), "
                  "or a GGUF file",
       .member = &C::model,
       .text = TextRule::path},
      {.name = "model_name",
       .meaning = "the name that clients ask for",
       .member = &C::model_name,
       .default_note = "the name of the model's folder or file"},
      {.name = "model_task",
       .meaning = "what the model is served for: text, vectors of texts (/v1/embeddings), or how "
                  "well documents fit a query (/v1/rerank). auto: embed where the folder is one of "
                  "sentence-transformers (modules.json), else generate",
       .member = &C::model_task,
       .choices = "auto|generate|embed|rerank"},
      {.name = "log_level",
       .meaning = "least serious messages that are logged",
       .member = &C::log_level,
       .choices = "trace|debug|info|warn|error|off"},
      {.name = "log_format",
       .meaning = "how log lines are written: text, or one JSON object a line",
       .member = &C::log_format,
       .choices = "text|json"},
      {"max_context",
       "most tokens of a prompt and its reply together; 0: as many as the model allows",
       &C::max_context, 0, 16'777'216},
      {"awake_ms",
       "milliseconds that the threads on a message's way stay awake after the last work, instead "
       "of being woken up for each message; 0: they sleep at once. For machines with processors to "
       "spare: a scheduler keeps three busy meanwhile, a worker four, a front end two",
       &C::awake_ms, 0, 60'000},
  };
  return kOptions;
}

const std::vector<Option<SchedulerConfig>>& scheduler_options() {
  using S = SchedulerConfig;
  static const std::vector<Option<S>> kOptions = {
      {.name = "admin_socket",
       .meaning = "unix socket for `baton ctl`",
       .member = &S::admin_socket,
       .text = TextRule::path,
       .default_note = "run_dir/admin.sock"},
      {.name = "batching",
       .meaning = "continuous: requests join and leave at every step; static: the baseline that "
                  "collects a batch and runs it to its end",
       .member = &S::batching,
       .choices = "continuous|static"},
      {"priority_age_s", "seconds of waiting that make up for one step of a request's priority",
       &S::priority_age_s, 0, 3600},
      {"static_batch_size",
       "requests of a static batch; one with a beam search counts as its beams",
       &S::static_batch_size, 1, 256},
      {"static_interval_s", "seconds that a static batch collects", &S::static_interval_s, 0.01,
       60},
      {"static_same_config",
       "a static batch takes only requests with the generation parameters of its first one (seeds "
       "apart)",
       &S::static_same_config},
      {"max_waiting", "requests waiting for a place; beyond, clients get 429", &S::max_waiting, 1,
       1'000'000},
      {"max_running", "decoding sequences of one worker", &S::max_running, 1, 4096},
      {"token_budget",
       "tokens of one step, prompt and decode together: one number, or one for each role of "
       "workers (roles that are not named keep theirs). A large one for prefill wastes less of its "
       "steps; a small one for decode bounds what prompts that stay there cost the streams",
       &S::token_budget},
      {"prompt_chunk", "prompt tokens of one sequence in one step", &S::prompt_chunk, 1, 65'536},
      {"prefill_batch_size",
       "most prompts in one step; 0: as many as fit it. Several, ascending: the smallest one that "
       "takes all who wait, else the largest",
       &S::prefill_batch_size, 1, 4096},
      {"decode_batch_size",
       "most sequences decoding on one worker; 0: max_running. Several, ascending: the smallest "
       "one that takes all who wait, else the largest",
       &S::decode_batch_size, 1, 4096},
      {"prompts_pause_decode",
       "a step with prompt tokens decodes nothing: prompts are through sooner, streams stall "
       "meanwhile",
       &S::prompts_pause_decode},
      {"delay_factor",
       "where something runs, prompts are admitted once the oldest has waited longer than so many "
       "times the last step with prompts took; 0: at once",
       &S::delay_factor, 0, 100},
      {.name = "queue_order",
       .meaning =
           "who is next: the first to arrive; the shortest prompt, with input_age_ms; or the "
           "API key that has been given the fewest tokens for its weight",
       .member = &S::queue_order,
       .choices = "arrival|shortest|fair"},
      {"fair_output_cost", "with queue_order fair: prompt tokens that a token of a reply counts as",
       &S::fair_output_cost, 0, 1000},
      {"input_age_ms",
       "with queue_order shortest: milliseconds of waiting that make up for one token of prompt",
       &S::input_age_ms, 0, 10'000},
      {.name = "preempted",
       .meaning =
           "where a preempted request waits: at its old place in the queue; first, before all that "
           "were never preempted and behind those preempted earlier; or at the very front. auto: "
           "first where its blocks are kept in the host part of the pool, else in place",
       .member = &S::preempted,
       .choices = "in_place|first|front|auto"},
      {.name = "victim",
       .meaning = "who is preempted when a pool is full: the last in the queue's order, the "
                  "shortest, or the tail, which came to that worker last",
       .member = &S::victim,
       .choices = "last|shortest|tail"},
      {.name = "admission",
       .meaning =
           "watermark: a request is admitted if its prompt fits and some blocks stay free; future: "
           "if all who run fit to the end of their longest answers, so that nobody is preempted",
       .member = &S::admission,
       .choices = "watermark|future"},
      {"watermark",
       "share of a pool that admission leaves free; 0: a block for each running sequence, a tenth "
       "at most",
       &S::watermark, 0, 0.5},
      {"pull_watermark",
       "a decode worker takes over prompts only while less than this share of its pool is in use",
       &S::pull_watermark, 0.01, 1},
      {"local_prefill",
       "which prompts prefill where they decode and are not handed off, any of: those of up to so "
       "many tokens; those of which a decode worker has this share in its prefix cache (cached); "
       "those that have waited so long for a prefill worker (wait_ms), which wants a small "
       "token_budget of decode workers, or streams stall for whole prompts. Parts that are not "
       "named stay as they are",
       &S::local_prefill},
      {.name = "no_decode",
       .meaning = "without a decode worker: run on a prefill worker, or wait",
       .member = &S::no_decode,
       .choices = "run|wait"},
      {.name = "roles",
       .meaning = "fixed: workers keep the roles that they were started with, or that an operator "
                  "gives them; auto: where prompts queue, or decode workers are full, a worker of "
                  "the other side that can be spared takes another role, and its own again later",
       .member = &S::roles,
       .choices = "fixed|auto"},
      {"role_queue_s",
       "with roles auto: seconds of prompt work, for each worker that prefills, that wait before "
       "another one helps",
       &S::role_queue_s, 0.001, 600},
      {"role_dwell_s", "with roles auto: seconds that a worker keeps a role at the least",
       &S::role_dwell_s, 0.1, 3600},
      {.name = "elastic",
       .meaning =
           "auto: a request may lie in the pools of several mixed workers, so a prompt may be "
           "longer than any one pool, and a reply for which a pool has no block left goes on "
           "at another worker before anybody is preempted. Workers of one process, on CPUs or on "
           "Hopper GPUs",
       .member = &S::elastic,
       .choices = "off|auto"},
      {"elastic_degree",
       "with elastic auto: workers whose pools one request may lie in, at the most",
       &S::elastic_degree, 2, 64},
      {"elastic_prompt_tokens",
       "with elastic auto: tokens from which on a prompt is computed by several idle workers at "
       "the "
       "same time, chunk by chunk in turns",
       &S::elastic_prompt_tokens, 64, 100000000},
      {.name = "elastic_gather",
       .meaning = "with elastic auto: a request that lies in several pools and decodes is pulled "
                  "together into its worker's pool once that has room for it; off: its blocks stay "
                  "where they were computed, and are read there for each token",
       .member = &S::elastic_gather,
       .choices = "off|auto"},
      {"worker_timeout_s", "seconds without progress after which a worker is fenced",
       &S::worker_timeout_s, 0.2, 3600},
      {"frontend_timeout_s", "seconds of silence after which a front end counts as dead",
       &S::frontend_timeout_s, 0.5, 3600},
      {"successor_wait_s",
       "seconds that the requests of a dead front end go on and wait for its successor, if it may "
       "have one; 0: they are cancelled at once",
       &S::successor_wait_s, 0, 600},
      {"max_deaths", "workers that may die under a request, with no token in between",
       &S::max_deaths, 1, 100},
      {"drain_s", "seconds that SIGTERM waits for running work", &S::drain_s, 0, 600},
      {"close_timeout_s", "seconds that a new worker waits for importers of its dead predecessor",
       &S::close_timeout_s, 0.1, 600},
      {"kept_wait_s",
       "seconds that requests wait for a dead worker's next process, which goes on with its pool "
       "where a memory process keeps that; 0: they are computed again elsewhere at once",
       &S::kept_wait_s, 0, 600},
      {"steps_in_flight", "steps that are planned ahead of their results", &S::steps_in_flight, 1,
       4},
      {"prefix_cache",
       "keep the KV blocks of prompts and answers, as long as nobody needs the room, for requests "
       "that begin with the same tokens",
       &S::prefix_cache},
      {"prefix_pull_tokens",
       "a worker pulls what another one's cache knows of a prompt if that is at least so many "
       "tokens more than its own; 0: never",
       &S::prefix_pull_tokens, 0, 1'048'576},
      {.name = "swap",
       .meaning = "which blocks that a pool has no room for any more are copied to its host part "
                  "(worker.host_pool_mib) and back: auto, those that a preempted request waits for "
                  "or a second request has named, if that takes less time than computing them "
                  "again; always, all; never, none. Wants prefix_cache",
       .member = &S::swap,
       .choices = "auto|always|never"},
      {"swap_step_blocks",
       "blocks that a step copies to the host part before somebody needs the room, at the most",
       &S::swap_step_blocks, 0, 4096},
      {.name = "event_log",
       .meaning = "file that gets a line for every event and plan (for tests)",
       .member = &S::event_log,
       .text = TextRule::path,
       .default_note = "none"},
      {.name = "kv_events",
       .meaning =
           "ZeroMQ endpoint, as tcp://127.0.0.1:5557, where routers hear (as from vLLM) which "
           "blocks of tokens the pools come to hold and forget",
       .member = &S::kv_events,
       .default_note = "off"},
      {.name = "kv_events_replay",
       .meaning = "endpoint where the last 10,000 of these messages can be asked for again",
       .member = &S::kv_events_replay,
       .default_note = "off"},
      {.name = "kv_events_pod",
       .meaning =
           "what their topic, kv@POD@MODEL, calls the server; {worker} stands for the name of "
           "the worker whose pool it is",
       .member = &S::kv_events_pod},
      {.name = "kv_events_arrays",
       .meaning = "events as arrays, as vLLM sent them before it sent maps; AIBrix and others read "
                  "these",
       .member = &S::kv_events_arrays},
  };
  return kOptions;
}

const std::vector<Option<FrontendConfig>>& frontend_options() {
  using F = FrontendConfig;
  static const std::vector<Option<F>> kOptions = {
      {.name = "name",
       .meaning = "name of this front end",
       .member = &F::name,
       .text = TextRule::name},
      {"host", "address to listen on; 0.0.0.0 opens it to the network", &F::host},
      {"port", "TCP port; 0 takes a free one", &F::port, 0, 65'535},
      {.name = "dialects",
       .meaning = "HTTP dialects of that port (docs/dialects.md)",
       .member = &F::dialects,
       .choices = dialect_choices()},
      {"threads", "threads that parse requests", &F::threads, 1, 64},
      {"max_body_bytes", "largest request body; beyond, clients get 413", &F::max_body_bytes, 1024,
       268'435'456},
      {"max_streams", "open requests; beyond, clients get 429", &F::max_streams, 1, 65'536},
      {"peer_share",
       "part of the connections, and of the memory for unfinished requests, that one address "
       "(IPv6: one /64) may have; 1: all of them, as behind a proxy",
       &F::peer_share, 0.01, 1},
      {"timeout_s", "deadline of a request that names none", &F::timeout_s, 0.1, 86'400},
      {"max_timeout_s", "longest deadline that a request may name", &F::max_timeout_s, 0.1, 86'400},
      {"default_max_tokens",
       "most tokens of a reply whose request names no limit; 0: what the context leaves",
       &F::default_max_tokens, 0, 1'048'576},
      {.name = "generation_config",
       .meaning =
           "what requests are drawn with that do not say: auto: temperature, top_p, top_k, "
           "min_p and repetition_penalty of the model folder's generation_config.json; none: "
           "temperature 1 and no more",
       .member = &F::generation_config,
       .choices = "auto|none"},
      {"write_buffer_bytes", "bytes held for a client that does not read; beyond, it is dropped",
       &F::write_buffer_bytes, 4096, 67'108'864},
      {"stall_timeout_s", "seconds after which a client that takes no bytes is dropped",
       &F::stall_timeout_s, 0.1, 3600},
      {"sse_keepalive_s",
       "seconds without a byte after which a stream of server-sent events gets a comment, so that "
       "nobody on the way to the client takes it for dead; 0: never",
       &F::sse_keepalive_s, 0, 3600},
      {"drain_s", "seconds that SIGTERM waits for open streams", &F::drain_s, 0, 600},
      {.name = "api_keys",
       .meaning = "file of API keys, their shares and limits (docs/api.md), read again on SIGHUP; "
                  "none: everybody is served",
       .member = &F::api_keys,
       .text = TextRule::path},
      {"cache_salt_by_key",
       "requests of different API keys share no cached blocks, so that cached_tokens and times "
       "tell "
       "nobody what others have sent; a system prompt that all of them send is then computed once "
       "a "
       "key",
       &F::cache_salt_by_key},
      {.name = "allowed_origins",
       .meaning =
           "origins of web pages that may read replies (CORS), such as http://localhost:5173; "
           "\"*\": those of every page; none: no page of another origin, since without keys every "
           "site in a browser on this host could use a server on 127.0.0.1",
       .member = &F::allowed_origins,
       .text = TextRule::origins,
       .default_note = "none"},
      {"strict_fields",
       "of the dialect openai: a field that is not known is an error; else it is ignored, and the "
       "reply's header X-Ignored-Fields names it",
       &F::strict_fields},
      {.name = "schema_objects",
       .meaning =
           "objects of a JSON Schema: closed (only keys that it names, in its order) or open "
           "(any keys that the standard allows, in any order); a request's schema_objects "
           "and strict go first",
       .member = &F::schema_objects,
       .choices = "closed|open"},
      {.name = "schema_unenforceable",
       .meaning = "a JSON Schema with keywords that cannot be enforced: report (enforce the rest, "
                  "name them in the reply's X-Baton-Schema-Unenforced) or refuse (400); a "
                  "request's schema_unenforceable and strict go first",
       .member = &F::schema_unenforceable,
       .choices = "report|refuse"},
      {"drop_billing_header",
       "of the dialect anthropic: a first line of the system prompt that begins with "
       "x-anthropic-billing-header: is dropped; Claude Code changes it with every request, so that "
       "no prefix of its prompts could be cached",
       &F::drop_billing_header},
      {"distserve_zero_bytes",
       "streams of the dialect distserve end each object with a zero byte, as its first versions "
       "did",
       &F::distserve_zero_bytes},
      {"twin",
       "a second process holds the clients' sockets, so that streams outlive the front end and its "
       "next process goes on with them",
       &F::twin},
      {.name = "fault_text",
       .meaning = "for tests: abort when the body of a request holds this text; none: never",
       .member = &F::fault_text,
       .default_note = "none"},
      {.name = "allowed_hosts",
       .meaning = "names under which clients may reach this server (their Host header), besides "
                  "those of this host's loopback; \"*\": any; none: any where there are API keys "
                  "or the port is open to the network, else those of the loopback alone, so that a "
                  "web page cannot lend 127.0.0.1 a name",
       .member = &F::allowed_hosts,
       .text = TextRule::hosts,
       .default_note = "none"},
      {"grammar_cpu_s",
       "seconds of a processor that a request's grammar may take to compile, in a process of its "
       "own; more is a 400",
       &F::grammar_cpu_s, 0.1, 120},
      {.name = "client_url",
       .meaning = "http://HOST:PORT of a client app that is told when this server starts and stops "
                  "(docs/dialects.md, tutorial)",
       .member = &F::client_url},
      {.name = "tokenizer",
       .meaning = "which of the model folder's tokenizers; auto: tokenizer.json where it is served",
       .member = &F::tokenizer,
       .choices = "auto|tokenizer.json|tokenizer.model"},
      {.name = "chat_template",
       .meaning = "file with a Jinja chat template, in place of the model folder's",
       .member = &F::chat_template,
       .text = TextRule::path,
       .default_note = "the model folder's chat_format.json or its chat template"},
      {.name = "tool_call_parser",
       .meaning =
           "format of tool calls in replies: auto: what the chat template shows; none: calls "
           "stay text; else the name of vLLM's parser, as hermes, mistral, qwen3_coder",
       .member = &F::tool_call_parser,
       .text = TextRule::name},
      {.name = "reasoning_parser",
       .meaning = "marks of the reasoning in replies: auto: what the chat template shows; none: it "
                  "stays text; else the name of vLLM's parser, as qwen3, deepseek_r1, mistral",
       .member = &F::reasoning_parser,
       .text = TextRule::name},
  };
  return kOptions;
}

const std::vector<Option<ListenConfig>>& listen_options() {
  using L = ListenConfig;
  static const std::vector<Option<L>> kOptions = {
      {.name = "host",
       .meaning = "address to listen on",
       .member = &L::host,
       .default_note = "frontend.host"},
      {"port", "TCP port; 0 takes a free one", &L::port, 0, 65'535},
      {.name = "dialects",
       .meaning = "HTTP dialects of that port",
       .member = &L::dialects,
       .choices = dialect_choices()},
  };
  return kOptions;
}

const std::vector<Option<TelemetryConfig>>& telemetry_options() {
  using T = TelemetryConfig;
  static const std::vector<Option<T>> kOptions = {
      {.name = "otlp_url",
       .meaning =
           "where a front end sends a span of each request, and of its parts, as OTLP in JSON "
           "over HTTP: a collector's http://HOST:4318/v1/traces, or https. Clients' "
           "traceparent headers are heeded",
       .member = &T::otlp_url,
       .default_note = "none"},
      {"sample_ratio",
       "share of the requests that are told of, where the client's traceparent does not say "
       "whether "
       "its own is",
       &T::sample_ratio, 0, 1},
      {.name = "service_name",
       .meaning = "service.name of these spans",
       .member = &T::service_name},
  };
  return kOptions;
}

const std::vector<Option<WorkerConfig>>& worker_options() {
  using W = WorkerConfig;
  static const std::vector<Option<W>> kOptions = {
      {.name = "role",
       .meaning = "what the worker does while others can do the rest",
       .member = &W::role,
       .choices = "prefill|decode|mixed"},
      {.name = "device",
       .meaning = "where it computes",
       .member = &W::device,
       .choices = "cpu|cuda"},
      {"gpu",
       "which GPU: its number, its UUID (nvidia-smi -L), or auto: worker i takes GPU i, modulo "
       "their number, and those on one GPU share memory_fraction; of several ranks one each, "
       "separated by commas (auto: the next ones)",
       &W::gpu},
      {.name = "load_format",
       .meaning = "auto: the folder's weights; dummy: random ones from config.json alone, for "
                  "benchmarks on GPUs",
       .member = &W::load_format,
       .choices = "auto|dummy"},
      {.name = "dtype",
       .meaning = "type of the weights in memory; auto: on CPUs as they are stored (f16 and "
                  "quantised ones become f32), on GPUs bf16, or as they are quantised",
       .member = &W::dtype,
       .choices = "auto|f32|bf16"},
      {.name = "activations",
       .meaning = "on CPUs, what is multiplied with quantised weights; exact: activations as they "
                  "are; int8: rounded to eight bits by 32 of them, products of integers: quicker, "
                  "other (still reproducible) tokens, log probabilities off by about 0.001; auto: "
                  "int8 where weights stay integers, exact otherwise and with deterministic",
       .member = &W::activations,
       .choices = "auto|exact|int8"},
      {"deterministic",
       "on GPUs: a token does not depend on its batch-mates, to the bit; slower (CPUs always do "
       "so)",
       &W::deterministic},
      {.name = "layer_kernel",
       .meaning =
           "on GPUs, steps of up to 128 rows (quantised weights: 8; layers by parts, as "
           "Gemma's, in bf16: 64; layers of experts: 8): the products between two attentions "
           "as one kernel; auto: where that was quicker at start; never under MPS",
       .member = &W::layer_kernel,
       .choices = "auto|always|never"},
      {"memory_fraction",
       "share of the GPU's memory, or of the host's free memory, for weights, workspace and pool; "
       "workers that meet there divide it",
       &W::memory_fraction, 0.01, 0.99},
      {"mps_thread_percentage",
       "where workers share a GPU under MPS: percent of its multiprocessors that this one takes at "
       "the most (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE); wants deterministic; 0: as the environment "
       "says",
       &W::mps_thread_percentage, 0, 100},
      {.name = "mps_priority",
       .meaning = "likewise: whose kernels go first where both want to run "
                  "(CUDA_MPS_CLIENT_PRIORITY 0 or 1); auto: as the environment says",
       .member = &W::mps_priority,
       .choices = "auto|normal|low"},
      {"memory_mib",
       "on CPUs: memory for weights, workspace and pool in MiB; 0: by memory_fraction",
       &W::memory_mib, 0, 16'777'216},
      {"ranks",
       "processes that share the model, each with a part of its heads, features and experts: one "
       "worker NAME of processes NAME.0, NAME.1, ... On CPUs tokens are those of one rank; on GPUs "
       "each has a GPU of its own",
       &W::ranks, 1, kMaxRanks},
      {"rank", "which of the worker's ranks this process is; whoever starts the ranks sets it",
       &W::rank, 0, kMaxRanks - 1},
      {"rank_timeout_s",
       "seconds that ranks wait for one that lives, does not come to an exchange and computes "
       "nothing meanwhile; then it is killed, and all ranks start again",
       &W::rank_timeout_s, 0.2, 600},
      {"threads", "threads of a step; 0: the cores, divided by the workers on CPUs and their ranks",
       &W::threads, 0, 256},
      {"pool_blocks", "blocks of the KV pool; 0: as many as pool_mib holds", &W::pool_blocks, 0,
       16'777'216},
      {.name = "pool_mib",
       .meaning = "size of the KV pool in MiB; 0: on CPUs room for two full contexts, 256 to 4096, "
                  "at most half of what the weights leave; on GPUs all that memory_fraction leaves",
       .member = &W::pool_mib,
       .min = 0,
       .max = 1'048'576},
      {"host_pool_blocks",
       "blocks of the pool's host part, in shared memory, where blocks are kept that the pool has "
       "no room for; 0: as many as host_pool_mib holds",
       &W::host_pool_blocks, 0, 16'777'216},
      {"host_pool_mib", "size of the pool's host part in MiB; 0 as well: there is none",
       &W::host_pool_mib, 0, 16'777'216},
      {"tokens_per_block", "tokens of one KV block", &W::tokens_per_block, 1, 512},
      {.name = "kv_groups",
       .meaning = "of models whose layers have sliding windows: auto: layers that see "
                  "equally far share blocks, and what all of them have left behind is given back; "
                  "off: a block has all layers and is kept to the end",
       .member = &W::kv_groups,
       .choices = "auto|off"},
      {"in_place_keys",
       "on GPUs, of requests that lie in the pools of several workers (scheduler.elastic): with up "
       "to so many of a step's keys on other GPUs these are read over the link; more are attended "
       "to on the GPU that they lie on, by this worker's kernels, which takes some 500 MiB there "
       "(not latent keys); "
       "2147483647: none are",
       &W::in_place_keys, 0, 2'147'483'647},
      {"check_pulls",
       "for debugging: every step's result tells the checksums of the blocks that it wrote, and "
       "copies of them in other pools are compared with these; what differs is not served but "
       "computed again",
       &W::check_pulls},
      {"fake", "no model at all: tokens by rule, for benchmarks of everything else", &W::fake},
      {"fault_token", "for tests: abort when a prompt holds this id; -1: never", &W::fault_token,
       -1, 2'147'483'647},
      {"fault_unmappable", "for tests: no pool of another worker can be mapped",
       &W::fault_unmappable},
      {"fault_wrong_block", "for tests: every so-many-th pull copies one wrong block; 0: none",
       &W::fault_wrong_block, 0, 1'000'000},
      {"pull_delay_ms", "for tests: a pull takes this much longer", &W::pull_delay_ms, 0, 600'000},
      {"step_delay_ms", "for tests: a step takes this much longer", &W::step_delay_ms, 0, 60'000},
      {.name = "sample_log",
       .meaning = "for benchmarks: file that gets the time of every step that sampled a token",
       .member = &W::sample_log},
      {.name = "step_log",
       .meaning = "for benchmarks: file that gets a line for every step: its end in ns, rows, "
                  "tokens, microseconds that the device was idle before it and that it ran",
       .member = &W::step_log},
      {"drain_s", "seconds that SIGTERM waits before sequences are handed over", &W::drain_s, 0,
       600},
  };
  return kOptions;
}

const Option<WorkerConfig>& worker_name_option() {
  static const Option<WorkerConfig> kOption = {.name = "name",
                                               .meaning = "name of the worker",
                                               .member = &WorkerConfig::name,
                                               .text = TextRule::name};
  return kOption;
}

namespace {

using Words = std::vector<std::string>;
/// Numbers of one option.
constexpr std::size_t kMaxSizes = 16;

Words split(const char* choices) {
  Words words;
  std::string_view rest = choices != nullptr ? choices : "";
  while (!rest.empty()) {
    const std::size_t bar = std::min(rest.find('|'), rest.size());
    words.emplace_back(rest.substr(0, bar));
    rest.remove_prefix(std::min(bar + 1, rest.size()));
  }
  return words;
}

std::string join(const Words& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += i == 0 ? "" : i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

std::string joined_list(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

/// "a,b": one or more of `choices`, each once.
Status set_list(Words& value, std::string_view text, const Words& choices) {
  Words words;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    words.push_back(trimmed(text.substr(0, comma)));
    if (std::find(choices.begin(), choices.end(), words.back()) == choices.end()) {
      return is("'" + words.back().substr(0, 64) + "'", "one or more of " + join(choices));
    }
    if (std::count(words.begin(), words.end(), words.back()) > 1) {
      return invalid("names " + words.back() + " twice");
    }
    if (comma == text.size()) break;
    text.remove_prefix(comma + 1);
  }
  value = std::move(words);
  return {};
}

Status set_parsed(Words& value, Result<Words> parsed) {
  if (parsed.ok()) value = std::move(parsed).value();
  return parsed.status();
}

/// "0" (none), "8" or "1,8,32": ascending.
Status set_sizes(std::vector<std::uint32_t>& value, std::string_view text, bool quoted, double min,
                 double max) {
  std::vector<std::uint32_t> sizes;
  while (text != "0" || quoted) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::uint32_t size = 0;
    Status status = set_number(size, trimmed(text.substr(0, comma)), quoted, min, max);
    if (!status.ok()) return status;
    if (!sizes.empty() && size <= sizes.back()) return invalid("does not ascend");
    if (sizes.size() == kMaxSizes) {
      return invalid("has more than " + std::to_string(kMaxSizes) + " numbers");
    }
    sizes.push_back(size);
    if (comma == text.size()) break;
    text.remove_prefix(comma + 1);
  }
  value = std::move(sizes);
  return {};
}

std::string sizes_text(const std::vector<std::uint32_t>& sizes) {
  std::string text;
  for (const std::uint32_t size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return text.empty() ? "0" : text;
}

Status set_choice(std::size_t& index, const std::string& text, const Words& choices) {
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end()) {
    return is("'" + text + "'", join(choices));
  }
  index = static_cast<std::size_t>(found - choices.begin());
  return {};
}

bool is_name(const std::string& text) {
  return !text.empty() && text.size() <= 32 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

Status set_text(std::string& value, const std::string& text, TextRule rule,
                const std::string& base) {
  const bool control = std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  const std::size_t longest = rule == TextRule::path ? 4096 : 256;
  if (rule == TextRule::name && !is_name(text)) {
    return is("'" + text.substr(0, 64) + "'", "1 to 32 of a-z 0-9 _ -");
  }
  if (text.empty()) {
    return invalid("is empty");
  }
  if (control || text.size() > longest) {
    return invalid("has control characters or more than " + std::to_string(longest) + " bytes");
  }
  if (rule != TextRule::path) {
    value = text;
    return {};
  }
  const std::filesystem::path path = (std::filesystem::path(base) / text).lexically_normal();
  value = path.string();
  if (value.size() > 1 && value.back() == '/') {
    value.pop_back();
  }
  return {};
}

}  // namespace

template <typename Section>
Status set_option(const Option<Section>& option, Section& section, const std::string& text,
                  bool quoted, const std::string& base) {
  return std::visit(
      [&](auto member) -> Status {
        auto& value = section.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          std::size_t index = 0;
          Status status = option.choices == nullptr
                              ? set_text(value, text, option.text, base)
                              : set_choice(index, text, split(option.choices));
          if (status.ok() && option.choices != nullptr) {
            value = text;
          }
          return status;
        } else if constexpr (std::is_same_v<T, Words>) {
          if (option.text == TextRule::origins) return set_parsed(value, parse_origins(text));
          if (option.text == TextRule::hosts) return set_parsed(value, parse_hosts(text));
          return set_list(value, text, split(option.choices));
        } else if constexpr (std::is_same_v<T, std::vector<std::uint32_t>>) {
          return set_sizes(value, text, quoted, option.min, option.max);
        } else if constexpr (kHasParts<T>) {
          return set_parts(value, text, quoted);
        } else if constexpr (std::is_same_v<T, bool>) {
          if (quoted || (text != "true" && text != "false")) {
            return is("'" + text + "'", "true or false");
          }
          value = text == "true";
          return {};
        } else if constexpr (std::is_enum_v<T>) {
          std::size_t index = 0;
          Status status = set_choice(index, text, split(option.choices));
          value = status.ok() ? static_cast<T>(index) : value;
          return status;
        } else {
          return set_number(value, text, quoted, option.min, option.max);
        }
      },
      option.member);
}

template <typename Section>
std::string value_text(const Option<Section>& option, const Section& section) {
  return std::visit(
      [&](auto member) -> std::string {
        const auto& value = section.*member;
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return value;
        } else if constexpr (std::is_same_v<T, Words>) {
          return joined_list(value);
        } else if constexpr (std::is_same_v<T, std::vector<std::uint32_t>>) {
          return sizes_text(value);
        } else if constexpr (kHasParts<T>) {
          return parts_text(value);
        } else if constexpr (std::is_same_v<T, bool>) {
          return value ? "true" : "false";
        } else if constexpr (std::is_enum_v<T>) {
          return split(option.choices).at(static_cast<std::size_t>(value));
        } else {
          return number_text(static_cast<double>(value));
        }
      },
      option.member);
}

template <typename Section>
std::string bounds_text(const Option<Section>& option) {
  return std::visit(
      [&](auto member) -> std::string {
        using T = std::decay_t<decltype(std::declval<Section&>().*member)>;
        if (option.text == TextRule::origins) {
          return "* or up to " + std::to_string(kMaxOrigins) + " of scheme://host[:port]";
        }
        if (option.text == TextRule::hosts) {
          return "* or up to " + std::to_string(kMaxOrigins) + " names or addresses";
        }
        if constexpr (std::is_same_v<T, Words>) {
          return "one or more of " + joined_list(split(option.choices));
        }
        if (option.choices != nullptr) {
          return join(split(option.choices));
        }
        if constexpr (std::is_same_v<T, std::string>) {
          return option.text == TextRule::name ? "1 to 32 of a-z 0-9 _ -" : "";
        } else if constexpr (std::is_same_v<T, std::vector<std::uint32_t>>) {
          return "0, or one or more of " + range_text(option.min, option.max);
        } else if constexpr (kHasParts<T>) {
          return parts_bounds(T());
        } else if constexpr (std::is_same_v<T, bool>) {
          return "true or false";
        } else {
          return range_text(option.min, option.max);
        }
      },
      option.member);
}

#define BATON_INSTANTIATE(Section)                                                                \
  template Status set_option<Section>(const Option<Section>&, Section&, const std::string&, bool, \
                                      const std::string&);                                        \
  template std::string value_text<Section>(const Option<Section>&, const Section&);               \
  template std::string bounds_text<Section>(const Option<Section>&)
BATON_INSTANTIATE(Config);
BATON_INSTANTIATE(SchedulerConfig);
BATON_INSTANTIATE(FrontendConfig);
BATON_INSTANTIATE(TelemetryConfig);
BATON_INSTANTIATE(ListenConfig);
BATON_INSTANTIATE(WorkerConfig);
#undef BATON_INSTANTIATE

std::string home_of(std::string_view key) {
  const auto has = [key](const auto& options) {
    return std::any_of(options.begin(), options.end(),
                       [key](const auto& option) { return key == option.name; });
  };
  Words homes;
  if (has(top_options())) {
    homes.push_back("the top level");
  }
  if (has(scheduler_options())) {
    homes.push_back("scheduler");
  }
  if (has(frontend_options())) {
    homes.push_back("frontend");
  }
  if (has(telemetry_options())) {
    homes.push_back("telemetry");
  }
  if (has(worker_options())) {
    homes.push_back("worker");
  }
  if (key == worker_name_option().name) {
    homes.push_back("an entry of workers");
  }
  return join(homes);
}

namespace {

/// Levenshtein, with a swap of neighbours as one edit.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string successor(std::string_view key) {
  static constexpr std::pair<std::string_view, std::string_view> kGone[] = {
      {"prefill_token_budget", "token_budget: prefill=TOKENS"},
      {"decode_token_budget", "token_budget: decode=TOKENS"},
      {"local_prefill_threshold", "local_prefill: tokens=TOKENS"},
      {"local_prefill_cached", "local_prefill: cached=SHARE"},
      {"local_prefill_wait_ms", "local_prefill: wait_ms=MS"},
      {"max_tokens", "default_max_tokens: TOKENS"},
  };
  for (const auto& [gone, now] : kGone) {
    if (key == gone) return std::string(now);
  }
  return "";
}

std::string nearest(std::string_view key, const std::vector<std::string>& names) {
  std::string best;
  std::size_t fewest = std::max<std::size_t>(key.size() / 3, 1) + 1;
  if (key.size() > 64) {
    return best;
  }
  for (const std::string& name : names) {
    const std::size_t n = edits(key, name);
    if (n < fewest) {
      fewest = n;
      best = name;
    }
  }
  return best;
}

}  // namespace baton
