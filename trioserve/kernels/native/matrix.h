// Matrices whose format is known when the program runs, and their products.
#pragma once

#include <type_traits>
#include <vector>

#include "adapters.h"
#include "buffers.h"
#include "linear.h"

namespace trioserve {

enum FormatCode : std::int32_t {
  kFloat32, kBfloat16, kInt8, kInt4, kInt8Inputs16, kInt4Inputs16, kMxfp4Inputs16,
  kIq4Inputs16
};

// Calls body with the format that a code stands for.
template <class Body>
auto with_format(std::int32_t code, Body&& body) {
  switch (code) {
    case kFloat32: return body(Float32Format());
    case kBfloat16: return body(Bfloat16Format());
    case kInt8: return body(Int8Format());
    case kInt4: return body(Int4Format());
    case kInt8Inputs16: return body(Int8Inputs16Format());
    case kInt4Inputs16: return body(Int4Inputs16Format());
    case kMxfp4Inputs16: return body(Mxfp4Inputs16Format());
    default: return body(Iq4Inputs16Format());
  }
}

// A matrix, as Python fills it in. Sizes of null weights are 0.
struct MatrixSpec {
  const void* weights;
  std::int32_t format;
  std::int32_t num_outputs, num_inputs;
  std::int32_t group_size;
  const std::int32_t* columns;  // input j of the weights is number columns[j]; null: in order

  template <class Format>
  Matrix<Format> as() const {
    return {static_cast<const typename Format::Weight*>(weights), num_outputs, num_inputs,
            group_size};
  }
};

// Memory for the operands of one product at a time.
class OperandBuffer {
 public:
  // As the functions below; the values of a tile may be changed.
  //
  //   take(row, num_rows, first output, number of outputs, values, values of the other)
  template <class Take, class Format, class... Matrices>
  void multiply(Pool& pool, const Rows& x, const Take& take, const Matrix<Format>& matrix,
                const Matrices&... others);

  // Puts rows into the order of a matrix's inputs.
  Rows order(Pool& pool, const Rows& x, const MatrixSpec& spec);

 private:
  // Converts rows to the operands of a format; float32 operands are the rows themselves.
  // There is memory for the next multiple of kTileRows.
  template <class Format>
  Operands<Format> convert(Pool& pool, const Rows& x, const Matrix<Format>& matrix);
  template <class Format>
  auto convert_for_tiles(Pool& pool, const Rows& x, const Matrix<Format>& matrix);

  std::vector<std::uint8_t> bytes_;
  std::vector<InputGroup> groups_;
  std::vector<float> ordered_;
};

// Where the values of a product are written, `stride` numbers from row to row.
struct Destination {
  const float* first = nullptr;
  std::ptrdiff_t stride = 0;

  // Fetches what a tile is written to, before it is computed. A write that waits for memory
  // holds up all that follow, and with them the next tile.
  void fetch(int row, int num_rows, int output) const {
    if (!first) return;
    for (int r = row; r < row + num_rows; ++r) {
      const float* to = first + r * stride + output;
      for (int i = 0; i < kBlock; i += kLine) __builtin_prefetch(to + i, 1);
      __builtin_prefetch(to + kBlock - 1, 1);
    }
  }
  static constexpr int kLine = 64 / sizeof(float);
};

// Refers to what takes the values of a product; it must outlive this:
//
//   callable(row, first output, number of outputs, values of each matrix...)
//
// Products know no more of it, so they are compiled once and not for each caller. They call
// it through a pointer once for several rows.
class Finish {
 public:
  template <class Callable>
  Finish(const Callable& callable, Destination to = {})
      : object_(&callable), call_(call<Callable>), to_(to) {}

  void begin(int row, int num_rows, int first) const { to_.fetch(row, num_rows, first); }

  void operator()(int row, int num_rows, int first, int count, const float* values,
                  const float* others) const {
    call_(object_, row, num_rows, first, count, values, others);
  }

 private:
  template <class Callable>
  static void call(const void* object, int row, int num_rows, int first, int count,
                   const float* values, const float* others) {
    const auto& callable = *static_cast<const Callable*>(object);
    for (int r = 0; r < num_rows; ++r) {
      if constexpr (std::is_invocable_v<Callable, int, int, int, const float*>) {
        callable(row + r, first, count, values + r * kBlock);
      } else {
        callable(row + r, first, count, values + r * kBlock, others + r * kBlock);
      }
    }
  }

  const void* object_;
  void (*call_)(const void*, int, int, int, int, const float*, const float*);
  Destination to_;
};

// As multiply in linear.h. Two matrices have the same format, shape and columns.
//
//   addition: what adapters add to the values before they are finished
void multiply(Pool& pool, OperandBuffer& buffer, const Rows& x, Finish finish,
              const MatrixSpec& spec, const Addition& addition = {});
void multiply(Pool& pool, OperandBuffer& buffer, const Rows& x, Finish finish,
              const MatrixSpec& spec, const MatrixSpec& other, const Addition& addition = {},
              const Addition& other_addition = {});

}  // namespace trioserve
