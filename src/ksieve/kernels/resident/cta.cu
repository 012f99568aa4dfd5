// Family resident_block: one CTA per row, which is read once if it fits.
//
//   1. a row of at most kMaxResident scores is copied to the ring once, and counted in buckets (resident/select.cuh)
//   2. the next row's copy starts, and its samples give a bracket; meanwhile this row's answer is written
//   3. other rows come last, on the exact route (resident/fallback.cuh): rows that do not fit, and with statistics or
//      tie-breaks all rows
// Rows whose scores have positions of their own take either route in turn (resident/positioned_rows.cuh).
//
// Row reads, from global memory: 1 if the row fits the ring, 2 otherwise. Rows are taken round robin: no queue, and no
// workspace unless candidates spill.
#include "resident/block_rows.cuh"
#include "resident/positioned_rows.cuh"
#include "resident/rows.cuh"

static_assert(!kBlockRows || (kFits && kMaxResident == kTile && kOverflowVectors == 0),
              "the ring holds a row of blocks");

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_resident_cta(const __grid_constant__ Params p) {
  wait_for_inputs();
  if (kBinned && blockIdx.x >= rows_of(p)) {
    if (kPassesOn && threadIdx.x == 0) leave_queue(p);
    return;
  }
  if constexpr (kBlockRows) {
    select_block_rows<Row>(p);
  } else {
    if constexpr (kFits && kPositions) return select_positioned_rows(p);
    bool others = true;
    if constexpr (kFits) others = select_resident_rows(p);
    if (others) select_others(p);
    if constexpr (kPassesOn) {
      __syncthreads(); // no thread reads the number of rows any more
      if (threadIdx.x == 0) leave_queue(p);
    }
  }
}
