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

  static Ints zero() { return {_mm512_setzero_si512()}; }
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
inline Ints operator<<(Ints a, int bits) { return {_mm512_slli_epi32(a.lanes, bits)}; }
// Products of 16 bits, and the sums of two neighbours.
inline Ints multiply_shorts(Ints a, Ints b) { return {_mm512_madd_epi16(a.lanes, b.lanes)}; }
// Products of bytes without a sign and bytes with one, and the sums of two neighbours.
inline Ints multiply_bytes(Ints a, Ints b) { return {_mm512_maddubs_epi16(a.lanes, b.lanes)}; }
// The lower or the upper byte of each 16 bits, as a number with a sign.
inline Ints lower_bytes(Ints a) {
  return {_mm512_srai_epi16(_mm512_slli_epi16(a.lanes, 8), 8)};
}
inline Ints upper_bytes(Ints a) { return {_mm512_srai_epi16(a.lanes, 8)}; }

#else

struct Ints {
  __m256i lanes;

  static Ints zero() { return {_mm256_setzero_si256()}; }
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
inline Ints operator<<(Ints a, int bits) { return {_mm256_slli_epi32(a.lanes, bits)}; }
inline Ints multiply_shorts(Ints a, Ints b) { return {_mm256_madd_epi16(a.lanes, b.lanes)}; }
inline Ints multiply_bytes(Ints a, Ints b) { return {_mm256_maddubs_epi16(a.lanes, b.lanes)}; }
inline Ints lower_bytes(Ints a) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(a.lanes, 8), 8)};
}
inline Ints upper_bytes(Ints a) { return {_mm256_srai_epi16(a.lanes, 8)}; }

#endif

// Entry i of a table, for each byte i below 16.
inline Ints look_up(const std::uint8_t (&table)[16], Ints places) {
  const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
#if defined(__AVX512F__)
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), places.lanes)};
#else
  return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), places.lanes)};
#endif
}

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

// Additions to sums are assembly. From intrinsics GCC copies sums, adds products to each other
// first, and keeps some of the sums in memory for want of registers.

// sums += products of 16 bits; both numbers of a lane are added to its sum.
inline Ints add_products(Ints sums, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  asm("vpdpwssd %2, %1, %0" : "+v"(sums.lanes) : "v"(a.lanes), "v"(b.lanes));
#else
  asm("vpaddd %1, %0, %0" : "+v"(sums.lanes) : "v"(multiply_shorts(a, b).lanes));
#endif
  return sums;
}

// sums += products of bytes without a sign and bytes with one.
#if defined(__AVX512VNNI__)
// Sums have 32 bits, and four products are added to each.
inline Ints add_byte_products(Ints sums, Ints a, Ints b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.lanes) : "v"(a.lanes), "v"(b.lanes));
  return sums;
}
inline Ints total_of_bytes(Ints sums) { return sums; }
#else
// Sums have 16 bits, into which they must fit, and two products are added to each.
inline Ints add_byte_products(Ints sums, Ints a, Ints b) {
  asm("vpaddw %1, %0, %0" : "+v"(sums.lanes) : "v"(multiply_bytes(a, b).lanes));
  return sums;
}
inline Ints total_of_bytes(Ints sums) { return multiply_shorts(sums, Ints::all(0x00010001)); }
#endif

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
