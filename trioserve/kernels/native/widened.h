// Products of quantised weights with inputs of float32.
//
// Blocks are those of quantised.h. Weights are widened to float32 in registers, so a product
// is exactly that of the dequantised weights, and still reads only their codes. For many
// rows a block is widened once, and multiplied as one of float32.
#pragma once

#include <type_traits>

#include "quantised.h"

namespace trioserve {

// The codes of byte `place` of each lane's four: signed, or its lower or upper half.
template <class Codes>
inline Ints extract(Ints bytes, int place, bool upper_half) {
  if constexpr (std::is_same_v<Codes, Int8Format>) {
    return shift_signed(bytes << (24 - 8 * place), 24);
  } else {
    return bytes >> (8 * place + 4 * upper_half) & Ints::all(15);
  }
}

// The weights of input i of a step: kLanes outputs, whose bytes begin at w.
template <class Codes>
inline Vec widen(const std::uint8_t* w, int i, Vec scales, Vec minima) {
  return Vec::fma(extract<Codes>(Ints::load(w), i % 4, i >= 4).to_float(), scales, minima);
}

// The number of inputs is a multiple of the group's.
template <class Codes_>
struct WidenedFormat {
  using Codes = Codes_;
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
        weights[v] = widen<Codes>(w + v * kStepBytes * Vec::kLanes, i, scales[v], minima[v]);
      }
      add_products(x + i, stride, weights, sums);
    }
  }
};

template <class Format>
constexpr bool kIsWidened = Format::kIsQuantised && std::is_same_v<typename Format::Operand, float>;

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

// Widens a block to float32, in the layout of Float32Format.
//
//   to: num_groups * group_size * kBlock numbers
template <class Format>
inline void widen_block(const std::uint8_t* w, int num_groups, int group_size, float* to) {
  for (int group = 0; group < num_groups; ++group) {
    const auto* halves = reinterpret_cast<const Float16*>(w);
    const std::uint8_t* codes = w + 2 * kBlock * sizeof(Float16);
    for (int v = 0; v < kBlock; v += Vec::kLanes) {
      Vec scale = load_halves(halves + v), minimum = load_halves(halves + kBlock + v);
      for (int i = 0; i < group_size; ++i) {
        int step = i / Format::kInputs, place = i % Format::kInputs;
        const std::uint8_t* bytes = codes + (step * kBlock + v) * Format::kStepBytes;
        widen<typename Format::Codes>(bytes, place, scale, minimum).store(to + i * kBlock + v);
      }
    }
    to += group_size * kBlock;
    w += group_bytes<Format>(group_size);
  }
}

}  // namespace trioserve
