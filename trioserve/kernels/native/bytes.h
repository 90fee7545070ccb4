// Products of bytes: vectors of int32 sums, and the weights that are added to them.
//
// Each lane is one output. Its four bytes are the weights of four inputs, and the same four
// inputs of a row are multiplied with every lane.
#pragma once

#include "vec.h"

namespace trioserve {

#if defined(__AVX512F__)

struct Ints {
  __m512i lanes;

  static Ints all(int value) { return {_mm512_set1_epi32(value)}; }
  Vec to_float() const { return {_mm512_cvtepi32_ps(lanes)}; }
};

inline __m512i load_bytes(const std::uint8_t* from) { return _mm512_loadu_si512(from); }

#else

struct Ints {
  __m256i lanes;

  static Ints all(int value) { return {_mm256_set1_epi32(value)}; }
  Vec to_float() const { return {_mm256_cvtepi32_ps(lanes)}; }
};

inline __m256i load_bytes(const std::uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

#endif

// Weights from -128 to 127. Sums begin at -kOffset times the sum of their inputs, because
// the instruction for such products wants weights without a sign.
struct SignedWeights;

// Weights from 0 to 15. `low` are those of four inputs and `high` those of the next four.
// At most 32 inputs may be added before `total`, because sums may have 16 bits.
struct Nibbles;

#if defined(__AVX512VNNI__)

struct SignedWeights {
  static constexpr int kOffset = 128;
  __m512i shifted;

  static SignedWeights load(const std::uint8_t* from) {
    return {_mm512_xor_si512(load_bytes(from), _mm512_set1_epi8(-128))};
  }
  Ints add_to(Ints sums, int inputs) const {
    return {_mm512_dpbusd_epi32(sums.lanes, shifted, _mm512_set1_epi32(inputs))};
  }
};

struct Nibbles {
  using Sums = Ints;
  __m512i low, high;

  static Nibbles load(const std::uint8_t* from) {
    __m512i both = load_bytes(from), mask = _mm512_set1_epi8(15);
    return {_mm512_and_si512(both, mask),
            _mm512_and_si512(_mm512_srli_epi16(both, 4), mask)};
  }
  Sums add_to(Sums sums, int low_inputs, int high_inputs) const {
    __m512i added = _mm512_dpbusd_epi32(sums.lanes, low, _mm512_set1_epi32(low_inputs));
    return {_mm512_dpbusd_epi32(added, high, _mm512_set1_epi32(high_inputs))};
  }
  static Ints total(Sums sums) { return sums; }
};

#elif defined(__AVX512F__)

struct SignedWeights {
  static constexpr int kOffset = 0;
  __m512i magnitudes;
  __mmask64 negative;

  static SignedWeights load(const std::uint8_t* from) {
    __m512i bytes = load_bytes(from);
    return {_mm512_abs_epi8(bytes), _mm512_movepi8_mask(bytes)};
  }
  Ints add_to(Ints sums, int inputs) const {
    __m512i x = _mm512_set1_epi32(inputs);
    x = _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
    // Two products are at most 128 * 127 * 2, which 16 bits hold.
    __m512i pairs = _mm512_maddubs_epi16(magnitudes, x);
    return {_mm512_add_epi32(sums.lanes, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
  }
};

struct Nibbles {
  struct Sums {
    __m512i pairs;
    static Sums all(int value) { return {_mm512_set1_epi16(static_cast<short>(value))}; }
  };
  __m512i low, high;

  static Nibbles load(const std::uint8_t* from) {
    __m512i both = load_bytes(from), mask = _mm512_set1_epi8(15);
    return {_mm512_and_si512(both, mask),
            _mm512_and_si512(_mm512_srli_epi16(both, 4), mask)};
  }
  Sums add_to(Sums sums, int low_inputs, int high_inputs) const {
    __m512i first = _mm512_maddubs_epi16(low, _mm512_set1_epi32(low_inputs));
    __m512i second = _mm512_maddubs_epi16(high, _mm512_set1_epi32(high_inputs));
    return {_mm512_add_epi16(sums.pairs, _mm512_add_epi16(first, second))};
  }
  static Ints total(Sums sums) {
    return {_mm512_madd_epi16(sums.pairs, _mm512_set1_epi16(1))};
  }
};

#else

struct SignedWeights {
  static constexpr int kOffset = 0;
  __m256i bytes, magnitudes;

  static SignedWeights load(const std::uint8_t* from) {
    __m256i bytes = load_bytes(from);
    return {bytes, _mm256_abs_epi8(bytes)};
  }
  Ints add_to(Ints sums, int inputs) const {
    __m256i x = _mm256_sign_epi8(_mm256_set1_epi32(inputs), bytes);
    // Two products are at most 128 * 127 * 2, which 16 bits hold.
    __m256i pairs = _mm256_maddubs_epi16(magnitudes, x);
    return {_mm256_add_epi32(sums.lanes, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
  }
};

struct Nibbles {
  struct Sums {
    __m256i pairs;
    static Sums all(int value) { return {_mm256_set1_epi16(static_cast<short>(value))}; }
  };
  __m256i low, high;

  static Nibbles load(const std::uint8_t* from) {
    __m256i both = load_bytes(from), mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(both, mask),
            _mm256_and_si256(_mm256_srli_epi16(both, 4), mask)};
  }
  Sums add_to(Sums sums, int low_inputs, int high_inputs) const {
    __m256i first = _mm256_maddubs_epi16(low, _mm256_set1_epi32(low_inputs));
    __m256i second = _mm256_maddubs_epi16(high, _mm256_set1_epi32(high_inputs));
    return {_mm256_add_epi16(sums.pairs, _mm256_add_epi16(first, second))};
  }
  static Ints total(Sums sums) {
    return {_mm256_madd_epi16(sums.pairs, _mm256_set1_epi16(1))};
  }
};

#endif

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
