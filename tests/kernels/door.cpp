// Doors to single kernels, for tests alone: the library has a door for whole steps.
#include <string.h>

#include "matrix.h"
#include "norm.h"
#include "pack.h"
#include "step_attention.h"

using namespace trioserve;

namespace {

// Calls body with the format of numbers that a code stands for.
template <class Body>
auto with_numbers(int code, Body&& body) {
  if (code == kInt8) return body(Int8CacheFormat());
  return code == kFloat32 ? body(Float32Format()) : body(Bfloat16Format());
}

template <class Operand>
std::vector<Operand> to_operands(const float* from, int rows, int size, int stride) {
  std::vector<Operand> operands(static_cast<std::size_t>(rows) * stride);
  for (int r = 0; r < rows; ++r) {
    convert(from + static_cast<std::ptrdiff_t>(r) * size, size, &operands[r * stride]);
  }
  return operands;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

#if defined(TRIOSERVE_TILES)
void test_use_tiles(int use) { has_tiles = use; }
#endif

#if defined(TRIOSERVE_TILES_STAND_IN)
int test_count_byte_products() { return stand_in::num_byte_products; }
#endif

void test_exp(const float* x, int size, float* out) {
  for (int i = 0; i < size; ++i) {
    float lanes[Vec::kLanes];
    exp(Vec::all(x[i])).store(lanes);
    out[i] = lanes[i % Vec::kLanes];
  }
}

void test_activate(int kind, const float* x, int size, float* out) {
  for (int i = 0; i < size; ++i) {
    float lanes[Vec::kLanes];
    activate(static_cast<Activation>(kind), Vec::all(x[i])).store(lanes);
    out[i] = lanes[i % Vec::kLanes];
  }
}

void test_weigh_clamped(float slope, float limit, const float* gates, const float* numbers,
                        int size, float* out) {
  for (int i = 0; i < size; ++i) {
    float lanes[Vec::kLanes];
    weigh_clamped({slope, limit}, Vec::all(gates[i]), Vec::all(numbers[i])).store(lanes);
    out[i] = lanes[i % Vec::kLanes];
  }
}

void test_round(const float* x, int size, Bfloat16* out) { convert(x, size, out); }

void test_normalize(const float* x, const float* weight, int size, float epsilon, float* out) {
  normalize(x, weight, size, epsilon, out);
}

// y = x W^T, with rows of W from sources.
void test_multiply(MatrixSpec* spec, const SourceSpec* sources, int num_sources, int num_threads,
                   const float* x, int num_rows, float* y) {
  with_format(spec->format, [&](auto format) {
    using Format = decltype(format);
    auto matrix = spec->as<Format>();
    std::vector<typename Format::Weight> packed(matrix.size());
    SourceRows rows(sources, num_sources, spec->num_inputs);
    for (int block = 0; block < matrix.num_blocks(); ++block) {
      pack_block(matrix, rows, block, packed.data());
    }
    spec->weights = packed.data();
    const int stride = round_up(spec->num_inputs, 2);
    auto padded = to_operands<float>(x, num_rows, spec->num_inputs, stride);
    Pool pool(num_threads);
    Pool::Step awake(pool);
    OperandBuffer buffer;
    multiply(pool, buffer, {padded.data(), stride, num_rows},
             [&](int row, int first, int count, const float* values) {
               std::copy_n(values, count,
                           y + static_cast<std::ptrdiff_t>(row) * spec->num_outputs + first);
             },
             *spec);
  });
}

// The numbers of one row of a source.
void test_read_numbers(const SourceSpec* source, int num_inputs, float* to) {
  CodedRow scratch;
  SourceRows(source, 1, num_inputs).read_numbers(0, scratch, to);
}

// Writes num_keys keys and values into blocks, and attends from the last num_queries.
//
//   queries: (num_queries, num_heads, key_dim); keys, values: (num_keys, num_kv_heads, dim)
//   blocks: the numbers of num_blocks blocks, in order; dirt: fills what is left of them
void test_attend(int format, int num_threads, const AttentionShape* shape, int num_queries, int num_keys,
                 const float* queries, const float* keys, const float* values,
                 const std::int64_t* blocks, int num_blocks, float dirt, float* out) {
  with_numbers(format, [&](auto f) {
    using Format = decltype(f);
    using Weight = typename Format::Weight;
    using Operand = typename Format::Operand;
    std::vector<Weight> cache(shape->block_numbers<Format>() * num_blocks);
    std::vector<float> dirts(std::max(shape->key_dim, shape->value_dim), dirt);
    StepRow whole{0, num_keys, 0, blocks};
    for (int t = 0; t < num_blocks * shape->block_size; ++t) {
      for (int h = 0; h < shape->num_kv_heads; ++h) {
        int place = t * shape->num_kv_heads + h;
        bool is_key = t < num_keys;
        write_cache<Format>(cache.data(), *shape, whole, t, h,
                            is_key ? keys + place * shape->key_dim : dirts.data(),
                            is_key ? values + place * shape->value_dim : dirts.data());
      }
    }
    int size = shape->num_heads * shape->key_dim, out_size = shape->num_heads * shape->value_dim;
    auto operands = to_operands<Operand>(queries, num_queries, size, size);
    Pool pool(num_threads);
    Pool::Step awake(pool);
    StepAttention<Format> attention;
    std::vector<StepRow> rows{{0, num_queries, num_keys - num_queries, blocks}};
    attention.plan(*shape, rows, num_threads);
    attention.run(pool, *shape, cache.data(), operands.data(), out, out_size);
  });
}

}  // extern "C"
#pragma GCC visibility pop
