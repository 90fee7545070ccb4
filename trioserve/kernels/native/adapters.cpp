// The products of adapters, for each of their formats.

#include "adapters.h"

#include <algorithm>

#include "matrix.h"

namespace trioserve {
namespace {

constexpr int kLineBytes = 64;
// Fetched before it is read, by a shrink.
constexpr int kAheadBytes = 4096;

// Rows of one piece: they are read again for each block, from L2.
constexpr int kRowsOfPiece = 8 * kMaxRows;

// Calls body with the format of an adapter's numbers.
template <class Body>
void with_adapter_format(std::int32_t code, Body&& body) {
  if (code == kFloat32) return body(Float32Format());
  body(WidenedFormat());
}

// sums += x times a block, for any number of rows.
//
//   from: gives the sums of a row when it begins, if there are some
//   to: (num_rows, to_stride)
template <class Format, int V, bool kHasSums>
void multiply_tile(const float* x, std::ptrdiff_t stride, int num_rows,
                   const typename Format::Weight* weights, int num_steps, float* to,
                   std::ptrdiff_t to_stride) {
  with_rows(num_rows, [&](auto constant) {
    constexpr int R = decltype(constant)::value;
    Vec sums[R][V] = {};
    if constexpr (kHasSums) {
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) sums[r][v] = Vec::load(to + r * to_stride + v * Vec::kLanes);
      }
    }
    const int width = V * Vec::kLanes;
    if constexpr (kHasSums) {
      multiply_block<Format, R, V>(x, stride, weights, width, num_steps, sums);
    } else {
      // Each adapter has few rows, so that memory decides. A step reads a line.
      const auto* next = reinterpret_cast<const char*>(weights) + kAheadBytes;
      const std::ptrdiff_t step_bytes = width * Format::kInputs * sizeof(*weights);
      multiply_block<Format, R, V>(x, stride, weights, width, num_steps, sums,
                                   Ahead{next, step_bytes});
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) sums[r][v].store(to + r * to_stride + v * Vec::kLanes);
    }
  });
}

template <class Format>
int count_steps(int num_inputs) {
  return (num_inputs + Format::kInputs - 1) / Format::kInputs;
}

}  // namespace

void Adapters::begin(const AdapterRun* runs, int num_runs, std::int32_t format, int num_tokens) {
  format_ = format;
  runs_.clear();
  if (!num_runs) return;
  of_row_.assign(num_tokens, nullptr);
  for (const AdapterRun* run = runs; run < runs + num_runs; ++run) {
    runs_.push_back({run->additions, run->first_token, run->num_tokens});
    std::fill_n(of_row_.begin() + run->first_token, run->num_tokens, run->additions);
  }
}

void Adapters::select(const Adapters& all, const std::int32_t* tokens, int num_tokens) {
  format_ = all.format_;
  runs_.clear();
  if (all.runs_.empty()) return;
  of_row_.clear();
  for (int row = 0; row < num_tokens; ++row) {
    const AdditionSpec* additions = all.of_row_[tokens[row]];
    const bool continues = row && additions == of_row_.back();
    of_row_.push_back(additions);
    if (!additions) continue;
    if (continues) {
      ++runs_.back().num_rows;
    } else {
      runs_.push_back({additions, row, 1});
    }
  }
}

Addition Adapters::shrink(Pool& pool, const Rows& x, int product) {
  pieces_.clear();
  int rank = 0;
  for (const Run& run : runs_) {
    const AdditionSpec& addition = run.additions[product];
    if (!addition.shrink) continue;
    rank = std::max(rank, addition.rank);
    const int num_blocks = (addition.rank + kBlock - 1) / kBlock;
    for (int done = 0; done < run.num_rows; done += kRowsOfPiece) {
      const int count = std::min(kRowsOfPiece, run.num_rows - done);
      for (int block = 0; block < num_blocks; ++block) {
        pieces_.push_back({&addition, run.first_row + done, count, block});
      }
    }
  }
  if (pieces_.empty()) return {};
  stride_ = round_up(rank, kBlock);
  fit(shrunk_, x.num_rows * stride_);
  with_adapter_format(format_, [&](auto format) { shrink_as<decltype(format)>(pool, x); });
  return {this, product, 0};
}

template <class Format>
void Adapters::shrink_as(Pool& pool, const Rows& x) {
  pool.run(static_cast<int>(pieces_.size()), [&](int i, int) {
    const Piece& piece = pieces_[i];
    const AdditionSpec& addition = *piece.addition;
    const int num_steps = count_steps<Format>(addition.num_inputs);
    const auto* weights = static_cast<const typename Format::Weight*>(addition.shrink) +
                          static_cast<std::ptrdiff_t>(piece.block) * num_steps *
                              Format::kInputs * kBlock;
    const bool is_narrow = addition.rank - piece.block * kBlock <= Vec::kLanes;
    for (int done = 0; done < piece.num_rows; done += kMaxRows) {
      const std::ptrdiff_t row = piece.first_row + done;
      const int count = std::min(kMaxRows, piece.num_rows - done);
      const float* from = x.first + row * x.stride;
      float* to = &shrunk_[row * stride_ + piece.block * kBlock];
      if (is_narrow) {
        multiply_tile<Format, 1, false>(from, x.stride, count, weights, num_steps, to, stride_);
      } else {
        multiply_tile<Format, kVecs, false>(from, x.stride, count, weights, num_steps, to,
                                            stride_);
      }
    }
  });
}

template <class Body>
void Adapters::for_runs(const Addition& addition, int row, int num_rows, int first_output,
                        Body&& body) const {
  const int block = addition.first_block + first_output / kBlock;
  for (int begin = row, end; begin < row + num_rows; begin = end) {
    const AdditionSpec* additions = of_row_[begin];
    const int last = std::min(begin + kMaxRows, row + num_rows);
    for (end = begin + 1; end < last && of_row_[end] == additions; ++end) {
    }
    if (!additions || !additions[addition.product].shrink) continue;
    const AdditionSpec& own = additions[addition.product];
    const ExpandSpec* expand = own.expands;
    while (expand < own.expands + own.num_expands &&
           block >= expand->first_block + expand->num_blocks) {
      ++expand;
    }
    if (expand == own.expands + own.num_expands || block < expand->first_block) continue;
    body(begin, end - begin, *expand, block - expand->first_block);
  }
}

void Adapters::fetch(const Addition& addition, int row, int num_rows, int first_output) const {
  const std::ptrdiff_t size = kBlock * (format_ == kFloat32 ? sizeof(float) : sizeof(Bfloat16));
  for_runs(addition, row, num_rows, first_output,
           [&](int, int, const ExpandSpec& expand, int block) {
             const std::ptrdiff_t bytes = expand.num_ranks * size;
             const char* begin = static_cast<const char*>(expand.weights) + block * bytes;
             for (const char* each = begin; each < begin + bytes; each += kLineBytes) {
               _mm_prefetch(each, _MM_HINT_T0);
             }
           });
}

void Adapters::add(const Addition& addition, int row, int num_rows, int first_output,
                   float* values) const {
  with_adapter_format(format_, [&](auto format) {
    add_as<decltype(format)>(addition, row, num_rows, first_output, values);
  });
}

template <class Format>
void Adapters::add_as(const Addition& addition, int row, int num_rows, int first_output,
                      float* values) const {
  for_runs(addition, row, num_rows, first_output,
           [&](int begin, int count, const ExpandSpec& expand, std::ptrdiff_t block) {
             float* to = values + (begin - row) * kBlock;
             if (expand.scales) {
               const float* scales = expand.scales + block * kBlock;
               for (int i = 0; i < count * kBlock; ++i) to[i] *= scales[i % kBlock];
             }
             const auto* weights = static_cast<const typename Format::Weight*>(expand.weights) +
                                   block * expand.num_ranks * kBlock;
             multiply_tile<Format, kVecs, true>(&shrunk_[begin * stride_ + expand.first_rank],
                                                stride_, count, weights,
                                                count_steps<Format>(expand.num_ranks), to, kBlock);
           });
}

}  // namespace trioserve
