// What lies between two attentions of a layer of experts as one kernel, for steps of up to eight
// rows on Hopper: W_o, the norm, the router, the experts, what every token takes beside them, and
// the next layer's norm and W_qkv. linear_chain.h is the same for dense layers.
#pragma once

#include <cstddef>

#include "workers/cuda/layer/experts.h"
#include "workers/cuda/linear/linear.h"

namespace baton::cuda {

/// An RMS norm whose weights, [columns], are in bf16 or in fp32: exactly one of both is set.
struct LayerNorm {
  const Bf16* gain = nullptr;
  const float* weight = nullptr;
  float eps = 0;
};

/// Matrices are in bf16 but for the experts'. x is the residual stream, [rows, hidden]. hidden is a
/// multiple of 64, at most 8192; an expert's intermediate one of 64 in bf16, else of 32; inputs of
/// W_o and W_next multiples of 64; at most 512 experts, of one group; rows * active at most 64.
struct ExpertLayerCall {
  /// Of these: rows, shape, gate_up, down, x, rule, workspace. `normed`, `logits`, `path` and
  /// `deterministic` mean nothing: the bits depend on the number of rows.
  ExpertCall experts;
  float* logits = nullptr;  // written: [rows, count], without rule.router_bias

  /// x += W_o attended + bias, [hidden]. Without data: x has it already.
  LinearWeight o = {};
  const Bf16* attended = nullptr;  // [rows, o.in]
  const float* o_bias = nullptr;   // may be missing

  LayerNorm norm = {};       // n = norm(x)
  LinearWeight router = {};  // [count, hidden]

  /// What every token takes beside its experts: x += s W_down act(W_gate n) (W_up n), s = sigmoid(
  /// shared_gate . n), or 1 without one. Without data: nothing. act is rule.act.
  LinearWeight shared_gate_up = {};  // 8 rows of gate, 8 of up, ...
  LinearWeight shared_down = {};
  const float* shared_gate = nullptr;  // [hidden]
  Bf16* shared = nullptr;              // room for [rows, shared_down.in]

  /// next = W_next next_norm(x), [rows, next_w.out]. Without data: nothing.
  LayerNorm next_norm = {};
  LinearWeight next_w = {};
  Bf16* next = nullptr;
};

/// The most rows that expert_layer() takes; 0: it does not serve this layer, or this device (it
/// must be of compute capability 9.0, with no other process beside us through MPS: the kernel's
/// CTAs wait for each other). Of `call` all counts but rows and where results go. Throws CudaError.
int expert_layer_rows(const ExpertLayerCall& call);

/// Of a layer's state on the device: 256-byte aligned. The caller owns one a layer, two at least,
/// zeroes them once, and leaves them to the kernel.
std::size_t expert_layer_state_bytes();

/// Queues the kernel, for 0 < rows <= expert_layer_rows(). It uses up `state` and clears
/// `next_state`, another one: that of the layer which is run next. Between two layers any other
/// kernels may run. The same call gives the same bits, another number of rows may not. Throws
/// CudaError.
void expert_layer(const ExpertLayerCall& call, void* state, void* next_state, Stream stream);

}  // namespace baton::cuda
