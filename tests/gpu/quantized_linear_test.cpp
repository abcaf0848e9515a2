// Quantised linear layers: tensors as checkpoints store them, brought into the kernels' layout on
// the device, or as whole numbers with scales, brought there on the host; against sums in fp64 over
// the values that CPUs give them.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/device_fixture.h"
#include "workers/cuda/linear/linear.h"
#include "workers/cuda/linear/linear_kernels.h"
#include "workers/cuda/linear/linear_quantized.h"
#include "workers/cuda/linear/quantized_load.h"
#include "workers/model/dequantize.h"
#include "workers/model/gpu_format.h"
#include "workers/model/gpu_pack.h"

namespace baton::cuda {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }
std::size_t size(int a, int b) { return at(a) * at(b); }

struct Format {
  const char* name;
  QuantizedPart::Layout layout;
  int group;  // inputs of a group or a block; 0: all
  int zero_offset = 0;
  bool shuffled = false;
  cpu::ElementType scales = cpu::ElementType::f16;
  int block_rows = 1;
  /// Whole numbers instead of a layout: bf16 means none.
  WeightFormat whole = WeightFormat::bf16;

  bool is_whole() const { return whole != WeightFormat::bf16; }
  WeightFormat kept() const {
    return is_whole()                             ? whole
           : layout == QuantizedPart::Layout::fp8 ? WeightFormat::fp8
                                                  : WeightFormat::int4;
  }
};
constexpr auto kGptq = QuantizedPart::Layout::gptq;
constexpr auto kAwq = QuantizedPart::Layout::awq;
constexpr auto kFp8 = QuantizedPart::Layout::fp8;
const Format kFormats[] = {
    {"gptq, groups of 128", kGptq, 128, 1},
    {"gptq, groups of 32, in any order", kGptq, 32, 0, true},
    {"gptq, one group", kGptq, 0, 1, false, cpu::ElementType::bf16},
    {"gptq, groups of 64, in any order", kGptq, 64, 1, true, cpu::ElementType::f32},
    {"awq, groups of 128", kAwq, 128},
    {"awq, groups of 32", kAwq, 32},
    {"fp8, one scale an output", kFp8, 0, 0, false, cpu::ElementType::bf16},
    {"fp8, blocks of 128 x 128", kFp8, 128, 0, false, cpu::ElementType::f32, 128},
    {"int8, groups of 32", kGptq, 32, 0, false, cpu::ElementType::f16, 1, WeightFormat::int8},
    {"int8, groups of 128", kGptq, 128, 0, false, cpu::ElementType::bf16, 1, WeightFormat::int8},
    {"int8, groups of 64", kGptq, 64, 0, false, cpu::ElementType::f32, 1, WeightFormat::int8},
    {"int8, one group", kGptq, 0, 0, false, cpu::ElementType::f16, 1, WeightFormat::int8},
    {"int4 of the host, groups of 32", kGptq, 32, 0, false, cpu::ElementType::f16, 1,
     WeightFormat::int4},
};

/// A layer as a checkpoint stores it, with its values.
struct Stored {
  Format format;
  int out, in, groups;
  std::vector<std::uint32_t> words, zeros;
  std::vector<std::byte> scales;
  std::vector<std::int32_t> group;
  std::vector<float> values;  // [out, in]
  cpu::GroupedMatrix whole;   // instead of the tensors

  Stored(const Format& f, int out_, int in_, unsigned seed) : format(f), out(out_), in(in_) {
    std::minstd_rand random(seed);
    const auto word = [&] { return static_cast<std::uint32_t>(random()) * 2654435761U; };
    const bool fp8 = f.layout == kFp8;
    const int step = f.group == 0 ? in : f.group;
    groups = (in + step - 1) / step;
    if (f.is_whole()) {
      make_whole(word);
      return;
    }
    words.resize(size(out, in) / (fp8 ? 4 : 8));
    for (auto& w : words) {
      w = word();
      if (!fp8) continue;
      for (std::uint32_t byte = 0x7F; byte != 0; byte <<= 8) {
        if ((w & byte) == byte) w &= ~(byte & 0x10101010U);  // no NaN
      }
    }
    group.resize(at(in));
    for (int i = 0; i < in; ++i) group[at(i)] = i / step;
    if (f.shuffled) std::shuffle(group.begin(), group.end(), random);
    const int scale_rows = fp8 ? (out + f.block_rows - 1) / f.block_rows : out;
    scales.resize(size(scale_rows, groups) * at(static_cast<int>(cpu::element_bytes(f.scales))));
    for (std::size_t i = 0; i < size(scale_rows, groups); ++i) {
      const std::uint32_t digits = word() >> 8;
      if (f.scales == cpu::ElementType::f16) {
        const auto half = static_cast<std::uint16_t>(0x2000U | (digits & 0x3FFU));  // 2^-7 .. 2^-6
        std::memcpy(&scales[2 * i], &half, 2);
      } else if (f.scales == cpu::ElementType::bf16) {
        const auto bits = static_cast<std::uint16_t>(0x3C00U | (digits & 0x7FU));
        std::memcpy(&scales[2 * i], &bits, 2);
      } else {
        const std::uint32_t bits = 0x3C000000U | (digits & 0x7FFFFFU);
        std::memcpy(&scales[4 * i], &bits, 4);
      }
    }
    if (!fp8) zeros.resize(size(groups, out) / 8);
    for (auto& z : zeros) z = word();
    dequantize_on_host();
  }

  /// Every number that there is, and scales of so many digits as their type has.
  template <class Word>
  void make_whole(const Word& word) {
    const bool four = format.whole == WeightFormat::int4;
    whole.out = out;
    // Groups divide the inputs there; what is behind the layer's is not read.
    whole.in = format.group == 0 ? in : groups * format.group;
    whole.type = {
        four ? cpu::WeightType::int4 : cpu::WeightType::int8,
        {static_cast<int>(whole.in) / groups, false, four ? cpu::Second::zero : cpu::Second::none}};
    for (std::int64_t i = 0; i < whole.out * whole.in; ++i) {
      whole.q.push_back(static_cast<std::int8_t>(word() >> (four ? 28 : 24)));
    }
    const std::uint32_t digits = format.scales == cpu::ElementType::f16    ? 0x7FE000U
                                 : format.scales == cpu::ElementType::bf16 ? 0x7F0000U
                                                                           : 0x7FFFFFU;
    for (std::size_t i = 0; i < size(out, groups); ++i) {
      whole.scale.push_back(std::bit_cast<float>(0x3C000000U | (word() >> 8 & digits)));
      if (four) whole.second.push_back(static_cast<float>(word() >> 28));
    }
    dequantize_on_host();
  }

  void dequantize_on_host() {
    static cpu::ThreadPool pool(2);
    values.resize(size(out, in));
    if (format.is_whole()) {
      std::vector<float> wide(static_cast<std::size_t>(whole.out * whole.in));
      cpu::widen(whole, pool, wide.data());
      for (int o = 0; o < out; ++o) {
        std::copy_n(wide.begin() + o * whole.in, in,
                    values.begin() + static_cast<std::ptrdiff_t>(size(o, in)));
      }
      return;
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(words.data());
    if (format.layout == kFp8) {
      const std::int64_t columns = format.group == 0 ? in : format.group;
      const Fp8Weight w{
          bytes,
          {scales.data(), format.scales, (out + format.block_rows - 1) / format.block_rows, groups},
          out,
          in,
          format.block_rows,
          columns};
      return dequantize_fp8(w, pool, values.data());
    }
    Int4Weight w;
    w.weights = bytes;
    w.zeros = reinterpret_cast<const std::byte*>(zeros.data());
    w.scales = {scales.data(), format.scales, groups, out};
    w.group = group;
    w.out = out;
    w.in = in;
    format.layout == kGptq ? dequantize_gptq(w, format.zero_offset, pool, values.data())
                           : dequantize_awq(w, pool, values.data());
  }
};

/// The same on the device, as pack_part() wants it.
struct Raw {
  Device<std::uint32_t> words, zeros;
  Device<std::byte> scales;
  Device<std::int32_t> group;
  QuantizedPart part;

  explicit Raw(const Stored& s) : words(s.words), zeros(s.zeros), scales(s.scales), group(s.group) {
    part.layout = s.format.layout;
    part.scale_type = s.format.scales == cpu::ElementType::f32   ? QuantizedPart::ScaleType::f32
                      : s.format.scales == cpu::ElementType::f16 ? QuantizedPart::ScaleType::f16
                                                                 : QuantizedPart::ScaleType::bf16;
    part.out = s.out;
    part.in = s.in;
    part.weights = reinterpret_cast<const std::byte*>(words.get());
    part.zeros = zeros.get();
    part.scales = scales.get();
    part.group = group.get();
    part.zero_offset = s.format.zero_offset;
    part.block_rows = s.format.block_rows;
    part.block_columns = s.format.group == 0 ? s.in : s.format.group;
    part.scale_columns = s.groups;
  }
};

/// A matrix [out, in] of packed parts, and the values that it stands for.
struct Matrix {
  int out, in;
  std::unique_ptr<Device<std::uint32_t>> words, scales, shared_scales;
  std::unique_ptr<Device<std::int32_t>> order;
  std::vector<float> values;
  LinearWeight weight;
  std::vector<std::pair<cpu::GroupedMatrix, PartRows>> wholes;

  Matrix(int out_, const Stored& first) : out(out_), in(first.in), values(size(out_, first.in)) {
    QuantizedWeight& q = weight.quantized;
    weight.out = out;
    weight.in = in;
    q.format = first.format.kept();
    q.groups = first.groups;
    q.group_shift =
        first.groups == 1 ? 31 : std::countr_zero(static_cast<unsigned>(first.format.group));
    words = std::make_unique<Device<std::uint32_t>>(
        std::vector<std::uint32_t>(weight_words(q.format, out, in), 0));
    scales = std::make_unique<Device<std::uint32_t>>(
        std::vector<std::uint32_t>(scale_words(out, q.groups), 0));
    q.words = words->get();
    q.scales = scales->get();
    if (first.format.block_rows % 8 == 0) {
      shared_scales = std::make_unique<Device<std::uint32_t>>(
          std::vector<std::uint32_t>(shared_scale_words(out, q.groups), 0));
      q.shared_scales = shared_scales->get();
    }
    if (!first.format.shuffled) return;
    order =
        std::make_unique<Device<std::int32_t>>(order_by_group(first.group, q.group_shift).value());
    q.order = order->get();
  }

  /// All parts at once.
  void pack_wholes() {
    QuantizedWeight& q = weight.quantized;
    std::vector<WholePart> parts;
    for (const auto& [matrix, rows] : wholes) {
      parts.push_back({&matrix, {0, matrix.out}, {0, in}, rows});
    }
    std::vector<std::uint32_t> packed(weight_words(q.format, out, in));
    std::vector<std::uint32_t> scale(scale_words(out, q.groups));
    pack_tiles(parts, {q.format, q.groups, q.group_shift}, in, {0, tiles_of(out)}, packed.data(),
               scale.data());
    words = std::make_unique<Device<std::uint32_t>>(packed);
    scales = std::make_unique<Device<std::uint32_t>>(scale);
    q.words = words->get();
    q.scales = scales->get();
  }

  void add(const Stored& s, PartRows rows) {
    if (s.format.is_whole()) {
      wholes.emplace_back(s.whole, rows);
      pack_wholes();
    } else {
      const Raw raw(s);
      const Device<int> nan(std::vector<int>{0});
      pack_part(raw.part, rows, weight.quantized, nan.get(), nullptr);
      EXPECT_EQ(nan.read()[0], 0);
    }
    for (int o = 0; o < s.out; ++o) {
      const int row = rows.first + (rows.interleaved ? o / 8 * 16 + o % 8 : o);
      std::copy_n(s.values.begin() + static_cast<std::ptrdiff_t>(size(o, in)), in,
                  values.begin() + static_cast<std::ptrdiff_t>(size(row, in)));
    }
  }
};

/// Gate and up, each `out` / 2 rows, or one part whose rows do not begin at a tile behind
/// another's.
Matrix make_matrix(const Format& format, int out, int in) {
  Stored first(format, out / 2, in, 11);
  Stored second(format, out / 2, in, 12);
  if (!format.is_whole()) {
    second.group = first.group;
    second.dequantize_on_host();
  }
  Matrix m(out, first);
  if (out % 16 == 0) {
    m.add(first, {0, true});
    m.add(second, {8, true});
  } else {
    m.add(first, {0, false});
    m.add(second, {out / 2, false});
  }
  return m;
}

constexpr std::size_t kWorkspace = 96 << 20;
constexpr std::size_t kDequantized = 16 << 20;
constexpr std::size_t kOrdered = 4 << 20;

class QuantizedLinearTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&workspace_, kWorkspace), cudaSuccess);
    ASSERT_EQ(cudaMemset(workspace_, 0, kWorkspace), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&scratch_, kWorkspace), cudaSuccess);
  }
  void TearDown() override {
    cudaFree(workspace_);
    cudaFree(scratch_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Linears::Options options(int max_rows, bool deterministic) const {
    return {kWorkspace, max_rows, deterministic, kDequantized, kOrdered};
  }

  cudaStream_t stream_ = nullptr;
  void* workspace_ = nullptr;
  void* scratch_ = nullptr;
};

/// x of the most rows, what y holds before, and the exact products.
struct Products {
  const Matrix& m;
  int rows;
  std::vector<Bf16> x, old;
  std::vector<double> sums;  // [rows, out]
  std::unique_ptr<Device<Bf16>> x_device;

  Products(const Matrix& matrix, int n)
      : m(matrix), rows(n), x(size(n, m.in)), old(size(n, m.out)) {
    std::minstd_rand random(3);
    std::uniform_real_distribution<float> uniform(-1.5F, 1.5F);
    for (Bf16& v : x) v = rounded(uniform(random));
    for (Bf16& v : old) v = rounded(uniform(random));
    x_device = std::make_unique<Device<Bf16>>(x);
    std::vector<float> row(at(m.in));
    for (int r = 0; r < rows; ++r) {
      for (int k = 0; k < m.in; ++k) row[at(k)] = value(x[size(r, m.in) + at(k)]);
      for (int o = 0; o < m.out; ++o) {
        double part[4] = {};
        for (std::size_t k = 0; k < row.size(); ++k) {
          part[k % 4] += double{m.values[size(o, m.in) + k]} * double{row[k]};
        }
        sums.push_back(part[0] + part[1] + part[2] + part[3]);
      }
    }
  }

  int width(LinearOutput output) const {
    return output == LinearOutput::silu_mul ? m.out / 2 : m.out;
  }

  double expected(int r, int column, LinearOutput output) const {
    const double* row = sums.data() + size(r, m.out);
    if (output == LinearOutput::residual)
      return row[column] + value(old[size(r, m.out) + at(column)]);
    if (output != LinearOutput::silu_mul) return row[column];
    const double gate = row[column / 8 * 16 + column % 8];
    return gate / (1 + std::exp(-gate)) * row[column / 8 * 16 + 8 + column % 8];
  }

  /// y of rows [first, first + n); what lies behind them must stay as it was.
  std::vector<float> run(Linears& linears, int first, int n, LinearOutput output,
                         cudaStream_t stream) const {
    const std::size_t elements = size(n, width(output));
    constexpr std::size_t kBehind = 64;
    const Bf16* from = x_device->get() + size(first, m.in);
    std::vector<float> result;
    if (output == LinearOutput::f32) {
      const Device<float> y(std::vector<float>(elements + kBehind, NAN));
      linears.run(from, n, m.weight, output, y.get(), stream);
      result = y.read();
    } else {
      std::vector<Bf16> before(elements + kBehind, Bf16{0x7FC0});
      if (output == LinearOutput::residual) {
        std::copy_n(old.begin() + static_cast<std::ptrdiff_t>(size(first, m.out)), elements,
                    before.begin());
      }
      const Device<Bf16> y(before);
      linears.run(from, n, m.weight, output, y.get(), stream);
      for (const Bf16 v : y.read()) result.push_back(value(v));
    }
    for (std::size_t i = elements; i < result.size(); ++i)
      EXPECT_TRUE(std::isnan(result[i])) << i - elements;
    result.resize(elements);
    return result;
  }

  /// Above kMostQuantizedRows the library may have computed with weights rounded to bf16.
  void compare(Linears& linears, int n, LinearOutput output, cudaStream_t stream) const {
    const std::vector<float> y = run(linears, 0, n, output, stream);
    double worst = 0;
    double squares = 0;
    for (int r = 0; r < n; ++r) {
      for (int o = 0; o < width(output); ++o) {
        const double want = expected(r, o, output);
        const double got = y[size(r, width(output)) + at(o)];
        squares += want * want;
        const double allowed = std::abs(want) / 200 * (output == LinearOutput::silu_mul ? 3 : 1);
        worst = std::max(worst, std::isnan(got) ? 1e9 : std::abs(got - want) - allowed);
      }
    }
    const double typical = std::sqrt(squares / (double{1} * n * width(output)));
    const bool exact = n <= kMostQuantizedRows;
    // Dequantized, gate and up are rounded to bf16 before they are multiplied, and random E4M3 have
    // a few large ones among them: the largest products are far from the typical one that errors
    // are measured by.
    const double tolerance = exact ? 1e-3 : output == LinearOutput::silu_mul ? 1e-1 : 2e-2;
    EXPECT_LT(worst / typical, tolerance) << m.out << " x " << m.in << ", " << n << " rows, output "
                                          << static_cast<int>(output) << "\n"
                                          << linears.report();
  }
};

constexpr LinearOutput kOutputs[] = {LinearOutput::bf16, LinearOutput::f32, LinearOutput::residual,
                                     LinearOutput::silu_mul};

TEST_F(QuantizedLinearTest, EveryFormatAgreesWithExactSums) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    // No multiple of a tile, nor of what the warps share; 528 = 8 units and a quarter.
    const Matrix m = make_matrix(format, 352, format.shuffled ? 512 : 528);
    const Products products(m, 300);
    for (const LinearOutput output : kOutputs) {
      Linears linears(options(300, false), workspace_);
      linears.tune(&m.weight, 1, output, scratch_, kWorkspace, stream_);
      for (const int rows :
           {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 128, 129, 300}) {
        products.compare(linears, rows, output, stream_);
      }
      if (HasFailure()) return;
    }
  }
}

TEST_F(QuantizedLinearTest, ShapesThatFillManyTilesOrLessThanOne) {
  struct Size {
    int out, in;
  };
  for (const Format& format :
       {kFormats[0], kFormats[5], kFormats[6], kFormats[7], kFormats[8], kFormats[9]}) {
    SCOPED_TRACE(format.name);
    for (const Size s :
         {Size{16, 16}, Size{48, 4096}, Size{4096, 256}, Size{12816, 64}, Size{256, 6144}}) {
      const Matrix m = make_matrix(format, s.out, s.in);
      const Products products(m, 70);
      for (const LinearOutput output : kOutputs) {
        Linears linears(options(70, false), workspace_);
        linears.tune(&m.weight, 1, output, scratch_, kWorkspace, stream_);
        for (const int rows : {1, 5, 12, 24, 64, 70})
          products.compare(linears, rows, output, stream_);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(QuantizedLinearTest, PartsThatBeginInsideOfATile) {
  for (const Format& format : {kFormats[0], kFormats[4], kFormats[6], kFormats[8], kFormats[12]}) {
    SCOPED_TRACE(format.name);
    const Matrix m = make_matrix(format, 208, 256);  // gate and up, 13 tiles
    const Products both(m, 9);
    Stored q(format, 24, 256, 21);
    Stored k(format, 8, 256, 22);
    Stored v(format, 8, 256, 23);
    Matrix stacked(40, q);
    stacked.add(q, {0, false});
    stacked.add(k, {24, false});
    stacked.add(v, {32, false});
    const Products products(stacked, 9);
    Linears linears(options(9, false), workspace_);
    for (const int rows : {1, 9}) {
      both.compare(linears, rows, LinearOutput::silu_mul, stream_);
      products.compare(linears, rows, LinearOutput::bf16, stream_);
      products.compare(linears, rows, LinearOutput::f32, stream_);
    }
  }
}

TEST_F(QuantizedLinearTest, EveryVariantAgrees) {
  for (const Format& format : {kFormats[1], kFormats[4], kFormats[7], kFormats[8], kFormats[9],
                               kFormats[10], kFormats[11]}) {
    SCOPED_TRACE(format.name);
    const Matrix m = make_matrix(format, 1024, 1536);
    const Products products(m, 200);
    for (const int rows : {1, 5, 8, 16, 32, 64, 100, 200}) {
      const auto ordered = [&] {
        std::vector<Bf16> x(size(rows, m.in));
        const Device<Bf16> to(x);
        if (m.weight.quantized.order == nullptr) return products.x;
        gather_columns(products.x_device->get(), m.weight.quantized.order, rows, m.in, to.get(),
                       stream_);
        return to.read();
      }();
      const Device<Bf16> x(ordered);
      for (const LinearKernel* kernel : kLinearKernels) {
        for (const int variant : kernel->variants(rows, m.weight, false)) {
          const Device<float> y(std::vector<float>(size(rows, m.out), NAN));
          kernel->run(variant, {x.get(), rows, m.weight, LinearOutput::f32, y.get(), workspace_},
                      stream_);
          const std::vector<float> got = y.read();
          double worst = 0;
          double squares = 0;
          for (std::size_t i = 0; i < got.size(); ++i) {
            worst = std::max(worst, std::isnan(got[i]) ? 1e9 : std::abs(got[i] - products.sums[i]));
            squares += products.sums[i] * products.sums[i];
          }
          EXPECT_LT(worst / std::sqrt(squares / static_cast<double>(got.size())), 5e-4)
              << rows << " rows, " << kernel->name << ", " << kernel->describe(variant);
        }
      }
    }
  }
}

TEST_F(QuantizedLinearTest, DeterministicRowsKeepTheirBits) {
  for (const Format& format : {kFormats[1], kFormats[4], kFormats[6], kFormats[8], kFormats[11]}) {
    SCOPED_TRACE(format.name);
    const Matrix m = make_matrix(format, 512, 1024);
    const Products products(m, 200);
    for (const LinearOutput output : kOutputs) {
      Linears linears(options(200, true), workspace_);
      linears.tune(&m.weight, 1, output, scratch_, kWorkspace, stream_);
      const auto all = products.run(linears, 0, 200, output, stream_);
      const std::size_t width = at(products.width(output));
      for (const int rows : {1, 2, 8, 9, 17, 33, 64, 65, 130}) {
        const int first = (200 - rows) / 2;
        const auto some = products.run(linears, first, rows, output, stream_);
        EXPECT_EQ(
            std::memcmp(some.data(), all.data() + at(first) * width, some.size() * sizeof(float)),
            0)
            << rows << " rows, output " << static_cast<int>(output);
      }
    }
  }
}

/// To bf16 from what is packed and from what is stored: the nearest to the value, or its neighbour
/// where the scale lost its last digits.
TEST_F(QuantizedLinearTest, DequantizedWeightsAreTheValues) {
  for (const Format& format : kFormats) {
    SCOPED_TRACE(format.name);
    const Stored s(format, 88, format.shuffled ? 256 : 272, 5);
    Matrix m(88, s);
    m.add(s, {0, false});
    const Device<Bf16> packed(std::vector<Bf16>(size(88, s.in)));
    dequantize(m.weight, packed.get(), stream_);
    const std::vector<Bf16> from_packed = packed.read();
    std::vector<Bf16> from_stored;
    if (format.is_whole()) {
      for (const float v : s.values) from_stored.push_back(rounded(v));
    } else {
      const Raw raw(s);
      const Device<Bf16> stored(std::vector<Bf16>(size(88, s.in)));
      dequantize_part(raw.part, {0, false}, stored.get(), stream_);
      from_stored = stored.read();
    }
    std::vector<std::int32_t> order(at(s.in));
    std::iota(order.begin(), order.end(), 0);
    if (m.order) order = m.order->read();
    for (int o = 0; o < 88; ++o) {
      for (int i = 0; i < s.in; ++i) {
        EXPECT_EQ(value(from_stored[size(o, s.in) + at(i)]),
                  value(rounded(s.values[size(o, s.in) + at(i)])));
        const float want = s.values[size(o, s.in) + at(order[at(i)])];
        EXPECT_NEAR(value(from_packed[size(o, s.in) + at(i)]), want, std::abs(want) / 250);
      }
    }
  }
}

/// Gate and up, eight rows of each in turns, and a part behind another.
/// As a rank has them: the scales of all groups come along.
TEST_F(QuantizedLinearTest, InputsFromWithinAGroupOn) {
  struct Case {
    int first, count, groups, shift;
  };
  for (const Case& c : {Case{160, 96, 3, 5}, Case{208, 32, 1, 31}, Case{128, 128, 2, 6}}) {
    SCOPED_TRACE(c.first);
    Format format;
    format.layout = kGptq;
    format.group = 64;
    const Stored s(format, 32, 256, 5);
    const Raw raw(s);
    QuantizedPart part = raw.part;
    part.in = c.count;
    part.weights += size(c.first / 8, s.out) * 4;
    part.group += c.first;
    QuantizedWeight q;
    q.format = WeightFormat::int4;
    q.groups = c.groups;
    q.group_shift = c.shift;
    const Device<std::uint32_t> words(
        std::vector<std::uint32_t>(weight_words(q.format, s.out, c.count), 0));
    const Device<std::uint32_t> scales(std::vector<std::uint32_t>(scale_words(s.out, c.groups), 0));
    q.words = words.get();
    q.scales = scales.get();
    const Device<int> nan(std::vector<int>{0});
    pack_part(part, {0, false}, q, nan.get(), stream_);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    const auto packed = words.read();
    const auto scale = scales.read();
    for (int row = 0; row < s.out; ++row) {
      for (int i = 0; i < c.count; ++i) {
        const WeightPlace place = place_of(q.format, units_of(c.count), row, i);
        const std::uint32_t word = scale[scale_at(c.groups, row, c.groups == 1 ? 0 : i >> c.shift)];
        const int number =
            static_cast<int>(packed[place.word] >> place.bit & 15U) - static_cast<int>(word & 15U);
        ASSERT_EQ(static_cast<float>(number) * std::bit_cast<float>(word & ~15U),
                  s.values[size(row, 256) + at(c.first + i)])
            << row << ", " << i;
      }
    }
  }
}

TEST_F(QuantizedLinearTest, ScalesThatEightRowsShareAreKeptTwice) {
  for (const bool interleaved : {false, true}) {
    const Stored first(kFormats[7], 256, 384, 5), second(kFormats[7], 256, 384, 6);
    Matrix m(512, first);
    m.add(first, {0, interleaved});
    m.add(second, {interleaved ? 8 : 256, interleaved});
    const int groups = m.weight.quantized.groups;
    const auto scales = m.scales->read();
    const auto shared = m.shared_scales->read();
    for (int row = 0; row < m.out; ++row) {
      for (int group = 0; group < groups; ++group) {
        ASSERT_EQ(shared[shared_scale_at(groups, row, group)], scales[scale_at(groups, row, group)])
            << row << ", " << group;
      }
    }
  }
}

TEST_F(QuantizedLinearTest, ANanAmongTheWeightsIsFound) {
  Stored s(kFormats[6], 16, 64, 5);
  reinterpret_cast<std::uint8_t*>(s.words.data())[777] = 0xFF;
  const Raw raw(s);
  const Matrix m(16, s);
  const Device<int> nan(std::vector<int>{0});
  pack_part(raw.part, {0, false}, m.weight.quantized, nan.get(), stream_);
  EXPECT_EQ(nan.read()[0], 1);
}

}  // namespace
}  // namespace baton::cuda
