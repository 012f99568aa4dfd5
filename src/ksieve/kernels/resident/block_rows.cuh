// Rows of blocks: how a CTA describes and pools its tile of one (resident/tile.cuh has that of a cluster), and the rows
// that one CTA has, each pooled to the ring and selected there before the next one. Other CTAs of the multiprocessor
// read their rows meanwhile.
#pragma once
#include "resident/select.cuh"

// Fills the descriptor of a row of blocks, of which this CTA has the entries [begin, end) in its ring. Call by one
// thread.
template <class AnyRow>
__device__ __forceinline__ void describe_blocks(const Params& p, const AnyRow& row, int begin, int end,
                                                RowDescriptor& to) {
  AnyRow pooled = row;
  pooled.scores = reinterpret_cast<const Score*>(shared_storage().ring) - begin;
  describe(p, pooled, begin, end, begin, to);
  to.body_begin = begin; // wherever the vectors of the ring are, all of the tile's entries are in them
  to.valid = end - begin;
  to.bytes = static_cast<u32>(to.valid) * sizeof(Score);
  to.edges = false;
}

// Writes the entries [begin, end) of a row of blocks to the ring. Call by all threads, behind a barrier after the
// ring's last use; ends with a barrier.
template <class AnyRow> __device__ __forceinline__ void pool_to_ring(const AnyRow& row, int begin, int end) {
  pool_blocks(part_of(row, begin, end - begin), reinterpret_cast<float*>(shared_storage().ring));
}

// Selects the rows of this CTA. The planner gives this kernel neither rows of more than kMaxResident blocks nor a k
// beyond the positions that a CTA collects (planning/blocks.py). A function template, since rows without blocks lack
// members.
template <class AnyRow> __device__ __forceinline__ void select_block_rows(const Params& p) {
  SharedStorage& s = shared_storage();
  if (rows_of(p) > grid_size()) stagger_start<source::Bits>(turn_of_cta(), [&] { return p.width; }, 16, 20'000);
#pragma unroll 1
  for (int id = blockIdx.x; id < p.rows; id += grid_size()) {
    const AnyRow row = load_row(p, id);
    if (kEpilogue && threadIdx.x == 0) s.base = row.base;
    if (!select_short(p, row)) {
      clear_counts();
      if (threadIdx.x == 0) {
        RowDescriptor& to = s.descriptors[0];
        describe_blocks(p, row, 0, row.length, to);
        bracket_ranks(row.length, to.slots, kWarps, to, row.length);
        clear_row(to);
      }
      pool_to_ring(row, 0, row.length); // its barriers order the descriptor and the counters for all threads
      CtaScope::reduce_bracket(bracket_of_samples(sample_of_blocks(id, row.length), 0), 0);
      if (id + grid_size() >= p.rows) release_dependents();
      select_resident<CtaScope>(p, 0, [] {}, [] {});
    }
    run_epilogue(p, id, sort_slice(p, blockIdx.x));
    __syncthreads(); // no thread works on the row any more
  }
}
