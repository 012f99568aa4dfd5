// Family row_exact: one CTA per row, which is read once if it fits.
//
//   1. a row of at most kHeld scores fits the ring: it is copied there once, and goes on to registers
//   2. the next row's copies start; the row is selected in registers (held.cuh)
//   3. a row that cannot be is copied again for the exact route: its coarse histogram gives the boundary bin,
//      classification reads the ring again, refine (refine.cuh). A longer row is streamed twice (select.cuh)
//
// Row reads: 1 held, 2 otherwise. Rows are dealt out in turn: no queue, and no workspace unless candidates spill.
#include "bulk.cuh"
#include "held.cuh"
#include "workspace.cuh"

static_assert(kHeld == 0 || kHeld == kTurn, "the ring holds a row");

__device__ __forceinline__ bool resident(const Params& p, const Row& row) {
  return row.length > slots_of(p, row) && row.length <= kHeld;
}

// Where rows are held, the exact route is rare, and called: what it keeps from row to row would take registers that
// they need.
#if KSIEVE_STATS || KSIEVE_TIES
#define KSIEVE_CALLED __forceinline__
#else
#define KSIEVE_CALLED __noinline__
#endif

// The exact route. A resident row is copied once more if its place has been taken.
__device__ KSIEVE_CALLED void select_exact(const Params& p, int id) {
  const RowTask t = whole_row(p, load_row(p, id), spill_slice(p, blockIdx.x));
  if (!resident(t.params, t.row)) return select_row(t, 0, [] {}, [] {});
  if (kHolds) start_scan(t.row.scores, t.begin, t.end);
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

// Whether anything follows a row's selection.
constexpr bool kAfterwards = kFinish || kStats || KSIEVE_OVERLAP;

// Copies to the ring that were started: their number's parity, and whether they are of the coming row.
struct Copies {
  int state; // bit 0: of the coming row; bit 1: parity

  __device__ __forceinline__ bool started() const { return state & 1; }
  __device__ __forceinline__ Copies dropped() const { return {state & 2}; }

  // Starts copying a row. Behind a barrier after the last use of the ring, and of the earlier copies' wait.
  __device__ __forceinline__ Copies of(const Row& row) const {
#if __CUDA_ARCH__ >= 900
    Body body = body_of(row.scores, 0, row.length);
    if (threadIdx.x == 0) {
      u32 bytes = static_cast<u32>(body.end - body.begin) * sizeof(Score);
      order_copies();
      copy_bulk(shared_storage().ring, row.scores + body.begin, bytes, &shared_storage().arrival);
    }
    fill(row);
#else
    start_scan(row.scores, 0, row.length);
#endif
    return {(state ^ 2) | 1};
  }

  // Fills the ring behind a row.
  __device__ __forceinline__ static void fill(const Row& row) {
    Body body = body_of(row.scores, 0, row.length);
    if (body.end - body.begin == kTurn) return;
    fill_rest(body);
  }

  __device__ __forceinline__ void wait() const {
#if __CUDA_ARCH__ >= 900
    if (started()) wait_arrival(&shared_storage().arrival, ~state >> 1 & 1);
#endif
    arrived();
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_row(const __grid_constant__ Params p) {
  SharedStorage& s = shared_storage();
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) init_arrival(&s.arrival);
#endif
  wait_for_inputs();
  // The first row is copied before its length is known.
  const bool early = !KSIEVE_WINDOWS && p.width <= kHeld;
  const Copies none = {0};
  const Copies first = early ? none.of(row_of_length(p, blockIdx.x, p.width)) : none;
  if (threadIdx.x == 0) {
    s.row_id = blockIdx.x;
    s.held_length = load_row(p, blockIdx.x).length;
    s.next = first.state;
  }
  __syncthreads(); // the first row is known
  // What goes on from row to row is kept in shared memory: held rows need the registers.
  const volatile SharedStorage& kept = s;
  while (kept.row_id < p.rows) {
    const Row row = row_of_length(p, kept.row_id, kept.held_length);
    Copies copies = {kept.next};
    auto next = [&] { return kept.row_id + grid_size(); };
    if (next() < p.rows) fetch_length(p, next());
    auto start_next = [&] { // behind a barrier that `wait` came before
      Copies coming = copies.dropped();
      if (!kFinish && next() < p.rows) { // slots are sorted where the ring is
        Row following = fetched_row(p, next());
        if (resident(p, following)) coming = copies.of(following);
      }
      if (threadIdx.x == 0) s.next = coming.state;
    };
    trace_begin();
    if (resident(p, row) && !copies.started()) copies = copies.of(row);
    auto wait = [&] {
      copies.wait();
      if (early && rarely(row.id == blockIdx.x)) Copies::fill(row);
    };
    bool holding = holds(p, row);
    bool held = holding && select_held<Alone>(whole_row(p, row, nullptr), wait, start_next);
    if (!held) {
      if (holding) copies = {kept.next};
      wait();
      __syncthreads(); // nobody looks at the storage of a held row any more, and the next row's length is there
      if (threadIdx.x == 0) s.next = copies.dropped().state;
      select_exact(p, kept.row_id);
      __syncthreads(); // nobody needs the ring any more
      copies = {kept.next};
      __syncthreads(); // everybody has read it
      start_next();
    }
    if (kAfterwards || !held) {
      if (next() >= p.rows) release_dependents();
      finish_row(p, kept.row_id, sort_slice(p, blockIdx.x));
      trace_write(p, kept.row_id);
      __syncthreads(); // nobody still asks which row this was
    }
    if (threadIdx.x == 0) {
      s.row_id = next();
      if (s.row_id < p.rows) s.held_length = fetched_row(p, s.row_id).length;
    }
    __syncthreads(); // nobody still works on the row, and the next one is known
  }
}
