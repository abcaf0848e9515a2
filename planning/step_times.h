// How long a device takes for a step: tables and straight lines fitted to measurements
// (tools/step_times.py), for simulations in virtual time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// What a step computes, as far as its time depends on it.
struct StepLoad {
  std::uint32_t decode_rows = 0;     // sequences that take one token
  std::uint64_t decode_context = 0;  // tokens that they attend to, all rows together
  std::uint32_t prompt_tokens = 0;   // of all chunks
  std::uint64_t prompt_pairs = 0;    // (token of a chunk, token that it attends to)
  std::uint32_t prompt_ends = 0;     // chunks after which a token is sampled
  std::uint64_t link_tokens = 0;  // read in other workers' pools: by single tokens, by chunks once
};

/// A function through measured points, straight between them. Below the first point it has that
/// one's value; beyond the last one it goes on as between the last two.
class TimeCurve {
 public:
  TimeCurve() = default;
  /// `points`: (count, nanoseconds), counts strictly ascending from 1 on, at least one.
  explicit TimeCurve(std::vector<std::pair<std::uint32_t, double>> points)
      : points_(std::move(points)) {}
  double at(std::uint32_t count) const;
  const std::vector<std::pair<std::uint32_t, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<std::uint32_t, double>> points_;
};

/// The model, all in nanoseconds. A step of single tokens alone takes
///     decode(rows) + decode_context * context,
/// one with prompt chunks
///     prompt(chunk tokens + rows) + prompt_pair * pairs + decode_context * context + sample *
///     samples.
/// Either takes link_token more for every token that lies in another worker's pool.
/// Both kinds differ since devices run them differently (on GPUs: a graph against single kernels).
struct StepTimes {
  TimeCurve decode;  // by rows; without what their contexts cost
  TimeCurve prompt;  // by tokens; without attention and sampling
  double decode_context = 0;
  double prompt_pair = 0;
  double sample = 0;
  double link_token = 0;  // the bytes of its keys and values over what joins two devices
  TimeNs host = 0;        // what a worker adds to each step
  TimeNs pull = 0;        // a pull, whatever its size
  TimeNs pull_block = 0;  // each block of it
  TimeNs host_block = 0;  // a block copied between a pool and its host part, before a step's rows
  TimeNs message = 0;     // one way between two processes, clients included
  TimeNs request = 0;     // from a client's send to the front end's Submit

  TimeNs of(const StepLoad& load) const;
};

/// What was measured, and on what.
struct MeasuredDevice {
  std::string model;   // its folder's name
  std::string device;  // cpu or cuda
  std::uint32_t ranks = 1;  // of the worker: devices, or processes on CPUs, that share the model
  std::uint32_t tokens_per_block = 16;
  std::uint32_t pool_blocks = 0;  // of the pool that a worker made; 0: not known
  std::uint32_t max_context = 1U << 24U;
  StepTimes times;
};

/// From the JSON text that device_json() writes. The error names the key.
Result<MeasuredDevice> parse_device(const std::string& json);
/// Times in it are microseconds ("..._us") and nanoseconds ("..._ns").
std::string device_json(const MeasuredDevice& device);

}  // namespace baton
