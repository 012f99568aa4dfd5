// Bulk asynchronous copies to shared memory (sm_90 and later): one thread starts them, every thread waits for them.
#pragma once

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Called by one thread, once per launch; publish_arrivals() and a barrier must come before the first wait.
__device__ __forceinline__ void init_arrival(unsigned long long* arrival) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrival)) : "memory");
}

// By the same thread, in front of what it loads, which the fence would wait for.
__device__ __forceinline__ void publish_arrivals() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Called before a copy, behind a barrier that follows other threads' ordinary accesses to the same memory, or behind
// the first of an arrival that it counts on.
__device__ __forceinline__ void order_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Called by one thread, alternating with a wait of all: so many bytes will come.
__device__ __forceinline__ void expect_bytes(unsigned bytes, unsigned long long* arrival) {
  unsigned barrier = shared_address(arrival);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Adds to the bytes that a phase expects, before the thread that arrives for it.
__device__ __forceinline__ void expect_more(unsigned bytes, unsigned long long* arrival) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(arrival)), "r"(bytes)
               : "memory");
}

// And by one thread, a part of them. Addresses and size are multiples of 16 bytes.
__device__ __forceinline__ void copy_part(void* to, const void* from, unsigned bytes, unsigned long long* arrival) {
  if (bytes == 0) return;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(arrival))
               : "memory");
}

__device__ __forceinline__ void copy_bulk(void* to, const void* from, unsigned bytes, unsigned long long* arrival) {
  expect_bytes(bytes, arrival);
  copy_part(to, from, bytes, arrival);
}

// Waits for a copy; `parity` is that of the copies before it.
__device__ __forceinline__ void wait_arrival(unsigned long long* arrival, unsigned parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;\n"
               "}" ::"r"(shared_address(arrival)),
               "r"(parity)
               : "memory");
}
