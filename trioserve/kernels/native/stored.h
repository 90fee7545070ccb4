// Rows of words that kernels/stored.py writes, as codes with a scale and a minimum for each group.
//
// 16 words of 32 bits hold a run of inputs. As 32 halves of words, in order, they hold:
//
//     int8           64 inputs: byte s of half i is input 32 s + i, plus 128
//     int4, mxfp4    128 inputs: the s-th four bits of half i are input 32 s + i
#pragma once

#include "gguf.h"

namespace trioserve {

// Rows of weights, as Python describes them.
struct SourceSpec {
  const std::uint8_t* rows;
  const std::int64_t* order;  // row i is the order[i]-th; null: the i-th
  std::int64_t row_bytes;     // between two rows
  std::int32_t kind;          // SourceKind
  std::int32_t num_outputs;
  // Of stored rows: (num_outputs, num_groups) each, zeros or null; and the input of each code, or
  // null if they are in order.
  const float *scales, *zeros;
  const std::int32_t* columns;
  std::int32_t num_groups, group_size;
};

namespace stored {

constexpr int kHalves = 32;

// Reads the codes of a row; `to` has whole runs.
template <int kBits, class Decode>
inline void read_runs(const std::uint8_t* from, Decode&& decode, std::vector<std::int8_t>& to) {
  constexpr int kRun = kHalves * 16 / kBits;
  for (std::size_t begin = 0; begin < to.size(); begin += kRun) {
    std::uint16_t halves[kHalves];
    std::memcpy(halves, from, sizeof halves);
    from += sizeof halves;
    for (int s = 0; s < 16 / kBits; ++s) {
      std::int8_t* codes = &to[begin + s * kHalves];
      for (int i = 0; i < kHalves; ++i) {
        codes[i] = decode(halves[i] >> (s * kBits) & ((1 << kBits) - 1));
      }
    }
  }
}

}  // namespace stored

// Reads the row-th row of stored weights. Its codes go on with zeros behind its inputs.
inline void read_stored(const SourceSpec& source, std::int64_t row, CodedRow& to) {
  const std::uint8_t* from = source.rows + row * source.row_bytes;
  to.resize(source.num_groups * source.group_size, source.group_size);
  float none = 0.0f;
  switch (source.kind) {
    case kStoredInt8:
      stored::read_runs<8>(from, [](int bits) { return static_cast<std::int8_t>(bits ^ 128); },
                           to.codes);
      break;
    case kStoredInt4:
      none = 8.0f;
      stored::read_runs<4>(from, [](int bits) { return static_cast<std::int8_t>(bits); },
                           to.codes);
      break;
    default:
      stored::read_runs<4>(from, [](int bits) { return gguf::kMxfp4Numbers[bits]; }, to.codes);
  }
  const float* scales = source.scales + row * source.num_groups;
  const float* zeros = source.zeros ? source.zeros + row * source.num_groups : nullptr;
  for (int group = 0; group < source.num_groups; ++group) {
    to.scales[group] = scales[group];
    to.minima[group] = -(zeros ? zeros[group] : none) * scales[group];
  }
}

}  // namespace trioserve
