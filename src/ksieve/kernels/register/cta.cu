// Family register_block: one CTA per row, which stays in registers.
//
//   1. the row is loaded to registers as soon as its length is known
//   2. it is selected: coarse bins are counted, and the bin of the k-th score is ranked (register/select.cuh)
//   3. its slots are written from the collected positions, or by the epilogue
//
// The code for rows that are selected whole comes first, so that it is fetched early: most narrow rows may be such
// rows. CTAs of wide rows clear counters while the length arrives, and each of their many warps counts as soon as it
// has its scores.
#include "register/select.cuh"

static_assert(!kBinned, "it takes all rows of the matrix");

// Selects the few rows of this CTA. Call by all threads.
__device__ __forceinline__ void select_rows(const Params& p) {
  constexpr bool kEmptyFirst = kThreads >= 512;
  auto empty = [] {
    clear_counts(reread_tid());
    __syncthreads(); // every counter is zero, and no thread works on the row before any more
  };
  int number = blockIdx.x; // number of a row: the grid has no more CTAs than rows
  do {
    const int length = kWindows ? 0 : length_of(p, number); // which starts loading here, for row_of
    const int live = kWindows ? 0 : live_rows(p);
    if (kEmptyFirst) empty();
    const Row row = kWindows ? load_row(p, number) : row_of(p, number, length, live);
    if (kWindows && kEpilogue && threadIdx.x == 0) shared_storage().base = row.base;
    SlotFacts facts;
    const bool all = kWritesShares && row.length <= slots_of(p, row);
    bool collected = all;
    if (all) {
      facts = SlotFacts::of(p, row.id);
    } else if (!select_short(p, row)) {
      const LoadedRow loaded(row, limit_of(p));
      bool more = true;
      if (!kEmptyFirst) {
        empty();
        more = always(row.length);
      }
      if (more) collected = select_loaded(p, loaded, slots_of(p, row), facts);
    }
    if (kWritesShares && collected) {
      __syncthreads(); // every position is collected
      write_slots_from(p, row, facts, 0, [&](int i) { return all ? i : collected_loaded()[i]; });
    } else {
      run_epilogue(p, row.id, sort_slice(p, blockIdx.x));
    }
    if (kEpilogue) __syncthreads(); // every thread has read s.base, which the next row writes
    number += grid_size();
  } while (number < p.rows);
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_register_cta(const __grid_constant__ Params p) {
  wait_for_inputs();
  select_rows(p);
}
