// A mixture of experts in place of a feed-forward network.
//
//     x -> router -> softmax or sigmoids -> the k largest, with their weights
//     x -> expert's gate, up -> activation -> down     for each chosen expert
//     y = sum of weight * output, in the order of experts
//
// The tokens of an expert are computed together, so each expert is read once a step. An
// expert that all tokens share comes after the others.
//
// Source: Shazeer et al. 2017, section 2; Dai et al. 2024 (DeepSeekMoE) for shared experts.
#pragma once

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "gated.h"
#include "tokens.h"

namespace trioserve {

constexpr int kMaxGroups = 64;
constexpr int kMaxRanked = 2;

struct ExpertSpec {
  MatrixSpec gate;  // null if nothing weighs `up`
  MatrixSpec up;
  MatrixSpec down;
  const float* gate_bias;  // of their outputs; or null
  const float* up_bias;
  const float* down_bias;
};

// The experts of one layer, as Python fills it in.
struct MixtureSpec {
  MatrixSpec router;          // num_experts outputs
  MatrixSpec shared_gate;     // 1 output, whose sigmoid weighs the shared expert; or null
  const ExpertSpec* experts;  // num_experts, and the shared one behind them
  const float* router_bias;   // (num_experts,) or null
  const float* choice_bias;   // (num_experts,) or null: added to choose, not in the weights
  const float* expert_scales;  // (num_experts,) or null: factors of the weights
  // The norms of a mixture that stands beside a network: before the router, before and behind
  // the experts, and behind the network. Null if it stands alone.
  const float* router_norm;
  const float* input_norm;
  const float* output_norm;
  const float* network_norm;
  std::int32_t num_experts;
  std::int32_t num_chosen;    // for each token
  std::int32_t has_shared;
  std::int32_t renormalizes;  // the weights of a token's chosen experts add up to 1
  std::int32_t has_sigmoid;   // in place of a softmax
  // Experts are chosen among those of the best groups: the largest num_ranked ranks of a group
  // are added up. One group is all experts.
  std::int32_t num_groups, num_chosen_groups, num_ranked;
  // Place of its first product among those that adapters may add to.
  std::int32_t first_product;
  float scale;  // factor of the weights
  ClampSpec clamp;
};

// The products of a mixture that adapters may add to. Those of the experts follow each other,
// the gate with what it weighs and then the output; and behind them those of the shared one.
enum MixtureProduct { kRouterProduct, kSharedGateProduct, kExpertProducts };

// Computes mixtures, one after the other.
class Mixture {
 public:
  // x: num_inputs numbers a row; routed: what the router reads in its place
  // adapters: of the tokens
  // to: (x.num_rows, size of the experts' outputs)
  void run(Pool& pool, OperandBuffer& buffer, const MixtureSpec& spec, Activation activation,
           const Rows& x, const Rows& routed, Adapters& adapters, float* to) {
    const int size = spec.experts->down.num_outputs;
    choose(pool, buffer, spec, routed, adapters);
    group(spec, x.num_rows);
    gather(pool, x);
    fit(outputs_, static_cast<std::ptrdiff_t>(choices_.size()) * size);
    for (int expert = 0; expert < count_experts(spec); ++expert) {
      const int begin = begins_[expert], num_rows = begins_[expert + 1] - begin;
      if (!num_rows) continue;
      adapters_.select(adapters, &token_of_place_[begin], num_rows);
      run_expert(pool, buffer, spec.experts[expert], {activation, 1.0f, spec.clamp}, x, begin,
                 num_rows, spec.first_product + kExpertProducts + 2 * expert);
    }
    run_tokens(pool, x.num_rows, [&](int token) {
      float* sum = to + static_cast<std::ptrdiff_t>(token) * size;
      std::fill_n(sum, size, 0.0f);
      for (int i = 0; i < num_choices_; ++i) {
        const Choice& choice = choices_[token * num_choices_ + i];
        const float* output = &outputs_[static_cast<std::ptrdiff_t>(choice.place) * size];
        for (int j = 0; j < size; ++j) sum[j] += choice.weight * output[j];
      }
    });
  }

 private:
  struct Choice {
    int expert;
    float weight;
    int place;  // among the rows that are grouped by expert
  };

  static int count_experts(const MixtureSpec& spec) { return spec.num_experts + spec.has_shared; }

  // Fills in the experts of each token, in their order, and their weights.
  void choose(Pool& pool, OperandBuffer& buffer, const MixtureSpec& spec, const Rows& x,
              Adapters& adapters) {
    const int size = spec.num_experts;
    num_choices_ = spec.num_chosen + spec.has_shared;
    choices_.resize(static_cast<std::size_t>(x.num_rows) * num_choices_);
    fit(scores_, static_cast<std::ptrdiff_t>(x.num_rows) * size);
    multiply_into(pool, buffer, x, spec.router, spec.router_bias, scores_.data(),
                  adapters.shrink(pool, x, spec.first_product + kRouterProduct));
    if (spec.shared_gate.weights) {
      fit(shared_, x.num_rows);
      multiply_into(pool, buffer, x, spec.shared_gate, nullptr, shared_.data(),
                    adapters.shrink(pool, x, spec.first_product + kSharedGateProduct));
    }
    run_tokens(pool, x.num_rows, [&](int token) {
      Choice* choices = &choices_[static_cast<std::ptrdiff_t>(token) * num_choices_];
      choose_largest(spec, &scores_[static_cast<std::ptrdiff_t>(token) * size], choices);
      if (spec.has_shared) {
        float weight = 1.0f;
        if (spec.shared_gate.weights) weight /= 1.0f + std::exp(-shared_[token]);
        choices[spec.num_chosen] = {size, weight, 0};
      }
    });
  }

  // scores: of the router; replaced by the weights of the experts
  static void choose_largest(const MixtureSpec& spec, float* scores, Choice* choices) {
    weigh(spec, scores);
    auto rank = [&](int i) { return scores[i] + (spec.choice_bias ? spec.choice_bias[i] : 0.0f); };
    const int group_size = spec.num_experts / spec.num_groups;
    bool is_open[kMaxGroups];
    open_groups(spec, rank, is_open);
    float chosen = 0.0f;
    for (int k = 0; k < spec.num_chosen; ++k) {
      // Weights that are no numbers compare as false, so there is always a best one.
      int best = -1;
      for (int i = 0; i < spec.num_experts; ++i) {
        if (!is_open[i / group_size] || has(choices, k, i)) continue;
        if (best < 0 || rank(i) > rank(best)) best = i;
      }
      chosen += scores[best];
      choices[k] = {best, scores[best], 0};
    }
    const float total = spec.renormalizes ? chosen : 1.0f;
    for (int k = 0; k < spec.num_chosen; ++k) {
      choices[k].weight = choices[k].weight / total * spec.scale;
      if (spec.expert_scales) choices[k].weight *= spec.expert_scales[choices[k].expert];
    }
    std::sort(choices, choices + spec.num_chosen,
              [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
  }

  // Opens the best groups. Their open experts are as many as are chosen, at least.
  template <class Rank>
  static void open_groups(const MixtureSpec& spec, Rank&& rank, bool* is_open) {
    std::fill_n(is_open, spec.num_groups, spec.num_groups == spec.num_chosen_groups);
    if (spec.num_groups == spec.num_chosen_groups) return;
    const int size = spec.num_experts / spec.num_groups;
    float strengths[kMaxGroups];
    for (int group = 0; group < spec.num_groups; ++group) {
      // Of the largest ranks, the least last.
      float largest[kMaxRanked];
      std::fill_n(largest, spec.num_ranked, -std::numeric_limits<float>::infinity());
      for (int i = group * size; i < (group + 1) * size; ++i) {
        float each = rank(i);
        for (int k = 0; k < spec.num_ranked; ++k) {
          if (each > largest[k]) std::swap(each, largest[k]);
        }
      }
      strengths[group] = std::accumulate(largest, largest + spec.num_ranked, 0.0f);
    }
    for (int k = 0; k < spec.num_chosen_groups; ++k) {
      int best = -1;
      for (int group = 0; group < spec.num_groups; ++group) {
        if (is_open[group]) continue;
        if (best < 0 || strengths[group] > strengths[best]) best = group;
      }
      is_open[best] = true;
    }
  }

  static void weigh(const MixtureSpec& spec, float* scores) {
    const int size = spec.num_experts;
    if (spec.has_sigmoid) {
      for (int i = 0; i < size; ++i) scores[i] = 1.0f / (1.0f + std::exp(-scores[i]));
      return;
    }
    const float largest = *std::max_element(scores, scores + size);
    float total = 0.0f;
    for (int i = 0; i < size; ++i) total += scores[i] = std::exp(scores[i] - largest);
    for (int i = 0; i < size; ++i) scores[i] /= total;
  }

  static bool has(const Choice* choices, int count, int expert) {
    for (int i = 0; i < count; ++i) {
      if (choices[i].expert == expert) return true;
    }
    return false;
  }

  // Gives each choice a place. Those of an expert are begins_[expert] to begins_[expert + 1].
  void group(const MixtureSpec& spec, int num_tokens) {
    begins_.assign(count_experts(spec) + 1, 0);
    for (const Choice& choice : choices_) ++begins_[choice.expert + 1];
    for (std::size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
    next_ = begins_;
    token_of_place_.resize(choices_.size());
    for (int token = 0; token < num_tokens; ++token) {
      for (int i = 0; i < num_choices_; ++i) {
        Choice& choice = choices_[token * num_choices_ + i];
        choice.place = next_[choice.expert]++;
        token_of_place_[choice.place] = token;
      }
    }
  }

  void gather(Pool& pool, const Rows& x) {
    fit(inputs_, static_cast<std::ptrdiff_t>(choices_.size()) * x.stride);
    run_tokens(pool, static_cast<int>(choices_.size()), [&](int place) {
      std::copy_n(x.first + token_of_place_[place] * x.stride, x.stride,
                  &inputs_[place * x.stride]);
    });
  }

  // Computes the outputs of places [begin, begin + num_rows), which are one expert's.
  void run_expert(Pool& pool, OperandBuffer& buffer, const ExpertSpec& expert,
                  Gating gating, const Rows& x, int begin, int num_rows, int product) {
    const std::ptrdiff_t stride = row_stride(expert.up.num_outputs);
    fit(activated_, num_rows * stride);
    const Rows inputs{&inputs_[begin * x.stride], x.stride, num_rows};
    const Addition up = adapters_.shrink(pool, inputs, product);
    gating.gate_bias = expert.gate_bias;
    gating.up_bias = expert.up_bias;
    multiply_gated(pool, buffer, inputs, gating, expert.gate, expert.up, activated_.data(),
                   up.skip(expert.up.num_outputs), up);
    const std::ptrdiff_t size = expert.down.num_outputs;
    const Rows activated{activated_.data(), stride, num_rows};
    multiply_into(pool, buffer, activated, expert.down, expert.down_bias,
                  &outputs_[begin * size], adapters_.shrink(pool, activated, product + 1));
  }

  static void multiply_into(Pool& pool, OperandBuffer& buffer, const Rows& x,
                            const MatrixSpec& matrix, const float* bias, float* to,
                            const Addition& addition) {
    const std::ptrdiff_t size = matrix.num_outputs;
    multiply(pool, buffer, x,
             {[&](int row, int first, int count, const float* values) {
               float* place = to + row * size + first;
               for (int i = 0; i < count; ++i) {
                 place[i] = values[i] + (bias ? bias[first + i] : 0.0f);
               }
             },
              {to, size}},
             matrix, addition);
  }

  Adapters adapters_;    // of the tokens of one expert
  int num_choices_ = 0;  // of each token
  std::vector<Choice> choices_;
  std::vector<int> begins_, next_, token_of_place_;
  std::vector<float> scores_, shared_, inputs_, activated_, outputs_;
};

}  // namespace trioserve
