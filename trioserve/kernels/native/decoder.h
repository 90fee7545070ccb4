// The layers of a decoder, run over one step.
//
// A layer is a list of sublayers, which add to the hidden states one after the other:
//
//     hidden = (hidden + scale * post_norm(body(norm(hidden)))) * output_scale
//
//     kAttention   inputs -> rotary -> cache -> attention -> output; with latents, see latents.h
//     kState       inputs -> state_mixer.h -> output
//     kNetwork     gate, inputs -> activation -> output
//     kMixture     experts.h, between inputs and output if the sublayer has them
//     kBeside      kNetwork and a mixture beside it
//     kLookup      inputs of the hidden states -> activation -> * vector of the token -> output
//
// Behind the last sublayer that writes a cache or a state, only the tokens whose logits are wanted
// go on: nobody reads the hidden states of a prompt's other tokens. Most models save a part of
// one layer so; models whose last layers share caches save half of all layers.
//
// Hidden states are float32 throughout, whatever the type of the weights.
#pragma once

#include <vector>

#include "experts.h"
#include "latents.h"
#include "state_mixer.h"
#include "step_attention.h"

namespace trioserve {

enum class SublayerKind : std::int32_t {
  kAttention = 0, kState = 1, kNetwork = 2, kMixture = 3, kBeside = 4, kLookup = 5
};

// Attention of one sublayer, as Python fills it in. Its inputs are queries, keys and values, as
// far as there are products for them, and gates, if it has those. LatentSpec draws the inputs of
// attention over latents. All numbers are float32.
struct AttentionSpec {
  const float* query_norm;  // (key_dim,)
  const float* key_norm;
  const float* value_norm;  // (value_dim,)
  const float* cos;         // (max positions, rotary_dim)
  const float* sin;
  const float* sinks;       // (num_heads,)
  const LatentSpec* latent;  // of attention whose heads share one latent a token
  float scaling;
  float softcap;
  std::int32_t window;
  std::int32_t num_heads, num_kv_heads, key_dim, value_dim, rotary_dim;
  std::int32_t keys_are_values;  // values are keys before their norm; they have a norm, too
  std::int32_t has_gate;         // sigmoids of gates weigh the outputs of attention
  std::int32_t shares_cache;     // the cache is an earlier layer's, which alone writes it
  std::int32_t is_windowed;      // its blocks stand in the table of window blocks
  std::int32_t joins_images;     // the tokens of an image see each other
};

// One sublayer, as Python fills it in. Null pointers are parts that it does not have.
// Everything but matrices is float32.
struct SublayerSpec {
  // Matrices that follow each other, each in a format of its own. A network has one, which is
  // what its gate weighs.
  const MatrixSpec* inputs;
  MatrixSpec gate;    // of a network, in the format of `inputs`; null if nothing is weighed
  MatrixSpec output;
  const float* norm;          // (hidden_size,); null: it reads what the sublayer before it reads
  const float* inputs_scale;  // factors of the outputs of the first product, not of a network
  const float* inputs_bias;
  const float* output_bias;
  const float* post_norm;  // before the residual is added
  const AttentionSpec* attention;
  const StateSpec* state;
  const MixtureSpec* mixture;
  void* cache;         // of keys and values; the first slot of a state
  float gate_scale;    // factor of a network's gates before the activation
  float scale;         // factor of what it adds
  float output_scale;  // factor of the hidden states behind it
  SublayerKind kind;
  std::int32_t num_inputs;
  std::int32_t layer;  // place of its layer

  // Numbers that the first product has for each token.
  int inputs_size() const {
    int size = 0;
    for (int i = 0; i < num_inputs; ++i) size += inputs[i].num_outputs;
    return size;
  }
  // Numbers that the body reads for each token.
  int width() const { return inputs_size() + (state ? state->num_widened() : 0); }
  // Whether it writes keys and values, or a state.
  bool writes_cache() const { return state || (attention && !attention->shares_cache); }
};

struct DecoderSpec {
  const SublayerSpec* sublayers;
  MatrixSpec head;
  const float* final_norm;  // null: the model's last layers are elsewhere
  std::int32_t num_sublayers, num_layers, hidden_size, vocab_size;
  std::int32_t block_size;
  std::int32_t activation;
  float epsilon;
  float logit_softcap;
  // Adds to `count` numbers those of other processes, which share each layer with this one;
  // null if layers are whole. Each sublayer calls it once, in the thread that calls `run`.
  void (*sum)(float* numbers, std::int64_t count);
};

struct StepSpec {
  float* hidden;  // (num_tokens, hidden_size); on return those of the last layer, if none is behind
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
  // (num_tokens,) the end of the keys that a token sees in layers that join images; null: behind
  // itself
  const std::int32_t* key_ends;
  const AdapterRun* adapters;  // (num_adapters,), in the order of tokens
  std::int32_t num_tokens, num_rows, num_wanted, max_blocks, num_deepstack;
  std::int32_t num_adapters;
  std::int32_t adapter_format;  // of all, kFloat32 or kBfloat16
};

inline AttentionShape shape_of(const AttentionSpec& spec, int block_size) {
  return {spec.num_heads, spec.num_kv_heads, spec.key_dim, spec.value_dim, block_size,
          spec.scaling,   spec.softcap,      spec.window,  spec.sinks,
          spec.is_windowed, spec.joins_images != 0, spec.latent != nullptr};
}

// Format is that of the cache and of attention. Each matrix has a format of its own.
template <class Format>
class Decoder {
 public:
  explicit Decoder(const DecoderSpec& spec);

  void run(Pool& pool, const StepSpec& whole);

 private:
  using Weight = typename Format::Weight;

  // The bodies of sublayers read normed_, and leave the rows that the output product reads in
  // mixed_. The last one that writes a cache or a state narrows the step.
  void run_sublayer(Pool& pool, const SublayerSpec& sublayer, StepSpec& step);
  void attend(Pool& pool, const SublayerSpec& sublayer, StepSpec& step);
  void mix_states(Pool& pool, const SublayerSpec& sublayer, StepSpec& step);
  void activate_network(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step);
  void add_mixture(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step);
  void add_beside(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step);
  void weigh_lookups(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step);

  void prepare(const StepSpec& step, int num_threads);
  void plan_attention(int num_threads);
  // Whether only the wanted tokens go on behind a sublayer.
  bool narrows(const SublayerSpec& sublayer, const StepSpec& step) const;
  void narrow(StepSpec& step, int num_threads);
  std::ptrdiff_t place_of(std::ptrdiff_t token) const { return places_ ? places_[token] : token; }
  void read_inputs(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step);
  void place_tokens(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step);
  void place_latent(const SublayerSpec& sublayer, const StepSpec& step, const StepRow& row,
                    int token);
  void place_token(const SublayerSpec& sublayer, const StepSpec& step, const StepRow& row,
                   int token);
  void add_product(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step);
  void add_sums(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step);
  void add_deepstack(Pool& pool, const StepSpec& step, int layer);
  void normalize_rows(Pool& pool, const StepSpec& step, const float* weight);
  void write_logits(Pool& pool, const StepSpec& step);

  // What adapters add to a product of a sublayer that reads x.
  Addition shrink(Pool& pool, const SublayerSpec& sublayer, SublayerProduct product,
                  const Rows& x) {
    const auto place = static_cast<int>(&sublayer - spec_.sublayers);
    return adapters_.shrink(pool, x, place * kNumProducts + product);
  }

  Rows normed(const StepSpec& step) const {
    return {normed_.data(), row_stride(spec_.hidden_size), step.num_tokens};
  }
  Activation activation() const { return static_cast<Activation>(spec_.activation); }

  // Sublayers whose heads have the same numbers and sizes share the plan of a step.
  struct PlannedAttention {
    AttentionShape shape;
    StepAttention<Format> attention;
  };
  auto find_planned(const AttentionShape& shape) {
    return std::find_if(attentions_.begin(), attentions_.end(), [&](const PlannedAttention& each) {
      return shape.has_sizes_of(each.shape);
    });
  }

  DecoderSpec spec_;
  std::vector<PlannedAttention> attentions_;
  // The largest sizes of all sublayers.
  std::ptrdiff_t most_inputs_ = 0, most_mixed_ = 0, most_queries_ = 0;
  const SublayerSpec* last_writer_ = nullptr;
  std::vector<StepRow> rows_;
  std::vector<StateRow> state_rows_;
  std::vector<int> row_of_token_;
  // Of the tokens that go on, their places in the whole step; null if all do.
  const std::int32_t* places_ = nullptr;
  std::vector<float> normed_, inputs_, mixed_, added_, routed_, chosen_;
  std::vector<typename Format::Operand> queries_;
  OperandBuffer operands_;
  Adapters adapters_;
  Adapters wanted_;  // of the tokens whose logits are wanted
  Mixture mixture_;
  StateMixer states_;
  LatentProducts latents_;
};

}  // namespace trioserve
