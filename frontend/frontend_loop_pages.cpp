// What the loop tells of itself and of the models: health, metrics, pages, the load.
#include <algorithm>
#include <utility>

#include "frontend/core/dialect.h"
#include "frontend/core/metrics_merge.h"
#include "frontend/frontend_loop.h"
#include "frontend/http/http_error.h"
#include "frontend/http/index_page.h"

namespace baton {

// ------------------------------------------------------------------------- of all models together

std::string FrontendLoop::names() const {
  std::string names;
  for (const auto& link : links_) names += (names.empty() ? "" : ", ") + link->options.served.name;
  return names;
}

std::size_t FrontendLoop::open_count() const {
  std::size_t open = 0;
  for (const auto& link : links_) open += link->table.open_count();
  return open;
}

/// The limit of streams is that of the process.
std::size_t FrontendLoop::room() const {
  return options_.table.max_open - std::min(open_count(), options_.table.max_open);
}

/// What waits for a model that cannot serve has its share, and leaves the others theirs.
std::size_t FrontendLoop::share_left(const ModelLink& link) const {
  if (links_.size() == 1 || model_health(link).ok) return options_.table.max_open;
  const std::size_t share = std::max<std::size_t>(1, options_.table.max_open / links_.size());
  return share - std::min(share, link.table.open_count());
}

/// Of requests of all models no two have the same, so that a counter alone names one.
std::uint64_t FrontendLoop::next_counter() const {
  std::uint64_t next = 1;
  for (const auto& link : links_) next = std::max(next, link->table.next_counter());
  return next;
}

bool FrontendLoop::watched() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return !link->watchers.empty(); });
}

Health FrontendLoop::health_of(const ModelLink& link) const {
  const Health accounting = judge_accounting(http_.counters().unowned_bytes);
  return accounting.ok ? model_health(link) : accounting;
}

Health FrontendLoop::model_health(const ModelLink& link) const {
  return judge_model({link.fault(), link.options.no_workers}, link.table.scheduler(),
                     drain_until_ != 0, now_);
}

/// Of several models: whether they can serve, and which cannot.
Health FrontendLoop::health(HealthOf asked) const {
  if (links_.size() == 1 || drain_until_ != 0) return health_of(*links_.front());
  std::vector<ModelHealth> models;
  for (const auto& link : links_) models.push_back({link->options.served.name, health_of(*link)});
  return join_health(models, asked);
}

HttpReply FrontendLoop::health_reply(const LiveRequest& request) const {
  const auto body_of = [&](const ModelLink& link) {
    return health_body(health_of(link), link.table.scheduler(), link.options.served.name,
                       options_.identity.build);
  };
  const Health told = request.model ? health_of(*links_[*request.model]) : health(request.health);
  HttpReply reply;
  reply.status = told.ok ? 200 : 503;
  if (request.model || links_.size() == 1) {
    reply.body = body_of(*links_[request.model.value_or(0)]);
    return reply;
  }
  std::vector<std::string> models;
  for (const auto& link : links_) models.push_back(body_of(*link));
  reply.body = health_body(told, models, options_.identity.build);
  return reply;
}

/// What the scrape's own connection holds is left out: 0 means that nobody else is connected.
std::string FrontendLoop::exposed_metrics(const ClientConnection& scrape) const {
  std::vector<std::string> texts;
  for (const auto& link : links_) {
    MetricsView view = metrics_view(*link);
    view.http.held_bytes -= std::min(view.http.held_bytes, scrape.held.bytes());
    texts.push_back(link->metrics.expose(view));
  }
  return merge_metrics(texts);
}

// ------------------------------------------------------------------------------------------ pages

HttpReply FrontendLoop::live_reply(const Job& job, const LiveRequest& request) {
  HttpReply reply;
  switch (request.route) {
    case LiveRoute::health:
      return health_reply(request);
    case LiveRoute::metrics:
      reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
      reply.body = exposed_metrics(*job.connection);
      break;
    case LiveRoute::page:
      return page_reply(job, request);
    case LiveRoute::index: {
      IndexFacts facts = index_facts(request);
      const Health health = this->health();
      facts.ready = health.ok;
      facts.state = health.reason;
      IndexPage page = index_page(facts, request.accept);
      reply.content_type = std::move(page.content_type);
      reply.body = std::move(page.body);
      break;
    }
  }
  return reply;
}

IndexFacts FrontendLoop::index_facts(const LiveRequest& request) const {
  IndexFacts facts;
  facts.model = names();
  facts.version = options_.identity.build;
  facts.address = request.host.empty() ? options_.address : request.host;
  facts.max_context = links_.size() == 1 ? max_context(0) : 0;
  facts.example_model = links_.front()->options.served.name;
  for (const Dialect* dialect : *request.dialects) {
    IndexFacts::Door door{dialect->name(), {}};
    for (const DialectRoute& route : dialect->routes()) {
      door.routes.push_back(std::string(route.method) + " " + route.path);
    }
    facts.doors.push_back(std::move(door));
  }
  return facts;
}

HttpReply FrontendLoop::page_reply(const Job& job, const LiveRequest& request) {
  PageFacts facts = options_.page;
  facts.path = request.path;
  const ModelLink& first = *links_.front();
  const SchedulerView& view = first.table.scheduler();
  facts.max_context = max_context(0);
  facts.max_batch = first.options.max_batch;
  facts.workers_ready = view.workers_ready;
  facts.running = view.running;
  facts.waiting = view.waiting;
  for (const PoolUse& pool : view.pools) {
    facts.pool_tokens += std::uint64_t{pool.blocks} * view.tokens_per_block;
    facts.used_tokens += std::uint64_t{pool.owned + pool.fenced} * view.tokens_per_block;
  }
  for (std::size_t i = 0; i < links_.size(); ++i) {
    facts.models.push_back({&links_[i]->options.served, max_context(i)});
  }
  auto outcome = request.page(facts, first.options.served);
  HttpReply reply;
  if (auto* answer = std::get_if<Answer>(&outcome)) {
    reply.body = std::move(answer->body);
    reply.content_type = std::move(answer->content_type);
    return reply;
  }
  const HttpError error = shaped(std::move(std::get<HttpError>(outcome)), job.frame);
  reply.status = error.status;
  reply.body = error.body;
  reply.reason = error.log;
  return reply;
}

/// Of the whole cluster, but for the rate: that of this front end's own clients.
LoadReport FrontendLoop::load_report(const ModelLink* of) const {
  LoadReport report;
  std::uint64_t blocks = 0;
  std::uint64_t used = 0;
  double places = 0;
  double taken = 0;
  for (const auto& link : links_) {
    if (of != nullptr && of != link.get()) continue;
    const SchedulerView& view = link->table.scheduler();
    report.waiting += view.waiting;
    report.running += view.running > view.waiting ? view.running - view.waiting : 0;
    report.rate += link->rate.per_second(now_);
    for (const PoolUse& pool : view.pools) {
      blocks += pool.blocks;
      used += pool.owned + pool.fenced;
    }
    places += 1.0 * std::max(1U, link->options.max_batch) * std::max(1U, view.workers_ready);
    taken += static_cast<double>(std::max<std::size_t>(view.running, link->table.open_count()));
  }
  if (blocks != 0) report.kv_used = static_cast<double>(used) / static_cast<double>(blocks);
  // The request that asks counts, too: nobody is idle while it replies, and balancers pass over
  // who says so.
  report.utilization = std::max(report.kv_used, (taken + 1) / places);
  return report;
}

MetricsView FrontendLoop::metrics_view(const ModelLink& link) const {
  MetricsView view;
  view.version = options_.identity.build;
  view.scheduler_build = link.table.scheduler().build;
  view.scheduler = link.table.scheduler();
  view.scheduler_live = scheduler_live(link.table.scheduler(), now_);
  view.table = link.table.counters();
  view.link = link.client.counters();
  view.writer = writer_.counters();
  view.http = http_.counters();
  view.open_streams = link.table.open_count();
  view.queued_bytes = writer_.queued_bytes();
  view.process = process_usage();
  view.unix_time = static_cast<double>(wall_ns()) * 1e-9;
  view.replies_taken_over = replies_taken_over_;
  view.replies_lost = replies_lost_;
  if (options_.journal != nullptr) view.replies_unkept = options_.journal->lost();
  if (options_.spans != nullptr) view.spans = options_.spans->counters();
  for (const std::size_t slot : meter_.slots())
    view.keys.push_back({meter_.key(slot).name, meter_.totals(slot)});
  return view;
}

}  // namespace baton
