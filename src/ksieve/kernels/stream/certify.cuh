// Phase 2, certify: scan until a frontier exists that holds the rest of the answer and fits the candidate slots.
//   1. the proposed cutoff is scanned; k admitted scores prove containment
//   2. a proposal that admits fewer scans the rescue band, if there is one, and then takes the exact route: a coarse
//      histogram of all scores, and a scan that classifies against the k-th bin
//   3. a frontier beyond kCapacity is narrowed by one digit and scanned again, unless it is a single value: then any of
//      its stored members will do
// All of it is one loop around one scan: inlined once, it keeps its registers, and nothing else reads the row.
#pragma once
#include "length_bins.cuh"
#include "stream/fold.cuh"
#include "stream/sample.cuh"
#include "stream/tie_break.cuh"

// What one CTA works on: a row, or in its first scan the part [begin, end) of one.
struct RowTask {
  const Params& params;
  Row row;
  int begin;
  int end;
};

// The frontier: candidates that are undecided. After j digits the paper calls this set Q_j, and k_j the slots that are
// still open for its members. The shared histogram counts the candidates by `digit`; up to kCapacity of them are
// stored, more only if all are equal. remaining_k = 0: the row is complete.
struct Frontier {
  KeyRange keys;   // range of the candidates' keys
  int count;       // number of candidates, |Q_j|
  int remaining_k; // output slots still open, k_j
  int round;       // j, the number of digits that have narrowed the frontier
  Digit digit;

  // Returns whether no further digit divides the frontier.
  __device__ __forceinline__ bool resolved() const { return kStats ? round == kRounds : keys.best == keys.worst; }
};

// Returns the row's first score. A window's address is kept in shared memory, where it costs no registers.
__device__ __forceinline__ const Score* scores_of(const RowTask& t) {
  if constexpr (kWindows) return static_cast<const Score*>(shared_storage().window);
  return t.row.scores;
}

// Returns the digit that divides a frontier next. With statistics it is the paper's. Otherwise bins are spread evenly
// over the frontier's keys: the first paper digit hardly divides the tail of one octave, and its counts queue up on few
// bins.
__device__ __forceinline__ Digit next_digit(const Frontier& q) {
  return kStats ? paper_digit(q.round, q.keys.best) : digit_over(q.keys.best, q.keys.worst);
}

// What the next scan's rule is for. kProposed: the proposed cutoff; kRescueBand: the rescue band, from there to the
// rescue cutoff; kNoCutoff: there is no cutoff yet, and a coarse histogram must find the k-th bin first; kClassified:
// the k-th bin; kNarrowed: one bin of a frontier that did not fit.
enum class ScanPurpose { kProposed, kRescueBand, kNoCutoff, kClassified, kNarrowed };

// Writes the rule of the next scan. Call behind every use of the old rule; a barrier must follow.
__device__ __forceinline__ void set_rule(const RowTask& t, Mode mode, u32 emit_from, KeyRange keys, Digit digit) {
  SharedStorage& s = shared_storage();
  if (threadIdx.x != 0) return;
  int id = t.row.id;
  if (kStats) KSIEVE_OPAQUE(id); // otherwise ptxas keeps its upper word from rule to rule, and spills it
  int* out = row_output(t.params, id);
  s.rule = {mode, emit_from, keys.best, keys.worst, digit, open_slots(t.params), out, &s.num_selected, &s.num_ties};
}

// Returns the digit over the keys from the view's best score to the last cutoff; better scores share the first bin.
__device__ __forceinline__ Digit digit_of(const Proposal& found) {
  return kStats ? paper_digit(0, 0) : digit_over(found.best, found.cutoff[kRescue]);
}

// Writes the rule of a proposal's scan; a barrier must follow. `num_ties` is this CTA's counter or its row's. Minus
// infinity, which the ring also holds behind a row, and NaN cannot be the cutoff of Filter: they are classified.
__device__ __forceinline__ void set_proposal_rule(const RowTask& t, const Proposal& found, int* num_ties) {
  if (threadIdx.x != 0) return; // thread 0 has just written the cutoff
  u32 cutoff = found.cutoff[0];
  Mode mode = found.expect_plateau         ? Mode::kSeparateTies
              : cutoff < Stored::kWorstKey ? Mode::kInclusive
                                           : Mode::kClassify;
  set_rule(t, mode, 0, {0, cutoff}, digit_of(found));
  shared_storage().rule.num_ties = num_ties;
}

// Narrows a frontier to the bin that holds its `remaining_k`-th candidate; better bins are committed. Call by all
// threads, behind a barrier after the last count; the histogram is then empty.
__device__ __forceinline__ void narrow(Frontier& q) {
  FoundBin found = find_bin(q.remaining_k);
  q.keys = keys_of_bin(found.bin, q.digit, q.keys);
  if (!kStats) q.keys = keys_of_scores(q.keys);
  q.remaining_k -= found.before;
  q.count = found.count;
  ++q.round;
  if (!q.resolved()) q.digit = next_digit(q);
  trace_set(kColCommitted0 + q.round, found.before);
  trace_set(kColFrontier0 + q.round, found.count);
}

// Returns whether all candidates of a frontier that is too large have one key: joins the stored keys into the extremes
// of those that were not stored. Call by all threads.
__device__ __forceinline__ bool single_valued() {
  SharedStorage& s = shared_storage();
  u32 least = kNanKey;
  u32 greatest = 0;
  each_own([&](u64 entry) {
    least = min(least, entry_key(entry));
    greatest = max(greatest, entry_key(entry));
  });
  fold_extremes(s, least, greatest);
  __syncthreads(); // every thread's keys are in the extremes
  return s.least == s.greatest;
}

// Writes stored candidates behind the output slots already taken, at most `remaining_k`. Call by whole warps.
__device__ __forceinline__ void emit_any(int remaining_k) {
  SharedStorage& s = shared_storage();
  int number = reserve_many(&s.tail_count, own_count());
  each_own([&](u64 entry) {
    if (number < remaining_k) write_front(s.num_selected + number, entry_index(entry));
    ++number;
  });
}

// Completes a row whose k-th score equals an exact cutoff: the `strict` better scores are all stored, and the ties
// are at the end of the output already, or left to collect_ties.
__device__ __forceinline__ void finish_tied(const RowTask& t, const Proposal& found, int strict, int num_ties) {
  int k = open_slots(t.params);
  trace_set(kColCommitted0, strict);
  trace_set(kColFilled, k - strict);
  for (int round = 0; round <= kRounds; ++round)
    trace_set(kColFrontier0 + round, round > 0 && strict + num_ties == k ? 0 : num_ties);
  emit_any(strict);
  if (kTies) leave_ties(found.cutoff[0], k - strict);
}

// Returns the frontier of the coarse bin of the k-th score, and writes the rule of its scan, which writes scores of
// better bins to the output. A barrier must follow.
__device__ __forceinline__ Frontier classified(const RowTask& t, FoundBin found) {
  KeyRange keys = keys_of_bin(found.bin);
  Frontier q = {keys, found.count, open_slots(t.params) - found.before, 0, {}};
  q.digit = next_digit(q);
  trace_set(kColCommitted0, found.before);
  trace_set(kColFrontier0, found.count);
  set_rule(t, Mode::kClassify, 0, q.keys, q.digit);
  return q;
}

// Runs the scan with the visitor that the rule selects.
__device__ __forceinline__ void scan_by_rule(const Score* scores, int begin, int end, bool& folds) {
  const ScanRule& rule = shared_storage().rule;
  bool proposal = kSampled && rule.mode != Mode::kClassify;
  if (kSampled && !unlikely(rule.mode != Mode::kInclusive || !FastTest::usable(rule.worst))) {
    Filter<true> admit(rule);
    scan_and_fold(scores, begin, end, admit, folds);
  } else if (proposal) {
    Filter<false> admit(rule);
    scan_and_fold(scores, begin, end, admit, folds);
  } else {
    Classify classify(rule);
    scan_and_fold(scores, begin, end, classify, folds);
  }
}

// Result of joining the parts of a row behind its first scan.
enum class Merged {
  kWhole,    // this CTA finishes the row
  kOther,    // another CTA finishes the row
  kOutgrown, // this CTA finishes the row and scans it again: the parts' candidates did not fit the row's list
};

// Scans a row until there is a frontier to refine, `q`. Returns whether this CTA finishes the row. `purpose` says what
// the rule in shared memory is for; the first scan covers [begin, end) and has been
// started, then `merge()` joins the parts of other CTAs, and later scans cover the whole row. `scanned`: the first scan
// has been done already. Call by all threads; unless scanned, storage must be empty behind a barrier.
template <class Merge>
__device__ __forceinline__ bool certify(const RowTask& t, ScanPurpose purpose, bool scanned, Frontier& q, Merge merge) {
  SharedStorage& s = shared_storage();
  const Proposal& proposal = s.proposal;
  int begin = t.begin;
  int end = t.end;
  bool folds = kFold; // the first scan of the row's scores
  for (bool first = true;; first = false) {
    if (kSampled ? unlikely(purpose == ScanPurpose::kNoCutoff) : purpose == ScanPurpose::kNoCutoff) {
      CoarseCount counting;
      if (!first) start_scan(scores_of(t), begin, end);
      scan_and_fold(scores_of(t), begin, end, counting, folds);
      start_scan(scores_of(t), begin, end);
      __syncthreads(); // every score is counted
      q = classified(t, find_bin(open_slots(t.params)));
      trace_scans(1);
      purpose = ScanPurpose::kClassified;
    }
    __syncthreads(); // the rule is visible, and so is every clear before it
    if (!(first && scanned)) {
      if (!first && purpose != ScanPurpose::kClassified) start_scan(scores_of(t), begin, end);
      scan_by_rule(scores_of(t), begin, end, folds);
    }
    if (kBinned) wait_all_copies(); // waits for the scan's copies, and for the facts of the coming row
    __syncthreads();                // every thread's candidates are stored or counted
    Merged merged = first ? merge() : Merged::kWhole;
    if (merged == Merged::kOther) return false;
    begin = 0;
    end = t.row.length;
    trace_scans(1);
    if (merged == Merged::kOutgrown) continue;

    if (purpose == ScanPurpose::kProposed || purpose == ScanPurpose::kRescueBand) {
      int k = open_slots(t.params);
      int strict = s.count;
      int num_ties = kExactBoundary ? s.num_ties : 0;
      bool primary = purpose == ScanPurpose::kProposed;
      u32 worst = proposal.cutoff[primary ? 0 : 1];
      trace_set(kColAdmitted0 + !primary, strict + num_ties);
      trace_set(kColRoute, primary ? kCertified : kRescued);
      q = {{0, worst - (kExactBoundary && proposal.expect_plateau)}, strict, k, 0, s.rule.digit};
      if (unlikely(strict < k && strict + num_ties >= k)) {
        finish_tied(t, proposal, strict, num_ties);
        q.remaining_k = q.count = 0;
        return true;
      }
      if (unlikely(strict < k)) {
        __syncthreads(); // no thread still reads the counts or the rule that led here
        if (kRescue && primary) {
          set_rule(t, Mode::kClassify, worst + 1, {worst + 1, proposal.cutoff[1]}, s.rule.digit);
          purpose = ScanPurpose::kRescueBand;
        } else {
          trace_set(kColRoute, kRescue ? kRecoveredAfterBand : kRecovered);
          clear_storage();
          __syncthreads(); // counters are zero, for every thread
          purpose = ScanPurpose::kNoCutoff;
        }
        continue;
      }
      trace_set(kColFrontier0, strict);
    }
    if (!unlikely(q.count > kCapacity && !q.resolved())) return true;
    if (single_valued()) {
      for (int round = q.round; round < kRounds; ++round)
        trace_set(kColFrontier0 + round + 1, q.count);
      return true;
    }
    u32 emit_from = q.keys.best;
    narrow(q);
    set_rule(t, Mode::kClassify, emit_from, q.keys, q.digit);
    forget_candidates();
    purpose = ScanPurpose::kNarrowed;
  }
}
