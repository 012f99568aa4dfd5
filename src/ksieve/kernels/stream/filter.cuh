// The scan of phase 2: in one traversal it compares every score with the cutoff, stores the admitted scores and counts
// them in the next exact histogram. Every scan that selects is made by the visitors Filter or Classify: each set of the
// algorithm is a contiguous range of ordered keys, so a scan takes three keys and a digit (ScanRule). Three traversals
// do not select by a rule: CoarseCount counts only, collect_ties (stream/tie_break.cuh) looks for one key, and rows on
// chip are counted in buckets (resident/) or coarse bins (register/).
#pragma once
#include "common/histogram.cuh"
#include "common/output.cuh"
#include "stream/compare.cuh"

// Takes one slot from `counter` for each lane that wants one, with one atomic per warp; returns the lane's slot. Call
// by whole warps.
__device__ __forceinline__ int reserve(int* counter, bool wanted) {
  u32 mask = __ballot_sync(kFullWarp, wanted);
  if (mask == 0) return 0;
  int leader = __ffs(mask) - 1;
  int base = 0;
  if (static_cast<int>(threadIdx.x & 31) == leader) base = atomicAdd(counter, __popc(mask));
  base = __shfl_sync(kFullWarp, base, leader);
  return base + __popc(mask & lanes_below());
}

// few_before returns the sums of `mine` over the lanes before this one and over all lanes, where no lane has more than
// kMost. Its votes, unlike the shuffles of lanes_before, do not wait for each other. Call by whole warps.
struct LaneSums {
  int before;
  int total;
};
template <int kMost> __device__ __forceinline__ LaneSums few_before(int mine) {
  LaneSums found = {0, 0};
  u32 below = lanes_below();
#pragma unroll
  for (int bit = 0; kMost >> bit; ++bit) {
    u32 mask = __ballot_sync(kFullWarp, mine >> bit & 1);
    found.before += __popc(mask & below) << bit;
    found.total += __popc(mask) << bit;
  }
  return found;
}

// Joins the key of a candidate that is not stored into `least` and `greatest`, which show whether all candidates have
// one value.
__device__ __forceinline__ void track_overflow(u32 key) {
  SharedStorage& s = shared_storage();
  if (key < *static_cast<volatile u32*>(&s.least)) atomicMin(&s.least, key);
  if (key > *static_cast<volatile u32*>(&s.greatest)) atomicMax(&s.greatest, key);
}

// Stores a candidate in a slot of the list, if the list has this slot, and counts it in the histogram.
__device__ __forceinline__ void list_at(int slot, u32 key, int index) {
  SharedStorage& s = shared_storage();
  if (slot < kListed) {
    list_entry(slot) = make_entry(key, index);
  } else {
    track_overflow(key);
  }
  atomicAdd(&s.histogram[bin_of(key, s.rule.digit)], 1u);
}

// Appends a candidate to the list.
__device__ __forceinline__ void list_candidate(u32 key, int index) {
  list_at(atomicAdd(&shared_storage().listed, 1), key, index);
  atomicAdd(&shared_storage().count, 1);
}

// Removes the lowest set bit and returns its number; the remaining bits are computed without waiting for the number.
__device__ __forceinline__ u32 take_bit(u32& bits) {
  u32 rest = bits & (bits - 1);
  u32 bit = 31 - __clz(static_cast<int>(bits ^ rest));
  bits = rest;
  return bit;
}

// Returns the score of a bit from `ring`, the batch's shared address in the ring.
__device__ __forceinline__ float read_back(u32 ring, u32 bit) {
  u32 at = ring + bit * sizeof(Score) + bit / kVector * (kStageBytes - 16);
  return widen(load_shared<Score>(at));
}

// Appends the scores of some bits to the list, for a whole warp: one reservation, and the warp's entries side by side.
__device__ __forceinline__ void list_warp_bits(u32 bits, u32 ring, int first) {
  const int total = static_cast<int>(__reduce_add_sync(kFullWarp, __popc(bits)));
  int slot = 0;
  if ((threadIdx.x & 31) == 0) {
    slot = atomicAdd(&shared_storage().listed, total);
    atomicAdd(&shared_storage().count, total);
  }
  slot = __shfl_sync(kFullWarp, slot, 0);
  while (u32 wanting = __ballot_sync(kFullWarp, bits != 0)) {
    if (bits) {
      u32 bit = take_bit(bits);
      list_at(slot + __popc(wanting & lanes_below()), order_key(read_back(ring, bit)), index_of_bit(bit, first));
    }
    slot += __popc(wanting);
  }
}

// Appends the scores of some bits to the list, by single lanes: one wait for all slots of a lane.
__device__ __forceinline__ void list_bits(u32 bits, u32 ring, int first) {
  int wanted = __popc(bits);
  int slot = atomicAdd(&shared_storage().listed, wanted);
  atomicAdd(&shared_storage().count, wanted);
  for (; bits; ++slot) {
    u32 bit = take_bit(bits);
    list_at(slot, order_key(read_back(ring, bit)), index_of_bit(bit, first));
  }
}

// Writes the positions of some bits to the output, with one reservation for the warp. Call by whole warps.
__device__ __forceinline__ void emit_bits(u32 bits, int first) {
  const ScanRule& rule = shared_storage().rule;
  LaneSums sums = few_before<32>(__popc(bits));
  int base = 0;
  if ((threadIdx.x & 31) == 0 && sums.total) base = atomicAdd(rule.num_selected, sums.total);
  u32 slot = __shfl_sync(kFullWarp, base, 0) + sums.before;
  u32 k = rule.k;
  int* out = rule.row_out;
  for (; bits && slot < k; ++slot)
    out[slot] = shown_position(index_of_bit(take_bit(bits), first));
}

// The visitor of a proposal's scan. A score that reaches the cutoff goes to the column of the thread that reads it,
// without a vote among lanes or an atomic: a row costs as many instructions as there are scores, and this loop has most
// of them. Columns hold raw scores until `finish` turns them into keys and counts them. Where the fast test (Above)
// cannot be used, scores are compared; those equal to a cutoff that is a plateau are then not stored, but written to
// the end of the output.
template <bool kFast> struct Filter {
  FastTest fast;
  CutoffTest exact;
  float cutoff;
  u32 top;      // shared address of the column's next free entry
  u32 end;      // shared address behind the column's last entry
  int tied = 0; // scores of this warp set aside as ties; the same in all lanes

  static constexpr u32 kPitch = kThreads * sizeof(u32); // bytes from one entry of a column to the next

  __device__ __forceinline__ explicit Filter(const ScanRule& rule)
      : fast(rule.worst), exact(hot_cutoff(rule.worst - (rule.mode == Mode::kSeparateTies))),
        cutoff(hot_cutoff(rule.worst - (rule.mode == Mode::kSeparateTies))), top(base()),
        end(base() + kColumns * kPitch) {}

  __device__ __forceinline__ static bool separate_ties() {
    return !kFast && shared_storage().rule.mode == Mode::kSeparateTies;
  }
  // Returns the plateau's value; a NaN stands for every NaN.
  __device__ __forceinline__ static float plateau() { return score_of_key(shared_storage().rule.worst); }

  __device__ __forceinline__ static u32 base() { return static_cast<u32>(__cvta_generic_to_shared(&column_key(0))); }

  // Appends a score to the column, and its index or local index to the same entry of the second array.
  __device__ __forceinline__ void put(float score, u32 bit, int first) {
    store_shared(top, score);
    if constexpr (kLocalIndex16) {
      u32 columns = static_cast<u32>(__cvta_generic_to_shared(shared_storage().candidates));
      u32 before = static_cast<u32>(first) / kThreads / kVector * kVector; // scores that this thread has read before
      auto local = static_cast<unsigned short>(before + bit);
      store_shared_at<kColumnKeys>((top >> 1) + (columns >> 1), local);
    } else {
      store_shared_at<kColumnKeys>(top, index_of_bit(bit, first));
    }
    top += kPitch;
  }

  // Compares a batch and stores its hits; their scores are read back from the ring by their bits.
  __device__ __forceinline__ void see(const Raw (&raw)[kBatch], u32 ring, int first, Left left) {
    u32 hits;
    if (kFast) {
      hits = fast.gather(raw);
    } else {
      u32 valid = valid_bits(left);
      hits = exact.reached(raw) & valid;
      if (separate_ties()) {
        float value = plateau();
        u32 equal = CutoffTest(value).equalled(raw);
        set_aside_tie((value == value ? equal : ~hits) & valid, first);
      }
    }
    while (hits && !unlikely(top >= end)) {
      u32 bit = take_bit(hits);
      put(read_back(ring, bit), bit, first);
    }
    if (unlikely(hits != 0)) {
      // In sorted rows the columns of small CTAs overflow so often that whole warps come here.
      if (kSmall && unlikely(__activemask() == kFullWarp)) {
        list_warp_bits(hits, ring, first);
      } else {
        list_bits(hits, ring, first);
      }
    }
  }

  __device__ __forceinline__ void edge(float score, int index, bool valid) {
    if (valid && score >= cutoff) list_candidate(order_key(score), index);
    if (separate_ties())
      set_aside_tie(valid && (score == plateau() || (score != score && plateau() != plateau())), index);
  }

  // Counts scores that equal the cutoff and writes their positions from the output's end on: every warp the first k
  // that it finds; more can never be needed. Call by whole warps.
  __device__ __forceinline__ void set_aside_tie(u32 equal, int first) {
    if (!__any_sync(kFullWarp, equal)) return;
    const ScanRule& rule = shared_storage().rule;
    int mine = __popc(equal);
    int before = lanes_before(mine);
    int total = __shfl_sync(kFullWarp, before + mine, 31);
    int start = 0;
    if ((threadIdx.x & 31) == 0) start = atomicAdd(rule.num_ties, total);
    if (!kTies && tied < rule.k) {
      start = __shfl_sync(kFullWarp, start, 0);
      for (int t = start + before; equal; equal &= equal - 1, ++t)
        write_back(t, index_of_bit(__ffs(equal) - 1, first));
    }
    tied += total;
  }

  __device__ __forceinline__ void finish() {
    SharedStorage& s = shared_storage();
    int thread_count = kColumns ? static_cast<int>((top - base()) / kPitch) : 0;
    s.thread_count[threadIdx.x] = thread_count;
    Digit digit = s.rule.digit;
    each_in_column(thread_count, [&](u64 entry, int at) {
      u32 key = number_key(__uint_as_float(entry_key(entry))); // nothing admitted is NaN
      column_key(at) = key;
      atomicAdd(&s.histogram[bin_of(key, digit)], 1u);
    });
    int total = __reduce_add_sync(kFullWarp, thread_count);
    if ((threadIdx.x & 31) == 0 && total) atomicAdd(&s.count, total);
  }
};

// The visitor of every other scan that selects: a score is written to the output, stored as a candidate, or dropped.
struct Classify {
  float emitted_cutoff; // scores that reach it were written, or stored, by earlier scans; NaN: none
  float better;         // scores that reach it, but not emitted_cutoff, are written by this scan
  float cutoff;         // scores that reach it, but not `better`, are candidates
  bool nan;             // whether NaN is a candidate, which no comparison finds

  __device__ __forceinline__ explicit Classify(const ScanRule& rule)
      : emitted_cutoff(cutoff_before(rule.emit_from)), better(cutoff_before(rule.best)), cutoff(hot_cutoff(rule.worst)),
        nan(rule.worst == kNanKey) {}

  // Returns the float that exactly the scores with keys better than `key` reach; NaN if there are no such scores.
  __device__ __forceinline__ static float cutoff_before(u32 key) {
    return key ? hot_cutoff(key - 1) : __uint_as_float(0x7fffffffu);
  }

  __device__ __forceinline__ void see(const Raw (&raw)[kBatch], u32 ring, int first, Left left) {
    u32 valid = valid_bits(left);
    u32 in = CutoffTest(cutoff).reached(raw);
    in = (nan ? valid : in & valid);
    if (!__any_sync(kFullWarp, in)) return;
    u32 chosen = CutoffTest(better).reached(raw) & valid;
    in &= ~chosen;
    if (emitted_cutoff == emitted_cutoff) chosen &= ~CutoffTest(emitted_cutoff).reached(raw);
    if (__any_sync(kFullWarp, chosen)) emit_bits(chosen, first);
    if (in) list_bits(in, ring, first);
  }

  __device__ __forceinline__ void edge(float score, int index, bool valid) {
    bool chosen = valid && score >= better;
    bool in = valid && !chosen && (nan || score >= cutoff);
    chosen = chosen && !(score >= emitted_cutoff);
    int slot = reserve(shared_storage().rule.num_selected, chosen);
    if (chosen) write_front(slot, index);
    if (in) list_candidate(order_key(score), index);
  }

  __device__ __forceinline__ void finish() const {}
};

// The visitor that counts a coarse histogram: the first of the two scans of the exact route. Equal scores would contend
// for one bin, so the bin that most lanes of a warp meet first (`hot`) is counted in registers (`met`).
struct CoarseCount {
  u32 hot = kBins;
  u32 met = 0;
  u32 fills = 0; // scores behind the row that were counted as well, and are subtracted at the end

  __device__ __forceinline__ void see(const Raw (&raw)[kBatch], u32, int, Left left) {
    u32 valid = valid_bits(left);
    fills += kBatch * kVector - __popc(valid);
    if (hot == kBins) hot = most_common(coarse_bin(unpack(raw[0], 0)));
#pragma unroll
    for (int i = 0; i < kBatch * kVector; i += 2) {
      u32 keys = coarse_keys(unpack(raw[i / kVector], i % kVector), unpack(raw[i / kVector], i % kVector + 1));
      count(keys >> 5 & (kBins - 1));
      count(keys >> 21);
    }
  }

  __device__ __forceinline__ void edge(float score, int, bool valid) {
    if (valid) count(coarse_bin(score));
  }

  __device__ __forceinline__ void count(u32 bin) {
    met += bin == hot;
    if (bin != hot) atomicAdd(&shared_storage().histogram[bin], 1u);
  }

  __device__ __forceinline__ void finish() const {
    SharedStorage& s = shared_storage();
    u32 total = __reduce_add_sync(kFullWarp, met);
    u32 behind = __reduce_add_sync(kFullWarp, fills);
    if ((threadIdx.x & 31) != 0) return;
    if (total) atomicAdd(&s.histogram[hot], total);
    if (behind) atomicSub(&s.histogram[Stored::kWorstBin], behind);
  }

  __device__ __forceinline__ static u32 most_common(u32 bin) {
    u32 shared_by = __popc(__match_any_sync(kFullWarp, bin));
    return __reduce_max_sync(kFullWarp, shared_by << kBinBits | bin) & (kBins - 1);
  }
};
