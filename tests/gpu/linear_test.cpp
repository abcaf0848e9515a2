// Linear layers against sums in fp64, over outputs, row counts and shapes that do not fill a tile.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "workers/cuda/linear/linear.h"
#include "workers/cuda/linear/linear_kernels.h"

namespace baton::cuda {
namespace {

float value(Bf16 v) {
  const std::uint32_t bits = std::uint32_t{v.bits} << 16;
  float f = 0;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

Bf16 rounded(float f) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &f, sizeof bits);
  return {static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

std::vector<Bf16> random_matrix(std::size_t n, float scale, unsigned seed) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<Bf16> m(n);
  for (Bf16& v : m) v = rounded(uniform(random));
  return m;
}

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess) << cudaGetErrorString(cudaGetLastError())

/// Device memory of n T, freed at the end.
template <typename T>
struct Device {
  T* data = nullptr;
  std::size_t n;
  explicit Device(std::size_t count) : n(count) {
    if (cudaMalloc(&data, n * sizeof(T)) != cudaSuccess) throw CudaError("no memory");
  }
  explicit Device(const std::vector<T>& from) : Device(from.size()) {
    cudaMemcpy(data, from.data(), n * sizeof(T), cudaMemcpyHostToDevice);
  }
  ~Device() { cudaFree(data); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  std::vector<T> read() const {
    std::vector<T> to(n);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(to.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return to;
  }
};

constexpr float kEps = 1e-5F;
constexpr std::size_t kWorkspace = 64 << 20;

class LinearTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    CUDA_OK(cudaStreamCreate(&stream_));
    CUDA_OK(cudaMalloc(&workspace_, kWorkspace));
    CUDA_OK(cudaMalloc(&scratch_, kWorkspace));
  }
  void TearDown() override {
    cudaFree(workspace_);
    cudaFree(scratch_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  cudaStream_t stream_ = nullptr;
  void* workspace_ = nullptr;
  void* scratch_ = nullptr;
};

/// One weight matrix with its activations, and the exact products.
struct Case {
  int out, in, max_rows;
  std::vector<Bf16> w, x, norm, old;
  std::vector<double> plain, normed;  // [max_rows, out]
  Device<Bf16> w_device, x_device, norm_device;

  Case(int out_, int in_, int rows)
      : out(out_),
        in(in_),
        max_rows(rows),
        w(random_matrix(size(out_, in_), 0.05F, 1)),
        x(random_matrix(size(rows, in_), 1.5F, 2)),
        norm(random_matrix(size(1, in_), 1.0F, 3)),
        old(random_matrix(size(rows, out_), 2.0F, 4)),
        w_device(w),
        x_device(x),
        norm_device(norm) {
    std::vector<float> wf(w.size());
    std::transform(w.begin(), w.end(), wf.begin(), value);
    std::vector<float> row(static_cast<std::size_t>(in));
    std::vector<float> row_normed(row.size());
    for (int r = 0; r < rows; ++r) {
      double squares = 0;
      for (int k = 0; k < in; ++k) {
        row[at(k)] = value(x[size(r, in) + at(k)]);
        squares += row[at(k)] * row[at(k)];
      }
      const double scale = 1 / std::sqrt(squares / in + kEps);
      for (int k = 0; k < in; ++k) {
        row_normed[at(k)] =
            value(rounded(static_cast<float>(row[at(k)] * scale * value(norm[at(k)]))));
      }
      for (int o = 0; o < out; ++o) {
        plain.push_back(dot(wf.data() + size(o, in), row));
        normed.push_back(dot(wf.data() + size(o, in), row_normed));
      }
    }
  }
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  static std::size_t size(int a, int b) { return at(a) * at(b); }
  static double dot(const float* a, const std::vector<float>& b) {
    double sums[8] = {};
    for (std::size_t k = 0; k < b.size(); ++k) sums[k % 8] += double{a[k]} * double{b[k]};
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
  }

  int width(LinearOutput output) const { return output == LinearOutput::silu_mul ? out / 2 : out; }
  double expected(int r, int column, LinearOutput output, bool with_norm) const {
    const double* sums = (with_norm ? normed : plain).data() + size(r, out);
    if (output == LinearOutput::residual) {
      return sums[column] + value(old[size(r, out) + at(column)]);
    }
    if (output != LinearOutput::silu_mul) return sums[column];
    const double gate = sums[column / 8 * 16 + column % 8];
    return gate / (1 + std::exp(-gate)) * sums[column / 8 * 16 + 8 + column % 8];
  }
};

constexpr LinearOutput kOutputs[] = {LinearOutput::bf16, LinearOutput::f32, LinearOutput::residual,
                                     LinearOutput::silu_mul};

/// y of `rows` rows starting at `first`, as floats; what lies behind the last row must stay
/// poisoned.
std::vector<float> run(Linears& linears, const Case& c, int first, int rows, LinearOutput output,
                       bool with_norm, cudaStream_t stream) {
  const std::size_t n = Case::size(rows, c.width(output));
  constexpr std::size_t kBehind = 64;
  Device<Bf16> normed(Case::size(rows, c.in));
  const Linears::Norm norm{c.norm_device.data, kEps, normed.data};
  const Bf16* x = c.x_device.data + Case::size(first, c.in);
  const LinearWeight w{c.w_device.data, c.out, c.in};
  std::vector<float> result;
  if (output == LinearOutput::f32) {
    Device<float> y(std::vector<float>(n + kBehind, NAN));
    linears.run(x, rows, w, output, y.data, stream, with_norm ? &norm : nullptr);
    result = y.read();
  } else {
    std::vector<Bf16> before(n + kBehind, Bf16{0x7FC0});
    if (output == LinearOutput::residual) {
      std::copy_n(c.old.begin() + static_cast<std::ptrdiff_t>(Case::size(first, c.out)), n,
                  before.begin());
    }
    Device<Bf16> y(before);
    linears.run(x, rows, w, output, y.data, stream, with_norm ? &norm : nullptr);
    const std::vector<Bf16> bits = y.read();
    result.resize(bits.size());
    std::transform(bits.begin(), bits.end(), result.begin(), value);
  }
  for (std::size_t i = n; i < result.size(); ++i) EXPECT_TRUE(std::isnan(result[i])) << i - n;
  result.resize(n);
  return result;
}

/// The largest error relative to the output's own size (its root mean square over the case).
void compare(Linears& linears, const Case& c, int rows, LinearOutput output, bool with_norm,
             cudaStream_t stream) {
  const std::vector<float> y = run(linears, c, 0, rows, output, with_norm, stream);
  const int width = c.width(output);
  double worst = 0;
  double squares = 0;
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < width; ++o) {
      const double want = c.expected(r, o, output, with_norm);
      const double got = y[Case::size(r, width) + Case::at(o)];
      squares += want * want;
      // Half a unit in the last place of bf16 is 1/256 of the value; NaN must not pass.
      double allowed = std::abs(want) / 200;
      if (output == LinearOutput::silu_mul) allowed *= 3;  // the library rounds gate and up, too
      worst = std::max(worst, std::isnan(got) ? 1e9 : std::abs(got - want) - allowed);
    }
  }
  const double size = std::sqrt(squares / (double{1} * rows * width));
  // The library rounds a product before it adds y.
  const double tolerance = output == LinearOutput::silu_mul   ? 4e-2
                           : output == LinearOutput::residual ? 8e-3
                                                              : 2e-3;
  EXPECT_LT(worst / size, with_norm ? tolerance + 4e-3 : tolerance)
      << c.out << " x " << c.in << ", " << rows << " rows, output " << static_cast<int>(output)
      << (with_norm ? ", normed" : "");
}

TEST_F(LinearTest, EveryRowCountAgreesWithExactSums) {
  const Case c(352, 528, 300);  // no multiple of a tile in either direction
  std::vector<int> counts;
  for (int r = 1; r <= 70; ++r) counts.push_back(r);
  counts.insert(counts.end(), {96, 128, 129, 200, 256, 300});
  for (const LinearOutput output : kOutputs) {
    Linears linears({kWorkspace, 300, false}, workspace_);
    const LinearWeight w{c.w_device.data, c.out, c.in};
    linears.tune(&w, 1, output, scratch_, kWorkspace, stream_);
    for (const int rows : counts) {
      compare(linears, c, rows, output, false, stream_);
      compare(linears, c, rows, output, true, stream_);
      if (HasFailure()) FAIL() << linears.report();
    }
  }
}

TEST_F(LinearTest, ShapesThatFillManyTilesOrLessThanOne) {
  struct Size {
    int out, in;
  };
  for (const Size size : {Size{16, 16}, Size{48, 4096}, Size{1024, 2048}, Size{4096, 256},
                          Size{12816, 64}, Size{256, 6144}}) {
    const Case c(size.out, size.in, 130);
    const LinearWeight w{c.w_device.data, c.out, c.in};
    for (const LinearOutput output : kOutputs) {
      Linears linears({kWorkspace, 130, false}, workspace_);
      linears.tune(&w, 1, output, scratch_, kWorkspace, stream_);
      for (const int rows : {1, 5, 9, 33, 65, 130}) {
        compare(linears, c, rows, output, false, stream_);
        compare(linears, c, rows, output, rows < 9, stream_);
        if (HasFailure()) FAIL() << linears.report();
      }
    }
  }
}

TEST_F(LinearTest, LogitsOfAnOddVocabulary) {
  const Case c(3203, 256, 70);
  const LinearWeight w{c.w_device.data, c.out, c.in};
  Linears linears({kWorkspace, 70, false}, workspace_);
  linears.tune(&w, 1, LinearOutput::f32, scratch_, kWorkspace, stream_);
  for (const int rows : {1, 3, 8, 17, 64, 70}) {
    compare(linears, c, rows, LinearOutput::f32, false, stream_);
  }
}

TEST_F(LinearTest, WorksWithoutTuning) {
  const Case c(352, 528, 40);
  Linears linears({kWorkspace, 40, false}, workspace_);
  for (const LinearOutput output : kOutputs) compare(linears, c, 40, output, true, stream_);
}

TEST_F(LinearTest, ManyCandidatesAgree) {
  // Another seed of noise makes tune() choose differently from run to run: the sums of every choice
  // are checked by tuning with every largest row count.
  const Case c(1024, 1024, 256);
  const LinearWeight w{c.w_device.data, c.out, c.in};
  for (const int most : {8, 16, 32, 64, 128, 256}) {
    Linears linears({kWorkspace, most, false}, workspace_);
    linears.tune(&w, 1, LinearOutput::residual, scratch_, kWorkspace, stream_);
    for (const int rows : {most / 2 + 1, most}) {
      compare(linears, c, rows, LinearOutput::residual, false, stream_);
    }
  }
}

/// The project's own kernels in every shape that may be chosen, called directly.
TEST_F(LinearTest, EveryOwnVariantAgrees) {
  const Case c(768, 1024, 128);
  const LinearWeight w{c.w_device.data, c.out, c.in};
  CUDA_OK(cudaMemset(workspace_, 0, tile_workspace_bytes()));
  const auto expect_sums = [&](int rows, const Device<float>& y, const std::string& what) {
    const std::vector<float> got = y.read();
    double worst = 0;
    double squares = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, std::isnan(got[i]) ? 1e9 : std::abs(got[i] - c.plain[i]));
      squares += c.plain[i] * c.plain[i];
    }
    EXPECT_LT(worst / std::sqrt(squares / static_cast<double>(got.size())), 2e-3)
        << what << ", " << rows << " rows";
  };
  int variants = 0;
  for (const int rows : {1, 5, 8, 16, 33, 64, 128}) {
    const std::vector<float> poison(Case::size(rows, c.out), NAN);
    for (const LinearKernel* kernel : kLinearKernels) {
      for (const int variant : kernel->variants(rows, w, false)) {
        const Device<float> y(poison);
        kernel->run(variant, {c.x_device.data, rows, w, LinearOutput::f32, y.data, workspace_},
                    stream_);
        expect_sums(rows, y, kernel->name + std::string(", ") + kernel->describe(variant));
        ++variants;
      }
    }
  }
  EXPECT_GT(variants, 7);
}

TEST_F(LinearTest, DeterministicRowsKeepTheirBits) {
  struct Size {
    int out, in;
  };
  for (const Size size : {Size{512, 1040}, Size{6144, 512}, Size{128, 4096}}) {
    const Case c(size.out, size.in, size.out > 1000 ? 64 : 300);
    const LinearWeight w{c.w_device.data, c.out, c.in};
    for (const LinearOutput output : kOutputs) {
      Linears linears({kWorkspace, c.max_rows, true}, workspace_);
      linears.tune(&w, 1, output, scratch_, kWorkspace, stream_);
      for (const bool with_norm : {false, true}) {
        const auto all = run(linears, c, 0, c.max_rows, output, with_norm, stream_);
        const auto width = Case::at(c.width(output));
        for (const int rows : {1, 2, 7, 8, 9, 33, 64, 65, 129, 255}) {
          if (rows > c.max_rows) continue;
          const int first = (c.max_rows - rows) / 2;
          const auto some = run(linears, c, first, rows, output, with_norm, stream_);
          EXPECT_EQ(std::memcmp(some.data(), all.data() + Case::at(first) * width,
                                some.size() * sizeof(float)),
                    0)
              << rows << " rows, output " << static_cast<int>(output) << "\n"
              << linears.report();
        }
      }
      compare(linears, c, c.max_rows, output, true, stream_);
    }
  }
}

}  // namespace
}  // namespace baton::cuda
