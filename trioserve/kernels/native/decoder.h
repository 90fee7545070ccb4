// The layers of a decoder, run over one step.
//
//     hidden -> norm -> Q, K, V -> rotary -> cache -> attention -> O -> + hidden
//            -> norm -> gate, up -> activation -> down -> + hidden
//
// A layer may mix its tokens by a state (state_mixer.h) in place of attention.
//
// Hidden states are float32 throughout, whatever the type of the weights.
#pragma once

#include <vector>

#include "experts.h"
#include "state_mixer.h"
#include "step_attention.h"

namespace trioserve {

// One layer, as Python fills it in. Null pointers are parts that the model does not have.
// Everything but matrices is float32. The gate has the format of `up`.
struct LayerSpec {
  // Queries, keys and values, as far as the layer has products for them, and gates, if its
  // attention has those. StateSpec draws what a layer with a state has in place of them. Their
  // matrices follow each other: num_inputs of them, each in a format of its own.
  const MatrixSpec* inputs;
  MatrixSpec output;
  MatrixSpec gate;
  MatrixSpec up;
  MatrixSpec down;
  MatrixSpec lookup_gate;        // lookup_size outputs; null if tokens are not looked up again
  MatrixSpec lookup_projection;  // hidden_size outputs
  const float* lookup_norm;      // before the residual is added
  const MixtureSpec* mixture;    // in place of gate, up and down, or beside them
  const StateSpec* state;        // in place of attention
  const float* input_norm;       // (hidden_size,)
  const float* inputs_bias;
  const float* query_norm;       // (key_dim,)
  const float* key_norm;
  const float* value_norm;       // (value_dim,)
  const float* cos;              // (max positions, rotary_dim)
  const float* sin;
  const float* sinks;            // (num_heads,)
  const float* output_bias;
  const float* mixer_post_norm;  // before the residual is added
  const float* mlp_norm;
  const float* mlp_post_norm;
  void* cache;  // of keys and values; the first slot, if the layer has a state
  float scaling;
  float softcap;
  float output_scale;  // factor of the layer's output
  std::int32_t num_inputs;
  std::int32_t window;
  std::int32_t num_heads, num_kv_heads, key_dim, value_dim, rotary_dim;
  std::int32_t keys_are_values;  // values are keys before their norm; they have a norm, too
  std::int32_t has_gate;         // sigmoids of gates weigh the outputs of attention
  std::int32_t shares_cache;     // the cache is an earlier layer's, which alone writes it
  std::int32_t is_windowed;      // its blocks stand in the table of window blocks

  // The numbers that the mixer reads of a token.
  int inputs_size() const {
    int size = 0;
    for (int i = 0; i < num_inputs; ++i) size += inputs[i].num_outputs;
    return size;
  }
};

struct DecoderSpec {
  const LayerSpec* layers;
  MatrixSpec head;
  const float* final_norm;  // null: the model's last layers are elsewhere
  std::int32_t num_layers, hidden_size, intermediate_size, vocab_size;
  std::int32_t block_size;
  std::int32_t activation;
  float epsilon;
  float logit_softcap;
  float residual_scale;  // factor of what a layer adds to the hidden states
  // Adds to `count` numbers those of other processes, which share each layer with this one;
  // null if layers are whole. It is called twice a layer, by the thread that calls `run`.
  void (*sum)(float* numbers, std::int64_t count);
};

struct StepSpec {
  float* hidden;  // (num_tokens, hidden_size), replaced by the output of the last layer
  const std::int64_t* blocks;          // (slots, max_blocks)
  const std::int64_t* window_blocks;   // the same for windowed layers, or null
  // (num_rows, 5): first token, tokens, start, slot, tokens whose states stay (StateRow)
  const std::int32_t* rows;
  const std::int32_t* wanted;          // (num_wanted,) tokens whose logits are wanted
  float* logits;                       // (num_wanted, vocab_size)
  const float* lookups;                // (num_tokens, num_layers, lookup_size), or null
  // (num_tokens, rotary_dim), in place of those of the layers; or null
  const float* cos;
  const float* sin;
  const float* deepstack;  // (num_deepstack, num_tokens, hidden_size), added behind as many layers
  std::int32_t num_tokens, num_rows, num_wanted, max_blocks, num_deepstack;
};

inline AttentionShape shape_of(const LayerSpec& layer, int block_size) {
  return {layer.num_heads, layer.num_kv_heads, layer.key_dim,  layer.value_dim, block_size,
          layer.scaling,   layer.softcap,      layer.window, layer.sinks,
          layer.is_windowed};
}

// Format is that of the cache and of attention. Each matrix has a format of its own.
template <class Format>
class Decoder {
 public:
  explicit Decoder(const DecoderSpec& spec);

  void run(Pool& pool, const StepSpec& step);

 private:
  void prepare(const StepSpec& step, int num_threads);
  void run_layer(Pool& pool, const LayerSpec& layer, const StepSpec& step);
  void multiply_inputs(Pool& pool, const LayerSpec& layer, const StepSpec& step);
  void attend(Pool& pool, const LayerSpec& layer, const StepSpec& step);
  void add_deepstack(Pool& pool, const StepSpec& step, int layer);
  void place_tokens(Pool& pool, const LayerSpec& layer, const StepSpec& step);
  void place_token(const LayerSpec& layer, const StepSpec& step, const StepRow& row, int token);
  void feed_forward(Pool& pool, const LayerSpec& layer, const StepSpec& step, float scale);
  void add_beside(Pool& pool, const LayerSpec& layer, const StepSpec& step, float scale);
  void add_lookup(Pool& pool, const LayerSpec& layer, const StepSpec& step);
  void add_product(Pool& pool, const StepSpec& step, const std::vector<float>& x,
                   const MatrixSpec& matrix, const float* bias, const float* post_norm,
                   float scale);
  void sum_added(const StepSpec& step);
  void add_normalized(Pool& pool, const StepSpec& step, const float* post_norm, float scale);
  void normalize_rows(Pool& pool, const StepSpec& step, const float* weight);
  void write_logits(Pool& pool, const StepSpec& step);

  AttentionShape shape(const LayerSpec& layer) const {
    return shape_of(layer, spec_.block_size);
  }

  // Layers whose heads have the same numbers and sizes share the plan of a step.
  struct PlannedAttention {
    AttentionShape shape;
    StepAttention<Format> attention;
  };

  DecoderSpec spec_;
  std::vector<PlannedAttention> attentions_;
  std::vector<int> attention_of_layer_;
  // The largest sizes of all layers.
  std::int32_t mixer_inputs_ = 0, mixer_outputs_ = 0, query_size_ = 0;
  std::vector<StepRow> rows_;
  std::vector<StateRow> state_rows_;
  std::vector<int> row_of_token_;
  std::vector<float> normed_, inputs_, mixed_, activated_, added_, routed_, chosen_;
  std::vector<typename Format::Operand> queries_;
  OperandBuffer operands_;
  Mixture mixture_;
  StateMixer states_;
};

}  // namespace trioserve
