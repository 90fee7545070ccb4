// Products of quantised weights with inputs of 16 bits.
//
// Rounding an input to 16 bits changes a product less than bfloat16 would, so these formats
// serve where 8 bits are too few. Groups are those of quantised.h. A step has another order,
// in which shifts give the weights of two neighbours as two numbers of 16 bits:
//
//     int8    | o0: i0 i2 i1 i3 | o1: i0 i2 i1 i3 | ...      a byte each
//     int4    | o0: i0 i4 i1 i5 | o1: i0 i4 i1 i5 | ...      the lower 4 bits
//             |     i2 i6 i3 i7 |     i2 i6 i3 i7 | ...      the upper 4 bits
//
// mxfp4 and iq4 lie as int4.
#pragma once

#include <array>

#include "quantised.h"

namespace trioserve {

// A format of quantised weights, with inputs of 16 bits. At most 256 inputs share a scale, so
// that sums fit into 32 bits.
template <int inputs, class Codes = PlainCodes>
struct Inputs16Format : Codes {
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

template <class Codes>
struct FourBitsInputs16Format : Inputs16Format<8, Codes> {
  static constexpr int byte_of(int i) { return i % 2 * 2 + i / 4; }
  static constexpr bool is_upper_half(int i) { return i / 2 % 2 == 1; }

  template <int R, int V>
  static inline void multiply(const std::int16_t* x, std::ptrdiff_t stride,
                              const std::uint8_t* w, Ints (&sums)[R][V]) {
    auto decode = [](Ints codes) { return Codes::decode(codes); };
    add_inputs(x, stride, w, [&](Ints halves) { return decode(nibbles<0>(halves)); }, sums);
    add_inputs(x + 2, stride, w, [&](Ints halves) { return decode(nibbles<1>(halves)); }, sums);
    add_inputs(x + 4, stride, w, [&](Ints halves) { return decode(nibbles<2>(halves)); }, sums);
    add_inputs(x + 6, stride, w, [&](Ints halves) { return decode(nibbles<3>(halves)); }, sums);
  }
};

struct Int4Inputs16Format : FourBitsInputs16Format<PlainCodes> {};

// Codes that are places in a table of numbers, which lie `kOffset` above those that are meant.
template <class Table>
struct TableCodes {
  static constexpr int kOffset = Table::kOffset;

  static std::uint8_t encode(int number) { return kCodes[number + kOffset]; }
  static constexpr int decode(int code) { return Table::kNumbers[code]; }
  static Ints decode_bytes(Ints codes) { return look_up(Table::kNumbers, codes); }
  static Ints decode(Ints codes) {
    // The upper byte of 16 bits looks up nothing.
    if constexpr (Table::kNumbers[0] != 0) codes = codes | Ints::all(static_cast<int>(0x80008000));
    return decode_bytes(codes);
  }

 private:
  static constexpr std::array<std::uint8_t, 256> invert() {
    std::array<std::uint8_t, 256> codes = {};
    for (int code = 0; code < 16; ++code) {
      codes[Table::kNumbers[code]] = static_cast<std::uint8_t>(code);
    }
    return codes;
  }
  static constexpr auto kCodes = invert();
};

// The numbers of E2M1 twice:
//
//     -6 -4 -3 -2 -1.5 -1 -0.5 0 -0 0.5 1 1.5 2 3 4 6
//
// Source: Open Compute Project, Microscaling Formats 1.0, section 5.3.3.
struct E2m1Table {
  static constexpr int kOffset = 12;
  static constexpr std::uint8_t kNumbers[16] = {0,  4,  6,  8,  9,  10, 11, 12,
                                                12, 13, 14, 15, 16, 18, 20, 24};
};

// Source: ggml, ggml-common.h, kvalues_iq4nl. The offset is a power of 2, so that a minimum of
// float16 is as exact as its scale.
struct Iq4Table {
  static constexpr int kOffset = 128;
  static constexpr std::uint8_t kNumbers[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                129, 141, 153, 166, 181, 197, 217, 241};
};

struct Mxfp4Inputs16Format : FourBitsInputs16Format<TableCodes<E2m1Table>> {};
struct Iq4Inputs16Format : FourBitsInputs16Format<TableCodes<Iq4Table>> {};

}  // namespace trioserve
