// A door to layers that keep a state.
#include "pack.h"
#include "state_mixer.h"

using namespace trioserve;

#pragma GCC visibility push(default)
extern "C" {

std::int64_t test_count_state(const StateSpec* spec) { return spec->size(); }

// Packs a matrix of float32 numbers. Returns how many the result has; `to` may be null.
std::int64_t test_pack_numbers(const MatrixSpec* spec, const SourceSpec* source, float* to) {
  auto matrix = spec->as<Float32Format>();
  SourceRows rows(source, 1, spec->num_inputs);
  for (int block = 0; to && block < matrix.num_blocks(); ++block) {
    pack_block(matrix, rows, block, to);
  }
  return matrix.size();
}

// rows: (num_rows, 5): first token, tokens, slot, whether it begins, tokens to keep
void test_mix_states(const StateSpec* spec, int num_threads, const std::int32_t* rows,
                     int num_rows, int num_tokens, float epsilon, float* states, float* x,
                     int stride, float* out, int out_stride) {
  std::vector<StateRow> all;
  for (int i = 0; i < num_rows; ++i, rows += 5) {
    all.push_back({rows[0], rows[1], rows[2], rows[3] != 0, rows[4]});
  }
  Pool pool(num_threads);
  Pool::Step awake(pool);
  OperandBuffer buffer;
  StateMixer().run(pool, buffer, *spec, all, num_tokens, epsilon, states, x, stride, out, out_stride);
}

}  // extern "C"
#pragma GCC visibility pop
