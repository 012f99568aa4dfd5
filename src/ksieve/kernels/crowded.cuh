// Held rows that their steps do not decide. A plateau is told by the samples and taken at once; a crowded step, or the
// last one, which has whatever is no better than the sampled range, is read once more and divided by keys.
#pragma once
#include "steps.cuh"

// Writes positions that belong to the answer at once: where they would be collected, keys are counted. All holders
// take output slots from one counter.
template <class Holders> __device__ __forceinline__ void emit_marks(const Marks& marks, int slot) {
  int place = reserve_many(&Holders::owner().held[slot].emitted, marks.count());
  const int first = held_first(slot);
  const int k = held_row(slot).slots;
  int* out = held_row(slot).out;
#pragma unroll
  for (int w = 0; w < kWords; ++w)
    for (u32 bits = marks.word[w]; bits && place < k; ++place)
      out[place] = held_position(index_of_mark(w, take_bit(bits), first), slot);
}
template <class Holders> __device__ __forceinline__ void emit_edge(int slot) {
  int place = atomicAdd(&Holders::owner().held[slot].emitted, 1);
  if (place < held_row(slot).slots) held_row(slot).out[place] = held_position(load_edge(slot).at, slot);
}

// Emits `quota` of all holders' equal scores, any of them: a vector of each thread at a time, since otherwise few
// threads would have to write them all.
template <class Holders>
__device__ __forceinline__ void emit_equal(const Marks& equal, bool edge_equal, int quota, int slot) {
  int* taken = &Holders::owner().held[slot].few_count;
  int place = reserve_many(taken, edge_equal);
  if (edge_equal && place < quota) emit_edge<Holders>(slot);
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
#pragma unroll 1
    for (u32 vector = (1u << kVector) - 1; vector && __any_sync(kFullWarp, place < quota); vector <<= kVector) {
      u32 offered = equal.word[w] & vector;
      place = reserve_many(taken, __popc(offered));
      Marks chosen = {};
      for (int at = place; offered && at < quota; ++at)
        chosen.word[w] |= 1u << take_bit(offered);
      emit_marks<Holders>(chosen, slot);
    }
  }
}

// Samples are mostly one value. If the k-th score is that, nothing need be divided, or read again. `ahead()` runs if
// so, when nobody needs the ring any more.
template <class Holders, class Ahead> __device__ __forceinline__ bool select_plateau(int slot, Ahead ahead) {
  const float value = score_of_key(held_row(slot).plateau);
  bool edge_better = false;
  bool edge_equal = false;
  each_edge(slot, [&](const Edge& edge) {
    edge_better = edge.score > value;
    edge_equal = edge.score == value;
  });
  Marks better = {};
  Marks equal = {};
  each_held<false, false>(slot, [&](int vector, const float (&score)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int at = vector * kVector + i;
      better.word[at / 32] |= score[i] > value ? 1u << at % 32 : 0u;
      equal.word[at / 32] |= score[i] == value ? 1u << at % 32 : 0u;
    }
  });
  auto& counted = Holders::owner().held[slot];
  reserve_many(&counted.better, better.count() + edge_better);
  reserve_many(&counted.equal, equal.count() + edge_equal);
  Holders::sync(); // both are counted, and the ring has been read
  const int quota = held_row(slot).slots - counted.better;
  if (quota < 0 || quota > counted.equal) return false;
  ahead();
  if (edge_better) emit_edge<Holders>(slot);
  emit_marks<Holders>(better, slot);
  emit_equal<Holders>(equal, edge_equal, quota, slot);
  return true;
}

// Counts a key by a digit that begins with the best one, unless it is kGone.
constexpr u32 kGone = 0xffffffffu; // no shifted key
__device__ __forceinline__ void count_key(u32 key, Digit digit) {
  u32 bin = (key - digit.base) >> digit.shift;
  u32 at = static_cast<u32>(__cvta_generic_to_shared(shared_storage().histogram)) + bin * sizeof(u32);
  asm volatile("{\n.reg .pred there;\nsetp.ne.u32 there, %1, %2;\n@there red.shared.add.u32 [%0], 1;\n}" ::"r"(at),
               "r"(key), "n"(kGone)
               : "memory");
}

// Calls visit(key, word, bit) for the places of undecided scores, which are read again; kGone for others near them.
template <class Bins, class Visit>
__device__ __forceinline__ void each_undecided(const Marks& left, int slot, Visit visit) {
  const Score* scores = static_cast<const Score*>(held_row(slot).scores) + held_first(slot);
  constexpr int kInWord = 32 / kVector;
  constexpr int kTogether = 4; // that are waited for at once
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
#pragma unroll 1
    for (int from = 0; from < min(kInWord, kVectors - w * kInWord); from += kTogether) {
      const u32 marks = left.word[w] >> from * kVector;
      Raw raw[kTogether] = {};
#pragma unroll
      for (int v = 0; v < kTogether; ++v)
        if (marks >> v * kVector & ((1u << kVector) - 1)) raw[v] = Bins::read_again(scores, w * kInWord + from + v);
#pragma unroll
      for (int v = 0; v < kTogether; ++v)
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const int bit = v * kVector + i;
          visit(marks >> bit & 1 ? shifted_key(unpack(raw[v], i)) : kGone, w, 1u << bit << from * kVector);
        }
    }
  }
}

// The step of the k-th score, or its coarse bin, number `bin`, is crowded, or is the last step, of which nothing is
// known yet. Its scores, `last`, are divided until few are left, or one value, or as many as are wanted: any of those
// will do. The score beside the body is loaded whenever it is looked at: few threads have one.
template <class Holders, class Bins = FoundSteps>
__device__ __noinline__ void select_crowded(int slot, Marks better, Marks last, int bin, int quota) {
  SharedStorage& s = shared_storage();
  auto edge_key = [&] { return shifted_key(load_edge(slot).score); };
  bool edge_last = false;
  each_edge(slot, [&](const Edge& edge) {
    const int number = Bins::of(edge.score, slot);
    if (number < bin) emit_edge<Holders>(slot);
    edge_last = number == bin;
  });
  emit_marks<Holders>(better, slot);
  int count = 0; // of the last ones; 0: they are one value
  int rounds = 0;
  do {
    u32 best = edge_last ? edge_key() : kGone;
    u32 behind = best + 1; // the worst key and 1; 0: none
    each_undecided<Bins>(last, slot, [&](u32 key, int, u32) {
      best = min(best, key);
      behind = max(behind, key + 1);
    });
    const KeyRange range = Holders::range_of_all(best, behind ? behind - 1 : 0);
    count = 0;
    if (range.best >= range.worst) break;
    const Digit counted = digit_over(range.best, range.worst);
    if (threadIdx.x == 0) s.rule.digit = counted; // the search leaves it no registers
    each_undecided<Bins>(last, slot, [&](u32 key, int, u32) { count_key(key, counted); });
    if (edge_last) count_key(edge_key(), counted);
    const Boundary found = Holders::find_again(quota);
    const volatile Digit& kept = s.rule.digit;
    const u32 size = 1u << kept.shift;
    const u32 first = kept.base + found.bin * size;
    if (edge_last) {
      const u32 mine = edge_key();
      if (mine < first) emit_edge<Holders>(slot);
      edge_last = mine - first < size;
    }
    Marks chosen = {};
    Marks left = {};
    each_undecided<Bins>(last, slot, [&](u32 key, int w, u32 bit) {
      chosen.word[w] |= key < first ? bit : 0u;
      left.word[w] |= key - first < size ? bit : 0u;
    });
    last = left;
    emit_marks<Holders>(chosen, slot);
    quota -= found.before;
    count = found.count;
  } while (count != quota && count > kFewest && ++rounds < kRounds); // more if scores change meanwhile
  const bool ranked = count != 0 && count != quota && count <= kFewest;
  if (ranked) {
    list_marked<Holders>(last, slot);
    if (edge_last) list_last<Holders>(load_edge(slot).at, load_edge(slot).score, slot);
    Holders::sync(); // all are listed
    Holders::write_listed(slot, count, quota);
  } else {
    emit_equal<Holders>(last, edge_last, quota, slot);
  }
}

// Those of some places that hold scores of the row.
__device__ __forceinline__ Marks in_row(Marks marks, int slot) {
  const int left = held_row(slot).valid - own_place();
  const int vectors = max(left + kStep - 1, 0) / kStep;
  const int count = vectors * kVector - max(vectors * kStep - (kStep - kVector) - left, 0);
#pragma unroll
  for (int w = 0; w < kWords; ++w)
    marks.word[w] &= static_cast<u32>((1ull << min(max(count - 32 * w, 0), 32)) - 1);
  return marks;
}
