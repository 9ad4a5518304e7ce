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

// Rows that one register block of R registers per row holds beside B and a broadcast of A.
constexpr int block_rows(int registers) {
  return XLLM_REGISTER_BYTES == 64 ? 14 : 12 / registers;
}

// Memory that will be read after a product. F32Engine asks for it while it computes, so that a
// product of few rows does not wait for its weights and then for its arithmetic. TileEngine, told of
// any, asks for B a few tiles ahead.
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

  // `panels` panels of B, `b_stride` apart; their C blocks (rows, 16) are `c_stride` apart. With
  // R < kRegisters only the first R registers of each row of C are computed.
  template <int R = kRegisters>
  static void gemm(int64_t rows, int panels, int64_t k, const float* a, int64_t lda,
                   const float* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                   const Ahead& ahead = {}) {
    constexpr int kBlock = block_rows(R);
    const int64_t share = ahead.bytes / ((rows + kBlock - 1) / kBlock * panels);
    const char* next = static_cast<const char*>(ahead.at ? ahead.at : b);
    int64_t row = 0;
    for (; row + kBlock <= rows; row += kBlock)
      for (int p = 0; p < panels; ++p, next += share)
        block<kBlock, R>(k, a + row * lda, lda, b + p * b_stride,
                         c + p * c_stride + row * kLanes, accumulate, next, share / k);
    for (int p = 0; row < rows && p < panels; ++p, next += share)
      tail<kBlock - 1, R>(int(rows - row), k, a + row * lda, lda, b + p * b_stride,
                          c + p * c_stride + row * kLanes, accumulate, next, share / k);
  }

 private:
  // Asks for one line every `step` bytes from `next` per k; a step of 0 repeats one line for free.
  template <int ROWS, int R>
  static void block(int64_t k, const float* a, int64_t lda, const float* b, float* c,
                    bool accumulate, const char* next, int64_t step) {
    Pack<R> sums[ROWS];
    for (int r = 0; r < ROWS; ++r)
      sums[r] = accumulate ? load<R>(c + r * kLanes) : fill<R>(0.0f);
    for (int64_t i = 0; i < k; ++i) {
      const Pack<R> column = load<R>(b + i * kLanes);
      __builtin_prefetch(next + i * step);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) sums[r] = fma(fill<R>(a[r * lda + i]), column, sums[r]);
    }
    for (int r = 0; r < ROWS; ++r) store(sums[r], c + r * kLanes);
  }

  template <int ROWS, int R>
  static void tail(int rows, int64_t k, const float* a, int64_t lda, const float* b, float* c,
                   bool accumulate, const char* next, int64_t step) {
    if constexpr (ROWS > 0) {
      if (rows == ROWS) return block<ROWS, R>(k, a, lda, b, c, accumulate, next, step);
      tail<ROWS - 1, R>(rows, k, a, lda, b, c, accumulate, next, step);
    }
  }
};

#if defined(__AVX512BF16__) || defined(XLLM_EMULATE)
#define XLLM_HAS_DOT 1

struct DotEngine {
  using Input = bf16;
  using Scope = NoScope;
  static constexpr int64_t kStep = 2;
  static constexpr bool kPairs = true;

  template <int R = kRegisters>
  static void gemm(int64_t rows, int panels, int64_t k, const bf16* a, int64_t lda, const bf16* b,
                   int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                   const Ahead& = {}) {
    constexpr int kBlock = block_rows(kRegisters);
    int64_t row = 0;
    for (; row + kBlock <= rows; row += kBlock)
      for (int p = 0; p < panels; ++p)
        block<kBlock>(k, a + row * lda, lda, b + p * b_stride, c + p * c_stride + row * kLanes,
                      accumulate);
    for (int p = 0; row < rows && p < panels; ++p)
      tail<kBlock - 1>(int(rows - row), k, a + row * lda, lda, b + p * b_stride,
                       c + p * c_stride + row * kLanes, accumulate);
  }

 private:
  template <int ROWS>
  static void block(int64_t k, const bf16* a, int64_t lda, const bf16* b, float* c,
                    bool accumulate) {
    Lanes sums[ROWS];
    for (int r = 0; r < ROWS; ++r) sums[r] = accumulate ? load(c + r * kLanes) : fill(0.0f);
    for (int64_t i = 0; i < k; i += 2) {
      const bf16* column = b + i * kLanes;
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) sums[r] = dot_pairs(column, a + r * lda + i, sums[r]);
    }
    for (int r = 0; r < ROWS; ++r) store(sums[r], c + r * kLanes);
  }

  template <int ROWS>
  static void tail(int rows, int64_t k, const bf16* a, int64_t lda, const bf16* b, float* c,
                   bool accumulate) {
    if constexpr (ROWS > 0) {
      if (rows == ROWS) return block<ROWS>(k, a, lda, b, c, accumulate);
      tail<ROWS - 1>(rows, k, a, lda, b, c, accumulate);
    }
  }

  // sums[lane] += column[lane][0] * a[0] + column[lane][1] * a[1]
  XLLM_INLINE Lanes dot_pairs(const bf16* column, const bf16* a, const Lanes& sums) {
    int32_t pair;
    std::memcpy(&pair, a, 4);
    Lanes out;
#if defined(__AVX512BF16__)
    out.r[0] = (floats)_mm512_dpbf16_ps((__m512)sums.r[0], (__m512bh)_mm512_loadu_si512(column),
                                        (__m512bh)_mm512_set1_epi32(pair));
#else
    XLLM_EACH_REGISTER(kRegisters) {
      const uints w = load_unaligned<uints>(column + 2 * i * kRegisterLanes);
      const uint32_t x = uint32_t(pair);
      const uints low = uints{} + (x << 16), high = uints{} + (x & 0xffff0000u);
      out.r[i] = fma((floats)(w << 16), (floats)low, sums.r[i]);
      out.r[i] = fma((floats)(w & 0xffff0000u), (floats)high, out.r[i]);
    }
#endif
    return out;
  }
};
#endif

#if defined(XLLM_HAS_TILES)

struct TileEngine {
  using Input = bf16;
  using Scope = TileScope;
  static constexpr int64_t kStep = 32;
  static constexpr bool kPairs = true;
  // Of k per pass: two panels and 32 rows of A stay in the first-level cache meanwhile.
  static constexpr int64_t kDepth = 320;

  template <int R = kRegisters>
  static void gemm(int64_t rows, int panels, int64_t k, const bf16* a, int64_t lda, const bf16* b,
                   int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                   const Ahead& ahead = {}) {
    // Few rows pass over B once, in the order of memory.
    const int64_t passes = rows > 32 ? (k + kDepth - 1) / kDepth : 1;
    const int64_t depth = (k / kStep + passes - 1) / passes * kStep;
    for (int64_t i = 0; i < k; i += depth) {
      const int64_t here = k - i < depth ? k - i : depth;
      for (int p = 0; p < panels; p += 2)
        for (int64_t row = 0; row < rows; row += 32)
          block(rows - row, p + 1 < panels, here, a + row * lda + i, lda,
                b + p * b_stride + i * kLanes, b_stride, c + p * c_stride + row * kLanes, c_stride,
                accumulate || i > 0, ahead.at != nullptr);
    }
  }

 private:
  static void block(int64_t rows, bool two, int64_t k, const bf16* a, int64_t lda, const bf16* b,
                    int64_t b_stride, float* c, int64_t c_stride, bool accumulate, bool streams) {
    const int here = int(rows < 32 ? rows : 32);
    if (here > 16)
      two ? tile_block<2, 2>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, streams)
          : tile_block<2, 1>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, streams);
    else
      two ? tile_block<1, 2>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, streams)
          : tile_block<1, 1>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, streams);
  }
};
#endif

}  // namespace xllm
