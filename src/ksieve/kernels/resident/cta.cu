// Family resident_block: one CTA per row, which is read once if it fits.
//
//   1. a row of at most kMaxResident scores is copied to the ring once, and counted in buckets (resident/select.cuh)
//   2. the next row's copy starts, and its samples give a bracket; meanwhile this row's answer is written
//   3. other rows come last, on the exact route (resident/fallback.cuh): rows that do not fit, and with statistics or
//      tie-breaks all rows
// Rows whose scores have positions of their own take either route in turn (resident/positioned_rows.cuh).
//
// Row reads, from global memory: 1 if the row fits the ring, 2 otherwise. Rows are taken round robin: no queue, and no
// workspace unless candidates spill.
#include "resident/block_rows.cuh"
#include "resident/positioned_rows.cuh"
#include "resident/rows.cuh"

static_assert(!kBlockRows || (kFits && kMaxResident == kTile && kOverflowVectors == 0),
              "the ring holds a row of blocks");

// Writes the slots behind a resident row's own, which no epilogue writes: its forced entries, all of which it has, then
// -1.
__device__ __forceinline__ void write_behind(const Params& p, int slot) {
  for (int i = descriptor_at(slot).slots + reread_tid(); i < p.k + kForced; i += kThreads) {
    const int number = i - descriptor_at(slot).slots; // of a forced entry
    const int index = number < kForceFirst ? number : descriptor_at(slot).end + number;
    descriptor_at(slot).out[i] = number < kForced ? descriptor_at(slot).base - kForceFirst + index : -1;
  }
}

// Selects the resident rows. Returns whether rows of another route are left.
__device__ __forceinline__ bool select_resident_rows(const Params& p) {
  SharedStorage& s = shared_storage();
  // Whether a row's successor is copied behind its slots: they are sorted in the ring, or their values are read there.
  constexpr bool kCopiesAfter = kSorts || kKeepsScores;
  start_rows(p);
  if (kBracketKnownEarly) __syncthreads(); // every warp's samples are in the first row's bracket
  for (int slot = 0;; slot = slot_after(slot)) {
    const RowRoute route = descriptor_at(slot).route;
    if (route == RowRoute::kNone) break;
    auto look_ahead = [&] {
      if (slot % kAhead == 1 && reread_tid() / 32 == kScouts) describe_more(p, (slot + kAhead - 1) & kAhead);
      if (!kCopiesAfter) sample_coming(slot_after(slot));
    };
    bool looked = false;
    if (route != RowRoute::kResident) keep_apart();
    if (route != RowRoute::kStreamed) {
      auto copy_next = [&] {
        if (!kCopiesAfter) copy_coming(slot_after(slot));
      };
      if (route == RowRoute::kResident) {
        looked = select_resident<CtaScope>(p, slot, copy_next, look_ahead);
        if (kRowK || (kForced && !kEpilogue)) write_behind(p, slot);
      } else if constexpr (kWritesSlots) {
        writer_of(p, SlotFacts::of(p, descriptor_at(slot).id), slot).write_whole(descriptor_at(slot).end);
      } else {
        write_short(descriptor_at(slot).out, descriptor_at(slot).end,
                    kCounts ? written_slots(p, descriptor_at(slot).end, p.k) : p.k, descriptor_at(slot).base);
      }
      if (kOverlap && descriptor_at(slot_after(slot)).route == RowRoute::kNone) release_dependents();
      if ((kWritesSlots || kWritesEntries) && looked || kWritesSlots && descriptor_at(slot).route == RowRoute::kShort) {
        // slots are as they are to be
      } else if (kEpilogue || (kForced && descriptor_at(slot).route != RowRoute::kResident)) {
        if (threadIdx.x == 0) s.base = descriptor_at(slot).base;
        run_epilogue(p, descriptor_at(slot).id, sort_slice(p, blockIdx.x));
      } else if (kCounts) {
        write_count(p, descriptor_at(slot).id, min(descriptor_at(slot).end, descriptor_at(slot).slots) + kForced);
      }
    } else {
      atomicOr(&s.has_fallback,
               1); // by all threads: with one alone, ptxas let that thread reach the barrier below separately
    }
    if (kCopiesAfter || !looked) {
      if (kCopiesAfter || descriptor_at(slot).route != RowRoute::kResident) {
        __syncthreads(); // no thread reads the ring or the histogram of this row any more
        if (kSorts) clear_counts(reread_tid());
        copy_coming(slot_after(slot));
        __syncthreads(); // counters are zero and the next row's copy has started, for every thread
      }
      if (!looked) look_ahead();
      if (kCopiesAfter) sample_coming(slot_after(slot));
      if (kBracketKnownEarly) __syncthreads(); // every warp's samples are in the next row's bracket
    }
    __syncwarp(); // every lane begins the next row together with its warp
  }
  if (!s.has_fallback) return false; // the same for all threads: each has seen every row
  __syncthreads();                   // no thread still works on a row
  return true;
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_resident_cta(const __grid_constant__ Params p) {
  wait_for_inputs();
  if (kBinned && blockIdx.x >= rows_of(p)) {
    if (kPassesOn && threadIdx.x == 0) leave_queue(p);
    return;
  }
  if constexpr (kBlockRows) return select_block_rows<Row>(p);
  if constexpr (kFits && kPositions) return select_positioned_rows(p);
  if (!kFits || select_resident_rows(p)) select_others(p);
  if (!kPassesOn) return;
  __syncthreads(); // no thread reads the number of rows any more
  if (threadIdx.x == 0) leave_queue(p);
}
