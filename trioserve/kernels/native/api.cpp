// The functions that Python calls, by pointers and sizes.
//
// ctypes releases the interpreter's lock around each call. There is no ABI to match besides
// C's: neither Python's nor torch's headers are needed.

#include "decoder.h"
#include "pack.h"

using namespace trioserve;

namespace {

enum FormatCode : std::int32_t { kFloat32 = 0, kBfloat16 = 1 };

// Calls body with the format that a code stands for.
template <class Body>
auto with_format(std::int32_t code, Body&& body) {
  return code == kFloat32 ? body(Float32Format()) : body(Bfloat16Format());
}

struct AnyDecoder {
  virtual ~AnyDecoder() = default;
  virtual void run(Pool& pool, const StepSpec& step) = 0;
};

template <class Format>
struct DecoderOf : AnyDecoder {
  explicit DecoderOf(const DecoderSpec& spec) : decoder(spec) {}
  void run(Pool& pool, const StepSpec& step) override { decoder.run(pool, step); }
  Decoder<Format> decoder;
};

}  // namespace

extern "C" {

Pool* trioserve_open_pool(std::int32_t num_threads) { return new Pool(num_threads); }
void trioserve_close_pool(Pool* pool) { delete pool; }

std::int64_t trioserve_count_packed(std::int32_t format, std::int32_t num_outputs,
                                    std::int32_t num_inputs) {
  return with_format(format, [&](auto f) -> std::int64_t {
    return Matrix<decltype(f)>{nullptr, num_outputs, num_inputs}.size();
  });
}

void trioserve_pack(Pool* pool, std::int32_t format, const void* from, std::int64_t stride,
                    std::int32_t num_outputs, std::int32_t num_inputs, void* to) {
  with_format(format, [&](auto f) {
    using Format = decltype(f);
    using Weight = typename Format::Weight;
    Matrix<Format> matrix{nullptr, num_outputs, num_inputs};
    Pool::Step awake(*pool);
    pool->run(matrix.num_blocks(), [&](int block, int) {
      pack(matrix, static_cast<const Weight*>(from), stride, static_cast<Weight*>(to), block,
           block + 1);
    });
  });
}

// Numbers of one block of a layer's KV cache.
std::int64_t trioserve_count_cache(const DecoderSpec* spec) {
  AttentionShape shape{};
  shape.num_kv_heads = spec->num_kv_heads;
  shape.key_dim = spec->key_dim;
  shape.value_dim = spec->value_dim;
  shape.block_size = spec->block_size;
  return shape.block_numbers();
}

AnyDecoder* trioserve_open_decoder(std::int32_t format, const DecoderSpec* spec) {
  return with_format(format, [&](auto f) -> AnyDecoder* {
    return new DecoderOf<decltype(f)>(*spec);
  });
}
void trioserve_close_decoder(AnyDecoder* decoder) { delete decoder; }

void trioserve_run_decoder(Pool* pool, AnyDecoder* decoder, const StepSpec* step) {
  decoder->run(*pool, *step);
}

}  // extern "C"
