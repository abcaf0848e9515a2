// Which of its kernels a call of experts.h takes, and where they leave what they hand on.
#include "workers/cuda/layer/experts.h"

#include <algorithm>

#include "workers/cuda/layer/experts_pieces.h"
#include "workers/cuda/layer/experts_ring.h"
#include "workers/cuda/layer/experts_route.h"

namespace baton::cuda {
namespace {

constexpr std::size_t kAlign = 256;

/// Rows of a piece: by how many an expert has on average.
int piece_rows(const ExpertCall& call) {
  const int lines = call.rows * call.shape.active;
  if (call.path == ExpertPath::wide) return kWideRows;
  if (call.rows <= 8 || lines <= 4 * call.shape.count) return 8;
  if (call.rows <= 16 || lines <= 12 * call.shape.count) return 16;
  const bool wide = call.path == ExpertPath::automatic && !call.deterministic;
  return wide && wide_experts_fit() ? kWideRows : 64;
}

void product(const StreamProduct& p, const ExpertCall& call, Stream stream) {
  if (p.routing->piece == kWideRows) return wide_experts(p, stream);
  const bool streams = !call.deterministic && call.path != ExpertPath::pieces;
  if (streams && stream_experts_fit(p)) return stream_experts(p, stream);
  experts_by_pieces(p, call, stream);
}

struct Workspace {
  ExpertRouting routing;
  Bf16* gated = nullptr;   // [lines, intermediate]
  Bf16* result = nullptr;  // [lines, hidden]; at first x in lines, where the kernels want it so
  std::size_t bytes = 0;

  Workspace(const ExpertShape& shape, int rows, int piece, std::byte* base) {
    const auto take = [&]<typename T>(T*& to, std::size_t elements) {
      if (base != nullptr) to = reinterpret_cast<T*>(base + bytes);
      bytes += (elements * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    };
    const auto lines = static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape.active);
    take(routing.chosen, lines);
    take(routing.weights, lines);
    take(routing.line, lines);
    take(routing.source, lines);
    take(routing.items,
         static_cast<std::size_t>(most_items(rows, shape.count, shape.active, piece)));
    take(routing.n_items, 1);
    take(gated, lines * static_cast<std::size_t>(shape.intermediate));
    take(result, lines * static_cast<std::size_t>(shape.hidden));
  }
};

}  // namespace

std::size_t experts_workspace_bytes(const ExpertShape& shape, int max_rows) {
  return Workspace(shape, std::min(max_rows, kMostExpertRows), 8, nullptr).bytes;
}

void experts(const ExpertCall& call, Stream stream) {
  if (call.rows <= 0) return;
  const ExpertShape& shape = call.shape;
  if (call.rows > kMostExpertRows || shape.hidden % 16 != 0 || shape.intermediate % 16 != 0) {
    throw CudaError("experts: too many rows, or sizes that are no multiples of 16");
  }
  if (call.gate_up.format != ExpertFormat::bf16 &&
      (shape.hidden % kMxfp4Inputs != 0 || shape.intermediate % kMxfp4Inputs != 0)) {
    throw CudaError("experts: sizes of quantised ones are multiples of 32");
  }
  const int piece = piece_rows(call);
  Workspace space(shape, call.rows, piece, static_cast<std::byte*>(call.workspace));
  const bool any = call.path == ExpertPath::automatic || call.path == ExpertPath::few;
  if (any && few_experts_fit(call)) return few_experts(call, space.gated, stream);
  ExpertRouting& r = space.routing;
  r.rows = call.rows;
  r.count = shape.count;
  r.active = shape.active;
  r.normalise = shape.normalise;
  r.piece = piece;
  r.logits = call.logits;
  r.rule = call.rule;
  route(r, stream);
  const bool in_lines = piece == kWideRows;
  if (in_lines) gather_lines(r, call.normed, shape.hidden, space.result, stream);
  product({&r, call.gate_up, 2 * shape.intermediate, shape.hidden,
           in_lines ? space.result : call.normed, !in_lines, space.gated, true},
          call, stream);
  product(
      {&r, call.down, shape.hidden, shape.intermediate, space.gated, false, space.result, false},
      call, stream);
  combine(r, space.result, shape.hidden, call.x, stream);
}

}  // namespace baton::cuda
