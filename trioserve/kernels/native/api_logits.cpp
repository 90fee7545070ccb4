// The functions for sampling that Python calls; api.cpp has those that open a pool.

#include "logits.h"

using namespace trioserve;

#pragma GCC visibility push(default)
extern "C" {

// ids: (num_rows,)
void trioserve_find_best(Pool* pool, const LogitsSpec* logits, std::int64_t* ids) {
  run_rows(*pool, *logits, [&](int r, int) {
    ids[r] = find_best(logits->row(r), logits->vocab_size);
  });
}

// values, ids: (num_rows, count)
void trioserve_find_top(Pool* pool, const LogitsSpec* logits, std::int32_t count, float* values,
                        std::int64_t* ids) {
  std::vector<TopFinder> finders(pool->num_threads());
  run_rows(*pool, *logits, [&](int r, int thread) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(r) * count;
    finders[thread].find(logits->row(r), logits->vocab_size, count, values + first, ids + first);
  });
}

// keys, places: (num_rows,); tokens: (num_rows, vocab_size), or null if they are the places
void trioserve_race(Pool* pool, const LogitsSpec* logits, const std::uint64_t* keys,
                    const std::int64_t* tokens, std::int64_t* places) {
  const int size = logits->vocab_size;
  run_rows(*pool, *logits, [&](int r, int) {
    const float* row = logits->row(r);
    const std::int64_t* own = tokens + static_cast<std::ptrdiff_t>(r) * size;
    places[r] = tokens == nullptr
                    ? race(row, size, keys[r], [](int i) { return static_cast<std::uint32_t>(i); })
                    : race(row, size, keys[r],
                           [&](int i) { return static_cast<std::uint32_t>(own[i]); });
  });
}

// largest: (num_rows,); sums: (num_rows, groups of group_size tokens)
void trioserve_sum_weights(Pool* pool, const LogitsSpec* logits, std::int32_t group_size,
                           float* largest, double* sums) {
  const int size = logits->vocab_size, num_groups = (size + group_size - 1) / group_size;
  run_rows(*pool, *logits, [&](int r, int) {
    const float* row = logits->row(r);
    largest[r] = find_largest(row, size);
    double* to = sums + static_cast<std::ptrdiff_t>(r) * num_groups;
    for (int i = 0; i < size; i += group_size) {
      *to++ = sum_weights(row + i, std::min(group_size, size - i), largest[r]);
    }
  });
}

}  // extern "C"
#pragma GCC visibility pop
