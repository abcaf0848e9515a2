#include "workers/cuda/linear/linear.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "workers/cuda/layer/rowwise.h"
#include "workers/cuda/linear/linear_kernels.h"
#include "workers/cuda/linear/linear_library.h"
#include "workers/cuda/linear/linear_quantized.h"
#include "workers/cuda/stopwatch.h"

namespace baton::cuda {
namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw CudaError(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

/// Row counts that are timed; a call takes the choice of the next one up, or of the last.
constexpr std::array kTimedRows = {1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 512, 2048};
constexpr int kMostLogitRows =
    256;  // more rows of logits than sequences in a step are not asked for

constexpr const char* kLibraryName = "cublasLt";

/// What a product reads of W.
std::size_t bytes_of(WeightFormat format, int out, int in, int groups) {
  if (format == WeightFormat::bf16) {
    return static_cast<std::size_t>(out) * static_cast<std::size_t>(in) * sizeof(Bf16);
  }
  return (weight_words(format, out, in) + scale_words(out, groups)) * sizeof(std::uint32_t);
}
std::size_t bytes_of(const LinearWeight& w) {
  return bytes_of(w.quantized.format, w.out, w.in, w.quantized.groups);
}

LibraryLinear::Store store_of(LinearOutput output) {
  return {output == LinearOutput::f32, output == LinearOutput::residual};
}

}  // namespace

struct Linears::Impl {
  using Key = std::tuple<int, int, LinearOutput, WeightFormat, int>;  // in, out, ..., groups
  struct Choice {
    int rows = 0;                          // timed at; serves up to these
    const LinearKernel* kernel = nullptr;  // null: cuBLASLt, of a quantised matrix dequantised
    int variant = 0;                       // of the kernel
    LibraryLinear::Algorithm algorithm{};  // of cuBLASLt
    double us = 0;
  };

  Options options;
  // The workspace: a quantised matrix in bf16, x in another order, our kernels', the library's,
  // gate and up side by side before silu_mul.
  Bf16* dequantized;
  Bf16* ordered;
  std::byte* parts;
  std::size_t parts_bytes, library_bytes, scratch_bytes;
  std::byte* scratch;
  LibraryLinear library;
  std::map<Key, std::vector<Choice>> choices;

  static constexpr std::size_t kLibraryWorkspace = 32 << 20;

  Impl(Options o, void* workspace)
      : options{o.workspace_bytes - o.dequantized_bytes - o.ordered_bytes, std::max(o.max_rows, 1),
                o.deterministic, o.dequantized_bytes, o.ordered_bytes},
        dequantized(static_cast<Bf16*>(workspace)),
        ordered(reinterpret_cast<Bf16*>(static_cast<std::byte*>(workspace) + o.dequantized_bytes)),
        parts(static_cast<std::byte*>(workspace) + o.dequantized_bytes + o.ordered_bytes),
        parts_bytes(tile_workspace_bytes()),
        library_bytes(
            o.workspace_bytes < parts_bytes + o.dequantized_bytes + o.ordered_bytes
                ? throw CudaError("the workspace of the linears is too small")
                : std::min((options.workspace_bytes - parts_bytes) / 2, kLibraryWorkspace) / 256 *
                      256),
        scratch_bytes(options.workspace_bytes - parts_bytes - library_bytes),
        scratch(parts + parts_bytes + library_bytes),
        library(parts + parts_bytes, library_bytes) {
    check(cudaMemset(parts, 0, parts_bytes), "linears");
    check(cudaDeviceSynchronize(), "linears");
  }

  const Choice& choose(const LinearWeight& w, LinearOutput output, int rows);
  void run_library(const LibraryLinear::Algorithm& algorithm, const Bf16* x, int rows,
                   const LinearWeight& w, LinearOutput output, void* y, Stream stream);
  void run_choice(const Choice& choice, const Bf16* x, int rows, const LinearWeight& w,
                  LinearOutput output, void* y, Stream stream);
  Choice fixed(const LinearWeight& w, LinearOutput output) const;
  std::vector<Choice> worth_timing(int rows, const LinearWeight& w, LinearOutput output,
                                   bool deterministic) const;
  std::vector<LibraryLinear::Algorithm> algorithms(int rows, const LinearWeight& w,
                                                   LinearOutput output) const;

  static Key key(const LinearWeight& w, LinearOutput output) {
    return {w.in, w.out, output, w.quantized.format, w.quantized.groups};
  }
};

std::size_t Linears::workspace_bytes(int max_rows, int max_silu_out) {
  return tile_workspace_bytes() + Impl::kLibraryWorkspace +
         static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(max_silu_out) * sizeof(Bf16);
}

Linears::Linears(Options options, void* workspace)
    : impl_(std::make_unique<Impl>(options, workspace)) {}
Linears::~Linears() = default;

/// What does every row count alike, and needs no timing.
Linears::Impl::Choice Linears::Impl::fixed(const LinearWeight& w, LinearOutput output) const {
  return worth_timing(options.max_rows, w, output, true).front();
}

const Linears::Impl::Choice& Linears::Impl::choose(const LinearWeight& w, LinearOutput output,
                                                   int rows) {
  auto& list = choices[key(w, output)];
  if (list.empty()) list.push_back(fixed(w, output));  // not tuned: right, if slow
  for (const Choice& choice : list) {
    if (rows <= choice.rows) return choice;
  }
  return list.back();
}

void Linears::Impl::run_library(const LibraryLinear::Algorithm& algorithm, const Bf16* x, int rows,
                                const LinearWeight& w, LinearOutput output, void* y,
                                Stream stream) {
  const LibraryLinear::Store store = store_of(output);
  if (output != LinearOutput::silu_mul) {
    if (library.run(algorithm, x, rows, w, store, y, stream)) return;
    const auto other = library.candidates(rows, w.out, w.in, store, options.deterministic, 1);
    if (!library.run(other.front(), x, rows, w, store, y, stream)) {
      throw CudaError("cublasLt refuses what it proposed");
    }
    return;
  }
  const auto columns = static_cast<std::size_t>(w.out);
  const int fit = static_cast<int>(std::min<std::size_t>(scratch_bytes / (columns * sizeof(Bf16)),
                                                         static_cast<std::size_t>(rows)));
  if (fit == 0) throw CudaError("the workspace of the linears holds no row of gate and up");
  auto* both = reinterpret_cast<Bf16*>(scratch);
  for (int done = 0; done < rows; done += fit) {
    const int n = std::min(fit, rows - done);
    run_library(algorithm, x + static_cast<std::ptrdiff_t>(done) * w.in, n, w, LinearOutput::bf16,
                both, stream);
    silu_mul(both, n, w.out / 2,
             static_cast<Bf16*>(y) + static_cast<std::ptrdiff_t>(done) * w.out / 2, stream);
  }
}

void Linears::Impl::run_choice(const Choice& choice, const Bf16* x, int rows, const LinearWeight& w,
                               LinearOutput output, void* y, Stream stream) {
  if (choice.kernel != nullptr) {
    return choice.kernel->run(choice.variant, {x, rows, w, output, y, parts}, stream);
  }
  if (!w.is_quantized()) return run_library(choice.algorithm, x, rows, w, output, y, stream);
  // Our own kernels may not read what was dequantised: they ask for W before the kernel in front
  // has ended.
  dequantize(w, dequantized, stream);
  run_library(choice.algorithm, x, rows, {dequantized, w.out, w.in}, output, y, stream);
}

/// cuBLASLt's, where they may be quicker than our kernels.
std::vector<LibraryLinear::Algorithm> Linears::Impl::algorithms(int rows, const LinearWeight& w,
                                                                LinearOutput output) const {
  const bool fits = bytes_of(WeightFormat::bf16, w.out, w.in, 0) <= options.dequantized_bytes;
  if (w.is_quantized() && (rows <= kMostQuantizedRows || !fits)) return {};
  const int most = w.is_quantized() ? 4 : rows > 256 ? 8 : 16;
  return library.candidates(rows, w.out, w.in, store_of(output), false, most);
}

std::vector<Linears::Impl::Choice> Linears::Impl::worth_timing(int rows, const LinearWeight& w,
                                                               LinearOutput output,
                                                               bool deterministic) const {
  std::vector<Choice> all;
  for (const LinearKernel* kernel : kLinearKernels) {
    if (rows > kernel->beside_rows && !all.empty()) continue;
    for (const int variant : kernel->variants(rows, w, deterministic)) {
      all.push_back({rows, kernel, variant});
    }
  }
  if (!deterministic) {
    for (const auto& algorithm : algorithms(rows, w, output)) {
      all.push_back({rows, nullptr, 0, algorithm});
    }
  } else if (all.empty()) {
    // One algorithm for all row counts, which does not split the sum over k.
    const int typical = std::clamp(options.max_rows, 1, 128);
    all.push_back({rows, nullptr, 0,
                   library.candidates(typical, w.out, w.in, store_of(output), true, 1).front()});
  }
  return all;
}

void Linears::tune(const LinearWeight* weights, int n_weights, LinearOutput output, void* scratch,
                   std::size_t scratch_bytes, Stream stream) {
  const int in = weights[0].in;
  const int out = weights[0].out;
  auto& list = impl_->choices[Impl::key(weights[0], output)];
  list.clear();
  // Enough calls that their weights leave the L2 cache before they come again.
  const std::size_t weight_bytes = bytes_of(weights[0]);
  const int calls = static_cast<int>(std::clamp<std::size_t>((192 << 20) / weight_bytes, 4, 32));

  std::vector<Bf16> noise(1 << 16);
  std::minstd_rand random(1);
  std::normal_distribution<float> normal;
  for (Bf16& v : noise) {  // zeros would be multiplied faster than real activations
    const float f = normal(random);
    std::uint32_t bits = 0;
    static_assert(sizeof bits == sizeof f);
    std::memcpy(&bits, &f, sizeof f);
    v.bits = static_cast<std::uint16_t>(bits >> 16);
  }
  check(cudaMemsetAsync(scratch, 0, scratch_bytes, stream), "scratch");
  for (std::size_t at = 0; at < scratch_bytes; at += noise.size() * sizeof(Bf16)) {
    check(cudaMemcpyAsync(static_cast<std::byte*>(scratch) + at, noise.data(),
                          std::min(noise.size() * sizeof(Bf16), scratch_bytes - at),
                          cudaMemcpyHostToDevice, stream),
          "scratch");
  }
  check(cudaStreamSynchronize(stream), "scratch");

  for (const int timed : kTimedRows) {
    const int rows = std::min(timed, impl_->options.max_rows);
    const std::size_t x_bytes =
        (static_cast<std::size_t>(rows) * in * sizeof(Bf16) + 255) / 256 * 256;
    const std::size_t y_bytes =
        static_cast<std::size_t>(rows) * out * (output == LinearOutput::f32 ? 4 : 2);
    if (!list.empty() && 2 * x_bytes + y_bytes > scratch_bytes) break;
    if (!list.empty() && output == LinearOutput::f32 && rows > kMostLogitRows) break;
    const auto* x = static_cast<const Bf16*>(scratch);
    const Bf16* norm = x;
    auto* normed = reinterpret_cast<Bf16*>(static_cast<std::byte*>(scratch) + x_bytes);
    void* y = static_cast<std::byte*>(scratch) + 2 * x_bytes;
    std::optional<Impl::Choice> best;
    for (Impl::Choice& choice :
         impl_->worth_timing(rows, weights[0], output, impl_->options.deterministic)) {
      choice.us = graph_us(stream, rows > 256 ? 2 : calls, [&](int i) {
        // As in a step, where a small kernel lies between two products: some that overlap well with
        // their own kind do not with others.
        rms_norm(x, norm, 1e-5F, rows, in, normed, stream);
        impl_->run_choice(choice, x, rows, weights[i % n_weights], output, y, stream);
      });
      if (!best || choice.us < best->us) best = choice;
    }
    list.push_back(*best);
    if (rows == impl_->options.max_rows) break;
  }
}

void Linears::run(const Bf16* x, int rows, const LinearWeight& w, LinearOutput output, void* y,
                  Stream stream, const Norm* norm) {
  if (rows == 0) return;
  const Impl::Choice& choice = impl_->choose(w, output, rows);
  if (norm != nullptr) {
    rms_norm(x, norm->weight, norm->eps, rows, w.in, norm->normed, stream);
    x = norm->normed;
  }
  if (w.quantized.order != nullptr) {
    const auto bytes =
        static_cast<std::size_t>(rows) * static_cast<std::size_t>(w.in) * sizeof(Bf16);
    if (bytes > impl_->options.ordered_bytes) throw CudaError("no room for x in another order");
    gather_columns(x, w.quantized.order, rows, w.in, impl_->ordered, stream);
    x = impl_->ordered;
  }
  impl_->run_choice(choice, x, rows, w, output, y, stream);
}

std::vector<LinearChoice> Linears::choices() const {
  std::vector<LinearChoice> all;
  for (const auto& [key, list] : impl_->choices) {
    const auto& [in, out, output, format, groups] = key;
    for (const Impl::Choice& c : list) {
      LinearChoice kept{in,     out,   static_cast<int>(output), static_cast<int>(format),
                        groups, c.rows};
      kept.kernel = c.kernel == nullptr ? kLibraryName : c.kernel->name;
      kept.variant = c.variant;
      static_assert(sizeof kept.algorithm == sizeof c.algorithm);
      std::memcpy(kept.algorithm.data(), &c.algorithm, sizeof c.algorithm);
      kept.us = c.us;
      all.push_back(std::move(kept));
    }
  }
  return all;
}

bool Linears::take(const std::vector<LinearChoice>& kept) {
  std::map<Impl::Key, std::vector<Impl::Choice>> choices;
  for (const LinearChoice& c : kept) {
    if (c.output > static_cast<int>(LinearOutput::silu_mul) ||
        c.format > static_cast<int>(WeightFormat::int8)) {
      return false;
    }
    Impl::Choice choice{c.rows, nullptr, c.variant, {}, c.us};
    const auto kernel =
        std::find_if(kLinearKernels.begin(), kLinearKernels.end(),
                     [&](const LinearKernel* known) { return c.kernel == known->name; });
    if (kernel != kLinearKernels.end()) {
      choice.kernel = *kernel;
    } else if (c.kernel != kLibraryName) {
      return false;
    }
    std::memcpy(&choice.algorithm, c.algorithm.data(), sizeof choice.algorithm);
    choices[{c.in, c.out, static_cast<LinearOutput>(c.output), static_cast<WeightFormat>(c.format),
             c.groups}]
        .push_back(choice);
  }
  impl_->choices = std::move(choices);
  return true;
}

std::size_t Linears::library_version() { return LibraryLinear::version(); }

std::string Linears::report() const {
  static constexpr const char* kOutputs[] = {"bf16", "f32", "residual", "silu_mul"};
  static constexpr const char* kFormats[] = {"bf16", "int4", "fp8", "int8"};
  std::string text;
  for (const auto& [key, list] : impl_->choices) {
    const auto& [in, out, output, format, groups] = key;
    int from = 1;
    for (const Impl::Choice& c : list) {
      char line[160];
      const auto bytes = static_cast<double>(bytes_of(format, out, in, groups));
      const int n = std::snprintf(
          line, sizeof line, "%6d -> %6d %s %-8s %4d..%4d rows: %8.1f us %5.0f GB/s ", in, out,
          kFormats[static_cast<int>(format)], kOutputs[static_cast<int>(output)], from, c.rows,
          c.us, c.us > 0 ? bytes / c.us / 1e3 : 0);
      text.append(line, static_cast<std::size_t>(n));
      if (c.kernel != nullptr) {
        text += c.kernel->name + std::string(", ") + c.kernel->describe(c.variant) + '\n';
      } else {
        text += format == WeightFormat::bf16 ? "cublasLt\n" : "dequantised, cublasLt\n";
      }
      from = c.rows + 1;
    }
  }
  return text;
}

}  // namespace baton::cuda
