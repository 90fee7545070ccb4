// A pool for the tests of functions that need one.
#include "pool.h"

using namespace trioserve;

#pragma GCC visibility push(default)
extern "C" {

Pool* test_open_pool(int num_threads) { return new Pool(num_threads); }
void test_close_pool(Pool* pool) { delete pool; }

}  // extern "C"
#pragma GCC visibility pop
