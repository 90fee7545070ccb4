// A door to whole steps of an encoder, for tests alone: it packs the matrices itself.
#include "encoder.h"
#include "layer_norm.h"
#include "pack.h"

using namespace trioserve;

namespace {

// Packs a matrix into memory that lives as long as `held`.
void pack(MatrixSpec& spec, std::vector<std::vector<std::uint8_t>>& held) {
  with_format(spec.format, [&](auto format) {
    using Format = decltype(format);
    using Weight = typename Format::Weight;
    auto matrix = spec.as<Format>();
    const int width = sizeof(Weight) == sizeof(float) ? 4 : 2;
    SourceSpec source{static_cast<const std::uint8_t*>(spec.weights), nullptr,
                      static_cast<std::int64_t>(spec.num_inputs) * width,
                      width == 4 ? kF32 : kBF16, spec.num_outputs};
    SourceRows rows(&source, 1, spec.num_inputs);
    held.emplace_back(matrix.size() * sizeof(Weight));
    auto* to = reinterpret_cast<Weight*>(held.back().data());
    for (int block = 0; block < matrix.num_blocks(); ++block) pack_block(matrix, rows, block, to);
    spec.weights = to;
  });
}

template <class Format>
void encode(int num_threads, EncoderSpec spec, const TextsSpec& texts) {
  std::vector<std::vector<std::uint8_t>> held;
  std::vector<EncoderLayerSpec> layers(spec.layers, spec.layers + spec.num_layers);
  for (EncoderLayerSpec& layer : layers) {
    for (MatrixSpec* matrix : {&layer.qkv, &layer.output, &layer.up, &layer.down}) {
      pack(*matrix, held);
    }
  }
  spec.layers = layers.data();
  Pool pool(num_threads);
  Encoder<Format>(spec).run(pool, texts);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void test_normalize_layer(float* x, const float* weight, const float* bias, int size,
                          float epsilon) {
  normalize_layer(x, weight, bias, size, epsilon);
}

// As trioserve_run_encoder, with rows of float32 or bfloat16 numbers for matrices.
void test_encode(int format, int num_threads, const EncoderSpec* spec, const TextsSpec* texts) {
  if (format == kFloat32) return encode<Float32Format>(num_threads, *spec, *texts);
  encode<Bfloat16Format>(num_threads, *spec, *texts);
}

}  // extern "C"
#pragma GCC visibility pop
