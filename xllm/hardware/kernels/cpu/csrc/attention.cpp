// Causal grouped-query attention over the paged cache, with the online softmax of FlashAttention
// (Dao et al., 2022). The group of query heads that share a KV head is computed together, so each
// key and value is read once per group.
//
// A row with one query token streams keys and values from the cache (`decode`), in splits that
// threads share and `merge` joins. Longer rows are cut into tiles of tokens. A tile packs a block of
// keys and values into panels; then a slice of its queries after the other is multiplied with them by
// the engine of gemm.h, weighted and summed up (`tile`). Splits and key blocks lie at absolute
// positions and a block that a query does not see changes none of its bits, so a row's result does
// not depend on the batch, nor a chunk's on where other chunks begin.
#include <omp.h>

#include <type_traits>
#include <vector>

#include "gemm.h"
#include "runtime.h"

namespace xllm {
namespace {

constexpr int64_t kKeys = 64;       // keys per block of the softmax
constexpr int64_t kSplitKeys = 256;  // keys per split of a decode row
constexpr int64_t kMinTileRows = 96;   // rows (tokens x group) per tile, about
constexpr int64_t kMaxTileRows = 384;
constexpr int64_t kSliceKeys = 32;   // keys that a slice of a tile leaves out together; kStep of all
constexpr float kLowest = -1e30f;   // below every score, and finite: differences stay defined
constexpr float kSlack = 8.0f;      // weights are at most 2^kSlack
constexpr double kLog2E = 1.4426950408889634;

struct AttentionArgs {
  const void *q, *k_cache, *v_cache;  // (T, Hq, D); (blocks, block_size, Hk, D) by the strides
  const int32_t *starts, *lens;       // (S + 1,), (S,)
  const int32_t* table;               // (S, B)
  void* out;                          // (T, Hq, D)
  int64_t rows, table_stride, q_heads, kv_heads, head_dim, block_size;
  int64_t k_stride_block, k_stride_token, k_stride_head;
  int64_t v_stride_block, v_stride_token, v_stride_head;
  double scale, softcap;
  int64_t window, dtype;
  const float* sinks;  // (Hq,) or null: a logit of the softmax that has no value
};

struct Task {
  int64_t row, head;
  int64_t first, count;  // query tokens first .. first + count of the row
  int64_t split;         // of a decode row's keys
  int64_t slot;          // of the decode's partial result
};

// Rows (tokens x group) of a tile whose scores are computed, weighted and used while they lie in the
// first-level cache: a multiple of the engine's register blocks.
template <class Engine>
constexpr int64_t kSliceRows = 48;
// Keys per block of a tile. TileEngine takes many, as the sums of a slice are loaded and stored once
// per block.
template <class Engine>
constexpr int64_t kBlockKeys = kKeys;
#if defined(XLLM_HAS_TILES)
template <>
constexpr int64_t kSliceRows<TileEngine> = 32;
template <>
constexpr int64_t kBlockKeys<TileEngine> = 256;
#endif

// Softmax state of one query head. Weights are 2^(score - reference) with scores in powers of two.
// The reference is a score seen before; it follows the highest score only when that exceeds it by
// more than kSlack, so that sums are rarely rescaled.
struct alignas(64) Running {
  Lanes total = fill(0.0f);
  float reference = kLowest;
};
constexpr int64_t kRunningFloats = sizeof(Running) / sizeof(float);

template <class T>
struct Sequence {
  const AttentionArgs& a;
  const int32_t* table;
  int64_t head;

  const T* key(int64_t position) const {
    const int64_t block = table[position / a.block_size], place = position % a.block_size;
    return static_cast<const T*>(a.k_cache) + block * a.k_stride_block + place * a.k_stride_token +
           head * a.k_stride_head;
  }
  const T* value(int64_t position) const {
    const int64_t block = table[position / a.block_size], place = position % a.block_size;
    return static_cast<const T*>(a.v_cache) + block * a.v_stride_block + place * a.v_stride_token +
           head * a.v_stride_head;
  }
};

inline int64_t lowest_visible(const AttentionArgs& a, int64_t position) {
  return a.window && position >= a.window ? position - a.window + 1 : 0;
}

// How products become scores in powers of two.
struct Scaling {
  float scale, softcap;  // softcap * tanh(product * scale); 0 is product * scale

  explicit Scaling(const AttentionArgs& a)
      : scale(float(a.softcap == 0.0 ? a.scale * kLog2E : a.scale / a.softcap)),
        softcap(float(a.softcap * kLog2E)) {}
};

XLLM_INLINE Lanes scores_of(const Lanes& products, const Scaling& scaling) {
  const Lanes x = products * fill(scaling.scale);
  return scaling.softcap == 0.0f ? x : hyperbolic_tangent(x) * fill(scaling.softcap);
}

// The sum of a head's weights with its sink's. A sink far above every score makes it infinite: no
// weight is left.
inline float mass(const AttentionArgs& a, int64_t head, const Running& state) {
  const float total = sum(state.total);
  return a.sinks ? total + std::exp2(a.sinks[head] * float(kLog2E) - state.reference) : total;
}

// Turns the products of one query with PANELS * 16 keys, in panels `stride` apart, into weights; of
// them keys from .. to are visible. Returns the factor that what was summed before must be
// multiplied with.
template <int PANELS, class Weight>
XLLM_INLINE float softmax_block(const Scaling& scaling, const float* products, int64_t stride,
                                int64_t from, int64_t to, Running& state, Weight* weights) {
  Lanes s[PANELS];
  Lanes highest = fill(kLowest);
  const bool partial = from > 0 || to < PANELS * kLanes;
#pragma GCC unroll 4
  for (int p = 0; p < PANELS; ++p) {
    s[p] = scores_of(load(products + p * stride), scaling);
    if (partial) s[p] = only(s[p], int(from) - p * kLanes, int(to) - p * kLanes);
    highest = maximum(s[p], highest);
  }
  float factor = 1.0f;
  if (any_above(highest, state.reference + kSlack)) {  // a NaN reaches the result by its weight
    const float reference = largest(highest);
    factor = power_of_two<5>(splat(state.reference - reference))[0];
    state.reference = reference;
    state.total = state.total * fill(factor);
  }
  const Lanes reference = fill(state.reference);
  Lanes total = state.total;
#pragma GCC unroll 4
  for (int p = 0; p < PANELS; ++p) {
    const Lanes weight = power_of_two(s[p] - reference);
    store(weight, weights + p * kLanes);
    total = total + weight;
  }
  state.total = total;
  return factor;
}

// The same for `panels` panels, an even number, of which the products are left scored where there is
// a softcap. Two weights of a lane leave together: what loads a row of weights finds it in one store.
XLLM_INLINE float softmax_row(const Scaling& scaling, float* products, int64_t stride, int panels,
                              int64_t from, int64_t to, Running& state, bf16* weights) {
  float scale = scaling.scale;
  if (scaling.softcap != 0.0f) {
    scale = 1.0f;
    for (int p = 0; p < panels; ++p)
      store(scores_of(load(products + p * stride), scaling), products + p * stride);
  }
  const Lanes scales = fill(scale);
  // Pairs of panels first .. last are seen as a whole. The others are rare.
  const int beyond = from < panels * kLanes ? int(ceil_div(from, 2 * kLanes)) * 2 : panels;
  const int last = to < panels * kLanes ? int(to / (2 * kLanes)) * 2 : panels;
  const int first = beyond < last ? beyond : last;
  const auto visible = [&](const Lanes& x, int p) {
    return only(x, int(from) - p * kLanes, int(to) - p * kLanes);
  };
  Lanes highest = fill(kLowest), other = highest;
  const auto compare = [&](int begin, int end, auto seen) {
    for (int p = begin; p < end; p += 2) {
      highest = maximum(seen(load(products + p * stride) * scales, p), highest);
      other = maximum(seen(load(products + (p + 1) * stride) * scales, p + 1), other);
    }
  };
  const auto whole = [](const Lanes& x, int) { return x; };
  compare(0, first, visible);
  compare(first, last, whole);
  compare(last, panels, visible);
  highest = maximum(highest, other);
  float factor = 1.0f;
  if (any_above(highest, state.reference + kSlack)) {
    const float reference = largest(highest);
    factor = power_of_two<5>(splat(state.reference - reference))[0];
    state.reference = reference;
    state.total = state.total * fill(factor);
  }
  const Lanes minus = fill(-state.reference);
  Lanes total = state.total;
  other = fill(0.0f);
  const auto weigh_pairs = [&](int begin, int end, auto seen) {
#pragma GCC unroll 2
    for (int p = begin; p < end; p += 2) {
      const Lanes score = fma(load(products + p * stride), scales, minus);
      const Lanes next = fma(load(products + (p + 1) * stride), scales, minus);
      const Lanes weight = power_of_two<3>(seen(score, p));
      const Lanes next_weight = power_of_two<3>(seen(next, p + 1));
      store_two(weight, next_weight, weights + p * kLanes);
      total = total + weight;
      other = other + next_weight;
    }
  };
  weigh_pairs(0, first, visible);
  weigh_pairs(first, last, whole);
  weigh_pairs(last, panels, visible);
  state.total = total + other;
  return factor;
}

// --- one query token ---------------------------------------------------------------------------

// What the splits of decode rows leave for `merge`: per slot, the sums of the group's heads
// (group, D), then the state of each.
struct Partials {
  float* data;
  int64_t group, dim;

  static int64_t floats_of(int64_t slots, int64_t group, int64_t dim) {
    return slots * group * (dim + kRunningFloats);
  }
  float* sums(int64_t slot) const { return data + floats_of(slot, group, dim); }
  Running* states(int64_t slot) const {
    return reinterpret_cast<Running*>(sums(slot) + group * dim);
  }
};

// Products of one key with GROUP queries, to scores kKeys apart.
template <class T, int GROUP>
void multiply_key(const float* q, const T* key, int64_t dim, float* scores) {
  Lanes products[GROUP];
  for (int g = 0; g < GROUP; ++g) products[g] = fill(0.0f);
  for (int64_t i = 0; i < dim; i += kLanes) {
    const Lanes k = load(key + i);
#pragma GCC unroll 4
    for (int g = 0; g < GROUP; ++g) products[g] = fma(load(q + g * dim + i), k, products[g]);
  }
  for (int g = 0; g < GROUP; ++g) scores[g * kKeys] = sum(products[g]);
}

// Adds `count` values, weighted for each of GROUP queries, to their sums.
template <class T, int GROUP>
void add_values(const T* const* values, int64_t count, int64_t dim, const float* weights,
                float* sums) {
  for (int64_t i = 0; i < dim; i += kLanes) {
    Lanes total[GROUP];
    for (int g = 0; g < GROUP; ++g) total[g] = load(sums + g * dim + i);
    for (int64_t j = 0; j < count; ++j) {
      const Lanes v = load(values[j] + i);
#pragma GCC unroll 4
      for (int g = 0; g < GROUP; ++g) total[g] = fma(fill(weights[g * kKeys + j]), v, total[g]);
    }
    for (int g = 0; g < GROUP; ++g) store(total[g], sums + g * dim + i);
  }
}

// Calls f(first, count) for the query heads in runs of 4 and fewer, the count known to the compiler.
template <class F>
void each_run(int64_t group, F f) {
  int64_t first = 0;
  for (; first + 4 <= group; first += 4) f(first, std::integral_constant<int, 4>());
  if (group - first == 3) f(first, std::integral_constant<int, 3>());
  if (group - first == 2) f(first, std::integral_constant<int, 2>());
  if (group - first == 1) f(first, std::integral_constant<int, 1>());
}

// Where the keys and values of one block lie.
template <class T>
struct BlockRows {
  const T *keys[kKeys], *values[kKeys];

  void locate(const Sequence<T>& sequence, int64_t base, int64_t from, int64_t to) {
    for (int64_t j = from; j < to; ++j) {
      keys[j] = sequence.key(base + j);
      values[j] = sequence.value(base + j);
    }
  }
  void request(int64_t j, int64_t row_bytes) const {
    for (int64_t line = 0; line < row_bytes; line += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(keys[j]) + line);
      __builtin_prefetch(reinterpret_cast<const char*>(values[j]) + line);
    }
  }
};

template <class T>
void decode(const AttentionArgs& a, const Task& task, const Partials& partials) {
  static thread_local Scratch scratch;
  const int64_t dim = a.head_dim, group = partials.group, token = a.starts[task.row];
  const Sequence<T> sequence{a, a.table + task.row * a.table_stride, task.head};
  const int64_t lowest = lowest_visible(a, a.lens[task.row] - 1);
  const int64_t begin = task.split * kSplitKeys, most = begin + kSplitKeys;
  const int64_t end = a.lens[task.row] < most ? a.lens[task.row] : most;
  const int64_t first_base = lowest > begin ? lowest / kKeys * kKeys : begin;
  float* q = scratch.get<float>(group * dim + group * kKeys);
  float *scores = q + group * dim, *sums = partials.sums(task.slot);
  Running* states = partials.states(task.slot);
  const Scaling scaling(a);
  const T* queries = static_cast<const T*>(a.q) + (token * a.q_heads + task.head * group) * dim;
  for (int64_t i = 0; i < group * dim; i += kLanes) {
    store(load(queries + i), q + i);
    store(fill(0.0f), sums + i);
  }
  for (int64_t g = 0; g < group; ++g) states[g] = Running();
  BlockRows<T> rows[2];  // of this block and of the next, which is requested meanwhile
  const auto last_of = [&](int64_t base) { return end - base < kKeys ? end - base : kKeys; };
  if (first_base < end)
    rows[0].locate(sequence, first_base, lowest > first_base ? lowest - first_base : 0,
                   last_of(first_base));
  for (int64_t base = first_base, turn = 0; base < end; base += kKeys, turn ^= 1) {
    const int64_t from = lowest > base ? lowest - base : 0, to = last_of(base);
    const BlockRows<T>& here = rows[turn];
    BlockRows<T>& next = rows[turn ^ 1];
    const int64_t coming = base + kKeys < end ? last_of(base + kKeys) : 0;
    next.locate(sequence, base + kKeys, 0, coming);
    for (int64_t j = from; j < to; ++j) {
      if (j < coming) next.request(j, dim * int64_t(sizeof(T)));
      each_run(group, [&](int64_t first, auto count) {
        multiply_key<T, count>(q + first * dim, here.keys[j], dim, scores + first * kKeys + j);
      });
    }
    for (int64_t g = 0; g < group; ++g) {
      float* row = scores + g * kKeys;
      const float factor =
          softmax_block<kKeys / kLanes>(scaling, row, kLanes, from, to, states[g], row);
      if (factor != 1.0f)
        for (int64_t i = 0; i < dim; i += kLanes)
          store(load(sums + g * dim + i) * fill(factor), sums + g * dim + i);
    }
    each_run(group, [&](int64_t first, auto count) {
      add_values<T, count>(here.values + from, to - from, dim, scores + first * kKeys + from,
                           sums + first * dim);
    });
  }
}

// The splits of a decode row, at consecutive slots, to its output.
template <class T>
void merge(const AttentionArgs& a, const Task& task, int64_t splits, const Partials& partials) {
  const int64_t dim = a.head_dim, group = partials.group, token = a.starts[task.row];
  T* out = static_cast<T*>(a.out) + (token * a.q_heads + task.head * group) * dim;
  if (splits <= 0) {  // a row of padding
    std::memset(static_cast<void*>(out), 0, size_t(group * dim) * sizeof(T));
    return;
  }
  for (int64_t g = 0; g < group; ++g) {
    Running whole;
    for (int64_t s = 0; s < splits; ++s) {
      const float here = partials.states(task.slot + s)[g].reference;
      if (here > whole.reference) whole.reference = here;
    }
    float* sums = partials.sums(task.slot) + g * dim;
    for (int64_t s = 0; s < splits; ++s) {
      const Running& part = partials.states(task.slot + s)[g];
      const float factor = std::exp2(part.reference - whole.reference);
      whole.total = fma(part.total, fill(factor), whole.total);
      const float* from = partials.sums(task.slot + s) + g * dim;
      for (int64_t i = 0; i < dim; i += kLanes) {
        const Lanes scaled = load(from + i) * fill(factor);
        store(s ? load(sums + i) + scaled : scaled, sums + i);
      }
    }
    const Lanes factor = fill(1.0f / mass(a, task.head * group + g, whole));
    for (int64_t i = 0; i < dim; i += kLanes) store(load(sums + i) * factor, out + g * dim + i);
  }
}

// --- a tile of query tokens --------------------------------------------------------------------

// A multiple of sixteen elements as the engine reads them.
template <class T, class Input>
XLLM_INLINE void copy_row(const T* from, Input* to, int64_t count) {
  for (int64_t i = 0; i < count; i += 2 * kLanes)
    if constexpr (std::is_same_v<T, Input>) {
      if (i + kLanes < count)
        std::memcpy(static_cast<void*>(to + i), from + i, 2 * kLanes * sizeof(T));
      else
        std::memcpy(static_cast<void*>(to + i), from + i, kLanes * sizeof(T));
    } else {
      for (int64_t d = i; d < i + 2 * kLanes && d < count; d += kLanes)
        store(load(from + d), to + d);
    }
}

// Sixteen keys into a panel over head_dim; zeros for a null pointer. The panel is rows of sixteen
// words, one of each key: a float, or the bfloat16 of two dimensions.
template <class Engine, class T>
void pack_keys(const T* const* keys, int64_t dim, typename Engine::Input* panel) {
  using Input = typename Engine::Input;
  constexpr int64_t kPerWord = 4 / int64_t(sizeof(Input));
  constexpr int64_t kRow = kLanes * kPerWord;  // of the panel, and what is taken of a key at once
  for (int64_t i = 0; i < dim; i += kRow) {
    const int64_t words = (dim - i < kRow ? dim - i : kRow) / kPerWord;
    alignas(64) uint32_t square[kLanes][kLanes];
    for (int j = 0; j < kLanes; ++j) {
      Input* row = reinterpret_cast<Input*>(square[j]);
      if (!keys[j])
        std::memset(static_cast<void*>(row), 0, size_t(words) * 4);
      else
        copy_row(keys[j] + i, row, words * kPerWord);
    }
    transpose(square);
    std::memcpy(static_cast<void*>(panel + i * kLanes), square, size_t(words * kLanes) * 4);
  }
}

// Values j (even) and j + 1 of a block into the panels over keys, which are `stride` apart. A null
// pointer is a key that no query of the tile sees: its values are zero, never what the cache holds.
template <class Engine, class T>
void pack_values(const T* even, const T* odd, int64_t dim, int64_t j,
                 typename Engine::Input* panels, int64_t stride) {
  for (int64_t i = 0; i < dim / kLanes; ++i) {
    const Lanes first = even ? load(even + i * kLanes) : fill(0.0f);
    const Lanes second = odd ? load(odd + i * kLanes) : fill(0.0f);
    typename Engine::Input* to = panels + i * stride + j * kLanes;
    if constexpr (Engine::kPairs) {
      store_pairs(first, second, to);
    } else {
      store(first, to);
      store(second, to + kLanes);
    }
  }
}

// Weights of one query for its `keys` products, by the softmax of the engine that reads them.
XLLM_INLINE float weigh(const Scaling& scaling, float* products, int64_t stride, int64_t keys,
                        int64_t from, int64_t to, Running& state, bf16* weights) {
  return softmax_row(scaling, products, stride, int(keys / kLanes), from, to, state, weights);
}
XLLM_INLINE float weigh(const Scaling& scaling, float* products, int64_t stride, int64_t keys,
                        int64_t from, int64_t to, Running& state, float* weights) {
  if (keys == kSliceKeys)
    return softmax_block<kSliceKeys / kLanes>(scaling, products, stride, from, to, state, weights);
  return softmax_block<kKeys / kLanes>(scaling, products, stride, from, to, state, weights);
}

template <class Engine, class T>
void tile(const AttentionArgs& a, const Task& task) {
  using Input = typename Engine::Input;
  static thread_local Scratch float_scratch, input_scratch;
  const int64_t dim = a.head_dim, group = a.q_heads / a.kv_heads;
  const int64_t depth = round_up(dim, Engine::kStep), panels = dim / kLanes;
  const int64_t rows = task.count * group, token = a.starts[task.row] + task.first;
  const int64_t num_queries = a.starts[task.row + 1] - a.starts[task.row];
  const int64_t position = a.lens[task.row] - num_queries + task.first, end = position + task.count;
  const int64_t lowest = lowest_visible(a, position);
  const Sequence<T> sequence{a, a.table + task.row * a.table_stride, task.head};

  constexpr int64_t kRows = kSliceRows<Engine>, kBlock = kBlockKeys<Engine>;
  float* sums = float_scratch.get<float>(rows * (dim + kRunningFloats) + kRows * kBlock);
  Running* states = reinterpret_cast<Running*>(sums + rows * dim);
  float* scores = sums + rows * (dim + kRunningFloats);
  Input* q = input_scratch.get<Input>((rows + kBlock) * depth + kBlock * dim + kRows * kBlock);
  Input *keys = q + rows * depth, *values = keys + kBlock * depth, *weights = values + kBlock * dim;
  if (depth != dim)  // padding is zero, never NaN
    std::memset(static_cast<void*>(q), 0, size_t((rows + kBlock) * depth) * sizeof(Input));
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = static_cast<const T*>(a.q) +
                    ((token + r / group) * a.q_heads + task.head * group + r % group) * dim;
    copy_row(from, q + r * depth, dim);
    states[r] = Running();
  }
  const Scaling scaling(a);
  const int64_t first_base = lowest / kBlock * kBlock;
  for (int64_t base = first_base; base < end; base += kBlock) {
    const int64_t from = lowest > base ? lowest - base : 0;
    const int64_t to = end - base < kBlock ? end - base : kBlock;
    for (int64_t j = 0; j < to; j += kSliceKeys) {
      const T *some_keys[kSliceKeys], *some_values[kSliceKeys];
      for (int64_t i = 0; i < kSliceKeys; ++i) {
        const bool seen = j + i >= from && j + i < to;
        some_keys[i] = seen ? sequence.key(base + j + i) : nullptr;
        some_values[i] = seen ? sequence.value(base + j + i) : nullptr;
      }
      for (int64_t i = 0; i < kSliceKeys; i += kLanes)
        pack_keys<Engine>(some_keys + i, dim, keys + (j + i) * depth);
      for (int64_t i = 0; i < kSliceKeys; i += 2)
        pack_values<Engine>(some_values[i], some_values[i + 1], dim, j + i, values,
                            kBlock * kLanes);
    }
    const int64_t hidden = base > position ? (base - position) * group : 0;  // rows before base
    for (int64_t row = hidden; row < rows; row += kRows) {
      const int64_t count = rows - row < kRows ? rows - row : kRows;
      const int64_t last = position + (row + count - 1) / group + 1 - base;  // seen by the last row
      const int64_t seen = last < kBlock ? round_up(last, kSliceKeys) : kBlock;
      Engine::gemm(count, int(seen / kLanes), depth, q + row * depth, depth, keys, depth * kLanes,
                   scores, kRows * kLanes, false);
      for (int64_t r = row; r < row + count; ++r) {
        const int64_t here = position + r / group, first = lowest_visible(a, here);
        const int64_t seen_from = first > base ? first - base : 0, seen_to = here + 1 - base;
        float* products = scores + (r - row) * kLanes;
        const float factor = weigh(scaling, products, kRows * kLanes, seen, seen_from, seen_to,
                                   states[r], weights + (r - row) * kBlock);
        if (factor != 1.0f && base > first_base)
          for (int64_t i = 0; i < panels; ++i) {
            float* sum = sums + (i * rows + r) * kLanes;
            store(load(sum) * fill(factor), sum);
          }
      }
      Engine::gemm(count, int(panels), seen, weights, kBlock, values, kBlock * kLanes,
                   sums + row * kLanes, rows * kLanes, base > first_base);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = task.head * group + r % group;
    T* out = static_cast<T*>(a.out) + ((token + r / group) * a.q_heads + head) * dim;
    const Lanes factor = fill(1.0f / mass(a, head, states[r]));
    for (int64_t i = 0; i < panels; ++i)
      store(load(sums + (i * rows + r) * kLanes) * factor, out + i * kLanes);
  }
}

// What the threads share out: tiles, the ones that see most keys first, and splits of decode rows.
struct Work {
  std::vector<Task> tasks;    // independent of each other
  std::vector<Task> decodes;  // one per decode row and head: the first of its splits
  int64_t slots = 0;
};

// Query tokens per tile: large tiles pack each key for more queries, but all threads need some.
inline int64_t tile_tokens(const AttentionArgs& a, int64_t group) {
  int64_t rows = kMaxTileRows;
  const int64_t all = a.starts[a.rows] * group * a.kv_heads;
  while (rows > kMinTileRows && all / rows < 4 * num_threads()) rows /= 2;
  return rows / group > 1 ? rows / group : 1;
}

Work work_of(const AttentionArgs& a) {
  Work work;
  const int64_t group = a.q_heads / a.kv_heads;
  const int64_t tokens = tile_tokens(a, group);
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t count = a.starts[row + 1] - a.starts[row];
    if (count == 1) {
      const int64_t first = lowest_visible(a, a.lens[row] - 1) / kSplitKeys;
      for (int64_t head = 0; head < a.kv_heads; ++head) {
        work.decodes.push_back({row, head, 0, 1, first, work.slots});
        for (int64_t split = first; split * kSplitKeys < a.lens[row]; ++split)
          work.tasks.push_back({row, head, 0, 1, split, work.slots++});
      }
      continue;
    }
    for (int64_t tile = ceil_div(count, tokens) - 1; tile >= 0; --tile)
      for (int64_t head = 0; head < a.kv_heads; ++head) {
        const int64_t first = tile * tokens;
        const int64_t here = count - first < tokens ? count - first : tokens;
        work.tasks.push_back({row, head, first, here, 0, -1});
      }
  }
  return work;
}

template <class Engine, class T>
void attend(const AttentionArgs& a) {
  static thread_local Scratch scratch;
  const Work work = work_of(a);
  const int64_t group = a.q_heads / a.kv_heads;
  const Partials partials{scratch.get<float>(Partials::floats_of(work.slots, group, a.head_dim) + 1), group,
                          a.head_dim};
  const int64_t num_tasks = int64_t(work.tasks.size()), num_decodes = int64_t(work.decodes.size());
#pragma omp parallel num_threads(num_threads())
  {
    typename Engine::Scope scope;
    (void)scope;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < num_tasks; ++i) {
      const Task& task = work.tasks[size_t(i)];
      if (task.slot >= 0)
        decode<T>(a, task, partials);
      else
        tile<Engine, T>(a, task);
    }
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < num_decodes; ++i) {
      const Task& task = work.decodes[size_t(i)];
      merge<T>(a, task, ceil_div(a.lens[task.row], kSplitKeys) - task.split, partials);
    }
  }
}

}  // namespace
}  // namespace xllm

// head_dim a multiple of 16 and at most 1024; the last dimension of the caches is contiguous.
XLLM_EXPORT void xllm_paged_attention(const xllm::AttentionArgs* args) {
  using namespace xllm;
  if (args->dtype == 0) return attend<F32Engine, float>(*args);
#if defined(XLLM_HAS_TILES)
  if (active_engine() == EngineKind::kTile) return attend<TileEngine, bf16>(*args);
#endif
#if defined(XLLM_HAS_DOT)
  if (active_engine() == EngineKind::kDot) return attend<DotEngine, bf16>(*args);
#endif
  attend<F32Engine, bf16>(*args);
}
