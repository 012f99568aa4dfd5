// Family row_exact: one wide CTA per row, exact without sampling.
//
//   1. a row of at most kHeld scores is loaded once into registers, 16 bytes at a time
//   2. its coarse histogram gives the exact boundary bin; classification reads the registers again
//   3. refine (refine.cuh). A longer row is streamed twice by the same CTA (select.cuh)
//
// Row reads: 1 held, 2 streamed. Rows are dealt out in turn: no queue, and no workspace unless candidates spill.
#include "select.cuh"
#include "workspace.cuh"

constexpr int kHeldBatches = kHeld / (kStep * kBatch);
static_assert(kHeld == kHeldBatches * kStep * kBatch, "held rows come in whole batches");

// Presents registers as a row to scan: the same visitors, no memory.
struct HeldRow {
  Raw raw[kHeldBatches > 0 ? kHeldBatches : 1][kBatch];
  int length;
#if KSIEVE_WINDOWS
  int head;   // scores before the 16-byte aligned part: windows start anywhere
  Score edge; // this thread's one of them
#endif

  __device__ __forceinline__ void load(const Row& row) {
#if KSIEVE_WINDOWS
    bool aligned = true;
    head = body_of(row.scores, 0, row.length).begin;
    if (static_cast<int>(threadIdx.x) < head) edge = row.scores[threadIdx.x];
#else
    bool aligned = reinterpret_cast<u64>(row.scores) % 16 == 0;
#endif
    length = row.length;
#pragma unroll
    for (int v = 0; v < kHeldBatches * kBatch; ++v) {
      int i = index_of(v);
      Raw& target = raw[v / kBatch][v % kBatch];
      target = {};
      if (aligned && i + kVector <= row.length) {
        target = load_raw(row.scores + i);
      } else if (i < row.length) {
        load_scalars(row, target, i);
      }
    }
  }

  __device__ __forceinline__ int index_of(int v) const {
    int index = (v * kThreads + static_cast<int>(threadIdx.x)) * kVector;
#if KSIEVE_WINDOWS
    index += head;
#endif
    return index;
  }

  __device__ __forceinline__ static void load_scalars(const Row& row, Raw& target, int i) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      constexpr int kPerWord = kVector / 4;
      u32 word = 0;
#pragma unroll
      for (int h = 0; h < kPerWord; ++h) {
        int at = i + w * kPerWord + h;
        if (at >= row.length) continue;
#if KSIEVE_DTYPE == 0
        word = __float_as_uint(row.scores[at]);
#else
        word |= static_cast<u32>(row.scores[at]) << (h * 16);
#endif
      }
      target.word[w] = word;
    }
  }

  // A visitor reads hits back from the ring: this row passes through it batch by batch.
  template <class Visitor> __device__ __forceinline__ void visit(Visitor& visitor) const {
    RingSlot* slots = &shared_storage().ring[0][threadIdx.x];
    u32 ring = static_cast<u32>(__cvta_generic_to_shared(slots));
#pragma unroll
    for (int b = 0; b < kHeldBatches; ++b) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u)
        *reinterpret_cast<Raw*>(slots + u * kThreads) = raw[b][u];
      visitor.see(raw[b], ring, index_of(b * kBatch), length - index_of(b * kBatch));
    }
#if KSIEVE_WINDOWS
    if (head > 0) {
      int at = threadIdx.x;
      visitor.edge(at < head ? widen(edge) : 0.0f, at, at < head);
    }
#endif
    visitor.finish();
  }
};

__device__ __forceinline__ void select_held(const RowTask& t) {
  HeldRow held;
  held.load(t.row);
  clear_storage();
  __syncthreads(); // storage is empty
  CoarseCount counting;
  held.visit(counting);
  __syncthreads(); // every score is counted
  Boundary found = find_boundary(open_slots(t.params));
  Frontier frontier = classified(t, found);
  __syncthreads(); // the rule is visible
  Classify classify(shared_storage().rule);
  held.visit(classify);
  trace_set(kColRoute, kDirect);
  certify(t, Stage::kClassified, true, frontier, [] { return Merged::kWhole; });
  refine(frontier);
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_row(const __grid_constant__ Params p) {
  wait_for_inputs();
  for (int id = blockIdx.x; id < p.rows; id += gridDim.x) {
    trace_begin();
    RowTask task = whole_row(p, load_row(p, id), spill_slice(p, blockIdx.x));
    if (kHeldBatches > 0 && task.row.length > slots_of(p, task.row) && task.row.length <= kHeld) {
      select_held(task);
    } else {
      select_row(task, [] {});
    }
    if (id + static_cast<int>(gridDim.x) >= p.rows) release_dependents();
    finish_row(p, id, sort_slice(p, blockIdx.x));
    trace_write(p, id);
    __syncthreads(); // nobody still works on the row
  }
}
