// The sizes of the structures that Python fills in.

#include "decoder.h"
#include "encoder.h"
#include "exchange.h"
#include "logits.h"
#include "pack.h"

using namespace trioserve;

// Writes the sizes in the order of SPECS in structs.py, so that Python notices a library
// that was built from other sources.
extern "C" void trioserve_list_sizes(std::int32_t* to) {
  for (std::size_t size :
       {sizeof(MatrixSpec), sizeof(SourceSpec), sizeof(ExpertSpec), sizeof(MixtureSpec),
        sizeof(StateSpec), sizeof(LatentSpec), sizeof(AttentionSpec), sizeof(SublayerSpec),
        sizeof(DecoderSpec), sizeof(StepSpec), sizeof(EncoderLayerSpec), sizeof(EncoderSpec),
        sizeof(TextsSpec), sizeof(LogitsSpec), sizeof(ExchangeSpec)}) {
    *to++ = static_cast<std::int32_t>(size);
  }
}
