// The products of a layer that follow each other, in one kernel: W_o, gate and up, W_down and the
// next layer's W_qkv, with the norms between them. For steps of up to 128 rows, where a kernel's
// beginning and end, and a norm's way through memory, cost as much as its bytes: here the next W
// streams on meanwhile.
#pragma once

#include <cstddef>

#include "workers/cuda/layer/general.h"
#include "workers/cuda/linear/linear.h"

namespace baton::cuda {

constexpr int kMostChainGemms = 4;
constexpr int kMostChainRows = 128;  // of any chain

/// y = x W^T, as Linears::run() has it, for LinearOutput::bf16, residual and silu_mul.
struct ChainGemm {
  LinearWeight w;
  LinearOutput output = LinearOutput::bf16;
  const Bf16* x = nullptr;  // [rows, w.in], from an earlier kernel or GEMM
  void* y = nullptr;
  /// A residual GEMM with a norm behind it: `gain` is that norm's weight, [w.out], and `scaled`,
  /// [rows, w.out], gets y times gain. The next GEMM takes it as x, with `normed`: its sums are
  /// divided by the rms of y's rows then, which is the norm but for where it is rounded.
  const Bf16* gain = nullptr;
  Bf16* scaled = nullptr;
  bool normed = false;  // not the first GEMM
  float eps = 0;
  /// A bf16 GEMM whose y joins the residual stream when all of it is there, as add_part() would
  /// have it: `join` has y as its part, no bias, and norms that are no layer norms. The next GEMM
  /// takes join.normed as x, or join.x. Only in bf16, up to 64 rows of at most kMostJoined numbers.
  bool joins = false;
  PartCall join = {};
  Gate gate = Gate::silu;  // of silu_mul: what the gate goes through; others where GEMMs join
};
constexpr int kMostJoined = 6144;

/// The most rows that linear_chain() takes; 0: it does not serve these GEMMs. The current device
/// must run it (compute capability 9.0, and no other process beside us through MPS: the kernel's
/// CTAs wait for each other, so all of them must find a place). All weights are bf16, or all
/// quantised in the same way and in x's order. More than 64 rows: in bf16, mostly with multiples of
/// 128 inputs. Throws CudaError.
int chain_rows(const ChainGemm* gemms, int n);

/// Of what a chain keeps on the device: 256-byte aligned, zeroed once, then left to the kernel.
std::size_t chain_state_bytes();
/// Of what the chains of a stream share, of up to `rows` rows: 256-byte aligned, whatever lies
/// there.
std::size_t chain_workspace_bytes(int rows);

/// In device memory. A chain uses up its state, and clears next_state, another one: that of the
/// chain which is run next (the next layer's, and behind the last the first's).
struct ChainBuffers {
  void* state = nullptr;
  void* next_state = nullptr;
  void* workspace = nullptr;
};

/// Queues n GEMMs, 0 < rows <= chain_rows(). Between two chains any other kernels may run. The same
/// call gives the same bits, another number of rows may not. Throws CudaError.
void linear_chain(const ChainGemm* gemms, int n, int rows, const ChainBuffers& buffers,
                  Stream stream);

}  // namespace baton::cuda
