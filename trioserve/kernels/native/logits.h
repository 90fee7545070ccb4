// What sampling finds in rows of logits, which are as long as the vocabulary, without
// sorting them.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "pool.h"
#include "vec.h"

namespace trioserve {

// Rows of logits.
//
//   stride: numbers from one row to the next
struct LogitsSpec {
  const float* numbers;
  std::int64_t stride;
  std::int32_t num_rows, vocab_size;

  const float* row(int i) const { return numbers + i * stride; }
};

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Calls visit(i) for each number that is not below bound(), NaN included, in their order,
// and for some that are. Most numbers are below a useful bound, so they are compared by
// the vector.
template <class Bound, class Visit>
void visit_not_below(const float* row, int size, Bound&& bound, Visit&& visit) {
  constexpr int kStep = 4 * Vec::kLanes;
  int i = 0;
  for (; i + kStep <= size; i += kStep) {
    const Vec bounds = Vec::all(bound());
    bool any = false;
    for (int j = i; j < i + kStep; j += Vec::kLanes) {
      any |= Vec::load(row + j).any_not_below(bounds);
    }
    if (!any) continue;
    for (int j = i; j < i + kStep; ++j) visit(j);
  }
  for (; i < size; ++i) visit(i);
}

// The place of the largest number, the first of equal ones. NaN counts as larger than all.
inline int find_best(const float* row, int size) {
  float best = kLowest;
  int place = 0;
  visit_not_below(row, size, [&] { return best; }, [&](int i) {
    // Nothing is larger than a NaN, though a comparison cannot tell.
    if (row[i] <= best || std::isnan(best)) return;
    best = row[i];
    place = i;
  });
  return place;
}

// Finds the largest numbers of rows; it belongs to one thread.
//
// The row is cut into several times as many groups as numbers are wanted. As many of the
// groups' maxima are numbers of the row, so the smallest of these bounds the wanted numbers
// from below. Few others are above it, and only those are sorted.
class TopFinder {
 public:
  // Writes the places of the `count` largest numbers, the largest first, and of equal ones
  // the first. NaN counts as larger than all.
  void find(const float* row, int size, int count, float* values, std::int64_t* places) {
    const float bound = find_bound(row, size, count);
    keys_.clear();
    visit_not_below(row, size, [&] { return bound; }, [&](int i) {
      if (!(row[i] < bound)) keys_.push_back(make_key(row[i], i));
    });
    auto end = keys_.begin() + count;
    std::nth_element(keys_.begin(), end - 1, keys_.end(), std::greater<>());
    std::sort(keys_.begin(), end, std::greater<>());
    for (int i = 0; i < count; ++i) {
      places[i] = static_cast<std::uint32_t>(~keys_[i]);
      values[i] = row[places[i]];
    }
  }

 private:
  // With so many groups for each wanted number, a seventh more numbers than are wanted are
  // above the bound, if they lie by chance; finding the bound is still quick.
  static constexpr int kGroups = 4;

  // A number that at least `count` numbers are not below.
  float find_bound(const float* row, int size, int count) {
    const int num_vecs = size / Vec::kLanes;
    // Each lane of several vectors in a row is a group.
    const int num_runs = (kGroups * count + Vec::kLanes - 1) / Vec::kLanes;
    const int run = num_vecs / num_runs;
    if (run < 2) return kLowest;
    maxima_.resize(static_cast<std::size_t>(num_runs) * Vec::kLanes);
    for (int r = 0; r < num_runs; ++r) {
      const float* from = row + r * run * Vec::kLanes;
      Vec largest = Vec::all(kLowest);
      // The second operand stays where the first is NaN.
      for (int v = 0; v < run; ++v) largest = Vec::max(Vec::load(from + v * Vec::kLanes), largest);
      largest.store(&maxima_[r * Vec::kLanes]);
    }
    auto last = maxima_.begin() + count - 1;
    std::nth_element(maxima_.begin(), last, maxima_.end(), std::greater<>());
    return *last;
  }

  // A key that is larger for a larger number, and among equal ones for an earlier place:
  //     | the number in order, NaN last, 32 bits | the inverted place, 32 bits |
  static std::uint64_t make_key(float value, int place) {
    std::uint32_t order = ~0u;
    if (!std::isnan(value)) {
      // The two zeros are equal.
      value += 0.0f;
      std::memcpy(&order, &value, sizeof order);
      order = order >> 31 ? ~order : order | 1u << 31;
    }
    return static_cast<std::uint64_t>(order) << 32 | ~static_cast<std::uint32_t>(place);
  }

  std::vector<float> maxima_;
  std::vector<std::uint64_t> keys_;
};

// The numbers that are left at the end of a row, and -inf.
inline Vec load_rest(const float* from, int count) {
  float padded[Vec::kLanes];
  std::fill_n(padded, Vec::kLanes, kLowest);
  std::copy_n(from, count, padded);
  return Vec::load(padded);
}

// The largest of the numbers that are not NaN; -inf if there is none.
inline float find_largest(const float* row, int size) {
  Vec largest = Vec::all(kLowest);
  int i = 0;
  for (; i + Vec::kLanes <= size; i += Vec::kLanes) largest = Vec::max(Vec::load(row + i), largest);
  return Vec::max(load_rest(row + i, size - i), largest).largest();
}

// The sum of e to the power of each number less `largest`; NaN and what is less than -87.3
// add nothing.
inline float sum_weights(const float* row, int size, float largest) {
  const Vec shift = Vec::all(largest);
  Vec sum = Vec::zero();
  int i = 0;
  for (; i + Vec::kLanes <= size; i += Vec::kLanes) sum = sum + exp(Vec::load(row + i) - shift);
  return (sum + exp(load_rest(row + i, size - i) - shift)).sum();
}

// Thirty-one bits that a key and a token determine.
// Source: C. Wellons' hash prospector, lowbias32; the upper half of the key comes in between.
inline std::int32_t mix(std::uint64_t key, std::uint32_t token) {
  std::uint32_t bits = token ^ static_cast<std::uint32_t>(key);
  bits = (bits ^ bits >> 16) * 0x21f0aaadu ^ static_cast<std::uint32_t>(key >> 32);
  bits = (bits ^ bits >> 15) * 0xd35a2d97u;
  return static_cast<std::int32_t>((bits ^ bits >> 15) >> 1);
}

// Noise of a standard Gumbel distribution, from the bits of mix().
inline float make_noise(std::int32_t bits) {
  const float uniform = (static_cast<float>(bits) + 0.5f) * 0x1p-31f;
  // A number next to 1 is rounded to 1.
  return -std::log(-std::log1p(-std::min(uniform, 1.0f - 0x1p-24f)));
}

// A number that is hardly ever much larger than the noise, and never smaller.
inline float bound_noise(std::int32_t bits) {
  // The noise is at most -log(uniform). The bits of a float are its logarithm to base 2, but
  // for a curve that stays above them.
  const float uniform = static_cast<float>(bits) + 0.5f;
  std::int32_t order;
  std::memcpy(&order, &uniform, sizeof order);
  return 0.69314718f * (158.001f - static_cast<float>(order) * 0x1p-23f);
}

// The place of the largest sum of a number and the noise of its token, without NaN; 0 if no
// number is above -inf. get_token(i) is the token at place i.
//
// Few numbers are near the largest sum. So the noise itself, with two logarithms, is computed
// only where the bound leaves a chance.
template <class GetToken>
int race(const float* row, int size, std::uint64_t key, GetToken&& get_token) {
  constexpr int kBlock = 128;
  float best = kLowest, bounds[kBlock];
  int place = 0;
  for (int begin = 0; begin < size; begin += kBlock) {
    const int count = std::min(kBlock, size - begin);
    for (int i = 0; i < count; ++i) {
      bounds[i] = row[begin + i] + bound_noise(mix(key, get_token(begin + i)));
    }
    visit_not_below(bounds, count, [&] { return best; }, [&](int i) {
      if (!(bounds[i] > best)) return;
      const int here = begin + i;
      const float sum = row[here] + make_noise(mix(key, get_token(here)));
      if (!(sum > best)) return;
      best = sum;
      place = here;
    });
  }
  return place;
}

// Calls piece(row, thread) for each row.
template <class Piece>
void run_rows(Pool& pool, const LogitsSpec& logits, Piece&& piece) {
  // One row takes less time than waking a thread, so it is not cut into parts either.
  if (logits.num_rows == 1) {
    piece(0, 0);
    return;
  }
  Pool::Step awake(pool);
  pool.run(logits.num_rows, piece);
}

}  // namespace trioserve
