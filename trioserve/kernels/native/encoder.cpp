#include "encoder.h"

#include <numeric>

#include "layer_norm.h"
#include "tokens.h"

namespace trioserve {
namespace {

// Tokens of one block of keys and values: as many as a product computes side by side.
constexpr int kBlockTokens = kBlock;

}  // namespace

template <class Format>
Encoder<Format>::Encoder(const EncoderSpec& spec)
    : spec_(spec),
      shape_{spec.num_heads, spec.num_heads, spec.head_dim, spec.head_dim, kBlockTokens,
             spec.scaling, 0.0f, 0, nullptr} {}

template <class Format>
void Encoder<Format>::run(Pool& pool, const TextsSpec& texts) {
  Pool::Step awake(pool);
  prepare(pool, texts);
  for (int i = 0; i < spec_.num_layers; ++i) run_layer(pool, spec_.layers[i], texts);
}

template <class Format>
void Encoder<Format>::prepare(Pool& pool, const TextsSpec& texts) {
  rows_.clear();
  row_of_token_.clear();
  int num_blocks = 0;
  for (int i = 0; i < texts.num_texts; ++i) {
    num_blocks += (texts.texts[2 * i] + kBlockTokens - 1) / kBlockTokens;
  }
  blocks_.resize(static_cast<std::size_t>(num_blocks));
  std::iota(blocks_.begin(), blocks_.end(), std::int64_t{0});
  const std::int64_t* blocks = blocks_.data();
  int first = 0;
  for (int i = 0; i < texts.num_texts; ++i) {
    const int size = texts.texts[2 * i], num_keys = texts.texts[2 * i + 1];
    rows_.push_back({first, size, 0, {blocks, nullptr}, num_keys});
    row_of_token_.insert(row_of_token_.end(), static_cast<std::size_t>(size), i);
    first += size;
    blocks += (size + kBlockTokens - 1) / kBlockTokens;
  }
  attention_.plan(shape_, rows_, pool.num_threads());
  const std::ptrdiff_t tokens = texts.num_tokens;
  fit(qkv_, tokens * 3 * attended_size());
  fit(queries_, tokens * attended_size());
  fit(attended_, tokens * attended_size());
  fit(activated_, tokens * row_stride(spec_.intermediate_size));
  fit(cache_, num_blocks * shape_.block_numbers<Format>());
}

template <class Format>
void Encoder<Format>::run_layer(Pool& pool, const EncoderLayerSpec& layer,
                                const TextsSpec& texts) {
  const Rows hidden{texts.hidden, spec_.hidden_size, texts.num_tokens};
  const std::ptrdiff_t qkv_size = 3 * attended_size();
  multiply(pool, operands_, hidden,
           {[&](int row, int first, int count, const float* values) {
             float* to = &qkv_[row * qkv_size + first];
             for (int i = 0; i < count; ++i) to[i] = values[i] + layer.qkv_bias[first + i];
           },
            {qkv_.data(), qkv_size}},
           layer.qkv);
  run_tokens(pool, texts.num_tokens, [&](int token) { place_token(token); });
  attention_.run(pool, shape_, cache_.data(), queries_.data(), attended_.data(), attended_size());
  add_product(pool, texts, attended_.data(), layer.output, layer.output_bias);
  normalize(pool, texts, layer.attention_norm, layer.attention_norm_bias);
  activate_product(pool, layer, hidden);
  add_product(pool, texts, activated_.data(), layer.down, layer.down_bias);
  normalize(pool, texts, layer.output_norm, layer.output_norm_bias);
}

// Takes a token's queries, keys and values to where attention reads them.
template <class Format>
void Encoder<Format>::place_token(int token) {
  const StepRow& row = rows_[row_of_token_[token]];
  const int size = attended_size();
  const float* query = &qkv_[static_cast<std::ptrdiff_t>(token) * 3 * size];
  convert(query, size, &queries_[static_cast<std::ptrdiff_t>(token) * size]);
  for (int head = 0; head < spec_.num_heads; ++head) {
    const float* key = query + size + head * spec_.head_dim;
    write_cache<Format>(cache_.data(), shape_, row, token - row.first_token, head, key,
                        key + size);
  }
}

template <class Format>
void Encoder<Format>::activate_product(Pool& pool, const EncoderLayerSpec& layer,
                                       const Rows& hidden) {
  const auto activation = static_cast<Activation>(spec_.activation);
  multiply(pool, operands_, hidden,
           {[&](int row, int first, int count, const float* values) {
             float sums[kBlock] = {};
             for (int i = 0; i < count; ++i) sums[i] = values[i] + layer.up_bias[first + i];
             for (int i = 0; i < kBlock; i += Vec::kLanes) {
               activate(activation, Vec::load(sums + i)).store(sums + i);
             }
             std::copy_n(sums, count, &activated_[row * row_stride(spec_.intermediate_size) + first]);
           },
            {activated_.data(), row_stride(spec_.intermediate_size)}},
           layer.up);
}

// hidden += x W^T + bias
template <class Format>
void Encoder<Format>::add_product(Pool& pool, const TextsSpec& texts, const float* x,
                                  const MatrixSpec& matrix, const float* bias) {
  const std::ptrdiff_t size = spec_.hidden_size;
  multiply(pool, operands_, {x, row_stride(matrix.num_inputs), texts.num_tokens},
           {[&](int row, int first, int count, const float* values) {
             float* to = texts.hidden + row * size + first;
             for (int i = 0; i < count; ++i) to[i] += values[i] + bias[first + i];
           },
            {texts.hidden, size}},
           matrix);
}

template <class Format>
void Encoder<Format>::normalize(Pool& pool, const TextsSpec& texts, const float* weight,
                                const float* bias) {
  const std::ptrdiff_t size = spec_.hidden_size;
  run_tokens(pool, texts.num_tokens, [&](int token) {
    normalize_layer(texts.hidden + token * size, weight, bias, spec_.hidden_size, spec_.epsilon);
  });
}

template class Encoder<Float32Format>;
template class Encoder<Bfloat16Format>;

}  // namespace trioserve
