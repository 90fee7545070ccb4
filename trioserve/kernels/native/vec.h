// Vectors of float32 numbers, one type for all instruction sets.
//
// Each library is compiled for one instruction set, and the compiler's own macros choose
// the type: AVX-512 has 16 lanes and AVX2 has 8. Kernels are written over Vec alone.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace trioserve {

inline int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The upper half of a float32.
using Bfloat16 = std::uint16_t;

inline float widen(Bfloat16 value) {
  std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// Rounds to the nearest, ties to even. NaN is not kept: no caller has one.
inline Bfloat16 narrow(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<Bfloat16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#if defined(__AVX512F__)

struct Vec {
  static constexpr int kLanes = 16;
  __m512 lanes;

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec all(float value) { return {_mm512_set1_ps(value)}; }
  static Vec load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Vec load(const Bfloat16* from) {
    __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  void store(float* to) const { _mm512_storeu_ps(to, lanes); }
  void store(Bfloat16* to) const {
    __m512i bits = _mm512_castps_si512(lanes);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half);
  }
  // The lower and the upper 16 bits of each 32, as two numbers.
  static Vec load_low(const Bfloat16* from) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(from), 16))};
  }
  static Vec load_high(const Bfloat16* from) {
    __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(from), mask))};
  }
  static Vec fma(Vec a, Vec b, Vec c) {
    return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)};
  }
  static Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
  static Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }
  Vec round() const {
    return {_mm512_roundscale_ps(lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  // 2 to the power of whole numbers from -126 to 127.
  Vec exp2_whole() const {
    __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(lanes), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
  }
  // This vector, with 0 in the lanes where x is below the bound.
  Vec zero_where_below(Vec x, float bound) const {
    __mmask16 keep = _mm512_cmp_ps_mask(x.lanes, _mm512_set1_ps(bound), _CMP_GE_OQ);
    return {_mm512_maskz_mov_ps(keep, lanes)};
  }
  // Whether a lane is not below its bound, NaN included.
  bool any_not_below(Vec bounds) const {
    return _mm512_cmp_ps_mask(lanes, bounds.lanes, _CMP_NLT_UQ) != 0;
  }
  float sum() const { return _mm512_reduce_add_ps(lanes); }
  float largest() const { return _mm512_reduce_max_ps(lanes); }
};

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }

#elif defined(__AVX2__) && defined(__FMA__)

struct Vec {
  static constexpr int kLanes = 8;
  __m256 lanes;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec all(float value) { return {_mm256_set1_ps(value)}; }
  static Vec load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Vec load(const Bfloat16* from) {
    __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
  }
  void store(float* to) const { _mm256_storeu_ps(to, lanes); }
  void store(Bfloat16* to) const {
    __m256i bits = _mm256_castps_si256(lanes);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    bits = _mm256_srli_epi32(bits, 16);
    __m128i half =
        _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), half);
  }
  // The lower and the upper 16 bits of each 32, as two numbers.
  static Vec load_low(const Bfloat16* from) {
    __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16))};
  }
  // Two shifts: a mask would take a register, and kernels use all of them.
  static Vec load_high(const Bfloat16* from) {
    __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(both, 16), 16))};
  }
  static Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.lanes, b.lanes, c.lanes)};
  }
  static Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lanes, b.lanes)}; }
  static Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lanes, b.lanes)}; }
  Vec round() const {
    return {_mm256_round_ps(lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  // 2 to the power of whole numbers from -126 to 127.
  Vec exp2_whole() const {
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(lanes), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
  }
  // This vector, with 0 in the lanes where x is below the bound.
  Vec zero_where_below(Vec x, float bound) const {
    __m256 keep = _mm256_cmp_ps(x.lanes, _mm256_set1_ps(bound), _CMP_GE_OQ);
    return {_mm256_and_ps(keep, lanes)};
  }
  // Whether a lane is not below its bound, NaN included.
  bool any_not_below(Vec bounds) const {
    return _mm256_movemask_ps(_mm256_cmp_ps(lanes, bounds.lanes, _CMP_NLT_UQ)) != 0;
  }
  float sum() const {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
  }
  float largest() const {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
  }
};

inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.lanes, b.lanes)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.lanes, b.lanes)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.lanes, b.lanes)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.lanes, b.lanes)}; }

#else
#error "compile for AVX2 with FMA, or for AVX-512"
#endif

// e to the power of each lane, within 2 units of the last place. It is exactly 0 below
// -87.3, so that a masked score of -inf has no weight at all.
// Source: S. Moshier's Cephes library, expf.
inline Vec exp(Vec x) {
  Vec clamped = Vec::min(Vec::max(x, Vec::all(-87.3f)), Vec::all(88.0f));
  Vec whole = (clamped * Vec::all(1.44269504088896341f)).round();
  // ln 2 in two parts, so that the rest is exact.
  Vec rest = Vec::fma(whole, Vec::all(-0.693359375f), clamped);
  rest = Vec::fma(whole, Vec::all(2.12194440e-4f), rest);
  Vec power = Vec::all(1.9875691500e-4f);
  power = Vec::fma(power, rest, Vec::all(1.3981999507e-3f));
  power = Vec::fma(power, rest, Vec::all(8.3334519073e-3f));
  power = Vec::fma(power, rest, Vec::all(4.1665795894e-2f));
  power = Vec::fma(power, rest, Vec::all(1.6666665459e-1f));
  power = Vec::fma(power, rest, Vec::all(5.0000001201e-1f));
  power = Vec::fma(power, rest * rest, rest + Vec::all(1.0f));
  return (power * whole.exp2_whole()).zero_where_below(x, -87.3f);
}

inline void convert(const float* from, int size, float* to) {
  std::memcpy(to, from, sizeof(float) * static_cast<std::size_t>(size));
}
inline void convert(const float* from, int size, Bfloat16* to) {
  int i = 0;
  for (; i + Vec::kLanes <= size; i += Vec::kLanes) Vec::load(from + i).store(to + i);
  for (; i < size; ++i) to[i] = narrow(from[i]);
}

// The first `count` lanes; the others are 0.
inline Vec load_part(const float* from, int count) {
  if (count >= Vec::kLanes) return Vec::load(from);
  float lanes[Vec::kLanes] = {};
  std::memcpy(lanes, from, sizeof(float) * static_cast<std::size_t>(count));
  return Vec::load(lanes);
}

inline void store_part(Vec vec, int count, float* to) {
  if (count >= Vec::kLanes) return vec.store(to);
  float lanes[Vec::kLanes];
  vec.store(lanes);
  std::memcpy(to, lanes, sizeof(float) * static_cast<std::size_t>(count));
}

// Calls body(first, count) for each vector of `size` numbers; the last may be shorter.
template <class Body>
inline void for_vectors(int size, Body&& body) {
  for (int i = 0; i < size; i += Vec::kLanes) body(i, size - i < Vec::kLanes ? size - i : Vec::kLanes);
}

}  // namespace trioserve
