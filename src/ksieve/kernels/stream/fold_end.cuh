// What follows of a row that is folded, behind its first scan (stream/fold.cuh), with KSIEVE_FOLD.
//   1. the last CTA of the row joins the sums. A row with a score far above its reference is summed again
//   2. better scores than a token's are counted among the candidates, or, if these do not have them all, in a scan
//   3. one thread writes the log-sum-exp and the flags
#pragma once
#include "common/workspace.cuh"
#include "stream/fold.cuh"

#if !KSIEVE_FOLD
__device__ __forceinline__ void finish_fold(const Params&, const Row&, bool) {}
__device__ __forceinline__ void fold_short(const Params&, const Row&) {}
__device__ __forceinline__ void publish_fold(RowState*) {}
__device__ __forceinline__ void join_fold(RowState*) {}
#else
// Sums a row in two passes, the first of which finds its greatest score: short ones, and those whose reference is far
// below the greatest score. Call by all threads, behind note_references and a barrier.
__device__ __noinline__ void fold_whole(const Score* scores, int length) {
  FoldState& state = FoldState::of_row();
  __syncthreads(); // every thread has read the state
  if (threadIdx.x == 0) {
    state.sum = state.above = 0;
    state.reference = kNanKey;
  }
  __syncthreads(); // thread 0 cleared the sums, for all
  u32 best = kNanKey;
  u32 flags = 0;
#pragma unroll 4
  for (int at = threadIdx.x; at < length; at += kThreads) {
    const float score = allowed_score(widen(scores[at]), at);
    if (score != score) {
      flags |= kHasNan;
    } else if (score == infinity()) {
      flags |= kHasInfinity;
    } else {
      best = min(best, order_key(score));
    }
  }
  best = __reduce_min_sync(kFullWarp, best);
  flags = __reduce_or_sync(kFullWarp, flags);
  if ((threadIdx.x & 31) == 0) {
    atomicMin(&state.reference, best);
    atomicOr(&state.flags, flags);
  }
  __syncthreads(); // the greatest score is known
  const float base = Fold::within() ? 0.0f : score_of_key(state.reference);
  __syncthreads(); // every thread has asked
  if (threadIdx.x == 0) state.base = base;
  __syncthreads(); // what scores are reduced by is known, for every thread
  Fold fold(true);
#pragma unroll 1
  for (int first = 0; first < length; first += kThreads) { // the same number of iterations for every thread
    const int at = first + static_cast<int>(threadIdx.x);
    fold.edge(at < length ? allowed_score(widen(scores[at]), at) - base : 0.0f, at < length);
  }
  fold.finish();
  __syncthreads(); // every thread's sum is the row's
}

// Some tokens of a row.
struct Tokens {
  float score[kTokensTogether]; // NaN of one without a rank, which no score reaches
  int place[kTokensTogether];   // its position; -1 of one outside the row's width

  __device__ __forceinline__ Tokens(const Params& p, const Row& row, int first) {
#pragma unroll
    for (int j = 0; j < kTokensTogether; ++j) {
      const int number = min(first + j, p.fold.tokens_of_row - 1);
      const int own = p.fold.tokens[row.id * p.fold.tokens_pitch + number];
      place[j] = static_cast<u32>(own) < static_cast<u32>(p.width) ? own : -1;
    }
#pragma unroll
    for (int j = 0; j < kTokensTogether; ++j) {
      score[j] = static_cast<u32>(place[j]) < static_cast<u32>(row.length)
                     ? allowed_score(widen(row.scores[place[j]]), place[j])
                     : -infinity();
      if (!(score[j] > -infinity())) score[j] = __uint_as_float(kNanKey);
    }
  }
};

// The visitor that counts the scores that are better than tokens.
struct CountBetter {
  const Tokens& tokens;
  u32 better[kTokensTogether] = {};

  __device__ __forceinline__ void see(const Raw (&raw)[kBatch], u32, int first, Left left) {
    const u32 valid = valid_bits(left);
#pragma unroll
    for (int j = 0; j < kTokensTogether; ++j) {
      const CutoffTest test(tokens.score[j]);
      u32 found = test.reached(raw) & valid;
      if (index_of_bit(kBatch * kVector - 1, first) >= tokens.place[j]) {
        for (u32 equal = test.equalled(raw) & found; equal;) {
          const u32 bit = take_bit(equal);
          if (index_of_bit(bit, first) >= tokens.place[j]) found ^= 1u << bit;
        }
      }
      better[j] += __popc(found);
    }
  }
  __device__ __forceinline__ void edge(float score, int index, bool valid) {
#pragma unroll
    for (int j = 0; j < kTokensTogether; ++j)
      better[j] += valid && (score > tokens.score[j] || (score == tokens.score[j] && index < tokens.place[j]));
  }
  __device__ __forceinline__ void finish() const {}
};

// Ranks some tokens: among the candidates, if these are `all` that reach the cutoff, and the tokens do; else in a scan.
// Call by all threads; thread 0 has written the row's total.
__device__ __forceinline__ void rank_tokens(const Params& p, const Row& row, int first, bool all) {
  FoldState& state = FoldState::of_row();
  const ScanRule& rule = shared_storage().rule;
  const Tokens tokens(p, row, first);
  CountBetter counts{tokens};
  if (threadIdx.x < kTokensTogether) state.better[threadIdx.x] = 0;
  bool scans = !all || rule.mode != Mode::kInclusive;
#pragma unroll
  for (int j = 0; j < kTokensTogether; ++j)
    scans |= tokens.score[j] == tokens.score[j] && order_key(tokens.score[j]) > rule.worst;
  if (scans) {
    __syncthreads(); // no thread reads candidates, for the output of a row that is complete
    start_scan(row.scores, 0, row.length);
    scan(row.scores, 0, row.length, counts);
  } else {
    u64 own[kTokensTogether];
#pragma unroll
    for (int j = 0; j < kTokensTogether; ++j)
      own[j] = make_entry(order_key(tokens.score[j]), tokens.place[j]);
    each_own([&](u64 entry) {
#pragma unroll
      for (int j = 0; j < kTokensTogether; ++j)
        counts.better[j] += entry < own[j];
    });
  }
  __syncthreads(); // counters are zero, for every thread, and the total is known
#pragma unroll
  for (int j = 0; j < kTokensTogether; ++j) {
    const u32 better = __reduce_add_sync(kFullWarp, counts.better[j]);
    if ((threadIdx.x & 31) == 0 && better) atomicAdd(&state.better[j], better);
  }
  __syncthreads(); // every better score is counted
#pragma unroll
  for (int j = 0; j < kTokensTogether; ++j) {
    if (threadIdx.x != j || first + j >= p.fold.tokens_of_row) continue;
    const float score = tokens.score[j];
    const double scaled = __dmul_rn(static_cast<double>(score), state.factor);
    float logprob = static_cast<float>(__dmul_rn(__dadd_rn(scaled, -state.total), kLn2));
    if (score != score && tokens.place[j] >= 0 && state.total == state.total) logprob = -infinity();
    const i64 at = static_cast<i64>(row.id) * p.fold.tokens_of_row + first + j;
    p.fold.logprobs[at] = logprob;
    p.fold.ranks[at] = score == score ? static_cast<int>(state.better[j]) : -1;
    if (tokens.place[j] < 0) atomicOr(&state.flags, kTokenOutside);
  }
}

// Returns the base 2 logarithm of the sum of a row's powers.
__device__ __forceinline__ double log2_of_row() {
  const FoldState& state = FoldState::of_row();
  if (state.flags & kHasNan) return __longlong_as_double(-1);
  if (state.flags & kHasInfinity) return __longlong_as_double(0x7ff0000000000000ll);
  if ((state.sum | state.above) == 0) return __longlong_as_double(0xfff0000000000000ll);
  const double sum = __dadd_rn(__ull2double_rn(state.sum), __dmul_rn(__ull2double_rn(state.above), 0x1p22));
  const double found = __dadd_rn(log2_of(sum), static_cast<double>(Fold::unit_of_row() - kFraction));
  return __dadd_rn(found, __dmul_rn(static_cast<double>(state.base), state.factor));
}

// Writes what a row was folded to. `scanned`: whether it was folded by a scan, whose candidates are stored, if they
// fit. Call by all threads of the CTA that finishes the row, behind a barrier.
__device__ __forceinline__ void finish_fold(const Params& p, const Row& row, bool scanned) {
  FoldState& state = FoldState::of_row();
  if (unlikely(!scanned || state.flags & kAgain || !Fold::within())) fold_whole(row.scores, row.length);
  if (threadIdx.x == 0) state.total = log2_of_row();
  const bool all = scanned && shared_storage().count <= kCapacity;
#pragma unroll 1
  for (int first = 0; first < p.fold.tokens_of_row; first += kTokensTogether) {
    if (first > 0) __syncthreads(); // the tokens before are written
    rank_tokens(p, row, first, all);
  }
  if (threadIdx.x >= 32) return;
  __syncwarp(); // the warp's tokens are flagged
  if (threadIdx.x != 0) return;
  const double total = state.total;
  u32 flags = state.flags & (kHasNan | kHasInfinity | kTokenOutside);
  if (total == __longlong_as_double(0xfff0000000000000ll)) flags |= kIsEmpty;
  if (p.fold.totals) p.fold.totals[row.id] = total;
  p.fold.logsumexp[row.id] = static_cast<float>(__dmul_rn(total, kLn2));
  p.fold.flags[row.id] = static_cast<int>(flags | (usable(p, row.id) ? 0 : kIsInvalid));
}

// Folds a row with at most k scores. Call by all threads.
__device__ __forceinline__ void fold_short(const Params& p, const Row& row) {
  __syncthreads(); // no thread reads the state of the row before
  begin_fold();
  __syncthreads(); // thread 0 cleared the state, for all
  note_references(row);
  wait_for_references(p, row);
  finish_fold(p, row, false);
}

// Adds the sums of this part to the row's. Call by all threads, behind a barrier after the last sum; one must follow.
__device__ __forceinline__ void publish_fold(RowState* to) {
  const FoldState& state = FoldState::of_row();
  if (threadIdx.x != 0) return;
  atomicAdd(&to->sum, state.sum);
  if (state.above) atomicAdd(&to->above, state.above);
  if (state.flags) atomicOr(&to->flags, state.flags);
}

// Loads the sums of all parts, and leaves the row's state zero. Call by the last CTA; a barrier must follow.
__device__ __forceinline__ void join_fold(RowState* from) {
  FoldState& state = FoldState::of_row();
  if (threadIdx.x != 0) return;
  state.sum = __ldcg(&from->sum);
  state.above = __ldcg(&from->above);
  state.flags = __ldcg(&from->flags);
  from->sum = from->above = from->flags = 0;
}
#endif
