// From row numbers and lengths to what a decode step reads.
#include "runtime.h"

namespace xllm {
namespace {

struct ExpandArgs {
  const int32_t *rows, *seq_lens;  // (S,)
  const int32_t* token_table;      // (R, W)
  int32_t* block_table;            // (R, B)
  const int32_t* new_blocks;       // (S,), -1: none
  int32_t* input_ids;              // (S,)
  int64_t *positions, *write_index, *slots;  // (S,)
  int32_t* batch_blocks;           // (S, B)
  int64_t count, table_width, num_blocks, batch_stride, block_size;
};

void expand(const ExpandArgs& a) {
  for (int64_t s = 0; s < a.count; ++s) {
    if (a.seq_lens[s] <= 0) {
      a.input_ids[s] = 0;
      a.positions[s] = 0;
      a.write_index[s] = a.slots[s] = -1;
      continue;
    }
    const int64_t position = a.seq_lens[s] - 1, last = position / a.block_size;
    const int64_t token = a.rows[s] * a.table_width + position;
    int32_t* blocks = a.block_table + a.rows[s] * a.num_blocks;
    if (a.new_blocks[s] >= 0) blocks[last] = a.new_blocks[s];
    a.input_ids[s] = a.token_table[token];
    a.positions[s] = position;
    a.write_index[s] = token + 1;
    a.slots[s] = blocks[last] * a.block_size + position % a.block_size;
    std::memcpy(a.batch_blocks + s * a.batch_stride, blocks, size_t(last + 1) * sizeof(int32_t));
  }
}

}  // namespace
}  // namespace xllm

XLLM_EXPORT void xllm_expand_decode(const xllm::ExpandArgs* args) { xllm::expand(*args); }
