#include "decoder.h"

#include "norm.h"
#include "tokens.h"

namespace trioserve {
namespace {

// Turns the first `size` dimensions of a head by the angles of its position.
// Source: Su et al. 2021 (RoFormer), in the order of dimensions that Llama has: the two
// numbers of a pair are half of `size` apart.
void rotate(float* head, const float* cos, const float* sin, int size) {
  const int half = size / 2;
  for (int i = 0; i < half; ++i) {
    float first = head[i], second = head[i + half];
    head[i] = first * cos[i] - second * sin[i];
    head[i + half] = second * cos[i + half] + first * sin[i + half];
  }
}

}  // namespace

template <class Format>
Decoder<Format>::Decoder(const DecoderSpec& spec) : spec_(spec) {
  for (int i = 0; i < spec.num_layers; ++i) {
    const LayerSpec& layer = spec.layers[i];
    mixer_inputs_ = std::max(mixer_inputs_, layer.inputs_size());
    mixer_outputs_ = std::max(mixer_outputs_, layer.output.num_inputs);
    query_size_ = std::max(query_size_, layer.num_heads * layer.key_dim);
    if (layer.state) {
      attention_of_layer_.push_back(-1);
      continue;
    }
    const AttentionShape own = shape(layer);
    auto known = std::find_if(attentions_.begin(), attentions_.end(), [&](const auto& other) {
      return own.has_sizes_of(other.shape);
    });
    attention_of_layer_.push_back(static_cast<int>(known - attentions_.begin()));
    if (known == attentions_.end()) attentions_.push_back({own, {}});
  }
}

template <class Format>
void Decoder<Format>::run(Pool& pool, const StepSpec& step) {
  Pool::Step awake(pool);
  prepare(step, pool.num_threads());
  for (int i = 0; i < spec_.num_layers; ++i) {
    run_layer(pool, spec_.layers[i], step);
    if (i < step.num_deepstack) add_deepstack(pool, step, i);
  }
  if (spec_.final_norm) write_logits(pool, step);
}

template <class Format>
void Decoder<Format>::prepare(const StepSpec& step, int num_threads) {
  rows_.clear();
  state_rows_.clear();
  row_of_token_.clear();
  for (int i = 0; i < step.num_rows; ++i) {
    const std::int32_t* row = step.rows + 5 * i;
    const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(row[3]) * step.max_blocks;
    const std::int64_t* window_blocks = step.window_blocks ? step.window_blocks + place : nullptr;
    rows_.push_back({row[0], row[1], row[2], {step.blocks + place, window_blocks}});
    state_rows_.push_back({row[0], row[1], row[3], row[2] == 0, row[4]});
    row_of_token_.insert(row_of_token_.end(), static_cast<std::size_t>(row[1]), i);
  }
  for (PlannedAttention& each : attentions_) each.attention.plan(each.shape, rows_, num_threads);
  std::ptrdiff_t tokens = std::max(step.num_tokens, step.num_wanted);
  fit(normed_, tokens * row_stride(spec_.hidden_size));
  fit(inputs_, tokens * mixer_inputs_);
  fit(queries_, tokens * query_size_);
  fit(mixed_, tokens * row_stride(mixer_outputs_));
  fit(activated_, tokens * row_stride(spec_.intermediate_size));
  fit(added_, tokens * spec_.hidden_size);
}

template <class Format>
void Decoder<Format>::run_layer(Pool& pool, const LayerSpec& layer, const StepSpec& step) {
  normalize_rows(pool, step, layer.input_norm);
  multiply_inputs(pool, layer, step);
  if (layer.state) {
    states_.run(pool, *layer.state, state_rows_, step.num_tokens, spec_.epsilon,
                static_cast<float*>(layer.cache), inputs_.data(), layer.inputs_size(),
                mixed_.data(), row_stride(layer.output.num_inputs));
  } else {
    attend(pool, layer, step);
  }
  add_product(pool, step, mixed_, layer.output, layer.output_bias, layer.mixer_post_norm, 1.0f);
  if (!layer.lookup_norm) return feed_forward(pool, layer, step, layer.output_scale);
  feed_forward(pool, layer, step, 1.0f);
  add_lookup(pool, layer, step);
}

template <class Format>
void Decoder<Format>::multiply_inputs(Pool& pool, const LayerSpec& layer, const StepSpec& step) {
  const std::ptrdiff_t size = layer.inputs_size();
  const Rows normed{normed_.data(), row_stride(spec_.hidden_size), step.num_tokens};
  int begin = 0;  // of the matrix's outputs
  for (int i = 0; i < layer.num_inputs; ++i) {
    multiply(pool, operands_, normed,
             [&](int row, int first, int count, const float* values) {
               float* to = &inputs_[row * size + begin + first];
               const float* bias = layer.inputs_bias ? layer.inputs_bias + begin + first : nullptr;
               for (int j = 0; j < count; ++j) to[j] = values[j] + (bias ? bias[j] : 0.0f);
             },
             layer.inputs[i]);
    begin += layer.inputs[i].num_outputs;
  }
}

template <class Format>
void Decoder<Format>::attend(Pool& pool, const LayerSpec& layer, const StepSpec& step) {
  const int size = layer.output.num_inputs;
  place_tokens(pool, layer, step);
  attentions_[attention_of_layer_[&layer - spec_.layers]].attention.run(
      pool, shape(layer), static_cast<const typename Format::Weight*>(layer.cache),
      queries_.data(), mixed_.data(), row_stride(size));
  if (!layer.has_gate) return;
  const std::ptrdiff_t stride = layer.inputs_size();
  run_tokens(pool, step.num_tokens, [&](int token) {
    const float* gate = &inputs_[(token + 1) * stride - size];
    float* mixed = &mixed_[token * row_stride(size)];
    for_vectors(size, [&](int i, int count) {
      Vec weights = sigmoid(load_part(gate + i, count));
      store_part(load_part(mixed + i, count) * weights, count, mixed + i);
    });
  });
}

// Source: Meng et al. 2024 (DeepStack), section 3.
template <class Format>
void Decoder<Format>::add_deepstack(Pool& pool, const StepSpec& step, int layer) {
  const std::ptrdiff_t size = spec_.hidden_size;
  const float* vectors = step.deepstack + layer * step.num_tokens * size;
  run_tokens(pool, step.num_tokens, [&](int token) {
    for (std::ptrdiff_t i = token * size; i < (token + 1) * size; ++i) step.hidden[i] += vectors[i];
  });
}

// All keys and values are written before any is read: a row may read what another row of
// the step writes, if both share a block.
template <class Format>
void Decoder<Format>::place_tokens(Pool& pool, const LayerSpec& layer, const StepSpec& step) {
  run_tokens(pool, step.num_tokens, [&](int token) {
    const StepRow& row = rows_[row_of_token_[token]];
    place_token(layer, step, row, token - row.first_token);
  });
}

template <class Format>
void Decoder<Format>::place_token(const LayerSpec& layer, const StepSpec& step,
                                  const StepRow& row, int token) {
  const std::ptrdiff_t flat = row.first_token + token;
  const std::ptrdiff_t angle = (step.cos ? flat : row.start + token) * layer.rotary_dim;
  const float* cos = (step.cos ? step.cos : layer.cos) + angle;
  const float* sin = (step.cos ? step.sin : layer.sin) + angle;
  const int key_dim = layer.key_dim, value_dim = layer.value_dim;
  float* const inputs = &inputs_[flat * layer.inputs_size()];
  float* head = inputs;
  auto place = [&](const float* norm) {
    if (norm) normalize(head, norm, key_dim, spec_.epsilon, head);
    rotate(head, cos, sin, layer.rotary_dim);
  };
  auto* query = &queries_[flat * layer.num_heads * key_dim];
  for (int h = 0; h < layer.num_heads; ++h, head += key_dim, query += key_dim) {
    place(layer.query_norm);
    convert(head, key_dim, query);
  }
  if (layer.shares_cache) return;
  const float* values = layer.keys_are_values ? head : head + layer.num_kv_heads * key_dim;
  AttentionShape attention = shape(layer);
  for (int h = 0; h < layer.num_kv_heads; ++h, head += key_dim) {
    const float* value = values + h * value_dim;
    if (layer.value_norm) {
      // Before the key takes its own norm in the same place. The queries are not read again.
      normalize(value, layer.value_norm, value_dim, spec_.epsilon, inputs);
      value = inputs;
    }
    place(layer.key_norm);
    write_cache<Format>(static_cast<typename Format::Weight*>(layer.cache), attention, row, token,
                        h, head, value);
  }
}

template <class Format>
void Decoder<Format>::feed_forward(Pool& pool, const LayerSpec& layer, const StepSpec& step,
                                   float scale) {
  normalize_rows(pool, step, layer.mlp_norm);
  const auto activation = static_cast<Activation>(spec_.activation);
  const Rows normed{normed_.data(), row_stride(spec_.hidden_size), step.num_tokens};
  if (layer.mixture && !layer.mixture->router_norm) {
    mixture_.run(pool, operands_, *layer.mixture, activation, normed, normed, added_.data());
    sum_added(step);
    add_normalized(pool, step, layer.mlp_post_norm, scale);
    return;
  }
  multiply_gated(pool, operands_, normed, activation, layer.gate, layer.up, activated_.data());
  if (layer.mixture) return add_beside(pool, layer, step, scale);
  add_product(pool, step, activated_, layer.down, nullptr, layer.mlp_post_norm, scale);
}

// The second half of a network, and the mixture beside it, which reads the same hidden states.
template <class Format>
void Decoder<Format>::add_beside(Pool& pool, const LayerSpec& layer, const StepSpec& step,
                                 float scale) {
  const MixtureSpec& mixture = *layer.mixture;
  const std::ptrdiff_t size = spec_.hidden_size, stride = row_stride(spec_.hidden_size);
  multiply(pool, operands_, {activated_.data(), row_stride(layer.down.num_inputs), step.num_tokens},
           [&](int row, int first, int count, const float* values) {
             std::copy_n(values, count, &added_[row * size + first]);
           },
           layer.down);
  fit(routed_, step.num_tokens * stride);
  fit(chosen_, step.num_tokens * size);
  auto norm = [&](const float* from, const float* weight, float* to) {
    normalize(from, weight, spec_.hidden_size, spec_.epsilon, to);
  };
  run_tokens(pool, step.num_tokens, [&](std::ptrdiff_t token) {
    const float* hidden = step.hidden + token * size;
    norm(hidden, mixture.router_norm, &routed_[token * stride]);
    norm(hidden, mixture.input_norm, &normed_[token * stride]);
  });
  mixture_.run(pool, operands_, mixture, static_cast<Activation>(spec_.activation),
               {normed_.data(), stride, step.num_tokens},
               {routed_.data(), stride, step.num_tokens}, chosen_.data());
  run_tokens(pool, step.num_tokens, [&](std::ptrdiff_t token) {
    float* added = &added_[token * size];
    float* chosen = &chosen_[token * size];
    norm(added, mixture.network_norm, added);
    norm(chosen, mixture.output_norm, chosen);
    for (std::ptrdiff_t i = 0; i < size; ++i) added[i] += chosen[i];
  });
  add_normalized(pool, step, layer.mlp_post_norm, scale);
}

// hidden = (hidden + norm((activation(hidden G^T) * lookup) P^T)) * scale
template <class Format>
void Decoder<Format>::add_lookup(Pool& pool, const LayerSpec& layer, const StepSpec& step) {
  const auto activation = static_cast<Activation>(spec_.activation);
  const std::ptrdiff_t size = layer.lookup_gate.num_outputs;
  const float* lookups = step.lookups + (&layer - spec_.layers) * size;
  multiply(pool, operands_, {step.hidden, spec_.hidden_size, step.num_tokens},
           [&](int row, int first, int count, const float* values) {
             float gates[kBlock];
             for (int i = 0; i < kBlock; i += Vec::kLanes) {
               activate(activation, Vec::load(values + i)).store(gates + i);
             }
             const float* lookup = lookups + row * spec_.num_layers * size + first;
             float* to = &activated_[row * size + first];
             for (int i = 0; i < count; ++i) to[i] = gates[i] * lookup[i];
           },
           layer.lookup_gate);
  add_product(pool, step, activated_, layer.lookup_projection, nullptr, layer.lookup_norm,
              layer.output_scale);
}

// hidden = (hidden + residual_scale * norm(x W^T + bias)) * scale, or without the norm if there
// is none
template <class Format>
void Decoder<Format>::add_product(Pool& pool, const StepSpec& step, const std::vector<float>& x,
                                  const MatrixSpec& matrix, const float* bias,
                                  const float* post_norm, float scale) {
  const int size = spec_.hidden_size;
  const bool is_apart = post_norm || spec_.sum || scale != 1.0f;
  multiply(pool, operands_, {x.data(), row_stride(matrix.num_inputs), step.num_tokens},
           [&](int row, int first, int count, const float* values) {
             float* to = (is_apart ? added_.data() : step.hidden) +
                         static_cast<std::ptrdiff_t>(row) * size + first;
             for (int i = 0; i < count; ++i) {
               const float value = values[i] + (bias ? bias[first + i] : 0.0f);
               to[i] = is_apart ? value : to[i] + spec_.residual_scale * value;
             }
           },
           matrix);
  if (!is_apart) return;
  sum_added(step);
  add_normalized(pool, step, post_norm, scale);
}

template <class Format>
void Decoder<Format>::sum_added(const StepSpec& step) {
  if (!spec_.sum) return;
  spec_.sum(added_.data(), static_cast<std::int64_t>(step.num_tokens) * spec_.hidden_size);
}

// hidden = (hidden + residual_scale * norm(added_)) * scale, or without the norm if there is none
template <class Format>
void Decoder<Format>::add_normalized(Pool& pool, const StepSpec& step, const float* post_norm,
                                     float scale) {
  const int size = spec_.hidden_size;
  run_tokens(pool, step.num_tokens, [&](int token) {
    float* added = &added_[static_cast<std::ptrdiff_t>(token) * size];
    float* hidden = step.hidden + static_cast<std::ptrdiff_t>(token) * size;
    if (post_norm) normalize(added, post_norm, size, spec_.epsilon, added);
    for (int i = 0; i < size; ++i) {
      hidden[i] = (hidden[i] + spec_.residual_scale * added[i]) * scale;
    }
  });
}

template <class Format>
void Decoder<Format>::normalize_rows(Pool& pool, const StepSpec& step, const float* weight) {
  const std::ptrdiff_t size = spec_.hidden_size;
  run_tokens(pool, step.num_tokens, [&](int token) {
    normalize(step.hidden + token * size, weight, spec_.hidden_size, spec_.epsilon,
              &normed_[token * row_stride(spec_.hidden_size)]);
  });
}

template <class Format>
void Decoder<Format>::write_logits(Pool& pool, const StepSpec& step) {
  if (!step.num_wanted) return;
  const std::ptrdiff_t size = spec_.hidden_size;
  run_tokens(pool, step.num_wanted, [&](int i) {
    normalize(step.hidden + step.wanted[i] * size, spec_.final_norm, spec_.hidden_size,
              spec_.epsilon, &normed_[i * row_stride(spec_.hidden_size)]);
  });
  multiply(pool, operands_, {normed_.data(), row_stride(spec_.hidden_size), step.num_wanted},
           [&](int row, int first, int count, const float* values) {
             float* to = step.logits + static_cast<std::ptrdiff_t>(row) * spec_.vocab_size + first;
             if (spec_.logit_softcap > 0.0f) {
               for (int i = 0; i < count; ++i) {
                 to[i] = spec_.logit_softcap * std::tanh(values[i] / spec_.logit_softcap);
               }
             } else {
               std::copy_n(values, count, to);
             }
           },
           spec_.head);
}

template class Decoder<Float32Format>;
template class Decoder<Bfloat16Format>;

}  // namespace trioserve
