// Products of bytes: vectors of int32 sums, and the weights that are added to them.
//
// Each lane is one output. Its four bytes are the weights of four inputs, and the same four
// inputs of a row are multiplied with every lane.
#pragma once

#include "vec.h"

namespace trioserve {

// As many 32-bit lanes as Vec has. Each may hold two numbers of 16 bits or four of 8.
#if defined(__AVX512F__)

struct Ints {
  __m512i lanes;

  static Ints all(int value) { return {_mm512_set1_epi32(value)}; }
  static Ints load(const std::uint8_t* from) { return {_mm512_loadu_si512(from)}; }
  Vec to_float() const { return {_mm512_cvtepi32_ps(lanes)}; }
};

inline Ints operator&(Ints a, Ints b) { return {_mm512_and_si512(a.lanes, b.lanes)}; }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.lanes, b.lanes)}; }
inline Ints operator<<(Ints a, int bits) { return {_mm512_slli_epi32(a.lanes, bits)}; }
// Fills in zeros, or copies of the sign.
inline Ints operator>>(Ints a, int bits) { return {_mm512_srli_epi32(a.lanes, bits)}; }
inline Ints shift_signed(Ints a, int bits) { return {_mm512_srai_epi32(a.lanes, bits)}; }
inline Ints add_shorts(Ints a, Ints b) { return {_mm512_add_epi16(a.lanes, b.lanes)}; }
// Products of bytes without a sign and bytes with one, and the sums of two neighbours, which
// must fit into 16 bits.
inline Ints multiply_bytes(Ints a, Ints b) { return {_mm512_maddubs_epi16(a.lanes, b.lanes)}; }
// The sums of two neighbours of 16 bits.
inline Ints add_neighbours(Ints pairs) {
  return {_mm512_madd_epi16(pairs.lanes, _mm512_set1_epi16(1))};
}

#else

struct Ints {
  __m256i lanes;

  static Ints all(int value) { return {_mm256_set1_epi32(value)}; }
  static Ints load(const std::uint8_t* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))};
  }
  Vec to_float() const { return {_mm256_cvtepi32_ps(lanes)}; }
};

inline Ints operator&(Ints a, Ints b) { return {_mm256_and_si256(a.lanes, b.lanes)}; }
inline Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.lanes, b.lanes)}; }
inline Ints operator<<(Ints a, int bits) { return {_mm256_slli_epi32(a.lanes, bits)}; }
inline Ints operator>>(Ints a, int bits) { return {_mm256_srli_epi32(a.lanes, bits)}; }
inline Ints shift_signed(Ints a, int bits) { return {_mm256_srai_epi32(a.lanes, bits)}; }
inline Ints add_shorts(Ints a, Ints b) { return {_mm256_add_epi16(a.lanes, b.lanes)}; }
inline Ints multiply_bytes(Ints a, Ints b) { return {_mm256_maddubs_epi16(a.lanes, b.lanes)}; }
inline Ints add_neighbours(Ints pairs) {
  return {_mm256_madd_epi16(pairs.lanes, _mm256_set1_epi16(1))};
}

#endif

// Weights from -128 to 127. Sums begin at -kOffset times the sum of their inputs, because
// the instruction for such products wants weights without a sign.
struct SignedWeights {
#if defined(__AVX512VNNI__)
  static constexpr int kOffset = 128;
  __m512i shifted;

  static SignedWeights load(const std::uint8_t* from) {
    return {_mm512_xor_si512(Ints::load(from).lanes, _mm512_set1_epi8(-128))};
  }
  Ints add_to(Ints sums, int inputs) const {
    return {_mm512_dpbusd_epi32(sums.lanes, shifted, _mm512_set1_epi32(inputs))};
  }
#else
  static constexpr int kOffset = 0;
  Ints magnitudes;
#if defined(__AVX512F__)
  __mmask64 negative;

  static SignedWeights load(const std::uint8_t* from) {
    __m512i bytes = Ints::load(from).lanes;
    return {{_mm512_abs_epi8(bytes)}, _mm512_movepi8_mask(bytes)};
  }
  // Inputs with the signs of the products.
  Ints sign(Ints x) const {
    return {_mm512_mask_sub_epi8(x.lanes, negative, _mm512_setzero_si512(), x.lanes)};
  }
#else
  Ints bytes;

  static SignedWeights load(const std::uint8_t* from) {
    Ints bytes = Ints::load(from);
    return {{_mm256_abs_epi8(bytes.lanes)}, bytes};
  }
  // Inputs with the signs of the products.
  Ints sign(Ints x) const { return {_mm256_sign_epi8(x.lanes, bytes.lanes)}; }
#endif
  // Two products are at most 128 * 127 * 2, which 16 bits hold.
  Ints add_to(Ints sums, int inputs) const {
    return sums + add_neighbours(multiply_bytes(magnitudes, sign(Ints::all(inputs))));
  }
#endif
};

// Weights from 0 to 15. `low` are those of four inputs and `high` those of the next four.
// At most 32 inputs may be added before `total`, because sums may have 16 bits.
struct Nibbles {
  Ints low, high;

  static Nibbles load(const std::uint8_t* from) {
    Ints both = Ints::load(from), mask = Ints::all(0x0f0f0f0f);
    return {both & mask, both >> 4 & mask};
  }
  Ints add_to(Ints sums, int low_inputs, int high_inputs) const {
#if defined(__AVX512VNNI__)
    __m512i added = _mm512_dpbusd_epi32(sums.lanes, low.lanes, _mm512_set1_epi32(low_inputs));
    return {_mm512_dpbusd_epi32(added, high.lanes, _mm512_set1_epi32(high_inputs))};
#else
    Ints first = multiply_bytes(low, Ints::all(low_inputs));
    Ints second = multiply_bytes(high, Ints::all(high_inputs));
    return add_shorts(sums, add_shorts(first, second));
#endif
  }
  static Ints total(Ints sums) {
#if defined(__AVX512VNNI__)
    return sums;
#else
    return add_neighbours(sums);
#endif
  }
};

// Stores the nearest whole numbers, which must be from -127 to 127.
inline void store_rounded(Vec numbers, std::int8_t* to) {
#if defined(__AVX512F__)
  __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(numbers.lanes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
#else
  __m256i ints = _mm256_cvtps_epi32(numbers.lanes);
  __m128i shorts =
      _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(shorts, shorts));
#endif
}

}  // namespace trioserve
