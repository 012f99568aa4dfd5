// Family register_block: one CTA per row, which stays in registers.
#include "register/select.cuh"

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_register_cta(const __grid_constant__ Params p) {
  wait_for_inputs();
  select_in_registers(p);
}
