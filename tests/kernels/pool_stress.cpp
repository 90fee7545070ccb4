// Many short regions on more threads than cores, to be compiled with a thread sanitizer.
// Ends with 1 if a piece is lost or done twice.
#include <cstdio>

#include "pool.h"

int main() {
  using trioserve::Pool;
  Pool pool(5);
  std::vector<int> counts(64);
  long expected = 0, thread_sum = 0;
  for (int step = 0; step < 40; ++step) {
    Pool::Step awake(pool);
    for (int region = 0; region < 25; ++region) {
      int n = (step * 7 + region * 13) % 64;
      // Not atomic: the pool orders these writes, and the sanitizer checks that it does.
      pool.run(n, [&](int i, int thread) {
        counts[i] += 1;
        if (thread < 0 || thread >= pool.num_threads()) std::puts("a wrong thread");
      });
      expected += n;
    }
    thread_sum += pool.num_threads();
  }
  long done = 0;
  for (int count : counts) done += count;
  if (done != expected || thread_sum != 40 * 5) {
    std::printf("%ld pieces done in place of %ld\n", done, expected);
    return 1;
  }
  return 0;
}
