// Products of quantised weights with inputs of float32.
//
// Blocks are those of quantised.h. Weights are widened to float32 in registers, so a product
// is exactly that of the dequantised weights, and still reads only their codes.
#pragma once

#include "quantised.h"

namespace trioserve {

// The codes of byte `place` of each lane's four.
template <class Codes>
inline Ints extract(Ints bytes, int place, bool upper_half);

#if defined(__AVX512F__)
template <>
inline Ints extract<Int8Format>(Ints bytes, int place, bool) {
  return {_mm512_srai_epi32(_mm512_slli_epi32(bytes.lanes, 24 - 8 * place), 24)};
}
template <>
inline Ints extract<Int4Format>(Ints bytes, int place, bool upper_half) {
  return {_mm512_and_si512(_mm512_srli_epi32(bytes.lanes, 8 * place + 4 * upper_half),
                           _mm512_set1_epi32(15))};
}
#else
template <>
inline Ints extract<Int8Format>(Ints bytes, int place, bool) {
  return {_mm256_srai_epi32(_mm256_slli_epi32(bytes.lanes, 24 - 8 * place), 24)};
}
template <>
inline Ints extract<Int4Format>(Ints bytes, int place, bool upper_half) {
  return {_mm256_and_si256(_mm256_srli_epi32(bytes.lanes, 8 * place + 4 * upper_half),
                           _mm256_set1_epi32(15))};
}
#endif

// The number of inputs is a multiple of the group's.
template <class Codes>
struct WidenedFormat {
  using Weight = std::uint8_t;
  using Operand = float;
  static constexpr bool kIsQuantised = true;
  static constexpr int kInputs = Codes::kInputs;
  static constexpr int kStepBytes = Codes::kStepBytes;
  static constexpr int kRows = kMaxRows;

  // sums += x times one step.
  template <int R, int V>
  static inline void multiply(const float* x, std::ptrdiff_t stride, const Weight* w,
                              const Vec (&scales)[V], const Vec (&minima)[V],
                              Vec (&sums)[R][V]) {
#pragma GCC unroll 8
    for (int i = 0; i < kInputs; ++i) {
      Vec weights[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        Ints bytes{load_bytes(w + v * kStepBytes * Vec::kLanes)};
        Vec codes = extract<Codes>(bytes, i % 4, i >= 4).to_float();
        weights[v] = Vec::fma(codes, scales[v], minima[v]);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        Vec input = Vec::all(x[r * stride + i]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sums[r][v] = Vec::fma(input, weights[v], sums[r][v]);
      }
    }
  }
};

using WidenedInt8Format = WidenedFormat<Int8Format>;
using WidenedInt4Format = WidenedFormat<Int4Format>;

// sums += x times a block, for R rows of num_groups * group_size inputs.
template <class Format, int R, int V>
inline void multiply_widened(const float* x, std::ptrdiff_t stride, int num_groups,
                             int group_size, const std::uint8_t* w, Vec (&sums)[R][V]) {
  for (int group = 0; group < num_groups; ++group) {
    const auto* halves = reinterpret_cast<const Float16*>(w);
    Vec scales[V], minima[V];
    for (int v = 0; v < V; ++v) {
      scales[v] = load_halves(halves + v * Vec::kLanes);
      minima[v] = load_halves(halves + kBlock + v * Vec::kLanes);
    }
    const std::uint8_t* codes = w + 2 * kBlock * sizeof(Float16);
    for (int i = 0; i < group_size; i += Format::kInputs) {
      Format::template multiply<R, V>(x + i, stride, codes, scales, minima, sums);
      codes += kBlock * Format::kStepBytes;
    }
    x += group_size;
    w += group_bytes<Format>(group_size);
  }
}

}  // namespace trioserve
