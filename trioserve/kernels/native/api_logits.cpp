// The functions for sampling that Python calls; api.cpp has those that open a pool.

#include "logits.h"

using namespace trioserve;

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
