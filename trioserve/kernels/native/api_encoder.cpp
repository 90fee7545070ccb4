// The functions of encoders that Python calls; api.cpp has the others.

#include "encoder.h"

using namespace trioserve;

namespace {

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

extern "C" {

// format: of attention, kFloat32 or kBfloat16
AnyEncoder* trioserve_open_encoder(std::int32_t format, const EncoderSpec* spec) {
  if (format == kFloat32) return new EncoderOf<Float32Format>(*spec);
  return new EncoderOf<Bfloat16Format>(*spec);
}
void trioserve_close_encoder(AnyEncoder* encoder) { delete encoder; }

void trioserve_run_encoder(Pool* pool, AnyEncoder* encoder, const TextsSpec* texts) {
  encoder->run(*pool, *texts);
}

}  // extern "C"
