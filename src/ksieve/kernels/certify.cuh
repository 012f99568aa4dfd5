// Phase 2, certify: scan until a frontier exists that holds the rest of the answer and fits the candidate slots.
//   1. the proposed boundary is scanned; k admitted scores prove containment
//   2. an underfilled proposal scans the band up to the rescue boundary, and then falls back to exact recovery: a
//      coarse histogram of all scores, and a scan that classifies against the exact boundary bin
//   3. a frontier beyond kCapacity is narrowed by one exact digit and scanned again, unless it is a single value:
//      then any of its stored members will do
// All of it is one loop around one scan: inlined once, it keeps its registers, and nothing else reads the row.
#pragma once
#include "propose.cuh"
#include "sieve.cuh"
#include "ties.cuh"

// What one CTA works on: a row, or in its first scan the segment [begin, end) of one.
struct RowTask {
  const Params& params;
  Row row;
  int begin;
  int end;
};

// Unresolved candidates (paper: Q_j, k_j). The shared histogram holds their digit `round`; up to kCapacity of them are
// stored, more only if all are equal. quota 0: the row is complete.
struct Frontier {
  u32 best; // inclusive range of ordered keys
  u32 worst;
  int count; // |Q_j|
  int quota; // output slots still open
  int round; // j
};

// A window's address is no sum of parameters: kept in shared memory, it costs no registers.
__device__ __forceinline__ const Score* scores_of(const RowTask& t) {
#if KSIEVE_WINDOWS
  return static_cast<const Score*>(shared_storage().window);
#else
  return t.row.scores;
#endif
}

enum class Stage { kProposed, kBand, kUnbounded, kClassified, kNarrowed };

__device__ __forceinline__ u32 bin_best_key(int bin) { return bin ? bin_cutoff_key(bin - 1) + 1 : 0; }

// Behind every use of the old rule, before a barrier.
__device__ __forceinline__ void set_rule(const RowTask& t, Mode mode, u32 emit_from, u32 best, u32 worst, int round) {
  SharedStorage& s = shared_storage();
  if (threadIdx.x != 0) return;
  int* out = row_output(t.params, t.row.id);
  s.rule = {mode, emit_from, best, worst, digit_shift(round), open_slots(t.params), out, &s.emitted, &s.ties};
}

// The rule of a proposal's scan. `ties` is this CTA's counter or its row's. NaN is no match for a float comparison:
// a boundary that low is left to the exact key.
__device__ __forceinline__ void set_proposal_rule(const RowTask& t, int* ties) {
  SharedStorage& s = shared_storage();
  Mode mode = s.cutoff[0] == kNanKey ? Mode::kClassify : kExactBoundary && s.apart ? Mode::kApart : Mode::kInclusive;
  set_rule(t, mode, 0, 0, s.cutoff[0], 0);
  if (threadIdx.x == 0) s.rule.ties = ties;
}

// Narrows a frontier to the digit that holds its quota; better digits are committed. Needs a barrier after the last
// count; leaves the histogram empty.
__device__ __forceinline__ void narrow(Frontier& q) {
  Boundary found = find_boundary(q.quota);
  int shift = digit_shift(q.round);
  u32 fixed = q.round == 0 ? 0 : q.round == 1 ? q.best >> 21 << 21 : q.best >> 10 << 10;
  u32 low = fixed | static_cast<u32>(found.bin) << shift;
  q.best = max(q.best, low);
  q.worst = min(q.worst, low | ((1u << shift) - 1));
  q.quota -= found.before;
  q.count = found.count;
  ++q.round;
  trace_set(kColCommitted0 + q.round, found.before);
  trace_set(kColFrontier0 + q.round, found.count);
}

// Whether everything admitted has one key. Only asked of a frontier that is too large: folds the stored keys into the
// extremes of those that were not stored.
__device__ __forceinline__ bool single_valued() {
  SharedStorage& s = shared_storage();
  int slots = stored_slots();
  u32 least = kNanKey;
  u32 greatest = 0;
  for (int slot = threadIdx.x; slot < slots; slot += kThreads) {
    u64 entry = load_entry(slot);
    if (entry_index(entry) < 0) continue;
    least = min(least, entry_key(entry));
    greatest = max(greatest, entry_key(entry));
  }
  least = __reduce_min_sync(kFullWarp, least);
  greatest = __reduce_max_sync(kFullWarp, greatest);
  if ((threadIdx.x & 31) == 0) {
    atomicMin(&s.least, least);
    atomicMax(&s.greatest, greatest);
  }
  __syncthreads(); // the extremes are known
  return s.least == s.greatest;
}

// Writes the stored candidates behind the output slots already taken, as far as `quota` goes.
__device__ __forceinline__ void emit_any(int quota) {
  SharedStorage& s = shared_storage();
  for (int slot = threadIdx.x; slot < stored_slots(); slot += kThreads) {
    u64 entry = load_entry(slot);
    if (entry_index(entry) < 0) continue;
    int place = atomicAdd(&s.small_count, 1);
    if (place < quota) write_front(s.emitted + place, entry_index(entry));
  }
}

// An exact boundary that is the answer itself: better scores are all stored, ties wait at the end of the output.
__device__ __forceinline__ void finish_tied(const RowTask& t, int strict, int ties) {
  int k = open_slots(t.params);
  trace_set(kColCommitted0, strict);
  trace_set(kColFilled, k - strict);
  for (int round = 0; round <= kRounds; ++round)
    trace_set(kColFrontier0 + round, round > 0 && strict + ties == k ? 0 : ties);
  emit_any(strict);
  if (kTies) leave_ties(shared_storage().cutoff[0], k - strict);
}

// The frontier and the rule of a coarse boundary bin; better bins go straight to the output.
__device__ __forceinline__ Frontier classified(const RowTask& t, Boundary found) {
  Frontier q = {bin_best_key(found.bin), bin_cutoff_key(found.bin), found.count, open_slots(t.params) - found.before,
                0};
  trace_set(kColCommitted0, found.before);
  trace_set(kColFrontier0, found.count);
  set_rule(t, Mode::kClassify, 0, q.best, q.worst, 0);
  return q;
}

// Scans whole rows until there is a frontier to refine. `stage` says what the rule in shared memory is for; the first
// scan covers [begin, end) and has been started, then `merge()` joins the segments of other CTAs and says whether this
// one goes on. `scanned`: the first scan has been done already. Storage is empty behind a barrier unless scanned.
template <class Merge>
__device__ __forceinline__ bool certify(const RowTask& t, Stage stage, bool scanned, Frontier& q, Merge merge) {
  SharedStorage& s = shared_storage();
  int begin = t.begin;
  int end = t.end;
  for (bool first = true;; first = false) {
    if (stage == Stage::kUnbounded) {
      CoarseCount counting;
      if (!first) start_scan(scores_of(t), begin, end);
      scan(scores_of(t), begin, end, counting);
      start_scan(scores_of(t), begin, end);
      __syncthreads(); // every score is counted
      q = classified(t, find_boundary(open_slots(t.params)));
      trace_scans(1);
      stage = Stage::kClassified;
    }
    __syncthreads(); // the rule is visible, and so is every clear before it
    if (!(first && scanned)) {
      if (!first && stage != Stage::kClassified) start_scan(scores_of(t), begin, end);
      Sieve sieve(s.rule);
      scan(scores_of(t), begin, end, sieve);
    }
    __syncthreads(); // everything admitted is stored or counted
    if (first && !merge()) return false;
    begin = 0;
    end = t.row.length;
    trace_scans(1);

    if (stage == Stage::kProposed || stage == Stage::kBand) {
      int k = open_slots(t.params);
      int strict = s.count;
      int ties = kExactBoundary ? s.ties : 0;
      bool primary = stage == Stage::kProposed;
      u32 worst = s.cutoff[primary ? 0 : 1];
      trace_set(kColAdmitted0 + !primary, strict + ties);
      trace_set(kColRoute, primary ? kCertified : kRescued);
      q = {0, worst - (kExactBoundary && s.apart), strict, k, 0};
      if (strict < k && strict + ties >= k) {
        finish_tied(t, strict, ties);
        q.quota = q.count = 0;
        return true;
      }
      if (strict < k) {
        __syncthreads(); // nobody still reads the counts or the rule that led here
        if (kRescue && primary) {
          set_rule(t, Mode::kClassify, worst + 1, worst + 1, s.cutoff[1], 0);
          stage = Stage::kBand;
        } else {
          trace_set(kColRoute, kRescue ? kRecoveredAfterBand : kRecovered);
          clear_storage();
          __syncthreads(); // storage is empty
          stage = Stage::kUnbounded;
        }
        continue;
      }
      trace_set(kColFrontier0, strict);
    }
    if (q.count <= kCapacity || q.round == kRounds) return true;
    if (single_valued()) {
      for (int round = q.round; round < kRounds; ++round)
        trace_set(kColFrontier0 + round + 1, q.count);
      return true;
    }
    u32 emit_from = q.best;
    narrow(q);
    set_rule(t, Mode::kClassify, emit_from, q.best, q.worst, min(q.round, kRounds - 1));
    if (threadIdx.x == 0) forget_candidates();
    stage = Stage::kNarrowed;
  }
}
