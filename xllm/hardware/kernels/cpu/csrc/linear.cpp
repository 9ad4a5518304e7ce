// out (T, N) = x (T, K) weight (N, K)^T * scale (N) + bias (N), the weight packed (weights.h).
//
// Few rows stream the weight once, straight into registers: the time is the weight's bytes over the
// memory bandwidth. More rows expand a group of panels into the cache in the engine's format and
// multiply all rows with it: the time is arithmetic. On tiles that is linear_tiles.h. All sum in the
// order of k, so a row's bits do not depend on the number of rows. One exception: on tiles and
// bfloat16 dots, int8 weights of a few rows are streamed in float32, which differs from those engines
// by their rounding of sums.
#include <omp.h>

#include <type_traits>

#include "activation.h"
#include "gemm.h"
#include "linear.h"
#include "linear_tiles.h"
#include "runtime.h"
#include "weights.h"

namespace xllm {
namespace {

constexpr int kMaxGroup = 4;         // panels expanded together
constexpr int64_t kChunkRows = 128;  // rows per task
constexpr int64_t kOrderedRows = 24;  // in float32, at most one chunk: more are bound by arithmetic
constexpr int64_t kChunkBytes = 64 << 10;  // of one panel in the cache

// x (T, K) into rows of padded_k in the engine's format.
template <class Input, class T>
void convert_input(const LinearArgs& a, const T* x, Input* to) {
#pragma omp parallel for num_threads(num_threads()) if (a.tokens * a.k > kParallelElements)
  for (int64_t t = 0; t < a.tokens; ++t) {
    const T* from = x + t * a.k;
    Input* row = to + t * a.padded_k;
    int64_t i = 0;
    for (; i + kLanes <= a.k; i += kLanes) store(load(from + i), row + i);
    for (; i < a.k; ++i) from_float(to_float(from[i]), row + i);
    std::memset(static_cast<void*>(row + a.k), 0, size_t(a.padded_k - a.k) * sizeof(Input));
  }
}

// x as the engine reads it: x itself where it is that already, else a copy in `scratch`.
template <class Input>
const Input* prepare_input(const LinearArgs& a, Scratch& scratch) {
  const bool same = std::is_same_v<Input, bf16> == (a.dtype == 1);
  if (same && a.k == a.padded_k) return static_cast<const Input*>(a.x);
  Input* to = scratch.get<Input>(a.tokens * a.padded_k);
  with_dtype(a.dtype, [&](auto element) {
    convert_input(a, static_cast<const decltype(element)*>(a.x), to);
  });
  return to;
}

// act(gate) * up of two panels' sums, each rounded first: the bits of a product and an activation.
template <class T>
void write_gated(const LinearArgs& a, const float* gates, const float* ups, int64_t row,
                 int64_t rows, int64_t panel) {
  const int64_t width = a.n / 2, column = panel * kLanes;
  const T* bias = static_cast<const T*>(a.bias);
  const auto of = [&](const float* values, int64_t i) {
    return values ? load(values + i) : fill(1.0f);
  };
  const auto bias_of = [&](int64_t i) { return bias ? load(bias + i) : fill(0.0f); };
  const Lanes gate_scale = of(a.scale, column), up_scale = of(a.scale, width + column);
  const Lanes gate_bias = bias_of(column), up_bias = bias_of(width + column);
  T* out = static_cast<T*>(a.out) + row * width + column;
  with_activation(a.gate, [&](auto kind) {
    for (int64_t r = 0; r < rows; ++r) {
      T gate[kLanes], up[kLanes];
      store(fma(load(gates + r * kLanes), gate_scale, gate_bias), gate);
      store(fma(load(ups + r * kLanes), up_scale, up_bias), up);
      store(activate<kind, T>(load(gate)) * load(up), out + r * width);
    }
  });
}

// Sums (rows, 16) of one panel, scaled and biased, to their place in out.
template <class T>
void write_rows(const LinearArgs& a, const float* sums, int64_t row, int64_t rows, int64_t panel,
                T* out) {
  const int64_t column = panel * kLanes;
  const int64_t width = a.n - column < kLanes ? a.n - column : kLanes;
  const Lanes scale = a.scale ? load(a.scale + column) : fill(1.0f);
  float bias_row[kLanes] = {};
  if (a.bias)
    for (int64_t i = 0; i < width; ++i)
      bias_row[i] = to_float(static_cast<const T*>(a.bias)[column + i]);
  const Lanes bias = load(bias_row);
  for (int64_t r = 0; r < rows; ++r) {
    const Lanes y = fma(load(sums + r * kLanes), scale, bias);
    T* to = out + (row + r) * a.n + column;
    if (width == kLanes) {
      store(y, to);
    } else {
      T last[kLanes];
      store(y, last);
      std::memcpy(static_cast<void*>(to), last, size_t(width) * sizeof(T));
    }
  }
}

void write_out(const LinearArgs& a, const float* sums, int64_t row, int64_t rows, int64_t panel) {
  with_dtype(a.dtype, [&](auto element) {
    write_rows(a, sums, row, rows, panel, static_cast<decltype(element)*>(a.out));
  });
}

// ROWS rows times PANELS panels, the weight read once and never written to memory.
template <class Weights, int ROWS, int PANELS>
void stream_panels(const LinearArgs& a, const float* x, int64_t panel, float* sums) {
  using Element = typename Weights::Element;
  const int64_t stride = a.padded_k * kLanes;
  const Element* w = static_cast<const Element*>(a.weight) + panel * stride;
  Lanes total[PANELS][ROWS];
  for (int p = 0; p < PANELS; ++p)
    for (int r = 0; r < ROWS; ++r) total[p][r] = fill(0.0f);
  for (int64_t k = 0; k < a.padded_k; k += 2) {
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p) {
      const PairOfLanes v = Weights::load_pair(w + p * stride + k * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const float* row = x + r * a.padded_k + k;
        total[p][r] = fma(fill(row[0]), v.even, total[p][r]);
        total[p][r] = fma(fill(row[1]), v.odd, total[p][r]);
      }
    }
  }
  for (int p = 0; p < PANELS; ++p)
    for (int r = 0; r < ROWS; ++r) store(total[p][r], sums + (p * ROWS + r) * kLanes);
}

// Sums kept in registers by one call of stream_panels.
constexpr int kSumRegisters = XLLM_REGISTER_BYTES == 64 ? 16 : 12;
constexpr int kMaxStreamedRows = 12 / kRegisters < 6 ? 12 / kRegisters : 6;

constexpr int streamed_panels(int rows) {
  const int fit = kSumRegisters / (rows * kRegisters);
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

template <class Weights, int ROWS>
void stream(const LinearArgs& a, const float* x) {
  constexpr int kPanels = streamed_panels(ROWS);
  const int64_t panels = ceil_div(a.n, kLanes), groups = ceil_div(panels, kPanels);
  const int threads = num_threads();
  const int64_t run = groups / (threads * 4) + 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic, run)
  for (int64_t g = 0; g < groups; ++g) {
    alignas(64) float sums[kPanels * ROWS * kLanes];
    const int64_t first = g * kPanels;
    if (first + kPanels <= panels) {
      stream_panels<Weights, ROWS, kPanels>(a, x, first, sums);
      for (int p = 0; p < kPanels; ++p)
        write_out(a, sums + p * ROWS * kLanes, 0, ROWS, first + p);
    } else {
      for (int64_t p = first; p < panels; ++p) {
        stream_panels<Weights, ROWS, 1>(a, x, p, sums);
        write_out(a, sums, 0, ROWS, p);
      }
    }
  }
}

template <class Weights, int ROWS = kMaxStreamedRows>
void stream_rows(const LinearArgs& a, const float* x) {
  if constexpr (ROWS > 0) {
    if (a.tokens == ROWS) return stream<Weights, ROWS>(a, x);
    stream_rows<Weights, ROWS - 1>(a, x);
  }
}

// Rows per task where each task expands its weights.
constexpr int64_t kExpandedRows = 512;

// Chunks of at most `rows` rows, which share a pass over the weights; of fewer where threads would
// lack tasks.
inline int64_t chunk_count(int64_t tokens, int64_t panels, int threads, int64_t rows) {
  const int64_t chunks = ceil_div(tokens, rows);
  return ceil_div(panels, 2) * chunks >= threads * 8 ? chunks : ceil_div(tokens, kChunkRows);
}

// Panels per task: as many as share a pass over the rows, but enough tasks for all threads.
inline int group_size(int64_t panels, int64_t chunks, int threads, int most) {
  int group = most;
  while (group > 1 && ceil_div(panels, group) * chunks < threads * 8) group /= 2;
  return group;
}

template <class Engine, class Weights>
void multiply(const LinearArgs& a, const typename Engine::Input* x) {
  using Input = typename Engine::Input;
  using Element = typename Weights::Element;
  // A panel whose packed form is what the engine reads needs no expansion.
  constexpr bool kDirect = std::is_same_v<Element, Input>;
  constexpr int64_t kMaxK = kChunkBytes / (kLanes * sizeof(Input));
  static thread_local Scratch expanded_scratch, sums_scratch;
  const int threads = num_threads();
  // A gated layer goes by the panels of its gates, each with that of the values it gates.
  const int sides = a.gate < 0 ? 1 : 2;
  const int64_t all_panels = ceil_div(a.n, kLanes), panels = all_panels / sides;
  const int64_t chunks = chunk_count(
      a.tokens, panels, threads, kDirect ? kChunkRows : kExpandedRows);
  // Few rows in float32 go panel by panel in the order of memory, each asking for the next.
  const bool in_order = std::is_same_v<Engine, F32Engine> && a.tokens <= kOrderedRows;
  // Few rows read an expanded panel once: no more of them than the first-level cache holds.
  const int most = (kDirect || a.tokens > 32 ? kMaxGroup : 2) / sides;
  const int group = in_order ? 1 : group_size(panels, chunks, threads, most);
  const int64_t groups = ceil_div(panels, group), rows_per_chunk = ceil_div(a.tokens, chunks);
  const Element* weight = static_cast<const Element*>(a.weight);
  const Element* end = weight + all_panels * a.padded_k * kLanes;
  const int64_t run = in_order ? groups / (threads * 8) + 1 : 1;
#pragma omp parallel num_threads(threads)
  {
    typename Engine::Scope scope;
    (void)scope;
    Input* expanded = kDirect ? nullptr : expanded_scratch.get<Input>(group * kMaxK * kLanes);
    float* sums = sums_scratch.get<float>(group * sides * rows_per_chunk * kLanes);
#pragma omp for schedule(dynamic, run) nowait
    for (int64_t task = 0; task < groups * chunks; ++task) {
      const int64_t first = task / chunks * group, row = task % chunks * rows_per_chunk;
      const int count = int(panels - first < group ? panels - first : group);
      const int64_t rows = a.tokens - row < rows_per_chunk ? a.tokens - row : rows_per_chunk;
      for (int side = 0; side < sides; ++side) {
        const Element* packed = weight + (side * panels + first) * a.padded_k * kLanes;
        float* side_sums = sums + side * count * rows * kLanes;
        for (int64_t k = 0; k < a.padded_k; k += kMaxK) {
          const int64_t depth = a.padded_k - k < kMaxK ? a.padded_k - k : kMaxK;
          const Element* next = packed + (k + depth) * kLanes;  // of this panel or the one after
          Ahead ahead;
          if (in_order && next + depth * kLanes <= end)
            ahead = {next, depth * kLanes * int64_t(sizeof(Element))};
          if (kDirect && Engine::kPairs) ahead = {next, 0};
          const Input* b;
          int64_t b_stride;
          if constexpr (kDirect) {
            b = packed + k * kLanes;
            b_stride = a.padded_k * kLanes;
          } else {
            for (int p = 0; p < count; ++p)
              expand_panel<Weights>(packed + (p * a.padded_k + k) * kLanes, depth,
                                    expanded + p * depth * kLanes);
            b = expanded;
            b_stride = depth * kLanes;
          }
          Engine::gemm(rows, count, depth, x + row * a.padded_k + k, a.padded_k, b, b_stride,
                       side_sums, rows * kLanes, k > 0, ahead);
        }
      }
      for (int p = 0; p < count; ++p) {
        const float* first_sums = sums + p * rows * kLanes;
        if (sides == 1)
          write_out(a, first_sums, row, rows, first + p);
        else
          with_dtype(a.dtype, [&](auto element) {
            write_gated<decltype(element)>(a, first_sums, first_sums + count * rows * kLanes, row,
                                           rows, first + p);
          });
      }
    }
  }
}

template <class Engine, class Weights>
void linear_with(const LinearArgs& a) {
  static thread_local Scratch scratch;
  const auto* x = prepare_input<typename Engine::Input>(a, scratch);
  if constexpr (std::is_same_v<Engine, F32Engine>)
    if (a.tokens <= kMaxStreamedRows) return stream_rows<Weights>(a, x);
#if defined(XLLM_HAS_TILES)
  if constexpr (std::is_same_v<Engine, TileEngine>)
    if (a.tokens >= kMinTileBlockRows) return multiply_tiles<Weights>(a, x);
#endif
  multiply<Engine, Weights>(a, x);
}

// int8 weights of a few rows are streamed: to expand them would cost more than the products.
constexpr int64_t kStreamedInt8Rows = 4;

// Products of bfloat16 activations run on the best engine, others in float32.
template <class Weights>
void linear(const LinearArgs& a) {
  const bool streamed = std::is_same_v<Weights, I8Weights> && a.tokens <= kStreamedInt8Rows;
  if (a.dtype == 1 && !streamed) {
#if defined(XLLM_HAS_TILES)
    if (active_engine() == EngineKind::kTile) return linear_with<TileEngine, Weights>(a);
#endif
#if defined(XLLM_HAS_DOT)
    if (active_engine() == EngineKind::kDot) return linear_with<DotEngine, Weights>(a);
#endif
  }
  linear_with<F32Engine, Weights>(a);
}

}  // namespace
}  // namespace xllm

XLLM_EXPORT void xllm_linear(const xllm::LinearArgs* args) {
  if (args->format == 0) return xllm::linear_with<xllm::F32Engine, xllm::F32Weights>(*args);
  if (args->format == 1) return xllm::linear<xllm::BF16Weights>(*args);
  return xllm::linear<xllm::I8Weights>(*args);
}
