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
  static Ints load(const void* from) { return {_mm512_loadu_si512(from)}; }
  Vec to_float() const { return {_mm512_cvtepi32_ps(lanes)}; }
  void store(void* to) const { _mm512_storeu_si512(to, lanes); }
};

inline Ints bits_of(Vec numbers) { return {_mm512_castps_si512(numbers.lanes)}; }
inline Ints operator|(Ints a, Ints b) { return {_mm512_or_si512(a.lanes, b.lanes)}; }
inline Ints operator^(Ints a, Ints b) { return {_mm512_xor_si512(a.lanes, b.lanes)}; }
inline Ints operator&(Ints a, Ints b) { return {_mm512_and_si512(a.lanes, b.lanes)}; }
inline Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.lanes, b.lanes)}; }
inline Ints operator>>(Ints a, int bits) { return {_mm512_srli_epi32(a.lanes, bits)}; }
inline Ints add_shorts(Ints a, Ints b) { return {_mm512_add_epi16(a.lanes, b.lanes)}; }
// Products of bytes without a sign and bytes with one, and the sums of two neighbours, which
// must fit into 16 bits.
inline Ints multiply_bytes(Ints a, Ints b) { return {_mm512_maddubs_epi16(a.lanes, b.lanes)}; }
// Products of 16 bits, and the sums of two neighbours.
inline Ints multiply_shorts(Ints a, Ints b) { return {_mm512_madd_epi16(a.lanes, b.lanes)}; }
// The lower or the upper byte of each 16 bits, as a number with a sign.
inline Ints lower_bytes(Ints a) {
  return {_mm512_srai_epi16(_mm512_slli_epi16(a.lanes, 8), 8)};
}
inline Ints upper_bytes(Ints a) { return {_mm512_srai_epi16(a.lanes, 8)}; }

#else

struct Ints {
  __m256i lanes;

  static Ints all(int value) { return {_mm256_set1_epi32(value)}; }
  static Ints load(const void* from) {
    return {_mm256_loadu_si256(static_cast<const __m256i*>(from))};
  }
  Vec to_float() const { return {_mm256_cvtepi32_ps(lanes)}; }
  void store(void* to) const { _mm256_storeu_si256(static_cast<__m256i*>(to), lanes); }
};

inline Ints bits_of(Vec numbers) { return {_mm256_castps_si256(numbers.lanes)}; }
inline Ints operator|(Ints a, Ints b) { return {_mm256_or_si256(a.lanes, b.lanes)}; }
inline Ints operator^(Ints a, Ints b) { return {_mm256_xor_si256(a.lanes, b.lanes)}; }
inline Ints operator&(Ints a, Ints b) { return {_mm256_and_si256(a.lanes, b.lanes)}; }
inline Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.lanes, b.lanes)}; }
inline Ints operator>>(Ints a, int bits) { return {_mm256_srli_epi32(a.lanes, bits)}; }
inline Ints add_shorts(Ints a, Ints b) { return {_mm256_add_epi16(a.lanes, b.lanes)}; }
inline Ints multiply_bytes(Ints a, Ints b) { return {_mm256_maddubs_epi16(a.lanes, b.lanes)}; }
inline Ints multiply_shorts(Ints a, Ints b) { return {_mm256_madd_epi16(a.lanes, b.lanes)}; }
inline Ints lower_bytes(Ints a) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(a.lanes, 8), 8)};
}
inline Ints upper_bytes(Ints a) { return {_mm256_srai_epi16(a.lanes, 8)}; }

#endif

// The sums of two neighbours of 16 bits.
inline Ints add_neighbours(Ints pairs) { return multiply_shorts(pairs, Ints::all(0x00010001)); }

// Of each 16 bits the four that begin at bit 4 * place, as a number without a sign.
template <int place>
inline Ints nibbles(Ints a) {
  return a >> 4 * place & Ints::all(0x000f000f);
}

// Numbers of 8 bits with a sign as numbers of 16.
inline Ints widen_bytes(const std::int8_t* from) {
#if defined(__AVX512F__)
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
#else
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
#endif
}

// Hides a sum from the compiler. Otherwise it adds products to each other first, and has too
// few registers for the sums of all rows.
inline Ints seal(Ints sums) {
  asm("" : "+v"(sums.lanes));
  return sums;
}

// sums += products of 16 bits; both numbers of a lane are added to its sum.
inline Ints add_products(Ints sums, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  asm("vpdpwssd %2, %1, %0" : "+v"(sums.lanes) : "v"(a.lanes), "v"(b.lanes));
  return sums;
#else
  return seal(sums + multiply_shorts(a, b));
#endif
}

#if defined(__AVX512VNNI__)
// sums += products of bytes without a sign and bytes with one, four to a lane. This is no
// intrinsic, because GCC then copies each sum, and keeps half of the sums in memory.
inline Ints add_byte_products(Ints sums, Ints a, Ints b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.lanes) : "v"(a.lanes), "v"(b.lanes));
  return sums;
}
#endif

// Weights from -128 to 127. Sums begin at -kOffset times the sum of their inputs, because
// the instruction for such products wants weights without a sign.
struct SignedWeights {
#if defined(__AVX512VNNI__)
  static constexpr int kOffset = 128;
  Ints shifted;

  static SignedWeights load(const std::uint8_t* from) {
    return {Ints::load(from) ^ Ints::all(static_cast<int>(0x80808080))};
  }
  Ints add_to(Ints sums, int inputs) const {
    return add_byte_products(sums, shifted, Ints::all(inputs));
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
    return seal(sums + add_neighbours(multiply_bytes(magnitudes, sign(Ints::all(inputs)))));
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
    Ints added = add_byte_products(sums, low, Ints::all(low_inputs));
    return add_byte_products(added, high, Ints::all(high_inputs));
#else
    Ints added = seal(add_shorts(sums, multiply_bytes(low, Ints::all(low_inputs))));
    return seal(add_shorts(added, multiply_bytes(high, Ints::all(high_inputs))));
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

// Stores the nearest whole numbers, which must fit.
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
inline void store_rounded(Vec numbers, std::int16_t* to) {
#if defined(__AVX512F__)
  __m256i shorts = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(numbers.lanes));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), shorts);
#else
  __m256i ints = _mm256_cvtps_epi32(numbers.lanes);
  __m128i shorts =
      _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), shorts);
#endif
}

}  // namespace trioserve
