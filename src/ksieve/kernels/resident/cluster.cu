// Family resident_cluster: one thread block cluster per row, for few rows (sm_90 and later).
//
//   1. a resident row is selected from buckets (resident/select.cuh) over distributed shared memory
// Rows that are not resident, and all rows with statistics or tie-breaks, take the exact route:
//   1. each CTA counts its part into its own coarse histogram
//   2. CTA 0 sums the histograms over distributed shared memory and publishes the k-th bin
//   3. each CTA scans its part again: better bins go to the output, candidates of the k-th bin stay local
//   4. CTA 0 gathers its peers' candidates and histograms, and refines; peers do not exit before it has them
//
// Row reads, from global memory: 1 if the row fits the CTAs' rings (step 3 then scans the ring), else 2.
#include "resident/cluster_rows.cuh"

// Selects the row of a cluster. Call by all its threads. Returns whether peers may still read this CTA's shared memory.
__device__ __forceinline__ bool select_clustered(const Params& p, int id, u32 cta) {
  if constexpr (kFits) {
    TileResult result = {};
    if constexpr (kBlockRows) {
      result = select_tile_of_blocks<ClusterScope>(p, load_row(p, id), static_cast<int>(cta));
    } else {
      result = select_tile<ClusterScope>(p, id, static_cast<int>(cta), true);
    }
    if (result.resident) return !result.written;
  } else {
    clear_counts();
    cluster_sync(); // every CTA's counters are zero
  }
  const Row row = load_row(p, id);
  if constexpr (!kFits) find_present(p, row);
  if (size_of(row) <= slots_of(p, row)) { // the same for the whole cluster: no thread waits
    whole_row(p, row, nullptr);
    __syncthreads(); // thread 0 wrote the row's facts (whole_row), for all
    if (cta == 0) select_short(p, row);
    return true;
  }
  if constexpr (!kBlockRows) select_exact(p, id); // rows of blocks are resident, or short
  return true;
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_resident_cluster(const __grid_constant__ Params p) {
  static_assert(kColumns == 0 && kSharedCapacity == kCapacity, "CTA 0 keeps the whole frontier in shared memory");
  const int id = cluster_number();
  wait_for_inputs();
  trace_begin();
  const bool looked_at = select_clustered(p, id, cta_in_cluster());
  release_dependents();
  const bool complete = kWritesShares && !looked_at && slots_stay(p, load_row(p, id)); // each CTA wrote its share
  if (looked_at || (kEpilogue && !complete)) cluster_sync(); // the row is written, and no CTA reads a peer's memory
  if (cta_in_cluster() != 0 || complete) return;
  run_epilogue(p, id, sort_slice(p, id));
  trace_write(p, id);
}
