// The products of all formats, which take the compiler the longest.

#include "matrix.h"
#include "tile_products.h"
#include "tokens.h"

namespace trioserve {

Rows OperandBuffer::order(Pool& pool, const Rows& x, const MatrixSpec& spec) {
  if (!spec.columns) return x;
  const std::ptrdiff_t size = spec.num_inputs;
  fit(ordered_, x.num_rows * size);
  run_tokens(pool, x.num_rows, [&](std::ptrdiff_t row) {
    const float* from = x.first + row * x.stride;
    float* to = ordered_.data() + row * size;
    for (int j = 0; j < size; ++j) to[j] = from[spec.columns[j]];
  });
  return {ordered_.data(), size, x.num_rows};
}

template <class Format>
Operands<Format> OperandBuffer::convert(Pool& pool, const Rows& x, const Matrix<Format>& matrix) {
  using Operand = typename Format::Operand;
  if constexpr (std::is_same_v<Operand, float>) {
    return {x.first, x.stride, x.num_rows};
  } else {
    const int num_groups = Format::kIsQuantised ? matrix.num_groups() : 0;
    const std::ptrdiff_t stride = Format::kIsQuantised
                                      ? num_groups * matrix.group_size
                                      : round_up(matrix.num_inputs, Format::kInputs);
    const std::ptrdiff_t num_rows = round_up(x.num_rows, kTileRows);
    fit(bytes_, num_rows * stride * sizeof(Operand));
    fit(groups_, num_rows * num_groups);
    auto* to = reinterpret_cast<Operand*>(bytes_.data());
    run_tokens(pool, x.num_rows, [&](std::ptrdiff_t row) {
      const float* from = x.first + row * x.stride;
      if constexpr (Format::kIsQuantised) {
        quantise_row(from, matrix.num_inputs, matrix.group_size, stride, to + row * stride,
                     &groups_[row * num_groups], Format::kLargest);
      } else {
        trioserve::convert(from, static_cast<int>(stride), to + row * stride);
      }
    });
    return {to, stride, x.num_rows, groups_.data()};
  }
}

#if defined(TRIOSERVE_TILES)

template <class Format>
auto OperandBuffer::convert_for_tiles(Pool& pool, const Rows& x, const Matrix<Format>& matrix) {
  if constexpr (Format::kIsQuantised) {
    using Operand = typename Format::Operand;
    const Operands<Format> operands = convert(pool, x, matrix);
    if constexpr (sizeof(Operand) == 2) {
      run_tokens(pool, x.num_rows, [&](std::ptrdiff_t row) {
        cut_codes<Format>(reinterpret_cast<Operand*>(bytes_.data()) + row * operands.stride,
                          operands.stride, matrix.group_size);
      });
    }
    return operands;
  } else {
    const int size = matrix.num_inputs;
    const std::ptrdiff_t stride = round_up(size, kTileInputs);
    fit(bytes_, round_up(x.num_rows, kTileRows) * stride * sizeof(Bfloat16));
    auto* to = reinterpret_cast<Bfloat16*>(bytes_.data());
    run_tokens(pool, x.num_rows, [&](std::ptrdiff_t row) {
      trioserve::convert(x.first + row * x.stride, size, to + row * stride);
      std::fill(to + row * stride + size, to + (row + 1) * stride, 0);
    });
    return TileOperands{to, stride, x.num_rows};
  }
}

#endif

template <class Take, class Format, class... Matrices>
void OperandBuffer::multiply(Pool& pool, const Rows& x, const Take& take,
                             const Matrix<Format>& matrix, const Matrices&... others) {
#if defined(TRIOSERVE_TILES)
  if constexpr (kTakesTiles<Format>) {
    if (has_tiles && x.num_rows >= kFewestTileRows<Format> &&
        matrix.group_size <= kMaxTileGroup) {
      multiply_by_tiles(pool, convert_for_tiles(pool, x, matrix), take, matrix, others...);
      return;
    }
  }
#endif
  trioserve::multiply(pool, convert(pool, x, matrix), take, matrix, others...);
}

namespace {

// Finishes the tiles of a product, after adapters have added to them.
struct FinishTile {
  const Finish& finish;
  const Addition& addition;
  const Addition& other_addition;

  void begin(int row, int num_rows, int first) const {
    finish.begin(row, num_rows, first);
    addition.fetch(row, num_rows, first);
    other_addition.fetch(row, num_rows, first);
  }
  void operator()(int row, int num_rows, int first, int count, float* values,
                  float* others) const {
    addition.add(row, num_rows, first, values);
    other_addition.add(row, num_rows, first, others);
    finish(row, num_rows, first, count, values, others);
  }
};

}  // namespace

void multiply(Pool& pool, OperandBuffer& buffer, const Rows& x, Finish finish,
              const MatrixSpec& spec, const Addition& addition) {
  const Rows ordered = buffer.order(pool, x, spec);
  with_format(spec.format, [&](auto format) {
    buffer.multiply(pool, ordered, FinishTile{finish, addition, {}}, spec.as<decltype(format)>());
  });
}

void multiply(Pool& pool, OperandBuffer& buffer, const Rows& x, Finish finish,
              const MatrixSpec& spec, const MatrixSpec& other, const Addition& addition,
              const Addition& other_addition) {
  const Rows ordered = buffer.order(pool, x, spec);
  with_format(spec.format, [&](auto format) {
    using Format = decltype(format);
    buffer.multiply(pool, ordered, FinishTile{finish, addition, other_addition}, spec.as<Format>(),
                    other.as<Format>());
  });
}

}  // namespace trioserve
