// Matrices whose format is known when the program runs, and their products.
#pragma once

#include <type_traits>
#include <vector>

#include "buffers.h"
#include "linear.h"
#include "tokens.h"

namespace trioserve {

enum FormatCode : std::int32_t {
  kFloat32, kBfloat16, kInt8, kInt4, kInt8Inputs16, kInt4Inputs16
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
    default: return body(Int4Inputs16Format());
  }
}

// A matrix, as Python fills it in. Sizes of null weights are 0.
struct MatrixSpec {
  const void* weights;
  std::int32_t format;
  std::int32_t num_outputs, num_inputs;
  std::int32_t group_size;

  template <class Format>
  Matrix<Format> as() const {
    return {static_cast<const typename Format::Weight*>(weights), num_outputs, num_inputs,
            group_size};
  }
};

// Rows of float32 numbers, which products read. Two numbers beyond the inputs may be read;
// they must be finite.
struct Rows {
  const float* first;
  std::ptrdiff_t stride;
  int num_rows;
};

// Memory for the operands of one product at a time.
class OperandBuffer {
 public:
  // Converts rows to the operands of a format; float32 operands are the rows themselves.
  template <class Format>
  Operands<Format> convert(Pool& pool, const Rows& x, const Matrix<Format>& matrix) {
    using Operand = typename Format::Operand;
    if constexpr (std::is_same_v<Operand, float>) {
      return {x.first, x.stride, x.num_rows};
    } else {
      const int num_groups = Format::kIsQuantised ? matrix.num_groups() : 0;
      const std::ptrdiff_t stride = Format::kIsQuantised
                                        ? num_groups * matrix.group_size
                                        : round_up(matrix.num_inputs, Format::kInputs);
      fit(bytes_, x.num_rows * stride * sizeof(Operand));
      fit(groups_, static_cast<std::ptrdiff_t>(x.num_rows) * num_groups);
      auto* to = reinterpret_cast<Operand*>(bytes_.data());
      run_tokens(pool, x.num_rows, [&](std::ptrdiff_t row) {
        const float* from = x.first + row * x.stride;
        if constexpr (Format::kIsQuantised) {
          quantise_row(from, matrix.num_inputs, matrix.group_size, stride, to + row * stride,
                       &groups_[row * num_groups]);
        } else {
          trioserve::convert(from, static_cast<int>(stride), to + row * stride);
        }
      });
      return {to, stride, x.num_rows, groups_.data()};
    }
  }

 private:
  std::vector<std::uint8_t> bytes_;
  std::vector<InputGroup> groups_;
};

// As multiply in linear.h. The matrices have the same format and shape.
template <class Finish, class... Specs>
void multiply(Pool& pool, OperandBuffer& buffer, const Rows& x, Finish&& finish,
              const MatrixSpec& spec, const Specs&... others) {
  with_format(spec.format, [&](auto format) {
    using Format = decltype(format);
    auto matrix = spec.as<Format>();
    multiply(pool, buffer.convert(pool, x, matrix), finish, matrix,
             others.template as<Format>()...);
  });
}

}  // namespace trioserve
