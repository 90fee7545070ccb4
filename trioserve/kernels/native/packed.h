// Matrices packed for products, and the product of a few rows with one block of them.
//
// A matrix of n outputs and k inputs is cut into blocks of kBlock outputs. A block is read
// from its first byte to its last by the product, whatever the number of rows:
//
//     float32    input 0             input 1             ...
//                | o0 o1 ... oB-1 |  | o0 o1 ... oB-1 |         4 bytes each
//
//     bfloat16   inputs 0 and 1                inputs 2 and 3  ...
//                | o0,0 o0,1 o1,0 o1,1 ... |   | o0,2 o0,3 ...  2 bytes each
//
// Both inputs of an output lie side by side because the instruction for bfloat16 products
// adds two of them at once. Outputs beyond n and inputs beyond k are 0.
#pragma once

#include <type_traits>

#include "vec.h"

namespace trioserve {

// Two vectors wide: with kMaxRows rows, the sums fill the registers.
constexpr int kVecs = 2;
constexpr int kBlock = kVecs * Vec::kLanes;
#if defined(__AVX512F__)
constexpr int kMaxRows = 12;
#else
constexpr int kMaxRows = 6;
#endif
// What one step of a product reads of one output, in every format.
constexpr int kStepBytes = 4;

template <class Sum, int R, int V>
inline void clear(Sum (&sums)[R][V]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[r][v] = Sum::zero();
  }
}

// sums += x times the weights of one input, for R rows that are `stride` numbers apart.
template <int R, int V>
inline void add_products(const float* x, std::ptrdiff_t stride, const Vec (&weights)[V],
                         Vec (&sums)[R][V]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    Vec input = Vec::all(x[r * stride]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[r][v] = Vec::fma(input, weights[v], sums[r][v]);
  }
}

struct Float32Format {
  using Weight = float;
  using Operand = float;
  static constexpr bool kIsQuantised = false;
  // Inputs that one step of the product takes.
  static constexpr int kInputs = 1;

  template <int R, int V>
  static inline void multiply(const Operand* x, std::ptrdiff_t stride, const Weight* w,
                              Vec (&sums)[R][V]) {
    Vec weights[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) weights[v] = Vec::load(w + v * Vec::kLanes);
    add_products(x, stride, weights, sums);
  }
};

// Weights of bfloat16, which are widened in registers. Inputs stay float32.
struct WidenedFormat {
  using Weight = Bfloat16;
  using Operand = float;
  static constexpr bool kIsQuantised = false;
  static constexpr int kInputs = 2;

  template <int R, int V>
  static inline void multiply(const Operand* x, std::ptrdiff_t stride, const Weight* w,
                              Vec (&sums)[R][V]) {
    Vec weights[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) weights[v] = Vec::load_low(w + 2 * v * Vec::kLanes);
    add_products(x, stride, weights, sums);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) weights[v] = Vec::load_high(w + 2 * v * Vec::kLanes);
    add_products(x + 1, stride, weights, sums);
  }
};

#if defined(__AVX512BF16__)

struct Bfloat16Format {
  using Weight = Bfloat16;
  using Operand = Bfloat16;
  static constexpr bool kIsQuantised = false;
  static constexpr int kInputs = 2;

  template <int R, int V>
  static inline void multiply(const Operand* x, std::ptrdiff_t stride, const Weight* w,
                              Vec (&sums)[R][V]) {
    __m512bh weights[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      weights[v] = (__m512bh)_mm512_loadu_si512(w + 2 * v * Vec::kLanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int pair;
      std::memcpy(&pair, x + r * stride, sizeof pair);
      __m512bh input = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sums[r][v].lanes = _mm512_dpbf16_ps(sums[r][v].lanes, input, weights[v]);
      }
    }
  }
};

#else

using Bfloat16Format = WidenedFormat;

#endif

// Memory that the next product reads. It is fetched while this one computes, a little with
// each step.
struct Ahead {
  const char* next;
  std::ptrdiff_t stride;

  void fetch() {
    _mm_prefetch(next, _MM_HINT_T1);
    next += stride;
  }
};

struct NothingAhead {
  void fetch() {}
};

// sums += x times a block, for R rows and V vectors of outputs.
//
//   x: R rows, `stride` operands apart; num_steps * Format::kInputs of each are read
//   w: `width` outputs lie side by side; those of this product are the first
template <class Format, int R, int V, class Next = NothingAhead>
inline void multiply_block(const typename Format::Operand* x, std::ptrdiff_t stride,
                           const typename Format::Weight* w, int width, int num_steps,
                           Vec (&sums)[R][V], Next ahead = {}) {
  int step = 0;
  // The products of float32 numbers are added in one order, whatever the number of rows. So
  // a sequence gets the same numbers alone, beside others, and in chunks of any size.
  if constexpr (R <= 2 && !std::is_same_v<Format, Float32Format>) {
    // One row has too few sums to keep the multipliers busy, so every other step gets sums
    // of its own.
    Vec others[R][V];
    clear(others);
    for (; step + 2 <= num_steps; step += 2) {
      ahead.fetch();
      ahead.fetch();
      Format::template multiply<R, V>(x, stride, w, sums);
      Format::template multiply<R, V>(x + Format::kInputs, stride,
                                      w + width * Format::kInputs, others);
      x += 2 * Format::kInputs;
      w += 2 * width * Format::kInputs;
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) sums[r][v] = sums[r][v] + others[r][v];
    }
  }
  for (; step < num_steps; ++step) {
    ahead.fetch();
    Format::template multiply<R, V>(x, stride, w, sums);
    x += Format::kInputs;
    w += width * Format::kInputs;
  }
}

// Calls body with the number of rows as a constant: rows is from 1 to kMaxRows.
template <int R = kMaxRows, class Body>
inline void with_rows(int rows, Body&& body) {
  if constexpr (R > 1) {
    if (rows < R) return with_rows<R - 1>(rows, body);
  }
  body(std::integral_constant<int, R>());
}

}  // namespace trioserve
