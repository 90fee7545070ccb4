// The functions that Python calls, by pointers and sizes.
//
// ctypes releases the interpreter's lock around each call. There is no ABI to match besides
// C's: neither Python's nor torch's headers are needed.

#include "decoder.h"
#include "encoder.h"
#include "exchange.h"
#include "logits.h"
#include "pack.h"

using namespace trioserve;

namespace {

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

struct AnyEncoder {
  virtual ~AnyEncoder() = default;
  virtual void run(Pool& pool, const TextsSpec& texts) = 0;
};

template <class Format>
struct EncoderOf : AnyEncoder {
  explicit EncoderOf(const EncoderSpec& spec) : encoder(spec) {}
  void run(Pool& pool, const TextsSpec& texts) override { encoder.run(pool, texts); }
  Encoder<Format> encoder;
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Lets products use tiles, which the system has given to this process. Returns 0 if they were
// not compiled.
std::int32_t trioserve_use_tiles() {
#if defined(TRIOSERVE_TILES)
  has_tiles = true;
  return 1;
#else
  return 0;
#endif
}

Pool* trioserve_open_pool(std::int32_t num_threads) { return new Pool(num_threads); }
void trioserve_close_pool(Pool* pool) { delete pool; }

// Outputs of a packed block.
std::int32_t trioserve_count_outputs() { return kBlock; }

// Bytes of a packed matrix.
std::int64_t trioserve_count_packed(const MatrixSpec* spec) {
  return with_format(spec->format, [&](auto format) -> std::int64_t {
    using Format = decltype(format);
    return spec->as<Format>().size() * static_cast<std::int64_t>(sizeof(typename Format::Weight));
  });
}

// Packs the rows of sources, one after the other. Quantised formats take those of the same
// or a larger group, and int8 numbers, too.
void trioserve_pack(Pool* pool, const MatrixSpec* spec, const SourceSpec* sources,
                    std::int32_t num_sources, void* to) {
  SourceRows rows(sources, num_sources, spec->num_inputs);
  with_format(spec->format, [&](auto format) {
    using Format = decltype(format);
    auto matrix = spec->as<Format>();
    Pool::Step awake(*pool);
    pool->run(matrix.num_blocks(), [&](int block, int) {
      pack_block(matrix, rows, block, static_cast<typename Format::Weight*>(to));
    });
  });
}

// Writes the rows of a source as numbers.
//
//   format: kFloat32 or kBfloat16
//   to: (num_outputs, num_inputs)
void trioserve_restore(Pool* pool, const SourceSpec* source, std::int32_t num_inputs,
                       std::int32_t format, void* to) {
  constexpr int kRows = 32;
  const SourceRows rows(source, 1, num_inputs);
  const auto restore = [&](auto* numbers) {
    Pool::Step awake(*pool);
    pool->run((source->num_outputs + kRows - 1) / kRows, [&](int i, int) {
      const int begin = i * kRows, end = std::min(begin + kRows, source->num_outputs);
      restore_rows(rows, begin, end, num_inputs,
                   numbers + static_cast<std::ptrdiff_t>(begin) * num_inputs);
    });
  };
  if (format == kFloat32) return restore(static_cast<float*>(to));
  restore(static_cast<Bfloat16*>(to));
}

// Reads blocks of a packed matrix, in the calling thread.
//
//   to: (outputs of these blocks, num_inputs)
void trioserve_unpack(const MatrixSpec* spec, std::int32_t first_block, std::int32_t last_block,
                      float* to) {
  with_format(spec->format, [&](auto format) {
    const auto matrix = spec->as<decltype(format)>();
    for (int block = first_block; block < last_block; ++block) {
      unpack_block(matrix, spec->columns, block, to);
      to += static_cast<std::ptrdiff_t>(kBlock) * spec->num_inputs;
    }
  });
}

// Numbers of one block of a layer's KV cache, in one of the formats of open_decoder.
std::int64_t trioserve_count_block(std::int32_t format, const AttentionSpec* spec,
                                   std::int32_t block_size) {
  const AttentionShape shape = shape_of(*spec, block_size);
  if (format == kInt8) return shape.block_numbers<Int8CacheFormat>();
  return shape.block_numbers<Float32Format>();
}

// Numbers of one slot of a layer's states.
std::int64_t trioserve_count_state(const StateSpec* spec) { return spec->size(); }

// format: of the cache, kFloat32, kBfloat16 or kInt8
AnyDecoder* trioserve_open_decoder(std::int32_t format, const DecoderSpec* spec) {
  if (format == kFloat32) return new DecoderOf<Float32Format>(*spec);
  if (format == kInt8) return new DecoderOf<Int8CacheFormat>(*spec);
  return new DecoderOf<Bfloat16Format>(*spec);
}
void trioserve_close_decoder(AnyDecoder* decoder) { delete decoder; }

void trioserve_run_decoder(Pool* pool, AnyDecoder* decoder, const StepSpec* step) {
  decoder->run(*pool, *step);
}

// format: of attention, kFloat32 or kBfloat16
AnyEncoder* trioserve_open_encoder(std::int32_t format, const EncoderSpec* spec) {
  if (format == kFloat32) return new EncoderOf<Float32Format>(*spec);
  return new EncoderOf<Bfloat16Format>(*spec);
}
void trioserve_close_encoder(AnyEncoder* encoder) { delete encoder; }

void trioserve_run_encoder(Pool* pool, AnyEncoder* encoder, const TextsSpec* texts) {
  encoder->run(*pool, *texts);
}

// Writes the sizes in the order of SPECS in structs.py, so that Python notices a library
// that was built from other sources.
void trioserve_list_sizes(std::int32_t* to) {
  for (std::size_t size :
       {sizeof(MatrixSpec), sizeof(SourceSpec), sizeof(ExpertSpec), sizeof(MixtureSpec),
        sizeof(StateSpec), sizeof(LatentSpec), sizeof(AttentionSpec), sizeof(SublayerSpec),
        sizeof(DecoderSpec), sizeof(ExpandSpec), sizeof(AdditionSpec), sizeof(AdapterRun),
        sizeof(StepSpec), sizeof(EncoderLayerSpec), sizeof(EncoderSpec), sizeof(TextsSpec),
        sizeof(LogitsSpec), sizeof(ExchangeSpec)}) {
    *to++ = static_cast<std::int32_t>(size);
  }
}

}  // extern "C"
#pragma GCC visibility pop
