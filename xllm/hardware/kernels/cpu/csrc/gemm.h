// The one product behind linear layers and attention: C (rows, 16) = [C +] A (rows, k) B (k, 16).
//
// A is row-major; B is a panel: sixteen columns whose k-th entries lie together. Sixteen is the
// width of a tile, of a 512-bit register and of two 256-bit ones. Three engines compute it:
//
//   F32Engine   any vector unit. B[k][16] floats.
//   DotEngine   AVX512-BF16. B[k / 2][16][2] bfloat16: each lane holds a pair along k.
//   TileEngine  AMX. The same panels; k a multiple of 32.
//
// Every element of C is summed over k in one order that depends on nothing but k. So a row of the
// result has the same bits however many rows are computed with it, and a k range may be cut in two
// (at a multiple of kStep) with `accumulate`.
#pragma once

#include "tile.h"
#include "vector.h"

namespace xllm {

// Memory that will be read after a product. F32Engine asks for it while it computes, so that a
// product of few rows does not wait for its weights and then for its arithmetic. TileEngine, told of
// any, asks for B itself a few tiles ahead: at most 16 rows stream it.
struct Ahead {
  const void* at = nullptr;
  int64_t bytes = 0;
};

// Scratch of an engine per thread and parallel region.
struct NoScope {};

struct F32Engine {
  using Input = float;
  using Scope = NoScope;
  static constexpr int64_t kStep = 1;
  static constexpr bool kPairs = false;

  // `panels` panels of B, `b_stride` apart; their C blocks (rows, 16) are `c_stride` apart.
  static void gemm(int64_t rows, int panels, int64_t k, const float* a, int64_t lda,
                   const float* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                   const Ahead& ahead = {});
};

#if defined(__AVX512BF16__) || defined(XLLM_EMULATE)
#define XLLM_HAS_DOT 1

struct DotEngine {
  using Input = bf16;
  using Scope = NoScope;
  static constexpr int64_t kStep = 2;
  static constexpr bool kPairs = true;

  static void gemm(int64_t rows, int panels, int64_t k, const bf16* a, int64_t lda, const bf16* b,
                   int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                   const Ahead& = {});
};
#endif

#if defined(XLLM_HAS_TILES)

struct TileEngine {
  using Input = bf16;
  using Scope = TileScope;
  static constexpr int64_t kStep = 32;
  static constexpr bool kPairs = true;

  static void gemm(int64_t rows, int panels, int64_t k, const bf16* a, int64_t lda, const bf16* b,
                   int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                   const Ahead& ahead = {}) {
    for (int p = 0; p < panels; p += 2) {
      const bf16* columns = b + p * b_stride;
      const bool two = p + 1 < panels;
      const auto ask = [&](int64_t i) {
        if (!ahead.at) return;
        const bf16* later = columns + (i + 4 * kStep) * kLanes;
        for (int line = 0; line < 16; ++line) {
          __builtin_prefetch(later + 32 * line);
          if (two) __builtin_prefetch(later + b_stride + 32 * line);
        }
      };
      for (int64_t row = 0; row < rows; row += 32)
        block(rows - row, two, k, a + row * lda, lda, columns, b_stride,
              c + p * c_stride + row * kLanes, c_stride, accumulate, ask);
    }
  }

  // The first 32 of `rows` rows, with one panel or two. `between` as in tile.h.
  template <class Between>
  static void block(int64_t rows, bool two, int64_t k, const bf16* a, int64_t lda, const bf16* b,
                    int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                    const Between& between) {
    const int here = int(rows < 32 ? rows : 32);
    if (here > 16)
      two ? tile_block<2, 2>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, between)
          : tile_block<2, 1>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, between);
    else
      two ? tile_block<1, 2>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, between)
          : tile_block<1, 1>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, between);
  }
};
#endif

}  // namespace xllm
