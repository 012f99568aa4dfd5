// Family row_exact: one CTA per row, which is read once if it fits.
//
//   1. a row of at most kHeld scores fits the ring: it is copied there once, and goes on to registers
//   2. the next row's copy starts; the row is selected in registers (held.cuh)
//   3. rows that registers do not hold come last: in the ring with statistics or tie-breaks, otherwise streamed twice
//
// Row reads: 1 held, 2 otherwise. Rows are dealt out in turn: no queue, and no workspace unless candidates spill.
#include "held.cuh"
#include "workspace.cuh"

static_assert(kHeld == 0 || kHeld == kTurn, "the ring holds a row");

// A row that the ring holds, where registers do not: its coarse histogram gives the boundary bin, classification reads
// the ring again, refine (refine.cuh).
__device__ __forceinline__ void select_resident(const RowTask& t) {
  start_scan(t.row.scores, t.begin, t.end);
  clear_storage();
  __syncthreads(); // storage is empty
  CoarseCount counting;
  scan<true>(t.row.scores, t.begin, t.end, counting);
  __syncthreads(); // every score is counted
  Boundary found = find_boundary(open_slots(t.params));
  Frontier frontier = classified(t, found);
  __syncthreads(); // the rule is visible
  Classify classify(shared_storage().rule);
  scan<true>(t.row.scores, t.begin, t.end, classify);
  trace_set(kColRoute, kDirect);
  certify(t, Stage::kClassified, true, frontier, [] { return Merged::kWhole; });
  refine(frontier);
}

// Rows that registers do not hold. Where slots are sorted too, registers do not suffice to have it in one function with
// the rest.
#if KSIEVE_ORDER
#define KSIEVE_OTHERS __noinline__
#else
#define KSIEVE_OTHERS __forceinline__
#endif
__device__ KSIEVE_OTHERS void select_others(const Params& p) {
  for (int number = blockIdx.x; number < rows_of(p); number += grid_size()) {
    const RowTask t = whole_row(p, nth_row(p, number), spill_slice(p, blockIdx.x));
    const int k = slots_of(p, t.row);
    if (holds(t.row, k)) continue;
    trace_begin();
    if (!kHolds && t.row.length > k && t.row.length <= kHeld) {
      select_resident(t);
    } else {
      select_row(t, 0, [] {}, [] {});
    }
    if (number + grid_size() >= rows_of(p)) release_dependents();
    finish_row(p, t.row.id, sort_slice(p, blockIdx.x));
    trace_write(p, t.row.id);
    __syncthreads(); // nobody still works on the row
  }
}

// Rows are described two ahead: the next one's copy starts in the middle of this one. A thread of the second warp does
// it, since the first warp copies rows and ranks candidates; it fetches a row's length when it describes the one
// before.
constexpr int kScout = 32;
constexpr int kSlots = 4; // a slot is written while slow threads still use the one before the current

__device__ __forceinline__ int slot_after(int slot, int rows = 1) { return (slot + rows) & (kSlots - 1); }

template <class Load> __device__ __forceinline__ void describe_row(const Params& p, int number, int slot, Load load) {
  HeldRow& to = shared_storage().held[slot];
  to.way = Way::kNone;
  if (number >= rows_of(p)) return;
  Row row = load(number);
  describe(p, row, 0, row.length, KSIEVE_WINDOWS ? 0 : p.width, to);
}

// Describes the row whose length has been fetched, and fetches that of the row after it.
__device__ __forceinline__ void scout(const Params& p, int slot) {
  int& next = shared_storage().next; // the scout's own
  arrived();
  describe_row(p, next, slot, [&](int number) { return fetched_row(p, number); });
  next += grid_size();
  if (next < rows_of(p)) fetch_row(p, next, kScout);
}

// Describes the first two rows, and starts copying the first: before its length is known, if it fits in any case.
__device__ __forceinline__ void start_rows(const Params& p) {
  SharedStorage& s = shared_storage();
  const bool early = !KSIEVE_WINDOWS && !kDealt && p.width <= kHeld;
  if (early) {
    Row row = row_of_length(p, blockIdx.x, p.width);
    copy_body(row.scores, body_of(row.scores, 0, row.length));
  }
  auto load = [&](int number) { return nth_row(p, number); };
  if (threadIdx.x == kScout) {
    describe_row(p, blockIdx.x + grid_size(), 1, load);
    s.next = blockIdx.x + 2 * grid_size();
    if (s.next < rows_of(p)) fetch_row(p, s.next, kScout);
  }
  if (threadIdx.x == 0) {
#if __CUDA_ARCH__ >= 900
    init_arrival(&s.arrival);
#endif
    s.copies = s.flag = 0;
    describe_row(p, blockIdx.x, 0, load);
  }
  clear_counts(thread_again());
  __syncthreads(); // both are described, and storage is empty
  const HeldRow& first = s.held[0];
  if (!early && first.way == Way::kHeld)
    copy_body(static_cast<const Score*>(first.scores), {first.body_begin, first.body_end});
}

// Starts copying a row that is held.
__device__ __forceinline__ void copy_coming(int slot) {
  HeldRow& row = shared_storage().held[slot];
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0 && row.way == Way::kHeld) copy_in_bulk(row);
#else
  if (row.way == Way::kHeld) copy_body(static_cast<const Score*>(row.scores), {row.body_begin, row.body_end});
#endif
}

// Rows that registers hold. Whether there are others.
__device__ __forceinline__ bool select_held_rows(const Params& p) {
  SharedStorage& s = shared_storage();
  start_rows(p);
  for (int slot = 0; held_row(slot).way != Way::kNone; slot = slot_after(slot)) {
    auto look_ahead = [&] {
      if (thread_again() == kScout) scout(p, slot_after(slot, 2));
    };
    wait_copy(slot);
    bool copied = false;
    bool looked = false;
    if (held_row(slot).way == Way::kHeld) {
      auto copy_next = [&] {
        if (!kFinish) copy_coming(slot_after(slot)); // slots are sorted where the ring is
      };
      looked = select_held<Alone>(slot, copy_next, look_ahead);
      if (KSIEVE_OVERLAP && held_row(slot_after(slot)).way == Way::kNone) release_dependents();
      if (kFinish && threadIdx.x == 0) s.base = held_row(slot).base;
      finish_row(p, held_row(slot).id, sort_slice(p, blockIdx.x));
      copied = !kFinish;
    } else {
      atomicOr(&s.flag, 1); // by all: where one thread did it, ptxas let that come to the barrier below by itself
    }
    if (!looked) look_ahead();
    if (!copied) {
      __syncthreads(); // nobody needs the ring any more, nor the histogram
      if (kFinish) clear_counts(thread_again());
      copy_coming(slot_after(slot));
      __syncthreads(); // it is known what the next row waits for
    }
    __syncwarp(); // rows are begun by whole warps
  }
  __syncthreads(); // nobody still works on a row
  return s.flag;
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_row(const __grid_constant__ Params p) {
  wait_for_inputs();
  if (kDealt && blockIdx.x >= rows_of(p)) return;
  if constexpr (kHolds)
    if (!select_held_rows(p)) return;
  select_others(p);
}
