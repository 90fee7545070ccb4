// A door to what adapters add to a product.
#include "matrix.h"
#include "pack.h"

using namespace trioserve;

namespace {

// Packs `width` outputs, of which there are `count`.
//
//   from: the first input that is packed, of rows that are `stride` numbers apart
template <class Format>
void pack_outputs(const float* from, int stride, int count, int num_inputs, int width,
                  std::vector<typename Format::Weight>& to) {
  const std::size_t begin = to.size();
  const int num_steps = (num_inputs + Format::kInputs - 1) / Format::kInputs;
  to.resize(begin + static_cast<std::size_t>(num_steps) * Format::kInputs * width);
  for (int output = 0; output < count; ++output) {
    for (int input = 0; input < num_inputs; ++input) {
      auto& weight = to[begin + (input / Format::kInputs * width + output) * Format::kInputs +
                        input % Format::kInputs];
      convert(from + output * stride + input, 1, &weight);
    }
  }
}

// One adapter, packed.
template <class Format>
struct Packed {
  std::vector<typename Format::Weight> shrink, expand;
  std::vector<float> scales;
  std::vector<ExpandSpec> expands;
  AdditionSpec addition{};
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

struct TestAdapter {
  const float* a;       // (rank, num_inputs)
  const float* b;       // (num_outputs, rank)
  const float* scales;  // (num_outputs,) or null
  std::int32_t rank;    // of a and b, even
  // The first half of all blocks reads the ranks below it, and the others the rest; even.
  std::int32_t cut;
};

std::int32_t test_count_outputs() { return kBlock; }

// y = x W^T in the format of the adapters, and what the adapters of rows add; their number is -1
// for those that have none.
void test_add_adapters(int format, int num_threads, const SourceSpec* source, int num_inputs,
                       const float* x, int num_rows, const TestAdapter* adapters,
                       int num_adapters, const std::int32_t* numbers,
                       const std::int32_t* chosen, int num_chosen, float* y) {
  const int num_outputs = source->num_outputs;
  const int num_blocks = (num_outputs + kBlock - 1) / kBlock;
  MatrixSpec spec{nullptr, format, num_outputs, num_inputs, 0};
  SourceRows rows(source, 1, num_inputs);
  auto run = [&](auto adapter_format) {
    using Format = decltype(adapter_format);
    std::vector<typename Format::Weight> weights(spec.as<Format>().size());
    spec.weights = weights.data();
    for (int block = 0; block < num_blocks; ++block) {
      pack_block(spec.as<Format>(), rows, block, weights.data());
    }
    std::vector<Packed<Format>> packed(num_adapters);
    for (int i = 0; i < num_adapters; ++i) {
      const TestAdapter& from = adapters[i];
      Packed<Format>& to = packed[i];
      for (int rank = 0; rank < from.rank; rank += kBlock) {
        const int count = std::min(kBlock, from.rank - rank);
        pack_outputs<Format>(from.a + rank * num_inputs, num_inputs, count, num_inputs,
                             count <= Vec::kLanes ? Vec::kLanes : kBlock, to.shrink);
      }
      to.scales.assign(num_blocks * kBlock, 1.0f);
      if (from.scales) std::copy_n(from.scales, num_outputs, to.scales.begin());
      const int middle = (num_blocks + 1) / 2;
      std::size_t cut = 0;
      for (int block = 0; block < num_blocks; ++block) {
        if (block == middle) cut = to.expand.size();
        const int first = block < middle ? 0 : from.cut;
        const int end = block < middle ? from.cut : from.rank;
        pack_outputs<Format>(from.b + block * kBlock * from.rank + first, from.rank,
                             std::min(kBlock, num_outputs - block * kBlock), end - first, kBlock,
                             to.expand);
      }
      const float* scales = from.scales ? to.scales.data() : nullptr;
      to.expands = {{to.expand.data(), scales, 0, middle, 0, from.cut},
                    {to.expand.data() + cut, scales ? scales + middle * kBlock : nullptr, middle,
                     num_blocks - middle, from.cut, from.rank - from.cut}};
      to.addition = {to.shrink.data(), to.expands.data(), 2, from.rank, num_inputs};
    }
    std::vector<AdapterRun> runs;
    for (int row = 0; row < num_rows; ++row) {
      if (numbers[row] < 0) continue;
      if (row && numbers[row] == numbers[row - 1]) {
        ++runs.back().num_tokens;
      } else {
        runs.push_back({&packed[numbers[row]].addition, row, 1});
      }
    }
    const int stride = round_up(num_inputs, 2), count = chosen ? num_chosen : num_rows;
    std::vector<float> padded(static_cast<std::size_t>(count) * stride);
    for (int row = 0; row < count; ++row) {
      std::copy_n(x + (chosen ? chosen[row] : row) * num_inputs, num_inputs,
                  &padded[row * stride]);
    }
    Pool pool(num_threads);
    Pool::Step awake(pool);
    OperandBuffer buffer;
    Adapters added;
    added.begin(runs.data(), static_cast<int>(runs.size()), format, num_rows);
    Adapters some;
    if (chosen) some.select(added, chosen, num_chosen);
    const Rows all{padded.data(), stride, count};
    const Addition addition = (chosen ? some : added).shrink(pool, all, 0);
    multiply(pool, buffer, all,
             [&](int row, int first, int size, const float* values) {
               std::copy_n(values, size, y + row * num_outputs + first);
             },
             spec, addition);
  };
  if (format == kFloat32) return run(Float32Format());
  run(WidenedFormat());
}

}  // extern "C"
#pragma GCC visibility pop
