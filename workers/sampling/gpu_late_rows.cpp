#include "workers/sampling/gpu_late_rows.h"

#include <algorithm>
#include <string>

namespace baton {

namespace {

constexpr std::size_t kMaxRows = 256;
/// As many masks of a vocabulary of 128 thousand, and 4 MiB of other lists. Room for every token
/// seen once comes on top, so that one row's lists always fit.
constexpr std::size_t kBytes = std::size_t{8} << 20U;

constexpr std::size_t kFirstWord = kMaxRows * sizeof(cuda::SampleRow) / sizeof(std::int32_t);

}  // namespace

GpuLateRows::GpuLateRows(GpuDecoder& decoder, GpuStepPacker& packer,
                         const cuda::OwnedStream& stream)
    : decoder_(decoder),
      packer_(packer),
      stream_(stream),
      host_(kBytes + static_cast<std::size_t>(decoder.config().vocab) * sizeof(cuda::SeenToken)),
      device_(host_.bytes()) {
  area_ = {reinterpret_cast<std::int32_t*>(host_.data()), kFirstWord,
           host_.bytes() / sizeof(std::int32_t)};
}

void GpuLateRows::draw(const RunStep& step, std::span<const GpuStepPacker::Line> lines,
                       const MaskOfRow& mask, std::vector<bool>& void_rows, StepOutput& output) {
  for (const GpuStepPacker::Line& line : lines) {
    const std::size_t i = line.line.row;
    const auto fail = [&](const Status& why) {
      output.failed.push_back(failed_draw(static_cast<std::uint32_t>(i), why));
      void_rows[i] = true;
    };
    const Result<RowMask> found = mask(i);
    if (!found.ok()) {
      fail(found.status());
      continue;
    }
    if (add(step.rows[i], line, found.value())) continue;
    queue();
    stream_.synchronize();
    if (!add(step.rows[i], line, found.value()))
      fail(Status(ErrorCode::internal, "too many stop tokens and bad words"));
  }
  queue();
}

bool GpuLateRows::add(const BatchRow& row, const GpuStepPacker::Line& line, const RowMask& mask) {
  const auto words = static_cast<std::size_t>(decoder_.config().vocab + 31) / 32;
  if (n_rows_ == kMaxRows || words > area_.capacity - area_.used) return false;
  WordArea area = area_;
  std::int32_t* const to = area.words + area.used;
  const std::size_t given = std::min(words, mask.allowed.size());
  std::transform(mask.allowed.begin(), mask.allowed.begin() + static_cast<std::ptrdiff_t>(given),
                 to, [](std::uint32_t word) { return static_cast<std::int32_t>(word); });
  std::fill(to + given, to + words, 0);
  area.used += words;
  cuda::SampleRow s;
  if (!packer_.draw_on_device(row, line, area, s, mask.must_end)) return false;
  s.grammar = static_cast<std::int32_t>(area_.used);
  area_ = area;
  reinterpret_cast<cuda::SampleRow*>(host_.data())[n_rows_++] = s;
  return true;
}

void GpuLateRows::queue() {
  if (n_rows_ == 0) return;
  cuda::copy_to_device(device_.data(), host_.data(), area_.used * sizeof(std::int32_t),
                       stream_.get());
  decoder_.sample(device_.as<cuda::SampleRow>(), static_cast<int>(n_rows_),
                  device_.as<std::int32_t>(), stream_.get());
  n_rows_ = 0;
  area_.used = kFirstWord;
}

}  // namespace baton
