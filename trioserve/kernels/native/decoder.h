// The layers of a decoder, run over one step.
//
//     hidden -> norm -> Q, K, V -> rotary -> cache -> attention -> O -> + hidden
//            -> norm -> gate, up -> activation -> down -> + hidden
//
// Hidden states are float32 throughout, whatever the type of the weights.
#pragma once

#include <vector>

#include "attention.h"
#include "linear.h"

namespace trioserve {

// One layer, as Python fills it in. Null pointers are parts that the model does not have.
// Matrices are packed; everything else is float32.
struct LayerSpec {
  const float* input_norm;           // (hidden_size,)
  const void* qkv;                   // (num_heads + 2 num_kv_heads) * dims outputs
  const float* qkv_bias;
  const float* query_norm;           // (key_dim,)
  const float* key_norm;
  const float* cos;                  // (max positions, rotary_dim)
  const float* sin;
  const float* sinks;                // (num_heads,)
  const void* output;
  const float* output_bias;
  const float* attention_post_norm;  // before the residual is added
  const float* mlp_norm;
  const void* gate;
  const void* up;
  const void* down;
  const float* mlp_post_norm;
  void* cache;
  float scaling;
  float softcap;
  std::int32_t window;
  std::int32_t unused;
};

struct DecoderSpec {
  const LayerSpec* layers;
  const float* final_norm;  // null: the model's last layers are elsewhere
  const void* head;
  std::int32_t num_layers, hidden_size, intermediate_size, vocab_size;
  std::int32_t num_heads, num_kv_heads, key_dim, value_dim, rotary_dim, block_size;
  std::int32_t activation;
  float epsilon;
  float logit_softcap;
  std::int32_t unused;
};

struct StepSpec {
  float* hidden;  // (num_tokens, hidden_size), replaced by the output of the last layer
  const std::int64_t* blocks;          // (slots, max_blocks)
  const std::int32_t* rows;            // (num_rows, 4): first token, tokens, start, slot
  const std::int32_t* wanted;          // (num_wanted,) tokens whose logits are wanted
  float* logits;                       // (num_wanted, vocab_size)
  std::int32_t num_tokens, num_rows, num_wanted, max_blocks;
};

template <class Format>
class Decoder {
 public:
  explicit Decoder(const DecoderSpec& spec) : spec_(spec) {}

  void run(Pool& pool, const StepSpec& step);

 private:
  using Operand = typename Format::Operand;

  void prepare(const StepSpec& step);
  void run_layer(Pool& pool, const LayerSpec& layer, const StepSpec& step);
  void place_tokens(Pool& pool, const LayerSpec& layer, const StepSpec& step);
  void place_token(const LayerSpec& layer, const StepRow& row, int token);
  void attend(Pool& pool, const LayerSpec& layer);
  void feed_forward(Pool& pool, const LayerSpec& layer, const StepSpec& step);
  void add_product(Pool& pool, const StepSpec& step, const Operand* x, const Matrix<Format>& matrix,
                   const float* bias, const float* post_norm);
  void normalize_rows(Pool& pool, const StepSpec& step, const float* weight);
  void write_logits(Pool& pool, const StepSpec& step);

  Matrix<Format> matrix(const void* weights, int num_outputs, int num_inputs) const {
    return {static_cast<const typename Format::Weight*>(weights), num_outputs, num_inputs};
  }
  AttentionShape shape(const LayerSpec& layer) const {
    return {spec_.num_heads, spec_.num_kv_heads, spec_.key_dim, spec_.value_dim,
            spec_.block_size, layer.scaling, layer.softcap, layer.window, layer.sinks};
  }
  // Outputs of Q, K and V for one token.
  int qkv_size() const {
    return spec_.num_heads * spec_.key_dim +
           spec_.num_kv_heads * (spec_.key_dim + spec_.value_dim);
  }
  int attended_size() const { return spec_.num_heads * spec_.value_dim; }

  DecoderSpec spec_;
  std::vector<StepRow> rows_;
  std::vector<int> row_of_token_;
  std::vector<float> qkv_, added_;
  std::vector<Operand> normed_, queries_, attended_, activated_;
  // Pieces of attention: the row and the tile within it.
  std::vector<std::pair<int, int>> tiles_;
  // One for each thread: they hold its scratch memory.
  std::vector<QueryTile<Format>> query_tiles_;
};

}  // namespace trioserve
