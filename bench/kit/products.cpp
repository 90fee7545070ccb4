// Doors to the kernels' products and attention alone, for bench/limit.py. They are compiled
// together with trioserve/kernels/native/*.cpp.
#include <numeric>

#include "decoder.h"

using namespace trioserve;

namespace {

// Bytes that one thread reads in one piece.
constexpr std::int64_t kReadBytes = 256 * 1024;

template <class Format>
void attend(Pool& pool, const AttentionShape& shape, int num_tokens, int num_layers) {
  // As in a decoder, memory is allocated by the first step alone.
  static std::vector<typename Format::Weight> cache;
  static std::vector<typename Format::Operand> queries;
  static std::vector<float> out;
  static StepAttention<Format> attention;
  const int num_blocks = (num_tokens + shape.block_size - 1) / shape.block_size;
  std::vector<std::int64_t> blocks(static_cast<std::size_t>(num_blocks));
  std::iota(blocks.begin(), blocks.end(), std::int64_t{0});
  const std::ptrdiff_t layer_size = shape.block_numbers<Format>() * num_blocks;
  const std::ptrdiff_t width = shape.num_heads * shape.value_dim;
  fit(cache, layer_size * num_layers);
  fit(queries, static_cast<std::ptrdiff_t>(num_tokens) * shape.num_heads * shape.key_dim);
  fit(out, num_tokens * width);
  Pool::Step awake(pool);
  // The plan refers to them.
  const std::vector<StepRow> rows{{0, num_tokens, 0, {blocks.data(), nullptr}}};
  attention.plan(shape, rows, pool.num_threads());
  for (int layer = 0; layer < num_layers; ++layer) {
    attention.run(pool, shape, &cache[layer * layer_size], queries.data(), out.data(), width);
  }
}

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
    const Rows rows{x, stride, num_rows};
    const Destination to{y, size};
    if (second[i].weights) {
      multiply(*pool, buffer, rows, {keep_both, to}, first[i], second[i]);
    } else {
      multiply(*pool, buffer, rows, {keep, to}, first[i]);
    }
  }
}

// Computes attention of the tokens of one prompt to each other, in all layers. Keys and values
// are 0, which takes as long as other numbers.
//
//   format: of the cache, kFloat32, kBfloat16 or kInt8
void bench_attend(Pool* pool, std::int32_t format, const AttentionSpec* spec, int block_size,
                  int num_tokens, int num_layers) {
  const AttentionShape shape = shape_of(*spec, block_size);
  if (format == kFloat32) {
    attend<Float32Format>(*pool, shape, num_tokens, num_layers);
  } else if (format == kInt8) {
    attend<Int8CacheFormat>(*pool, shape, num_tokens, num_layers);
  } else {
    attend<Bfloat16Format>(*pool, shape, num_tokens, num_layers);
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
