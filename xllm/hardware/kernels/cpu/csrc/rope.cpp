// Per-head norm of queries and keys, rotation, and the write into the paged cache, in one pass.
#include "rms.h"
#include "runtime.h"

namespace xllm {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

struct RopeArgs {
  const void* qkv;           // (T, (Hq + 2 Hk) D)
  const int64_t* positions;  // (T,)
  const float* cos_sin;      // (max_pos, rotary)
  void *k_cache, *v_cache;   // (blocks, block_size, Hk, D) by the strides below, in elements
  const int64_t* slots;      // (T,)
  const void *q_weight, *k_weight;  // (D,) or null
  void* q;                          // (T, Hq, D)
  int64_t tokens, q_heads, kv_heads, head_dim, rotary, block_size;
  int64_t k_stride_block, k_stride_token, k_stride_head, k_stride_dim;
  int64_t v_stride_block, v_stride_token, v_stride_head, v_stride_dim;
  double eps, offset;
  int64_t dtype;
};

template <class T>
struct Rotation {
  const float *cos, *sin;
  int64_t half, head_dim;
  float eps, offset;

  // to may not overlap from.
  void apply(const T* from, const T* weight, T* to) const {
    T normalized[kMaxHeadDim];
    if (weight) {
      rms_norm_row(from, weight, normalized, head_dim, eps, offset);
      from = normalized;
    }
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      Lanes c = load(cos + i), s = load(sin + i), x = load(from + i), y = load(from + half + i);
      store(x * c - y * s, to + i);
      store(y * c + x * s, to + half + i);
    }
    for (; i < half; ++i) {
      float c = cos[i], s = sin[i], x = to_float(from[i]), y = to_float(from[half + i]);
      from_float(x * c - y * s, to + i);
      from_float(y * c + x * s, to + half + i);
    }
    for (i = 2 * half; i < head_dim; ++i) to[i] = from[i];
  }
};

template <class T>
void copy_strided(const T* from, T* to, int64_t n, int64_t stride) {
  if (stride == 1)
    std::memcpy(to, from, size_t(n) * sizeof(T));
  else
    for (int64_t i = 0; i < n; ++i) to[i * stride] = from[i];
}

template <class T>
void rope(const RopeArgs& a) {
  const int64_t dim = a.head_dim, width = (a.q_heads + 2 * a.kv_heads) * dim;
#pragma omp parallel for num_threads(num_threads()) if (a.tokens * width > kParallelElements)
  for (int64_t t = 0; t < a.tokens; ++t) {
    const T* qkv = static_cast<const T*>(a.qkv) + t * width;
    const float* cos = a.cos_sin + a.positions[t] * a.rotary;
    const Rotation<T> rotation{cos,         cos + a.rotary / 2, a.rotary / 2, dim,
                               float(a.eps), float(a.offset)};
    T* q = static_cast<T*>(a.q) + t * a.q_heads * dim;
    for (int64_t h = 0; h < a.q_heads; ++h)
      rotation.apply(qkv + h * dim, static_cast<const T*>(a.q_weight), q + h * dim);
    if (a.slots[t] < 0) continue;
    const int64_t block = a.slots[t] / a.block_size, place = a.slots[t] % a.block_size;
    T* k = static_cast<T*>(a.k_cache) + block * a.k_stride_block + place * a.k_stride_token;
    T* v = static_cast<T*>(a.v_cache) + block * a.v_stride_block + place * a.v_stride_token;
    const T* keys = qkv + a.q_heads * dim;
    const T* values = keys + a.kv_heads * dim;
    for (int64_t h = 0; h < a.kv_heads; ++h) {
      T* key = k + h * a.k_stride_head;
      if (a.k_stride_dim == 1) {
        rotation.apply(keys + h * dim, static_cast<const T*>(a.k_weight), key);
      } else {
        T rotated[kMaxHeadDim];
        rotation.apply(keys + h * dim, static_cast<const T*>(a.k_weight), rotated);
        copy_strided(rotated, key, dim, a.k_stride_dim);
      }
      copy_strided(values + h * dim, v + h * a.v_stride_head, dim, a.v_stride_dim);
    }
  }
}

}  // namespace
}  // namespace xllm

XLLM_EXPORT void xllm_qk_norm_rope_kv_write(const xllm::RopeArgs* args) {
  xllm::with_dtype(args->dtype, [&](auto element) { xllm::rope<decltype(element)>(*args); });
}
