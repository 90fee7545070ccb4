// Rows of GGUF tensors, as codes with a scale and a minimum for each group.
//
// A tensor's row is a list of blocks of 32 or 256 weights. A weight is scale * code + minimum.
// Source: ggml, ggml-common.h (the structs) and ggml-quants.c (dequantize_row_*).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "quantised.h"

namespace trioserve {

// Types of weights in memory or in a file.
enum SourceKind : std::int32_t {
  kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kMXFP4,
  kQ2_K, kQ3_K, kIQ4_NL, kIQ4_XS,
  // Words of stored.h, with scales and zeros apart.
  kStoredInt8, kStoredInt4, kStoredMxfp4
};

struct CodedRow {
  int group_size;
  std::vector<std::int8_t> codes;
  std::vector<float> scales, minima;  // of each group

  void resize(int size, int group) {
    group_size = group;
    codes.resize(size);
    scales.resize(size / group);
    minima.resize(size / group);
  }
  // Writes the first `count` weights; number i to columns[i], if there are some.
  void read_numbers(int count, const std::int32_t* columns, float* to) const {
    for (int begin = 0, group = 0; begin < count; begin += group_size, ++group) {
      const float scale = scales[group], minimum = minima[group];
      const int end = std::min(begin + group_size, count);
      if (columns) {
        for (int i = begin; i < end; ++i) to[columns[i]] = scale * codes[i] + minimum;
      } else {
        for (int i = begin; i < end; ++i) to[i] = scale * codes[i] + minimum;
      }
    }
  }
};

namespace gguf {

inline float read_half(const std::uint8_t* from) {
  Float16 half;
  std::memcpy(&half, from, sizeof half);
  return widen_half(half);
}

// Q4_0, Q4_1, Q5_0 and Q5_1: 32 weights.
//
//     | scale | minimum if kHasMinimum | fifth bits, 4 bytes, if kBits is 5 | 16 bytes |
//
// Byte j has the lower four bits of weight j, and those of weight j + 16 above them.
template <int kBits, bool kHasMinimum>
inline const std::uint8_t* read_block(const std::uint8_t* from, int group, CodedRow& row) {
  const float scale = read_half(from);
  from += 2;
  row.scales[group] = scale;
  row.minima[group] = -static_cast<float>(1 << (kBits - 1)) * scale;
  if (kHasMinimum) {
    row.minima[group] = read_half(from);
    from += 2;
  }
  std::uint32_t fifth = 0;
  if (kBits == 5) {
    std::memcpy(&fifth, from, sizeof fifth);
    from += 4;
  }
  std::int8_t* codes = &row.codes[group * 32];
  for (int j = 0; j < 16; ++j) {
    codes[j] = static_cast<std::int8_t>((from[j] & 15) | ((fifth >> j & 1) << 4));
    codes[j + 16] = static_cast<std::int8_t>((from[j] >> 4) | ((fifth >> (j + 16) & 1) << 4));
  }
  return from + 16;
}

// Reads 32 codes of 4 bits, which are places in a table; bytes are as above.
inline const std::uint8_t* read_table(const std::int8_t (&numbers)[16], const std::uint8_t* from,
                                      int group, CodedRow& row) {
  std::int8_t* codes = &row.codes[group * 32];
  for (int j = 0; j < 16; ++j) {
    codes[j] = numbers[from[j] & 15];
    codes[j + 16] = numbers[from[j] >> 4];
  }
  return from + 16;
}

// The codes of MXFP4, a sign and a number of E2M1, which is taken twice.
constexpr std::int8_t kMxfp4Numbers[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                           0, -1, -2, -3, -4, -6, -8, -12};

// MXFP4: | exponent of 2, and 128 | 16 bytes, as above |
inline const std::uint8_t* read_mxfp4(const std::uint8_t* from, int group, CodedRow& row) {
  row.scales[group] = std::ldexp(1.0f, *from - 128);
  row.minima[group] = 0.0f;
  return read_table(kMxfp4Numbers, from + 1, group, row);
}

constexpr std::int8_t kIq4Numbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};

// IQ4_NL: | scale | 16 bytes, as above |
inline const std::uint8_t* read_iq4_nl(const std::uint8_t* from, int group, CodedRow& row) {
  row.scales[group] = read_half(from);
  row.minima[group] = 0.0f;
  return read_table(kIq4Numbers, from + 2, group, row);
}

// IQ4_XS: 256 weights in 8 groups, whose scales have 6 bits each.
//
//     | scale | upper two bits of scales, 2 bytes | lower four, 4 bytes | 128 bytes |
inline const std::uint8_t* read_iq4_xs(const std::uint8_t* from, int block, CodedRow& row) {
  const float scale = read_half(from);
  std::uint16_t upper;
  std::memcpy(&upper, from + 2, sizeof upper);
  const std::uint8_t* lower = from + 4;
  from += 8;
  for (int g = 0; g < 8; ++g) {
    const int bits = (lower[g / 2] >> (g % 2 * 4) & 15) | (upper >> (2 * g) & 3) << 4;
    row.scales[block * 8 + g] = scale * static_cast<float>(bits - 32);
    row.minima[block * 8 + g] = 0.0f;
    from = read_table(kIq4Numbers, from, block * 8 + g, row);
  }
  return from;
}

// Q8_0: | scale | 32 weights |
inline const std::uint8_t* read_q8_0(const std::uint8_t* from, int group, CodedRow& row) {
  row.scales[group] = read_half(from);
  row.minima[group] = 0.0f;
  std::memcpy(&row.codes[group * 32], from + 2, 32);
  return from + 34;
}

// Q4_K and Q5_K: 256 weights in 8 groups, whose scales and minima have 6 bits each.
//
//     | scale | minimum | 12 bytes of scales and minima | fifth bits, 32 bytes | 128 bytes |
//
// Byte l of 32 has a weight of one group in its lower half and of the next in its upper.
template <int kBits>
inline const std::uint8_t* read_k_block(const std::uint8_t* from, int block, CodedRow& row) {
  const float scale = read_half(from), minimum = read_half(from + 2);
  const std::uint8_t* packed = from + 4;
  const std::uint8_t* fifth = packed + 12;
  const std::uint8_t* halves = kBits == 5 ? fifth + 32 : fifth;
  for (int g = 0; g < 8; ++g) {
    int scale_bits, minimum_bits;
    if (g < 4) {
      scale_bits = packed[g] & 63;
      minimum_bits = packed[g + 4] & 63;
    } else {
      scale_bits = (packed[g + 4] & 15) | (packed[g - 4] >> 6 << 4);
      minimum_bits = (packed[g + 4] >> 4) | (packed[g] >> 6 << 4);
    }
    row.scales[block * 8 + g] = scale * static_cast<float>(scale_bits);
    row.minima[block * 8 + g] = -minimum * static_cast<float>(minimum_bits);
    std::int8_t* codes = &row.codes[block * 256 + g * 32];
    for (int l = 0; l < 32; ++l) {
      int code = halves[g / 2 * 32 + l] >> (g % 2 * 4) & 15;
      if (kBits == 5) code |= (fifth[l] >> g & 1) << 4;
      codes[l] = static_cast<std::int8_t>(code);
    }
  }
  return halves + 128;
}

// The two bits of weight i of 256, of which 128 have 32 bytes.
inline int read_two_bits(const std::uint8_t* from, int i) {
  return from[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

// Q2_K: 256 weights in 16 groups, whose scales and minima have 4 bits each.
//
//     | scales and minima, 16 bytes | two bits, 64 bytes | scale | minimum |
inline const std::uint8_t* read_q2_k(const std::uint8_t* from, int block, CodedRow& row) {
  const float scale = read_half(from + 80), minimum = read_half(from + 82);
  for (int g = 0; g < 16; ++g) {
    row.scales[block * 16 + g] = scale * static_cast<float>(from[g] & 15);
    row.minima[block * 16 + g] = -minimum * static_cast<float>(from[g] >> 4);
  }
  for (int i = 0; i < 256; ++i) {
    row.codes[block * 256 + i] = static_cast<std::int8_t>(read_two_bits(from + 16, i));
  }
  return from + 84;
}

// Q3_K: 256 weights in 16 groups, whose scales have 6 bits each.
//
//     | third bits, 32 bytes | two bits, 64 bytes | 12 bytes of scales | scale |
//
// Of scales, the lower four bits are in 8 bytes, and the upper two in 4.
inline const std::uint8_t* read_q3_k(const std::uint8_t* from, int block, CodedRow& row) {
  const std::uint8_t* lower = from + 96;
  const float scale = read_half(from + 108);
  for (int g = 0; g < 16; ++g) {
    const int upper = lower[8 + g % 4] >> (g / 4 * 2) & 3;
    const int bits = (lower[g % 8] >> (g / 8 * 4) & 15) | upper << 4;
    row.scales[block * 16 + g] = scale * static_cast<float>(bits - 32);
    row.minima[block * 16 + g] = -4.0f * row.scales[block * 16 + g];
  }
  for (int i = 0; i < 256; ++i) {
    const int third = from[i % 32] >> (i / 32) & 1;
    row.codes[block * 256 + i] =
        static_cast<std::int8_t>(read_two_bits(from + 32, i) | third << 2);
  }
  return from + 110;
}

// Q6_K: 256 weights in 16 groups.
//
//     | lower four bits, 128 bytes | upper two, 64 bytes | 16 scales, 1 byte each | scale |
inline const std::uint8_t* read_q6_k(const std::uint8_t* from, int block, CodedRow& row) {
  const std::uint8_t* high = from + 128;
  const auto* scales = reinterpret_cast<const std::int8_t*>(high + 64);
  const float scale = read_half(high + 64 + 16);
  for (int g = 0; g < 16; ++g) {
    row.scales[block * 16 + g] = scale * static_cast<float>(scales[g]);
    row.minima[block * 16 + g] = 0.0f;
  }
  std::int8_t* codes = &row.codes[block * 256];
  for (int i = 0; i < 256; ++i) {
    // Each half of 128 weights has four quarters of 32.
    int half = i / 128, quarter = i % 128 / 32, l = i % 32;
    int low = from[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
    int upper = high[half * 32 + l] >> (quarter * 2) & 3;
    codes[i] = static_cast<std::int8_t>((low | upper << 4) - 32);
  }
  return from + 210;
}

}  // namespace gguf

// Calls body with the reader of a quantised kind's blocks, the size of a block and that of a
// group.
template <class Body>
void with_reader(SourceKind kind, Body&& body) {
  switch (kind) {
    case kQ4_0: return body(gguf::read_block<4, false>, 32, 32);
    case kQ4_1: return body(gguf::read_block<4, true>, 32, 32);
    case kQ5_0: return body(gguf::read_block<5, false>, 32, 32);
    case kQ5_1: return body(gguf::read_block<5, true>, 32, 32);
    case kQ8_0: return body(gguf::read_q8_0, 32, 32);
    case kQ4_K: return body(gguf::read_k_block<4>, 256, 32);
    case kQ5_K: return body(gguf::read_k_block<5>, 256, 32);
    case kQ6_K: return body(gguf::read_q6_k, 256, 16);
    case kMXFP4: return body(gguf::read_mxfp4, 32, 32);
    case kQ2_K: return body(gguf::read_q2_k, 256, 16);
    case kQ3_K: return body(gguf::read_q3_k, 256, 16);
    case kIQ4_NL: return body(gguf::read_iq4_nl, 32, 32);
    case kIQ4_XS: return body(gguf::read_iq4_xs, 256, 32);
    default: return;
  }
}

// Reads a row of a quantised kind; `size` is a multiple of its blocks.
inline void read_codes(SourceKind kind, const std::uint8_t* from, int size, CodedRow& row) {
  with_reader(kind, [&](auto read, int block_size, int group_size) {
    row.resize(size, group_size);
    for (int block = 0; block < size / block_size; ++block) from = read(from, block, row);
  });
}

}  // namespace trioserve
