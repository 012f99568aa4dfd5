// Rows of one CTA whose scores have positions of their own. A dense row (PositionedRow), cut off behind its last
// present score, is a plain one: positions matter only when they are written. Rows are copied to the ring before their
// positions are read, the next one as soon as the ring has been read. Rows that are not dense are scanned there.
// Without an order all scores are first assumed to have positions, and only the selected scores' positions are read. If
// one has none, the row is selected again by this rule, and so are all later rows of the CTA.
#pragma once
#include "resident/rows.cuh"

static_assert(!kPositions || !kBinned, "the planner has no length bins for them");
static_assert(!kPositions || (kSamplers == kWarps && !kBracketKnownEarly), "all warps sample a row, just before it");

// Values of SharedStorage::assumes_dense: whether all scores of the row are assumed to have positions. 0: no.
constexpr int kAssumed = 1;
constexpr int kNeverAssume = 2; // some selected score of a row before had none

// Describes a row, if there is one of this number, before it is known which of its scores have a position. Call by the
// one thread that keeps s.copies.
__device__ __forceinline__ void describe_whole(const Params& p, int id, int slot) {
  RowDescriptor& to = shared_storage().descriptors[slot];
  to.route = RowRoute::kNone;
  to.copy = -1;
  if (id >= p.rows) return;
  const Row row = load_row(p, id);
  describe(p, row, 0, row.length, limit_of(p), to);
  if (kBulkCopies && to.route == RowRoute::kResident) to.copy = shared_storage().copies++ & 1;
}

// Cuts a described row off behind its first `length` scores; the ring keeps what was copied behind them. Call by one
// thread.
__device__ __forceinline__ void cut_row(RowDescriptor& to, int length) {
  const int body_end = to.body_begin + static_cast<int>(to.bytes / sizeof(Score));
  to.end = length;
  to.valid = max(min(body_end, length) - to.body_begin, 0);
  to.edges = to.body_begin > 0 || body_end < length;
  bracket_ranks(length, to.slots, kWarps, to, length);
  clear_row(to);
}

// Selects a row on the exact route. `copied`: the ring has it.
KSIEVE_COLD void select_exactly(const Params& p, int id, bool copied) {
  RowTask t = whole_row(p, load_row(p, id), spill_slice(p, blockIdx.x));
  t.end = (t.row = present_part(t.row)).length;
  if (size_of(t.row) > slots_of(p, t.row) && t.row.length <= kMaxResident) {
    select_from_ring(t, copied);
  } else {
    LoadedView none;
    select_row(t, false, none, [] {}, [] {});
  }
}

// A function of its own, since otherwise ptxas would spill.
KSIEVE_COLD void finish_row(const Params& p, int id) { run_epilogue(p, id, sort_slice(p, blockIdx.x)); }

// Supposes that all scores of a row have a position, if the first one behind as many as there are slots has one. Call
// by one thread. Returns whether they are supposed to.
__device__ __forceinline__ bool suppose_present(const Params& p, const Row& row, const RowDescriptor& to) {
  if (to.route != RowRoute::kResident) return false;
  describe_positions(p, row);
  PositionedRow& own = PositionedRow::of_row();
  if (own.position_of(to.slots) < 0) return false;
  own.count = own.end = row.length;
  return true;
}

// Reads the positions of a row's selected scores where their slots are not written yet: without one of them the row is
// no longer dense. Call by all threads.
KSIEVE_COLD void look_up_staged(const Params& p, int slot) {
  PositionedRow& own = PositionedRow::of_row();
  const int k = descriptor_at(slot).slots;
  __syncthreads(); // every slot has its index
  for (int i = threadIdx.x; i < k; i += kThreads) {
    const int index = staged_position(row_output(p, descriptor_at(slot).id), i, k, descriptor_at(slot).end);
    if (index < 0 || own.position_of(index) < 0) own.count = -1;
  }
}

// Selects a row again whose scores were supposed to have positions, and starts the next row's copy again, which is in
// the ring. Call by all threads, behind a barrier.
KSIEVE_COLD void select_again(const Params& p, int slot) {
  SharedStorage& s = shared_storage();
  const int id = descriptor_at(slot).id;
  RowDescriptor& next = s.descriptors[slot ^ 1];
  if (next.route == RowRoute::kResident) wait_copy(slot ^ 1);
  __syncthreads(); // it has arrived, and every thread knows that the row is selected again
  if (threadIdx.x == 0) {
    s.assumes_dense = kNeverAssume;
    if (next.copy >= 0) next.copy = s.copies++ & 1;
  }
  find_present(p, load_row(p, id));
  select_exactly(p, id, false);
  finish_row(p, id);
  __syncthreads(); // no thread works on the row any more
  copy_coming(slot ^ 1);
}

// Selects the rows of this CTA. Call by all threads. A row is selected by its scores alone, and then the positions of
// those that are selected are read, until one of these has none; from then on all positions of a row are read first.
__device__ __forceinline__ void select_positioned_rows(const Params& p) {
  constexpr int kDescribes = 32; // the thread that describes rows; warp 0 copies them
  SharedStorage& s = shared_storage();
  if (threadIdx.x == kDescribes) {
    s.copies = 0;
    describe_whole(p, blockIdx.x, 0);
  }
  if (threadIdx.x == 0) {
    prepare_copies();
    s.assumes_dense = kWritesEntries ? 0 : kNeverAssume;
  }
  __syncthreads(); // the first row is described, and copies may start
  copy_coming(0);
#pragma unroll 1
  for (int slot = 0; descriptor_at(slot).route != RowRoute::kNone; slot ^= 1) {
    const Row row = load_row(p, descriptor_at(slot).id);
    if (threadIdx.x == 0) {
      if (kWindows) s.base = row.base;
      const bool supposed = s.assumes_dense != kNeverAssume && suppose_present(p, row, s.descriptors[slot]);
      if (supposed) cut_row(s.descriptors[slot], row.length);
      if (s.assumes_dense != kNeverAssume) s.assumes_dense = supposed ? kAssumed : 0;
    } else if (threadIdx.x == kDescribes) {
      describe_whole(p, row.id + grid_size(), slot ^ 1);
    }
    clear_counts();
    __syncthreads(); // the next row is described, and counters are zero, for every thread
    if (!kWritesEntries || s.assumes_dense != kAssumed) {
      find_present(p, row);
      if (threadIdx.x == 0) cut_row(s.descriptors[slot], present_part(row).length);
      __syncthreads(); // the row is cut off, for every thread
    }
    const bool copied = descriptor_at(slot).route == RowRoute::kResident;
    const bool by_buckets =
        copied && PositionedRow::of_row().dense() && descriptor_at(slot).end > descriptor_at(slot).slots;
    bool written = false; // all slots are as they are to be
    if (by_buckets) {
      sample_resident(slot);
      written = select_resident<CtaScope>(
          p, slot,
          [&] {
            if (!kSorts) copy_coming(slot ^ 1);
          },
          [] {});
      if (kWritesEntries && s.assumes_dense == kAssumed) {
        if (!written) look_up_staged(p, slot);
        __syncthreads(); // the position of every selected score has been read
        if (!PositionedRow::of_row().dense()) {
          select_again(p, slot);
          written = true;
        }
      }
    } else {
      if (copied) wait_copy(slot);
      select_exactly(p, descriptor_at(slot).id, copied);
    }
    if (descriptor_at(slot ^ 1).route == RowRoute::kNone) release_dependents();
    if (!kWritesEntries || !written) finish_row(p, descriptor_at(slot).id);
    __syncthreads(); // no thread works on the row any more
    if (kSorts || !by_buckets) copy_coming(slot ^ 1);
  }
}
