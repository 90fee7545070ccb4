// What adapters of low rank add to products, for the tokens that have one.
//
//     y = x W^T                              the product, whatever its format
//     z = x A^T                              shrink: a region of its own, before the product
//     y = y * scales + z B^T                 expand: for each tile of y, before it is finished
//
// B has the factors of the adapter and of `scales`. Products that are read together have the
// rows of their A's one after the other, so that one region shrinks for all. B is cut into the
// blocks of outputs of W. A block knows which numbers of z it reads:
//
//     outputs     | q q q q q | k k | v v |        blocks of q read the first rank, and so on
//     z           | rank of q | rank of k | rank of v |
//
// Inputs are not rounded, and the numbers of z are float32. A and B are float32 or bfloat16.
//
// Source: Hu et al. 2021 (LoRA); Liu et al. 2024 (DoRA), section 4, for scales; Chen et al. 2023
// (Punica), for rows of several adapters in one product.
#pragma once

#include <cstdint>
#include <vector>

#include "buffers.h"
#include "packed.h"
#include "pool.h"

namespace trioserve {

// Rows of float32 numbers, which products read. Two numbers beyond the inputs may be read;
// they must be finite.
struct Rows {
  const float* first;
  std::ptrdiff_t stride;
  int num_rows;
};

// Blocks of outputs that follow each other, and read the same numbers of z. Ranks are multiples
// of kInputs of their format.
struct ExpandSpec {
  const void* weights;  // (num_blocks, num_ranks, kBlock), packed as blocks of a matrix are
  const float* scales;  // (num_blocks, kBlock) factors of the product, or null
  std::int32_t first_block, num_blocks;
  std::int32_t first_rank, num_ranks;
};

// One adapter's part in one product, which may be of several matrices.
struct AdditionSpec {
  // (rank, num_inputs), packed; null: it adds nothing. Blocks of kBlock ranks follow each other;
  // the last one has half as many if those are enough.
  const void* shrink;
  // (num_expands,) of all matrices, one after the other, in order; blocks between them get nothing.
  const ExpandSpec* expands;
  std::int32_t num_expands;
  std::int32_t rank, num_inputs;
};

// Tokens that follow each other, and have the same adapter.
struct AdapterRun {
  // Of each product: kNumProducts for each sublayer, the head, and those of mixtures
  // (MixtureProduct in experts.h).
  const AdditionSpec* additions;
  std::int32_t first_token, num_tokens;
};

// The products of a sublayer that adapters may add to.
enum SublayerProduct { kInputProduct, kMiddleProduct, kOutputProduct, kNumProducts };

class Adapters;

// What the adapters of a step add to one matrix; nothing, if there are none.
struct Addition {
  const Adapters* adapters = nullptr;
  int product = 0;
  int first_block = 0;  // of the matrix, among the blocks of its product

  // Fetches what `add` will read.
  inline void fetch(int row, int num_rows, int first_output) const;

  // Adds to the values of one tile, (num_rows, kBlock).
  inline void add(int row, int num_rows, int first_output, float* values) const;

  // Of the matrix behind this one.
  Addition skip(int num_outputs) const {
    return {adapters, product, first_block + (num_outputs + kBlock - 1) / kBlock};
  }
};

class Adapters {
 public:
  // Takes the adapters of a step. Runs are in order; tokens between them have none.
  //
  //   format: of A and B, kFloat32 or kBfloat16
  void begin(const AdapterRun* runs, int num_runs, std::int32_t format, int num_tokens);

  // Takes the rows of some tokens of a step.
  //
  //   all: of the step
  void select(const Adapters& all, const std::int32_t* tokens, int num_tokens);

  // Computes z for a product.
  //
  //   x: of all tokens; not read if no adapter adds to the product
  Addition shrink(Pool& pool, const Rows& x, int product);

  void fetch(const Addition& addition, int row, int num_rows, int first_output) const;
  void add(const Addition& addition, int row, int num_rows, int first_output,
           float* values) const;

 private:
  template <class Format>
  void shrink_as(Pool& pool, const Rows& x);
  template <class Format>
  void add_as(const Addition& addition, int row, int num_rows, int first_output,
              float* values) const;

  // Calls body(first row, rows, expand, block of it) for the rows of each adapter, kMaxRows at
  // most.
  template <class Body>
  void for_runs(const Addition& addition, int row, int num_rows, int first_output,
                Body&& body) const;

  struct Run {
    const AdditionSpec* additions;
    int first_row, num_rows;
  };
  struct Piece {
    const AdditionSpec* addition;
    int first_row, num_rows, block;
  };

  std::int32_t format_ = 0;
  std::vector<Run> runs_;
  std::vector<const AdditionSpec*> of_row_;  // the additions of a row's adapter, or null
  std::vector<Piece> pieces_;
  std::vector<float> shrunk_;  // (rows, stride_)
  std::ptrdiff_t stride_ = 0;
};

inline void Addition::fetch(int row, int num_rows, int first_output) const {
  if (adapters) adapters->fetch(*this, row, num_rows, first_output);
}

inline void Addition::add(int row, int num_rows, int first_output, float* values) const {
  if (adapters) adapters->add(*this, row, num_rows, first_output, values);
}

}  // namespace trioserve
