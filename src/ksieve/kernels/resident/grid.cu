// Family cooperative_exact: several CTAs hold a row, for few long rows; all of them are resident.
//
//   1. each copies its part to the ring, samples it and tells the others where its samples begin and end
//   2. steps are counted; the counts of all are added up in the workspace, and everybody finds the k-th score's step
//   3. each writes its share of the answer, and one of them the last few scores (resident/grid_scope.cuh,
//   resident/select.cuh)
//
// Row reads: 1.
#include "resident/grid_scope.cuh"

static_assert(KSIEVE_ORDER == 0 && !KSIEVE_OVERLAP, "slots are not sorted, and all CTAs are resident");

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_resident_grid(const __grid_constant__ Params p) {
  prepare_meetings(p);
  int id = blockIdx.x / kHolders;
  while (true) {
    const bool first = id == static_cast<int>(blockIdx.x) / kHolders;
    const PartOf part = select_part<Gathered>(p, id, holder(), first);
    if (part.held) {
      if (kFinish) Gathered::hand_over();
      if (!part.written) Gathered::leave();
    } else if (Gathered::owns()) {
      select_short(p, load_row(p, id));
    }
    if (Gathered::owns()) finish_row(p, id, nullptr);
    id = together().row + grid_size() / kHolders; // read again: kept, it would be spilled
    if (id >= p.rows) break;
    __threadfence(); // what was cleared of the row is
    __syncthreads(); // nobody still works on it
    next_meeting(p, part.held);
  }
}
