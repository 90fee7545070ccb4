// Products of quantised weights with inputs of 16 bits.
//
// Rounding an input to 16 bits changes a product less than bfloat16 would, so these formats
// serve where 8 bits are too few. Groups are those of quantised.h. A step has another order,
// in which shifts give the weights of two neighbours as two numbers of 16 bits:
//
//     int8    | o0: i0 i2 i1 i3 | o1: i0 i2 i1 i3 | ...      a byte each
//     int4    | o0: i0 i4 i1 i5 | o1: i0 i4 i1 i5 | ...      the lower 4 bits
//             |     i2 i6 i3 i7 |     i2 i6 i3 i7 | ...      the upper 4 bits
#pragma once

#include "quantised.h"

namespace trioserve {

// A format of quantised weights, with inputs of 16 bits. At most 256 inputs share a scale, so
// that sums fit into 32 bits.
template <int inputs>
struct Inputs16Format {
  using Weight = std::uint8_t;
  using Operand = std::int16_t;
  static constexpr bool kIsQuantised = true;
  static constexpr int kInputs = inputs;
  static constexpr float kLargest = 32767.0f;

  static Ints begin(std::int32_t) { return Ints::zero(); }
  static Ints total(Ints sums) { return sums; }
};

struct Int8Inputs16Format : Inputs16Format<4> {
  static constexpr int byte_of(int i) { return i % 2 * 2 + i / 2; }
  static constexpr bool is_upper_half(int) { return false; }

  template <int R, int V>
  static inline void multiply(const Operand* x, std::ptrdiff_t stride, const Weight* w,
                              Ints (&sums)[R][V]) {
    add_inputs(x, stride, w, [](Ints bytes) { return lower_bytes(bytes); }, sums);
    add_inputs(x + 2, stride, w, [](Ints bytes) { return upper_bytes(bytes); }, sums);
  }
};

#if !defined(__AVX512VNNI__)

// Codes from -128 to 127, with inputs of 8 bits that lie in 16; any number of them that is a
// multiple of 4 shares a scale. A product of bytes would want one of the two without a sign, and
// to move signs takes longer than to multiply 16 bits.
struct Int8Format : Int8Inputs16Format {
  static constexpr float kLargest = 127.0f;
};

#endif

struct Int4Inputs16Format : Inputs16Format<8> {
  static constexpr int byte_of(int i) { return i % 2 * 2 + i / 4; }
  static constexpr bool is_upper_half(int i) { return i / 2 % 2 == 1; }

  template <int R, int V>
  static inline void multiply(const Operand* x, std::ptrdiff_t stride, const Weight* w,
                              Ints (&sums)[R][V]) {
    add_inputs(x, stride, w, [](Ints halves) { return nibbles<0>(halves); }, sums);
    add_inputs(x + 2, stride, w, [](Ints halves) { return nibbles<1>(halves); }, sums);
    add_inputs(x + 4, stride, w, [](Ints halves) { return nibbles<2>(halves); }, sums);
    add_inputs(x + 6, stride, w, [](Ints halves) { return nibbles<3>(halves); }, sums);
  }
};

}  // namespace trioserve
