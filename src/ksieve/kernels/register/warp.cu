// Family register_warp: one warp per row, which stays in registers. For many narrow rows.
//
// Row reads, from global memory: 1, and the few scores that are ranked once more. No barrier of the CTA, no workspace.
// Rows are taken round robin.
#include "register/warp.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_register_warp(const __grid_constant__ Params p) {
  wait_for_inputs();
  select_narrow_rows(p);
}
