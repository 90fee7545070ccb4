// The layers of an encoder of BERT's kind, run over some texts of any lengths.
//
//     hidden -> Q, K, V -> attention within each text -> O -> + hidden -> norm
//            -> up -> activation -> down -> + hidden -> norm
//
// Source: Devlin et al. 2019 (BERT), with the layers of Vaswani et al. 2017.
//
// Texts lie one behind the other, without padding. Hidden states are float32 throughout,
// whatever the type of the weights.
#pragma once

#include <vector>

#include "matrix.h"
#include "step_attention.h"

namespace trioserve {

// One layer, as Python fills it in. Everything but matrices is float32.
struct EncoderLayerSpec {
  MatrixSpec qkv;              // 3 * num_heads * head_dim outputs
  MatrixSpec output;
  MatrixSpec up;
  MatrixSpec down;
  const float* qkv_bias;
  const float* output_bias;    // (hidden_size,), as all that follow except up_bias
  const float* attention_norm;
  const float* attention_norm_bias;
  const float* up_bias;        // (intermediate_size,)
  const float* down_bias;
  const float* output_norm;
  const float* output_norm_bias;
};

struct EncoderSpec {
  const EncoderLayerSpec* layers;
  // hidden_size and head_dim are multiples of 2.
  std::int32_t num_layers, hidden_size, intermediate_size, num_heads, head_dim, activation;
  float epsilon, scaling;
};

struct TextsSpec {
  float* hidden;              // (num_tokens, hidden_size), replaced by the last layer's
  const std::int32_t* texts;  // (num_texts, 2): tokens, and how many of them are keys
  std::int32_t num_tokens, num_texts;
};

// Format is that of attention. Each matrix has a format of its own.
template <class Format>
class Encoder {
 public:
  explicit Encoder(const EncoderSpec& spec);

  void run(Pool& pool, const TextsSpec& texts);

 private:
  void prepare(Pool& pool, const TextsSpec& texts);
  void run_layer(Pool& pool, const EncoderLayerSpec& layer, const TextsSpec& texts);
  void place_token(int token);
  void activate_product(Pool& pool, const EncoderLayerSpec& layer, const Rows& hidden);
  void add_product(Pool& pool, const TextsSpec& texts, const float* x, const MatrixSpec& matrix,
                   const float* bias);
  void normalize(Pool& pool, const TextsSpec& texts, const float* weight, const float* bias);

  int attended_size() const { return spec_.num_heads * spec_.head_dim; }

  EncoderSpec spec_;
  AttentionShape shape_;
  std::vector<StepRow> rows_;
  std::vector<int> row_of_token_;
  std::vector<std::int64_t> blocks_;
  std::vector<float> qkv_, attended_, activated_;
  std::vector<typename Format::Operand> queries_;
  OperandBuffer operands_;
  // The keys and values of one layer, in blocks like those of a decoder's cache.
  std::vector<typename Format::Weight> cache_;
  StepAttention<Format> attention_;
};

}  // namespace trioserve
