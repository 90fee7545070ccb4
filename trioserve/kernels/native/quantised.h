// Matrices of quantised weights, and their products with quantised inputs.
//
// The inputs of an output are cut into groups, and a weight is scale * code + minimum, with
// one scale and one minimum for each group. A block of kBlock outputs lies in memory as the
// product reads it, one group after the other:
//
//     group 0                                              group 1 ...
//     | scales | minima | codes of step 0 | step 1 | ... |
//
//     scales and minima    kBlock float16 numbers each
//     int8, one step       | o0: i0 i1 i2 i3 | o1: i0 i1 i2 i3 | ...      a byte each
//     int4, one step       | o0: i0 i1 i2 i3 | o1: i0 i1 i2 i3 | ...      the lower 4 bits
//                          |     i4 i5 i6 i7 |     i4 i5 i6 i7 | ...      the upper 4 bits
//
// Inputs are quantised when a product begins, with one scale for each row and group. So the
// products of a group are whole numbers. The inputs of the formats here have 8 bits;
// inputs16.h has the formats for 16, and int8 for processors without VNNI. Outputs and inputs
// beyond the matrix are 0.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "bytes.h"
#include "packed.h"

namespace trioserve {

// What the inputs of a row and group share: a number is scale * code.
struct InputGroup {
  float scale;
  float sum;               // of the numbers
  std::int32_t code_sum;
};

// sums += products of the inputs in four bytes of each of R rows.
//
//   take: gives the weights of these inputs from the four bytes of each output
template <class Code, int R, int V, class Take>
inline void add_inputs(const Code* x, std::ptrdiff_t stride, const std::uint8_t* w, Take&& take,
                       Ints (&sums)[R][V]) {
  Ints weights[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) weights[v] = take(Ints::load(w + v * kStepBytes * Vec::kLanes));
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    int inputs;
    std::memcpy(&inputs, x + r * stride, sizeof inputs);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      if constexpr (sizeof(Code) == 1) {
        sums[r][v] = add_byte_products(sums[r][v], weights[v], Ints::all(inputs));
      } else {
        sums[r][v] = add_products(sums[r][v], weights[v], Ints::all(inputs));
      }
    }
  }
}

using Float16 = std::uint16_t;

inline float widen_half(Float16 half) { return _cvtsh_ss(half); }
inline Float16 narrow_half(float value) {
  return static_cast<Float16>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec load_halves(const Float16* from) {
#if defined(__AVX512F__)
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
#else
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
#endif
}

// Codes that are the whole numbers to multiply.
struct PlainCodes {
  static constexpr int kOffset = 0;
  static constexpr std::uint8_t encode(int number) { return static_cast<std::uint8_t>(number); }
  static constexpr int decode(int code) { return code; }
  // Of each 16 bits, and of each byte.
  static Ints decode(Ints codes) { return codes; }
  static Ints decode_bytes(Ints codes) { return codes; }
};

#if defined(__AVX512VNNI__)

// Codes from -128 to 127; any number of inputs that is a multiple of 4 shares a scale.
struct Int8Format : PlainCodes {
  using Weight = std::uint8_t;
  using Operand = std::int8_t;
  static constexpr bool kIsQuantised = true;
  static constexpr int kInputs = 4;
  static constexpr float kLargest = 127.0f;

  // The byte of a step that holds input i.
  static constexpr int byte_of(int i) { return i; }
  static constexpr bool is_upper_half(int) { return false; }
  // The instruction wants weights without a sign, so each is 128 larger.
  static Ints begin(std::int32_t code_sum) { return Ints::all(-128 * code_sum); }
  static Ints total(Ints sums) { return sums; }

  template <int R, int V>
  static inline void multiply(const Operand* x, std::ptrdiff_t stride, const Weight* w,
                              Ints (&sums)[R][V]) {
    const Ints signs = Ints::all(static_cast<int>(0x80808080));
    add_inputs(x, stride, w, [&](Ints bytes) { return bytes ^ signs; }, sums);
  }
};

#endif

// Codes from 0 to 15; 32 inputs share a scale, whose sums fit into 16 bits.
struct Int4Format : PlainCodes {
  using Weight = std::uint8_t;
  using Operand = std::int8_t;
  static constexpr bool kIsQuantised = true;
  static constexpr int kInputs = 8;
  static constexpr float kLargest = 127.0f;

  static constexpr int byte_of(int i) { return i % 4; }
  static constexpr bool is_upper_half(int i) { return i >= 4; }
  static Ints begin(std::int32_t) { return Ints::zero(); }
  static Ints total(Ints sums) { return total_of_bytes(sums); }

  template <int R, int V>
  static inline void multiply(const Operand* x, std::ptrdiff_t stride, const Weight* w,
                              Ints (&sums)[R][V]) {
    const Ints mask = Ints::all(0x0f0f0f0f);
    add_inputs(x, stride, w, [&](Ints both) { return both & mask; }, sums);
    add_inputs(x + 4, stride, w, [&](Ints both) { return both >> 4 & mask; }, sums);
  }
};

// Bytes of one group of a block.
template <class Format>
constexpr std::ptrdiff_t group_bytes(int group_size) {
  return static_cast<std::ptrdiff_t>(kBlock) *
         (2 * sizeof(Float16) + group_size / Format::kInputs * kStepBytes);
}

// sums = x times a block, for R rows.
//
//   x: R rows of codes, `stride` of them apart; groups: of each row, `num_groups` apart
template <class Format, int R, int V>
inline void multiply_groups(const typename Format::Operand* x, std::ptrdiff_t stride,
                            const InputGroup* groups, int num_groups, int group_size,
                            const std::uint8_t* w, Vec (&sums)[R][V], Ahead ahead) {
  for (int group = 0; group < num_groups; ++group) {
    const auto* scales = reinterpret_cast<const Float16*>(w);
    const auto* minima = scales + kBlock;
    const std::uint8_t* codes = w + 2 * kBlock * sizeof(Float16);
    Ints ints[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Ints begin = Format::begin(groups[r * num_groups + group].code_sum);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) ints[r][v] = begin;
    }
    // Scales and minima are as long as a step.
    ahead.fetch();
    for (int i = 0; i < group_size; i += Format::kInputs) {
      ahead.fetch();
      Format::template multiply<R, V>(x + i, stride, codes, ints);
      codes += kBlock * kStepBytes;
    }
    Vec scale[V], minimum[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      scale[v] = load_halves(scales + v * Vec::kLanes);
      minimum[v] = load_halves(minima + v * Vec::kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const InputGroup& input = groups[r * num_groups + group];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sums[r][v] = Vec::fma(minimum[v], Vec::all(input.sum), sums[r][v]);
        sums[r][v] = Vec::fma(scale[v] * Vec::all(input.scale),
                              Format::total(ints[r][v]).to_float(), sums[r][v]);
      }
    }
    x += group_size;
    w += group_bytes<Format>(group_size);
  }
}

// Quantises one row: a group's largest magnitude becomes the largest code.
//
//   padded_size: a multiple of group_size
//   largest: of the codes
template <class Code>
inline void quantise_row(const float* x, int size, int group_size, int padded_size, Code* codes,
                         InputGroup* groups, float largest) {
  for (int begin = 0; begin < padded_size; begin += group_size) {
    const int end = std::min(begin + group_size, size);
    Vec peaks = Vec::zero();
    int i = begin;
    for (; i + Vec::kLanes <= end; i += Vec::kLanes) {
      Vec part = Vec::load(x + i);
      peaks = Vec::max(peaks, Vec::max(part, Vec::zero() - part));
    }
    float most = peaks.largest();
    for (; i < end; ++i) most = std::max(most, std::fabs(x[i]));
    const float scale = most / largest, factor = most > 0.0f ? largest / most : 0.0f;
    Vec total = Vec::zero();
    for (i = begin; i + Vec::kLanes <= end; i += Vec::kLanes) {
      Vec rounded = (Vec::load(x + i) * Vec::all(factor)).round();
      store_rounded(rounded, codes + i);
      total = total + rounded;
    }
    float sum = total.sum();
    for (; i < end; ++i) {
      float rounded = std::nearbyint(x[i] * factor);
      // Not a number becomes the largest code.
      codes[i] = static_cast<Code>(std::min(largest, rounded));
      sum += rounded;
    }
    for (; i < begin + group_size; ++i) codes[i] = 0;
    // Infinity and NaN spoil the outputs of their row, as they do in float32.
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    *groups++ = std::isfinite(sum)
                    ? InputGroup{scale, scale * sum, static_cast<std::int32_t>(sum)}
                    : InputGroup{kNan, kNan, 0};
  }
}

}  // namespace trioserve
