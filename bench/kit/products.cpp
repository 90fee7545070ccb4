// Doors to the kernels' products alone, for bench/limit.py. They are compiled together with
// trioserve/kernels/native/*.cpp.
#include "matrix.h"

using namespace trioserve;

namespace {

// Bytes that one thread reads in one piece.
constexpr std::int64_t kReadBytes = 256 * 1024;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Computes all products of one step, one after the other.
//
//   first, second: `count` matrices; the weights of `second` are null where a product has
//     one matrix alone
//   x: (num_rows, stride), at least two numbers wider than any matrix has inputs
//   y: (num_rows, outputs of the largest matrix)
void bench_multiply(Pool* pool, const MatrixSpec* first, const MatrixSpec* second, int count,
                    const float* x, std::int64_t stride, int num_rows, float* y) {
  // As in a decoder, memory is allocated by the first step alone.
  static OperandBuffer buffer;
  Pool::Step awake(*pool);
  for (int i = 0; i < count; ++i) {
    const std::ptrdiff_t size = first[i].num_outputs;
    auto keep = [&](int row, int begin, int n, const float* values) {
      std::copy_n(values, n, y + row * size + begin);
    };
    auto keep_both = [&](int row, int begin, int n, const float* one, const float* other) {
      for (int k = 0; k < n; ++k) y[row * size + begin + k] = one[k] * other[k];
    };
    Rows rows{x, stride, num_rows};
    if (second[i].weights) {
      multiply(*pool, buffer, rows, keep_both, first[i], second[i]);
    } else {
      multiply(*pool, buffer, rows, keep, first[i]);
    }
  }
}

// Reads so many blocks of memory once each, with all threads, and returns the sum of their
// numbers.
std::uint64_t bench_read(Pool* pool, const std::uint64_t* const* blocks,
                         const std::int64_t* num_bytes, int count) {
  std::atomic<std::uint64_t> total{0};
  Pool::Step awake(*pool);
  for (int block = 0; block < count; ++block) {
    const int num_pieces = static_cast<int>((num_bytes[block] + kReadBytes - 1) / kReadBytes);
    pool->run(num_pieces, [&](int piece, int) {
      const std::int64_t end = std::min((piece + 1) * kReadBytes, num_bytes[block]);
      std::uint64_t sum = 0;
      for (std::int64_t i = piece * kReadBytes / 8; i < end / 8; ++i) sum += blocks[block][i];
      total += sum;
    });
  }
  return total;
}

}  // extern "C"
#pragma GCC visibility pop
