// Selection of a row that the registers of one CTA or of a cluster hold, kEach scores a thread: the boundary costs no
// second read.
//   1. one score of each thread is sampled; the sample of a rank beyond what k scores stand for is the least boundary
//   2. what is better is counted in equal steps of the score; the step that holds the k-th is found
//   3. better steps are written to the output; of that step, few scores are left, which one warp ranks
// Steps are monotone in the score, so the answer is exact whatever the sample. A crowded step is divided again, its
// scores fetched once more; a row whose answer is beyond the sample's range is left to the exact route.
#pragma once
#include "select.cuh"

constexpr int kEach = kStages * kVector;
// Not with statistics, which count the paper's digits, nor with tie-breaks, which need the candidates stored.
constexpr bool kHolds = kHeld > 0 && kEach <= 32 && !kStats && !kTies;

constexpr int kCollected = kSharedCapacity * sizeof(u64) / sizeof(int); // output positions, in the list's place

// Whether a row is selected here: the sample must reach the least boundary, and positions are collected on chip, where
// those beside a row's body have room of their own even if they change under a running kernel.
__device__ __forceinline__ bool holds(const Params& p, const Row& row) {
  constexpr int kRoom = kCollected - 2 * kVector;
  constexpr int kPerSample = kHeld / kThreads;
  int k = slots_of(p, row);
  bool sampled = row.length > k && row.length >= p.primary_rank * kPerSample;
  return kHolds && sampled && row.length <= kHeld && k <= kRoom;
}

// Who holds a row: one CTA.
struct Alone {
  __device__ __forceinline__ static SharedStorage& owner() { return shared_storage(); }
  __device__ __forceinline__ static bool owns() { return true; }
  __device__ __forceinline__ static void sync() { __syncthreads(); }

  // This thread's sample, given one of the scores that it holds; behind a barrier, and in front of one.
  __device__ __forceinline__ static float sample(float mine) { return mine; }

  // find_boundary over what all have counted.
  __device__ __forceinline__ static Boundary find(int rank) {
    __syncthreads(); // the tail is counted
    return find_boundary(rank);
  }

  // The first of `count` output slots for this CTA; behind a barrier.
  __device__ __forceinline__ static int reserve(int) { return 0; }
};

// Scores from `most` down to `least` in equal steps, numbered from 0; the last has whatever is no better than `least`.
// A step is a float's mantissa, in quarters and rounded down: kOne + number.
struct Steps {
  static constexpr float kOne = 0x1p21f;
  static constexpr float kGreatest = 0x1.fffffep127f;
  float scale;
  float offset;

  // Infinity and NaN are replaced by the nearest that has steps; infinite scores are in the first step or in the last.
  __device__ __forceinline__ static float finite(float score) { return fminf(fmaxf(score, -kGreatest), kGreatest); }

  // `least` itself is not beyond: its product is rounded up. The range may be twice the greatest float.
  __device__ __forceinline__ Steps(float least, float most) {
    const float low = finite(least);
    const float high = finite(most);
    scale = high > low ? fminf(__fdividef(0x1p-4f, high * 0x1p-4f - low * 0x1p-4f), 0x1p126f) : 1.0f;
    offset = -__fmul_ru(low, scale);
  }

  __device__ __forceinline__ float of(float score) const {
    return __fmaf_rd(__saturatef(fmaf(score, scale, offset)), 1.0f - kBins, kOne + (kBins - 1));
  }

  // Every score is counted, the many of the last step too: the hardware adds up what lanes do to one address.
  __device__ __forceinline__ static void count(float step) {
    constexpr u32 kBytes = (kBins - 1) * sizeof(u32);
    u32 histogram = static_cast<u32>(__cvta_generic_to_shared(shared_storage().histogram));
    asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(histogram + (__float_as_uint(step) & kBytes)) : "memory");
  }

  // 1 for a step less than `number`, otherwise 0.
  __device__ __forceinline__ static float before(float step, int number) {
    return __saturatef(fmaf(step, -4.0f, 4.0f * (kOne + static_cast<float>(number))));
  }
};

// The row, from shared memory: kept in registers, it would not leave enough of them for its scores.
struct HeldRow {
  const Score* scores;
  Body body;
  int begin;
  int end;

  __device__ __forceinline__ static HeldRow load() {
    const volatile SharedStorage& s = shared_storage();
    const Score* scores = static_cast<const Score*>(s.window);
    int begin = s.held_begin;
    int end = s.held_end;
    return {scores, body_of(scores, begin, end), begin, end};
  }
};

// The score beside the body that this thread looks after, if there is one: NaN, which is in no step, if not.
struct Edge {
  int at;
  float score;
  bool valid;
};
__device__ __forceinline__ Edge load_edge(const HeldRow& row) {
  int at = row.begin + static_cast<int>(threadIdx.x);
  if (at >= row.body.begin) at += row.body.end - row.body.begin;
  bool valid = threadIdx.x < 2 * kVector && at < row.end;
  return {at, valid ? widen(row.scores[at]) : __uint_as_float(0x7fffffffu), valid};
}

// Calls visit(bit, score) for some of this thread's scores, once more from memory: for what is rare, and in a loop,
// since it shall not take registers.
template <class Visit> __device__ __forceinline__ void each_again(u32 bits, Visit visit) {
  constexpr u32 kOfVector = (1u << kVector) - 1;
  const Score* scores = HeldRow::load().scores + own_first();
#pragma unroll 1
  for (int first = 0; first < kEach; first += kVector, scores += kStep) {
    if (!(bits >> first & kOfVector)) continue;
    Raw raw = load_raw(scores);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      if (bits >> (first + i) & 1) visit(first + i, unpack(raw, i));
  }
}

// Calls visit(edge) in rows that have any.
template <class Visit> __device__ __forceinline__ void each_edge(Visit visit) {
  if (!rarely(shared_storage().flag)) return;
  visit(load_edge(HeldRow::load()));
}

// Output positions of this CTA before they are written in order: threads have a few each, and would write a sector of
// memory for every one.
__device__ __forceinline__ int* collected() { return reinterpret_cast<int*>(shared_list(shared_storage())); }

// Bounded where bits come from scores that were read again: they may have changed.
template <bool kBounded = false> __device__ __forceinline__ void collect_bits(u32 bits) {
  int place = reserve_many(&shared_storage().emitted, __popc(bits));
  const int first = own_first();
  for (; bits && (!kBounded || place < kCollected); ++place)
    collected()[place] = index_of_bit(take_bit(bits), first);
}

template <class Holders> __device__ __forceinline__ void write_collected() {
  const SharedStorage& s = shared_storage();
  __syncthreads(); // all are collected
  const int from = Holders::reserve(s.emitted);
  const int count = min(s.emitted, s.rule.k - from);
  int* out = s.rule.row_out + from;
  for (int i = threadIdx.x; i < count; i += kThreads)
    out[i] = shown_position(collected()[i]);
}

// The steps of the range that was found, from shared memory.
__device__ __forceinline__ Steps found_steps() {
  const volatile SharedStorage& s = shared_storage();
  return Steps(score_of_key(s.cutoff[0]), score_of_key(s.view_best));
}

// What a CTA's scores are to an answer, as bits and for the score beside the body.
struct Parts {
  u32 better;
  u32 last;
  Edge edge;
  bool edge_better;
  bool edge_last;

  __device__ __forceinline__ int count_better() const { return __popc(better) + edge_better; }
  __device__ __forceinline__ int count_last() const { return __popc(last) + edge_last; }
};

// Writes the better ones, and `quota` of the last, all of which are equal.
template <class Holders> __device__ __forceinline__ void write_tied(Parts parts, int quota) {
  const int first = own_first();
  int place = reserve_many(&Holders::owner().few_count, parts.count_last());
  if (parts.edge_last && place < quota) write_back(place, parts.edge.at);
  for (place += parts.edge_last; parts.last && place < quota; ++place)
    write_back(place, index_of_bit(take_bit(parts.last), first));
  if (parts.edge_better) collected()[min(atomicAdd(&shared_storage().emitted, 1), kCollected - 1)] = parts.edge.at;
  collect_bits<true>(parts.better);
  write_collected<Holders>();
}

// Lists an unresolved score for the owner.
template <class Holders> __device__ __forceinline__ void list_last(int index) {
  list_few(make_entry(number_key(widen(HeldRow::load().scores[index])), index), Holders::owner());
}

// Ranks the `count` listed scores and writes the best `quota` of them behind all better ones. Barrier of all holders.
template <class Holders> __device__ __forceinline__ void write_ranked(int count, int quota) {
  Holders::sync(); // all are listed
  if (!Holders::owns() || threadIdx.x >= 32) return;
  RankedEntry mine = rank_few(count);
  if (static_cast<int>(threadIdx.x) < count && mine.rank < quota)
    write_front(shared_storage().rule.k - quota + mine.rank, entry_index(mine.entry));
}

// Fewer than k scores are beyond the least of the range. If those equal to it fill the row, any of them do.
template <class Holders> __device__ __noinline__ bool select_tied() {
  SharedStorage& owner = Holders::owner();
  const HeldRow row = HeldRow::load();
  const float least = score_of_key(shared_storage().cutoff[0]); // NaN means every NaN
  auto better = [&](float score) { return least == least ? score > least : score == score; };
  auto equal = [&](float score) { return least == least ? score == least : score != score; };
  const int vectors = (max(row.body.end - own_first(), 0) + kStep - 1) / kStep;
  Parts parts = {};
  each_again(static_cast<u32>((1ull << vectors * kVector) - 1), [&](int bit, float score) {
    parts.better |= better(score) ? 1u << bit : 0u;
    parts.last |= equal(score) ? 1u << bit : 0u;
  });
  parts.edge = load_edge(row);
  parts.edge_better = parts.edge.valid && better(parts.edge.score);
  parts.edge_last = parts.edge.valid && equal(parts.edge.score);
  reserve_many(&owner.count, parts.count_better());
  reserve_many(&owner.ties, parts.count_last());
  Holders::sync(); // both are counted
  const int quota = shared_storage().rule.k - owner.count;
  if (quota < 0 || quota > owner.ties) return false;
  write_tied<Holders>(parts, quota);
  return true;
}

// Extremes of the last ones of all holders; behind a barrier of all, and in front of one.
template <class Holders> __device__ __forceinline__ KeyRange range_of_last(const Parts& parts) {
  SharedStorage& owner = Holders::owner();
  u32 best = parts.edge_last ? number_key(parts.edge.score) : kNanKey;
  u32 worst = parts.edge_last ? best : 0;
  each_again(parts.last, [&](int, float score) {
    best = min(best, number_key(score));
    worst = max(worst, number_key(score));
  });
  fold_extremes(owner, best, worst);
  Holders::sync(); // the extremes are known
  KeyRange range = {owner.least, owner.greatest};
  Holders::sync(); // to everybody
  if (threadIdx.x == 0) {
    shared_storage().least = kNanKey;
    shared_storage().greatest = 0;
  }
  return range;
}

// The step of the k-th score is crowded: it is divided into steps of its own, until it is one value or few are left.
// Scores over many octaves, or closer than the least scale, yield one by one: those are not waited for.
constexpr int kDivisions = 3;
template <class Holders>
__device__ __forceinline__ bool select_crowded(u32 better, u32 last, Boundary crowded, int quota) {
  Parts parts = {better, last, load_edge(HeldRow::load()), false, false};
  const float step = found_steps().of(parts.edge.score);
  parts.edge_better = Steps::before(step, crowded.bin) != 0;
  parts.edge_last = !parts.edge_better && Steps::before(step, crowded.bin + 1) != 0;
  int count = crowded.count;
  for (int divided = 0; count != quota && count > kFewest; ++divided) {
    const KeyRange range = range_of_last<Holders>(parts);
    if (range.best >= range.worst) break;
    if (divided == kDivisions) return false;
    const Steps fine(score_of_key(range.worst), score_of_key(range.best));
    each_again(parts.last, [&](int, float score) { Steps::count(fine.of(score)); });
    if (parts.edge_last) Steps::count(fine.of(parts.edge.score));
    const Boundary found = Holders::find(quota);
    const float edge_step = fine.of(parts.edge.score);
    u32 last = 0;
    each_again(parts.last, [&](int bit, float score) {
      const float step = fine.of(score);
      parts.better |= Steps::before(step, found.bin) != 0 ? 1u << bit : 0u;
      last |= Steps::before(step, found.bin + 1) != 0 ? 1u << bit : 0u;
    });
    parts.last = last & ~parts.better;
    parts.edge_better |= parts.edge_last && Steps::before(edge_step, found.bin) != 0;
    parts.edge_last = parts.edge_last && !parts.edge_better && Steps::before(edge_step, found.bin + 1) != 0;
    quota -= found.before;
    count = found.count;
  }
  if (count == quota) {
    parts.better |= parts.last;
    parts.edge_better |= parts.edge_last;
  } else if (count <= kFewest) {
    for (u32 last = parts.last; last;)
      list_last<Holders>(index_of_bit(take_bit(last), own_first()));
    if (parts.edge_last) list_last<Holders>(parts.edge.at);
    write_ranked<Holders>(count, quota);
  }
  if (count == quota || count <= kFewest) {
    parts.last = 0;
    parts.edge_last = false;
  }
  write_tied<Holders>(parts, quota);
  return true;
}

// `wait()` returns when this thread's part of the row is in the ring, `ahead()` runs when all of it has left. False:
// nothing has been written, and the row may not be in the ring any more.
template <class Holders, class Wait, class Ahead>
__device__ __forceinline__ bool select_held(const RowTask& t, Wait wait, Ahead ahead) {
  SharedStorage& s = shared_storage();
  clear_storage();
  if (threadIdx.x == 0) {
    Body body = body_of(t.row.scores, t.begin, t.end);
    s.cutoff[0] = 0;
    s.origin = body.begin;
    s.window = t.row.scores;
    s.held_begin = t.begin;
    s.held_end = t.end;
    s.flag = body.begin != t.begin || body.end != t.end;
  }
  set_rule(t, Mode::kClassify, 0, {}, {});
  wait();
  // Neighbouring threads sample different scores of theirs, and warps too: no period of the row is met by one alone.
  float sample = read_back(own_ring(), (threadIdx.x + (threadIdx.x >> 5) + t.row.id) % kEach);
  float score[kEach];
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    Raw raw = read_ring(own_ring() + stage * kStageBytes);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      score[stage * kVector + i] = unpack(raw, i);
  }
  __syncthreads(); // storage is empty, and the next row's length is there
  ahead();

  sample = Holders::sample(sample);
  int bin = coarse_bin(sample);
  u32 key = order_key(sample);
  atomicAdd(&s.histogram[bin], 1u);
  __syncthreads(); // every sample is counted
  find_boundary(t.params.primary_rank, max(t.params.primary_rank / 16, 1));
  u32 least_key = __reduce_max_sync(kFullWarp, bin == s.found[0].bin ? key : 0);
  u32 most_key = __reduce_min_sync(kFullWarp, bin == s.found[1].bin ? key : kNanKey);
  if ((threadIdx.x & 31) == 0) {
    atomicMax(&s.cutoff[0], least_key);
    atomicMin(&s.view_best, most_key);
  }
  __syncthreads(); // the range is known
  const Steps steps = found_steps();

#pragma unroll
  for (int i = 0; i < kEach; ++i)
    Steps::count(score[i] = steps.of(score[i])); // registers do not suffice for both
  each_edge([](const Edge& edge) { Steps::count(found_steps().of(edge.score)); });
  const Boundary found = Holders::find(open_slots(t.params));
  const int quota = open_slots(t.params) - found.before;
  if (rarely(found.bin == kBins - 1)) return select_tied<Holders>(); // the rest may be equal to the least
  const int better = found.bin + (found.count == quota);
  u32 chosen = gather_tests<kEach>([&](int i) { return Steps::before(score[i], better); });
  u32 last = 0;
  if (found.count != quota) {
    last = gather_tests<kEach>([&](int i) { return Steps::before(score[i], better + 1); }) & ~chosen;
    if (rarely(found.count > kFewest)) return select_crowded<Holders>(chosen, last, found, quota);
  }
  each_edge([&](const Edge& edge) {
    float step = found_steps().of(edge.score);
    if (Steps::before(step, better) != 0) {
      collected()[atomicAdd(&s.emitted, 1)] = edge.at;
    } else if (found.count != quota && Steps::before(step, better + 1) != 0) {
      list_last<Holders>(edge.at);
    }
  });
  if (found.count != quota) {
    while (last)
      list_last<Holders>(index_of_bit(take_bit(last), own_first()));
    write_ranked<Holders>(found.count, quota);
  }
  collect_bits(chosen);
  write_collected<Holders>();
  return true;
}
