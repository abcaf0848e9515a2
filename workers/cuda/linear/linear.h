// Linear layers: y = x W^T, bf16 with fp32 sums. What computes one is chosen by row count and by
// timing at start: kernels of our own (linear_kernels.h) for few rows, which are bound by the bytes
// of W, and the best of cuBLASLt's candidates for more. Quantised weights have kernels of their
// own; with many rows they may be dequantised to bf16 on the way to cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "workers/cuda/linear/kernel_choices.h"
#include "workers/cuda/linear/quantized_layout.h"
#include "workers/cuda/types.h"

namespace baton::cuda {

/// One weight matrix on the device, row-major [out, in], in % 16 == 0, 16-byte aligned. The caller
/// owns the memory. A quantised one has no `data`.
struct LinearWeight {
  const Bf16* data = nullptr;
  int out = 0;
  int in = 0;
  QuantizedWeight quantized = {};

  bool is_quantized() const { return quantized.format != WeightFormat::bf16; }
};

enum class LinearOutput : std::uint8_t {
  bf16,      // y [rows, out] of Bf16
  f32,       // y [rows, out] of float: logits
  residual,  // y [rows, out] of Bf16 is added to: y = bf16(y + x W^T), rounded once
  silu_mul,  // y [rows, out / 2] of Bf16: W interleaves 8 rows of gate with 8 rows of up, out % 16
             // == 0
};

/// All linears of one model on one stream. Not thread-safe.
class Linears {
 public:
  struct Options {
    std::size_t workspace_bytes = 32 << 20;
    int max_rows = 0;  // of any run()
    /// The bits of a row do not depend on the other rows of the call nor on their number: one
    /// algorithm per weight for every row count, no split of the sum that depends on it.
    bool deterministic = false;
    /// Of the workspace: room for one quantised matrix in bf16 (without it, such a matrix is never
    /// dequantised) and for x in the order of a quantised weight's inputs, [max_rows, in].
    std::size_t dequantized_bytes = 0;
    std::size_t ordered_bytes = 0;
  };
  /// Enough workspace that no call is cut into pieces; max_silu_out is the widest `out` of a
  /// silu_mul. dequantized_bytes and ordered_bytes (multiples of 256) come on top.
  static std::size_t workspace_bytes(int max_rows, int max_silu_out);
  /// `workspace` is device memory of options.workspace_bytes, 256-byte aligned, used by the calls
  /// on one stream only.
  Linears(Options options, void* workspace);
  ~Linears();
  Linears(const Linears&) = delete;
  Linears& operator=(const Linears&) = delete;

  /// Times what can compute this shape at the row counts that matter and keeps the fastest of each;
  /// to be called once a distinct (in, out, output) before run(). `weights` are several matrices of
  /// the same shape (the layers'), so that timing does not measure the L2 cache. `scratch` is
  /// device memory that x and y are placed in for the timing, scratch_bytes of it.
  void tune(const LinearWeight* weights, int n_weights, LinearOutput output, void* scratch,
            std::size_t scratch_bytes, Stream stream);

  /// Queues y = x W^T on `stream`; x [rows, in]. Allocates nothing, may be captured into a graph.
  /// Throws CudaError. With `norm` (a weight of [in] and eps) x is rms-normed on the way, through
  /// `normed` [rows, in]: y = rms_norm(x) W^T. (Fused into the product it took a microsecond
  /// longer.)
  struct Norm {
    const Bf16* weight = nullptr;
    float eps = 0;
    Bf16* normed = nullptr;
  };
  void run(const Bf16* x, int rows, const LinearWeight& w, LinearOutput output, void* y,
           Stream stream, const Norm* norm = nullptr);

  /// What was chosen, to be kept for a later process.
  std::vector<LinearChoice> choices() const;
  /// Takes that instead of tune(). False, and nothing is taken: this program has no such kernel.
  bool take(const std::vector<LinearChoice>& kept);
  /// cuBLASLt's: its algorithms mean something to the same version alone.
  static std::size_t library_version();

  /// What was chosen, a line for each shape and range of rows, with microseconds. For the log.
  std::string report() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton::cuda
