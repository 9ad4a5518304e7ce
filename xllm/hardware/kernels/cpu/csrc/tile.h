// AMX: eight tiles of 16 rows x 64 bytes and a bfloat16 product between them.
//
// Tiles 0-3 hold C (2 row halves x 2 panels), 4-5 hold A's halves, 6-7 hold B's panels: four
// products for four loads. Under XLLM_EMULATE the five instructions used are plain functions, so
// that the code around them is tested on any machine.
#pragma once

#if defined(__AMX_BF16__) || defined(XLLM_EMULATE)
#define XLLM_HAS_TILES 1

#include <cstdint>

#include "vector.h"

#if defined(__AMX_BF16__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace xllm {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

}  // namespace xllm

#if !defined(__AMX_BF16__)
namespace xllm {
inline thread_local uint8_t emulated_tiles[8][16][64];
inline thread_local TileConfig emulated_config;
inline void emulated_move(int tile, const char* from, char* to, int64_t stride) {
  for (int r = 0; r < emulated_config.rows[tile]; ++r)
    if (to)
      std::memcpy(to + r * stride, emulated_tiles[tile][r], 64);
    else
      std::memcpy(emulated_tiles[tile][r], from + r * stride, 64);
}
// As TDPBF16PS: the sums over even and over odd k of one tile are formed apart, then added.
inline void emulated_product(int c, int a, int b) {
  for (int m = 0; m < emulated_config.rows[a]; ++m)
    for (int n = 0; n < 16; ++n) {
      float parts[2] = {0.0f, 0.0f};
      for (int k = 0; k < 16; ++k)
        for (int odd = 0; odd < 2; ++odd) {
          bf16 x, y;
          std::memcpy(&x, &emulated_tiles[a][m][4 * k + 2 * odd], 2);
          std::memcpy(&y, &emulated_tiles[b][k][4 * n + 2 * odd], 2);
          parts[odd] += to_float(x) * to_float(y);
        }
      float total;
      std::memcpy(&total, &emulated_tiles[c][m][4 * n], 4);
      total += parts[0] + parts[1];
      std::memcpy(&emulated_tiles[c][m][4 * n], &total, 4);
    }
}
}  // namespace xllm
#define _tile_loadconfig(p) xllm::emulated_config = *static_cast<const xllm::TileConfig*>(p)
#define _tile_release() xllm::emulated_config = xllm::TileConfig()
#define _tile_zero(t) std::memset(xllm::emulated_tiles[t], 0, 1024)
#define _tile_loadd(t, p, stride) \
  xllm::emulated_move(t, reinterpret_cast<const char*>(p), nullptr, stride)
#define _tile_stored(t, p, stride) \
  xllm::emulated_move(t, nullptr, reinterpret_cast<char*>(p), stride)
#define _tile_dpbf16ps(c, a, b) xllm::emulated_product(c, a, b)
#endif

namespace xllm {

// GCC's tile loads and its ldtilecfg do not say that they read memory, so without this a store
// before them may come after them or vanish. Tile stores say that they write.
XLLM_INLINE void finish_stores(const void* p) { __asm__ volatile("" ::"r"(p) : "memory"); }

// Rows of the two halves that the thread's tiles are configured for; 0 means not configured.
inline thread_local int configured_rows = 0;

// Tile state of one thread during a parallel region. Other libraries configure the same tiles, so
// nothing is assumed on entry, and the state is released on exit.
struct TileScope {
  TileScope() { configured_rows = 0; }
  ~TileScope() {
    if (configured_rows) _tile_release();
    configured_rows = 0;
  }
};

inline void configure_tiles(int rows) {
  if (rows == configured_rows) return;
  const uint8_t first = uint8_t(rows < 16 ? rows : 16);
  const uint8_t second = uint8_t(rows > 16 ? rows - 16 : 1);
  const uint8_t tile_rows[8] = {first, first, second, second, first, second, 16, 16};
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.rows[t] = tile_rows[t];
    config.row_bytes[t] = 64;
  }
  finish_stores(&config);
  _tile_loadconfig(&config);
  configured_rows = rows;
}

// Whether the processor and the kernel let this process use tiles. Asks the kernel for permission.
inline bool tiles_permitted() {
#if defined(__AMX_BF16__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2), x86 XSAVE feature
  return __builtin_cpu_supports("amx-bf16") &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return true;
#endif
}

// `rows` in 1..16 (HALVES = 1) or 17..32 (HALVES = 2); strides in elements. `between(i)` runs after
// the products of k = i .. i + 32: the vector units and the memory have time for other work then.
template <int HALVES, int PANELS, class Between>
inline void tile_block(int rows, int64_t k, const bf16* a, int64_t lda, const bf16* b,
                       int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                       const Between& between) {
  constexpr int64_t kRowBytes = 64;
  configure_tiles(rows);
  finish_stores(a);
  float* c1 = c + c_stride;
  if (accumulate) {
    _tile_loadd(0, c, kRowBytes);
    if constexpr (PANELS == 2) _tile_loadd(1, c1, kRowBytes);
    if constexpr (HALVES == 2) _tile_loadd(2, c + 256, kRowBytes);
    if constexpr (HALVES == 2 && PANELS == 2) _tile_loadd(3, c1 + 256, kRowBytes);
  } else {
    _tile_zero(0);
    if constexpr (PANELS == 2) _tile_zero(1);
    if constexpr (HALVES == 2) _tile_zero(2);
    if constexpr (HALVES == 2 && PANELS == 2) _tile_zero(3);
  }
  for (int64_t i = 0; i < k; i += 32) {
    const bf16* column = b + i * kLanes;
    _tile_loadd(4, a + i, lda * 2);
    _tile_loadd(6, column, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (PANELS == 2) {
      _tile_loadd(7, column + b_stride, kRowBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (HALVES == 2) {
      _tile_loadd(5, a + 16 * lda + i, lda * 2);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (PANELS == 2) _tile_dpbf16ps(3, 5, 7);
    }
    between(i);
  }
  _tile_stored(0, c, kRowBytes);
  if constexpr (PANELS == 2) _tile_stored(1, c1, kRowBytes);
  if constexpr (HALVES == 2) _tile_stored(2, c + 256, kRowBytes);
  if constexpr (HALVES == 2 && PANELS == 2) _tile_stored(3, c1 + 256, kRowBytes);
}

}  // namespace xllm
#endif
