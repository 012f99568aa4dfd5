// Family resident_grid: several CTAs share a row, for few long rows; all CTAs run at once.
//
//   1. each CTA copies its tile to the ring, samples it and publishes its bracket
//   2. buckets are counted and added up in the workspace, and every CTA finds the k-th score's bucket
//   3. each CTA writes its share of the answer, and one of them ranks the last few scores
//      (resident/grid_scope.cuh, resident/select.cuh)
//
// Row reads: 1.
#include "resident/grid_scope.cuh"

static_assert(kOrder == Order::kAny && !kOverlap, "slots are not sorted, and all CTAs run at once");

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_resident_grid(const __grid_constant__ Params p) {
  prepare_grid_state(p);
  int id = blockIdx.x / kCtasPerRow;
  while (true) {
    const bool first = id == static_cast<int>(blockIdx.x) / kCtasPerRow;
    const TileResult result = select_tile<GridScope>(p, id, cta_in_row(), first);
    if (result.resident) {
      if (kEpilogue) GridScope::hand_over();
      if (!result.written) GridScope::leave();
    } else if (GridScope::owns()) {
      // A row that is not resident is short here: the planner gives this kernel neither rows wider than kMaxResident
      // nor a k beyond the positions that a CTA collects (planning/resident.py, resident_geometry), and no options
      // for which rows are not resident (_grid_may_hold).
      select_short(p, load_row(p, id));
    }
    if (GridScope::owns()) run_epilogue(p, id, nullptr);
    id = grid_state().row + grid_size() / kCtasPerRow; // read again: kept in a register, it would be spilled
    if (id >= p.rows) break;
    __threadfence(); // other CTAs see the row's mailbox cleared
    __syncthreads(); // no thread still works on it
    advance_grid_state(p, result.resident);
  }
}
