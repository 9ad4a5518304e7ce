// Linear layers of many rows on tiles: blocks of 32 rows by 32 columns, each summed over all of k in
// the tiles and written out from the first-level cache while the next block is multiplied.
#pragma once

#include <type_traits>

#include "gemm.h"

#if defined(XLLM_HAS_TILES)

#include "activation.h"
#include "linear.h"
#include "runtime.h"
#include "weights.h"

namespace xllm {

constexpr int64_t kMinTileBlockRows = 17;  // fewer fill half the tiles and stream their weights
constexpr int64_t kBlockRows = 32;
constexpr int64_t kMaxTaskRows = 256;  // with A and a group's weights in the second-level cache
constexpr int64_t kMinTaskRows = 64;

// Writes sums to their place in out, a few rows at a time. KIND is the activation of a gated layer,
// whose sums are of two panels of gates, then of the two that they gate; else -1, and two panels.
template <int KIND>
class BlockWriter {
 public:
  static constexpr int kSides = KIND < 0 ? 1 : 2;
  static constexpr int64_t kSums = kSides * 2 * kBlockRows * kLanes;

  // Of the group of panels `panel` and, with `two`, panel + 1 (of the gates, where there are any).
  BlockWriter(const LinearArgs& a, int64_t panel, bool two)
      : width_(a.n / kSides), column_(panel * kLanes), two_(two) {
    columns_ = width_ - column_ < (two ? 2 : 1) * kLanes ? width_ - column_ : (two ? 2 : 1) * kLanes;
    out_ = static_cast<bf16*>(a.out) + column_;
    for (int side = 0; side < kSides; ++side)
      for (int p = 0; p < (two ? 2 : 1); ++p) {
        const int64_t first = side * width_ + column_ + p * kLanes;
        const int64_t count = width_ - column_ - p * kLanes;
        scale_[side][p] = a.scale ? load(a.scale + first) : fill(1.0f);
        bf16 bias[kLanes] = {};
        if (a.bias)
          std::memcpy(static_cast<void*>(bias), static_cast<const bf16*>(a.bias) + first,
                      size_t(count < kLanes ? count : kLanes) * sizeof(bf16));
        bias_[side][p] = load(bias);
      }
  }

  void begin(const float* sums, int64_t row, int64_t rows) {
    sums_ = sums;
    to_ = out_ + row * width_;
    left_ = rows;
  }

  // The next `count` rows, or as many as are left.
  void write(int64_t count) {
    if (count > left_) count = left_;
    left_ -= count;
    for (; count > 0; --count, sums_ += kLanes, to_ += width_) {
      const Lanes first = value(0);
      if (two_ && columns_ == 2 * kLanes) {
        store_two(first, value(1), to_);
      } else if (columns_ == kLanes) {
        store(first, to_);
      } else {
        bf16 last[2 * kLanes];
        store(first, last);
        if (two_) store(value(1), last + kLanes);
        std::memcpy(static_cast<void*>(to_), last, size_t(columns_) * sizeof(bf16));
      }
    }
  }

  // Asks for line `line` of a block at `row` before it is written.
  void request(int64_t row, int64_t line) const {
    __builtin_prefetch(out_ + (row + line) * width_, 1);
  }

 private:
  static constexpr int64_t kPanel = kBlockRows * kLanes;

  Lanes scaled(int side, int p) const {
    return fma(load(sums_ + (side * 2 + p) * kPanel), scale_[side][p], bias_[side][p]);
  }
  // Gates and what they gate are rounded first: the bits of a product and an activation.
  Lanes value(int p) const {
    if constexpr (KIND < 0)
      return scaled(0, p);
    else
      return activate<KIND, bf16>(rounded<bf16>(scaled(0, p))) * rounded<bf16>(scaled(1, p));
  }

  Lanes scale_[kSides][2], bias_[kSides][2];
  int64_t width_, column_, columns_;
  bool two_;
  bf16* out_;
  const float* sums_ = nullptr;
  bf16* to_ = nullptr;
  int64_t left_ = 0;
};

// Memory that is asked for a little at a time, into the second-level cache.
struct Stream {
  const char* at = nullptr;
  const char* end = nullptr;
  void ask(int64_t lines) {
    for (; lines > 0 && at < end; --lines, at += 64) __builtin_prefetch(at, 0, 2);
  }
};

template <class Weights, int KIND>
void multiply_tiles_of(const LinearArgs& a, const bf16* x) {
  using Element = typename Weights::Element;
  using Writer = BlockWriter<KIND>;
  constexpr bool kDirect = std::is_same_v<Element, bf16>;
  constexpr int kSides = Writer::kSides;
  static thread_local Scratch expanded_scratch;
  const int threads = num_threads();
  const int64_t panels = ceil_div(a.n, kLanes) / kSides, groups = ceil_div(panels, 2);
  const int64_t panel_size = a.padded_k * kLanes;
  int64_t most = kMaxTaskRows;  // fewer where threads would lack tasks
  while (most > kMinTaskRows && ceil_div(a.tokens, most) * groups < threads * 8) most /= 2;
  const int64_t task_rows =
      round_up(ceil_div(a.tokens, ceil_div(a.tokens, most)), kBlockRows);
  const int64_t chunks = ceil_div(a.tokens, task_rows);
  const Element* weight = static_cast<const Element*>(a.weight);
  TaskRuns tasks(chunks * groups, threads);
#pragma omp parallel num_threads(threads)
  {
    TileScope scope;
    bf16* expanded = kDirect ? nullptr : expanded_scratch.get<bf16>(kSides * 2 * panel_size);
    alignas(64) float sums[2][Writer::kSums];
    tasks.work([&](int64_t task) {
      const int64_t panel = task % groups * 2, first = task / groups * task_rows;
      const int64_t rows = a.tokens - first < task_rows ? a.tokens - first : task_rows;
      const bool two = panel + 1 < panels;
      const bf16* columns[kSides];
      Stream next[kSides];
      for (int side = 0; side < kSides; ++side) {
        const Element* packed = weight + (side * panels + panel) * panel_size;
        if constexpr (kDirect) {
          columns[side] = packed;
        } else {
          bf16* to = expanded + side * 2 * panel_size;
          expand_panel<Weights>(packed, a.padded_k, to);
          if (two) expand_panel<Weights>(packed + panel_size, a.padded_k, to + panel_size);
          columns[side] = to;
        }
        const int64_t coming = panels - panel - 2 < 2 ? panels - panel - 2 : 2;
        const char* at = reinterpret_cast<const char*>(packed + 2 * panel_size);
        if (coming > 0) next[side] = {at, at + coming * panel_size * int64_t(sizeof(Element))};
      }
      const int64_t blocks = ceil_div(rows, kBlockRows), steps = a.padded_k / TileEngine::kStep;
      const int64_t lines = ceil_div(2 * panel_size * int64_t(sizeof(Element)) / 64, blocks * steps);
      const int64_t rows_per_step = ceil_div(kBlockRows, steps * kSides);
      Writer writer(a, panel, two);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t row = first + block * kBlockRows;
        const int64_t here = first + rows - row < kBlockRows ? first + rows - row : kBlockRows;
        float* to = sums[block % 2];
        int64_t requested = 0;
        for (int side = 0; side < kSides; ++side)
          TileEngine::block(here, two, a.padded_k, x + row * a.padded_k, a.padded_k, columns[side],
                            panel_size, to + side * 2 * kBlockRows * kLanes, kBlockRows * kLanes,
                            false, [&](int64_t) {
                              next[side].ask(lines);
                              for (int64_t i = 0; i < rows_per_step && requested < here; ++i)
                                writer.request(row, requested++);
                              writer.write(rows_per_step);
                            });
        writer.write(kBlockRows);
        writer.begin(to, row, here);
      }
      writer.write(kBlockRows);
    });
  }
}

// x (T, padded_k) by the weight. T >= kMinTileBlockRows is faster here; dtype is bfloat16.
template <class Weights>
void multiply_tiles(const LinearArgs& a, const bf16* x) {
  if (a.gate < 0) return multiply_tiles_of<Weights, -1>(a, x);
  with_activation(a.gate, [&](auto kind) { multiply_tiles_of<Weights, kind>(a, x); });
}

}  // namespace xllm
#endif
