#include "decoder.h"

#include <numeric>

#include "norm.h"
#include "tokens.h"

namespace trioserve {
namespace {

// The cosines and sines of a token's angles, rotary_dim each.
struct Angles {
  const float* cos;
  const float* sin;
};

// Finds the angles of a token: those that the step gives it, or those of its position.
Angles find_angles(const AttentionSpec& spec, const StepSpec& step, std::ptrdiff_t token,
                   int position) {
  if (step.cos) return {step.cos + token * spec.rotary_dim, step.sin + token * spec.rotary_dim};
  const std::ptrdiff_t begin = static_cast<std::ptrdiff_t>(position) * spec.rotary_dim;
  return {spec.cos + begin, spec.sin + begin};
}

// Turns the first `size` dimensions of a head by the angles of its position.
// Source: Su et al. 2021 (RoFormer), in the order of dimensions that Llama has: the two
// numbers of a pair are half of `size` apart.
void rotate(float* head, const Angles& angles, int size) {
  const auto [cos, sin] = angles;
  const int half = size / 2;
  for (int i = 0; i < half; ++i) {
    float first = head[i], second = head[i + half];
    head[i] = first * cos[i] - second * sin[i];
    head[i + half] = second * cos[i + half] + first * sin[i + half];
  }
}

// Moves the rows of some tokens to the front, in their order.
template <class Number>
void keep_rows(Number* rows, std::ptrdiff_t size, const std::int32_t* tokens, int count) {
  std::vector<Number> kept;
  for (int i = 0; i < count; ++i) {
    kept.insert(kept.end(), rows + tokens[i] * size, rows + (tokens[i] + 1) * size);
  }
  std::copy(kept.begin(), kept.end(), rows);
}

}  // namespace

template <class Format>
Decoder<Format>::Decoder(const DecoderSpec& spec) : spec_(spec) {
  for (int i = 0; i < spec.num_sublayers; ++i) {
    const SublayerSpec& sublayer = spec.sublayers[i];
    most_inputs_ = std::max<std::ptrdiff_t>(most_inputs_, sublayer.width());
    most_mixed_ = std::max(most_mixed_, row_stride(sublayer.output.num_inputs));
    if (spec.final_norm && sublayer.writes_cache()) last_writer_ = &sublayer;
    if (!sublayer.attention) continue;
    const AttentionShape shape = shape_of(*sublayer.attention, spec.block_size);
    most_queries_ = std::max<std::ptrdiff_t>(most_queries_, shape.num_heads * shape.key_dim);
    if (find_planned(shape) == attentions_.end()) attentions_.push_back({shape, {}});
  }
}

template <class Format>
void Decoder<Format>::run(Pool& pool, const StepSpec& whole) {
  Pool::Step awake(pool);
  prepare(whole, pool.num_threads());
  StepSpec step = whole;
  for (int i = 0; i < spec_.num_sublayers; ++i) {
    const int layer = spec_.sublayers[i].layer;
    run_sublayer(pool, spec_.sublayers[i], step);
    if (!step.num_tokens) return;
    const bool is_last = i + 1 == spec_.num_sublayers || spec_.sublayers[i + 1].layer != layer;
    if (is_last && layer < step.num_deepstack) add_deepstack(pool, step, layer);
  }
  if (spec_.final_norm) write_logits(pool, step);
}

template <class Format>
void Decoder<Format>::prepare(const StepSpec& step, int num_threads) {
  rows_.clear();
  state_rows_.clear();
  row_of_token_.clear();
  places_ = nullptr;
  for (int i = 0; i < step.num_rows; ++i) {
    const std::int32_t* row = step.rows + 5 * i;
    const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(row[3]) * step.max_blocks;
    const std::int64_t* window_blocks = step.window_blocks ? step.window_blocks + place : nullptr;
    rows_.push_back({row[0], row[1], row[2], {step.blocks + place, window_blocks}, 0,
                     step.key_ends ? step.key_ends + row[0] : nullptr});
    state_rows_.push_back({row[0], row[1], row[3], row[2] == 0, row[4]});
    row_of_token_.insert(row_of_token_.end(), static_cast<std::size_t>(row[1]), i);
  }
  adapters_.begin(step.adapters, step.num_adapters, step.adapter_format, step.num_tokens);
  plan_attention(num_threads);
  std::ptrdiff_t tokens = std::max(step.num_tokens, step.num_wanted);
  fit(normed_, tokens * row_stride(spec_.hidden_size));
  fit(inputs_, tokens * most_inputs_);
  fit(queries_, tokens * most_queries_);
  fit(mixed_, tokens * most_mixed_);
  fit(added_, tokens * spec_.hidden_size);
}

template <class Format>
void Decoder<Format>::plan_attention(int num_threads) {
  for (PlannedAttention& each : attentions_) each.attention.plan(each.shape, rows_, num_threads);
}

template <class Format>
bool Decoder<Format>::narrows(const SublayerSpec& sublayer, const StepSpec& step) const {
  return &sublayer == last_writer_ && step.num_wanted < step.num_tokens &&
         sublayer.layer >= step.num_deepstack &&
         std::all_of(step.wanted, step.wanted + step.num_wanted, [&](int token) {
           const StepRow& row = rows_[row_of_token_[token]];
           return token == row.first_token + row.num_tokens - 1;
         });
}

template <class Format>
void Decoder<Format>::narrow(StepSpec& step, int num_threads) {
  const int size = spec_.hidden_size, count = step.num_wanted;
  places_ = step.wanted;
  keep_rows(step.hidden, size, places_, count);
  keep_rows(normed_.data(), row_stride(size), places_, count);
  std::vector<StepRow> rows;
  for (int i = 0; i < count; ++i) {
    StepRow row = rows_[row_of_token_[places_[i]]];
    row.start += row.num_tokens - 1;
    row.first_token = i;
    row.num_tokens = 1;
    row.ends = nullptr;  // no token is behind the last one
    rows.push_back(row);
  }
  rows_ = std::move(rows);
  row_of_token_.resize(count);
  std::iota(row_of_token_.begin(), row_of_token_.end(), 0);
  if (count) plan_attention(num_threads);
  wanted_.select(adapters_, places_, count);
  std::swap(adapters_, wanted_);
  step.num_tokens = count;
  step.wanted = row_of_token_.data();
}

template <class Format>
void Decoder<Format>::run_sublayer(Pool& pool, const SublayerSpec& sublayer, StepSpec& step) {
  if (sublayer.norm) normalize_rows(pool, step, sublayer.norm);
  switch (sublayer.kind) {
    case SublayerKind::kAttention: attend(pool, sublayer, step); break;
    case SublayerKind::kState: mix_states(pool, sublayer, step); break;
    case SublayerKind::kNetwork: activate_network(pool, sublayer, step); break;
    case SublayerKind::kMixture: return add_mixture(pool, sublayer, step);
    case SublayerKind::kBeside: return add_beside(pool, sublayer, step);
    case SublayerKind::kLookup: weigh_lookups(pool, sublayer, step); break;
  }
  if (step.num_tokens) add_product(pool, sublayer, step);
}

// The first product, whose rows are sublayer.width() numbers apart.
template <class Format>
void Decoder<Format>::read_inputs(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step) {
  const std::ptrdiff_t width = sublayer.width();
  Addition addition = shrink(pool, sublayer, kInputProduct, normed(step));
  int begin = 0;  // of a matrix's outputs
  for (int i = 0; i < sublayer.num_inputs; ++i) {
    const float* scale = sublayer.inputs_scale ? sublayer.inputs_scale + begin : nullptr;
    const float* bias = sublayer.inputs_bias ? sublayer.inputs_bias + begin : nullptr;
    multiply(pool, operands_, normed(step),
             {[&](int row, int first, int count, const float* values) {
               float* to = &inputs_[row * width + begin + first];
               for (int j = 0; j < count; ++j) {
                 const float value = scale ? values[j] * scale[first + j] : values[j];
                 to[j] = value + (bias ? bias[first + j] : 0.0f);
               }
             },
              {&inputs_[begin], width}},
             sublayer.inputs[i], addition);
    begin += sublayer.inputs[i].num_outputs;
    addition = addition.skip(sublayer.inputs[i].num_outputs);
  }
}

template <class Format>
void Decoder<Format>::attend(Pool& pool, const SublayerSpec& sublayer, StepSpec& step) {
  const int size = sublayer.output.num_inputs;
  read_inputs(pool, sublayer, step);
  const LatentSpec* latent = sublayer.attention->latent;
  const AttentionShape shape = shape_of(*sublayer.attention, spec_.block_size);
  float* mixed = mixed_.data();
  std::ptrdiff_t mixed_stride = row_stride(size);
  if (latent) {
    latents_.absorb(pool, operands_, *latent, shape.num_heads, inputs_.data(),
                    sublayer.inputs_size(), step.num_tokens, [&](const Rows& x) {
                      return shrink(pool, sublayer, kMiddleProduct, x);
                    });
    mixed = latents_.mixed();
    mixed_stride = shape.num_heads * shape.value_dim;
  }
  place_tokens(pool, sublayer, step);
  if (narrows(sublayer, step)) {
    keep_rows(queries_.data(), shape.num_heads * shape.key_dim, step.wanted, step.num_wanted);
    keep_rows(inputs_.data(), sublayer.inputs_size(), step.wanted, step.num_wanted);
    narrow(step, pool.num_threads());
    if (!step.num_tokens) return;
  }
  find_planned(shape)->attention.run(pool, shape, static_cast<const Weight*>(sublayer.cache),
                                     queries_.data(), mixed, mixed_stride);
  if (latent) {
    latents_.expand(pool, operands_, *latent, step.num_tokens, mixed_.data(), row_stride(size));
  }
  if (!sublayer.attention->has_gate) return;
  const std::ptrdiff_t stride = sublayer.inputs_size();
  run_tokens(pool, step.num_tokens, [&](int token) {
    const float* gate = &inputs_[(token + 1) * stride - size];
    float* mixed = &mixed_[token * row_stride(size)];
    for_vectors(size, [&](int i, int count) {
      Vec weights = sigmoid(load_part(gate + i, count));
      store_part(load_part(mixed + i, count) * weights, count, mixed + i);
    });
  });
}

// All keys and values are written before any is read: a row may read what another row of
// the step writes, if both share a block.
template <class Format>
void Decoder<Format>::place_tokens(Pool& pool, const SublayerSpec& sublayer,
                                   const StepSpec& step) {
  run_tokens(pool, step.num_tokens, [&](int token) {
    const StepRow& row = rows_[row_of_token_[token]];
    if (sublayer.attention->latent) {
      place_latent(sublayer, step, row, token - row.first_token);
    } else {
      place_token(sublayer, step, row, token - row.first_token);
    }
  });
}

template <class Format>
void Decoder<Format>::place_token(const SublayerSpec& sublayer, const StepSpec& step,
                                  const StepRow& row, int token) {
  const AttentionSpec& spec = *sublayer.attention;
  const std::ptrdiff_t flat = row.first_token + token;
  const Angles angles = find_angles(spec, step, place_of(flat), row.start + token);
  const int key_dim = spec.key_dim, value_dim = spec.value_dim;
  float* const inputs = &inputs_[flat * sublayer.inputs_size()];
  float* head = inputs;
  auto place = [&](const float* norm) {
    if (norm) normalize(head, norm, key_dim, spec_.epsilon, head);
    rotate(head, angles, spec.rotary_dim);
  };
  auto* query = &queries_[flat * spec.num_heads * key_dim];
  for (int h = 0; h < spec.num_heads; ++h, head += key_dim, query += key_dim) {
    place(spec.query_norm);
    convert(head, key_dim, query);
  }
  if (spec.shares_cache) return;
  const float* values = spec.keys_are_values ? head : head + spec.num_kv_heads * key_dim;
  AttentionShape attention = shape_of(spec, spec_.block_size);
  for (int h = 0; h < spec.num_kv_heads; ++h, head += key_dim) {
    const float* value = values + h * value_dim;
    if (spec.value_norm) {
      // Before the key takes its own norm in the same place. The queries are not read again.
      normalize(value, spec.value_norm, value_dim, spec_.epsilon, inputs);
      value = inputs;
    }
    place(spec.key_norm);
    write_cache<Format>(static_cast<Weight*>(sublayer.cache), attention, row, token, h, head,
                        value);
  }
}

template <class Format>
void Decoder<Format>::place_latent(const SublayerSpec& sublayer, const StepSpec& step,
                                   const StepRow& row, int token) {
  const AttentionSpec& spec = *sublayer.attention;
  const std::ptrdiff_t flat = row.first_token + token;
  const Angles angles = find_angles(spec, step, place_of(flat), row.start + token);
  const int rank = spec.value_dim;
  auto* query = &queries_[flat * spec.num_heads * spec.key_dim];
  for (int h = 0; h < spec.num_heads; ++h, query += spec.key_dim) {
    float* head = latents_.query(flat, h);
    latents_.add_shared(*spec.latent, flat, h);
    rotate(head + rank, angles, spec.rotary_dim);
    convert(head, spec.key_dim, query);
  }
  float* key = &inputs_[(flat + 1) * sublayer.inputs_size() - spec.key_dim];
  normalize(key, spec.latent->latent_norm, rank, spec.latent->epsilon, key);
  rotate(key + rank, angles, spec.rotary_dim);
  write_cache<Format>(static_cast<Weight*>(sublayer.cache), shape_of(spec, spec_.block_size), row,
                      token, 0, key, nullptr);
}

template <class Format>
void Decoder<Format>::mix_states(Pool& pool, const SublayerSpec& sublayer, StepSpec& step) {
  const std::ptrdiff_t stride = row_stride(sublayer.output.num_inputs);
  read_inputs(pool, sublayer, step);
  states_.run(pool, operands_, *sublayer.state, state_rows_, step.num_tokens, spec_.epsilon,
              static_cast<float*>(sublayer.cache), inputs_.data(), sublayer.width(),
              mixed_.data(), stride);
  if (narrows(sublayer, step)) {
    keep_rows(mixed_.data(), stride, step.wanted, step.num_wanted);
    narrow(step, pool.num_threads());
  }
}

template <class Format>
void Decoder<Format>::activate_network(Pool& pool, const SublayerSpec& sublayer,
                                       const StepSpec& step) {
  const Addition up = shrink(pool, sublayer, kInputProduct, normed(step));
  multiply_gated(pool, operands_, normed(step), {activation(), sublayer.gate_scale}, sublayer.gate,
                 *sublayer.inputs, mixed_.data(), up.skip(sublayer.inputs->num_outputs), up);
}

template <class Format>
void Decoder<Format>::add_mixture(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step) {
  const MixtureSpec& mixture = *sublayer.mixture;
  if (!sublayer.output.weights) {
    mixture_.run(pool, operands_, mixture, activation(), normed(step), normed(step), adapters_,
                 added_.data());
    return add_sums(pool, sublayer, step);
  }
  // Experts that read and write fewer numbers.
  read_inputs(pool, sublayer, step);
  mixture_.run(pool, operands_, mixture, activation(),
               {inputs_.data(), sublayer.width(), step.num_tokens}, normed(step), adapters_,
               mixed_.data());
  add_product(pool, sublayer, step);
}

// The second half of a network, and the mixture beside it, which reads the same hidden states.
template <class Format>
void Decoder<Format>::add_beside(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step) {
  const MixtureSpec& mixture = *sublayer.mixture;
  const MatrixSpec& output = sublayer.output;
  const std::ptrdiff_t size = spec_.hidden_size, stride = row_stride(spec_.hidden_size);
  activate_network(pool, sublayer, step);
  const Rows mixed{mixed_.data(), row_stride(output.num_inputs), step.num_tokens};
  const Addition addition = shrink(pool, sublayer, kOutputProduct, mixed);
  multiply(pool, operands_, mixed,
           [&](int row, int first, int count, const float* values) {
             std::copy_n(values, count, &added_[row * size + first]);
           },
           output, addition);
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
  mixture_.run(pool, operands_, mixture, activation(), normed(step),
               {routed_.data(), stride, step.num_tokens}, adapters_, chosen_.data());
  run_tokens(pool, step.num_tokens, [&](std::ptrdiff_t token) {
    float* added = &added_[token * size];
    float* chosen = &chosen_[token * size];
    norm(added, mixture.network_norm, added);
    norm(chosen, mixture.output_norm, chosen);
    for (std::ptrdiff_t i = 0; i < size; ++i) added[i] += chosen[i];
  });
  add_sums(pool, sublayer, step);
}

// mixed = activation(hidden G^T) * lookup
template <class Format>
void Decoder<Format>::weigh_lookups(Pool& pool, const SublayerSpec& sublayer,
                                    const StepSpec& step) {
  const std::ptrdiff_t size = sublayer.inputs->num_outputs, stride = row_stride(size);
  const float* lookups = step.lookups + sublayer.layer * size;
  const Rows hidden{step.hidden, spec_.hidden_size, step.num_tokens};
  const Addition addition = shrink(pool, sublayer, kInputProduct, hidden);
  multiply(pool, operands_, hidden,
           [&](int row, int first, int count, const float* values) {
             float gates[kBlock];
             for (int i = 0; i < kBlock; i += Vec::kLanes) {
               activate(activation(), Vec::load(values + i)).store(gates + i);
             }
             const float* lookup = lookups + place_of(row) * spec_.num_layers * size + first;
             float* to = &mixed_[row * stride + first];
             for (int i = 0; i < count; ++i) to[i] = gates[i] * lookup[i];
           },
           *sublayer.inputs, addition);
}

// hidden = (hidden + scale * post_norm(mixed W^T + bias)) * output_scale
template <class Format>
void Decoder<Format>::add_product(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step) {
  const std::ptrdiff_t size = spec_.hidden_size;
  const MatrixSpec& output = sublayer.output;
  const float* bias = sublayer.output_bias;
  const float scale = sublayer.scale;
  if (const int end = output.num_inputs; end % 2) {
    // The number between rows, which is multiplied by 0, may be of another sublayer.
    for (int row = 0; row < step.num_tokens; ++row) mixed_[row * row_stride(end) + end] = 0.0f;
  }
  const bool is_apart = sublayer.post_norm || spec_.sum || sublayer.output_scale != 1.0f;
  float* const sums = is_apart ? added_.data() : step.hidden;
  const Rows mixed{mixed_.data(), row_stride(output.num_inputs), step.num_tokens};
  const Addition addition = shrink(pool, sublayer, kOutputProduct, mixed);
  multiply(pool, operands_, mixed,
           {[&](int row, int first, int count, const float* values) {
             float* to = sums + row * size + first;
             for (int i = 0; i < count; ++i) {
               const float value = values[i] + (bias ? bias[first + i] : 0.0f);
               to[i] = is_apart ? value : to[i] + scale * value;
             }
           },
            {sums, size}},
           output, addition);
  if (is_apart) add_sums(pool, sublayer, step);
}

// hidden = (hidden + scale * post_norm(added)) * output_scale
template <class Format>
void Decoder<Format>::add_sums(Pool& pool, const SublayerSpec& sublayer, const StepSpec& step) {
  const int size = spec_.hidden_size;
  if (spec_.sum) spec_.sum(added_.data(), static_cast<std::int64_t>(step.num_tokens) * size);
  run_tokens(pool, step.num_tokens, [&](int token) {
    float* added = &added_[static_cast<std::ptrdiff_t>(token) * size];
    float* hidden = step.hidden + static_cast<std::ptrdiff_t>(token) * size;
    if (sublayer.post_norm) normalize(added, sublayer.post_norm, size, spec_.epsilon, added);
    for (int i = 0; i < size; ++i) {
      hidden[i] = (hidden[i] + sublayer.scale * added[i]) * sublayer.output_scale;
    }
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
  const Rows rows{normed_.data(), row_stride(spec_.hidden_size), step.num_wanted};
  wanted_.select(adapters_, step.wanted, step.num_wanted);
  const Addition addition = wanted_.shrink(pool, rows, spec_.num_sublayers * kNumProducts);
  multiply(pool, operands_, rows,
           {[&](int row, int first, int count, const float* values) {
             float* to = step.logits + static_cast<std::ptrdiff_t>(row) * spec_.vocab_size + first;
             if (spec_.logit_softcap > 0.0f) {
               for (int i = 0; i < count; ++i) {
                 to[i] = spec_.logit_softcap * std::tanh(values[i] / spec_.logit_softcap);
               }
             } else {
               std::copy_n(values, count, to);
             }
           },
            {step.logits, spec_.vocab_size}},
           spec_.head, addition);
}

template class Decoder<Float32Format>;
template class Decoder<Bfloat16Format>;
template class Decoder<Int8CacheFormat>;

}  // namespace trioserve
