// A thread's scores of a resident row: those in the ring and in overflow vectors, visited vector by vector and marked
// by a bit each, and the scores outside the row's 16-byte aligned body.
#pragma once
#include "resident/descriptor.cuh"

// A set of this thread's scores, one bit each.
constexpr int kWords = (kEach + 31) / 32;
struct Marks {
  u32 word[kWords];

  __device__ __forceinline__ int count() const {
    int count = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      count += __popc(word[w]);
    return count;
  }

  // Keeps the first `most` marks alone.
  __device__ __forceinline__ void keep(int most) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int here = __popc(word[w]);
      u32 rest = most < here ? word[w] : 0;
#pragma unroll 1
      for (int i = 0; rest && i < most; ++i)
        rest &= rest - 1;
      word[w] ^= rest;
      most -= here;
    }
  }

  __device__ __forceinline__ bool any() const {
    u32 all = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      all |= word[w];
    return all != 0;
  }
};

// Returns the position of a marked score, given its word, its bit and the position of the thread's first score.
__device__ __forceinline__ int index_of_mark(int w, u32 bit, int first) {
  return index_of_bit(bit, first + w * (32 / kVector) * kStep);
}

// Removes one mark and returns its position; `first` if there is none.
__device__ __forceinline__ int take_mark(Marks& marks, int first) {
  int index = first;
  bool taken = false;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    if (taken || marks.word[w] == 0) continue;
    index = index_of_mark(w, take_bit(marks.word[w]), first);
    taken = true;
  }
  return index;
}

// Returns ranked scores of a vector, or with kCounted the scores themselves, which buckets are computed of.
template <bool kCounted> __device__ __forceinline__ void unpack_vector(const Raw& raw, float (&score)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    score[i] = kCounted ? float_of(loaded(raw, i)) : unpack(raw, i);
}

// Replaces scores of a vector that lie behind the row by the worst that unpack_vector<kCounted> returns.
template <bool kCounted> __device__ __forceinline__ void clear_behind(int vector, int valid, float (&score)[kVector]) {
  const int left = valid - reread_tid() * kVector;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    if (vector * kStep + i >= left)
      score[i] = kCounted ? float_of(score_of_bits(kWorstNumberBits)) : __uint_as_float(kMinusInfinityKey);
}

// The same of scores that share words, before they are unpacked.
template <bool kCounted> __device__ __forceinline__ void clear_behind(int vector, int valid, Raw& raw) {
  const int left = valid - reread_tid() * kVector - vector * kStep;
  constexpr u32 worst = Stored::word_of(kCounted ? kWorstNumberBits : kWorstBits);
#pragma unroll
  for (int i = 0; i < kVector; i += kInWord) {
    if (i >= left) raw.word[i / kInWord] = worst;
    if (kInWord > 1 && i + 1 == left)
      raw.word[i / kInWord] = Stored::replaced(raw.word[i / kInWord], 1, kInWord, worst);
    if (kInWord > 2 && i + 2 == left)
      raw.word[i / kInWord] = Stored::replaced(raw.word[i / kInWord], 2, kInWord, worst);
    if (kInWord > 2 && i + 3 == left)
      raw.word[i / kInWord] = Stored::replaced(raw.word[i / kInWord], 3, kInWord, worst);
  }
}

// Replaces scores of the first vector that lie in front of the row, before they are unpacked.
template <bool kCounted> __device__ __forceinline__ void clear_front(int slot, Raw& raw) {
  const int front = front_of(slot) - reread_tid() * kVector;
  if (!unlikely(front > 0)) return;
  constexpr u32 worst = Stored::word_of(kCounted ? kWorstNumberBits : kWorstBits);
#pragma unroll
  for (int i = 0; i < kVector; i += kInWord) {
    if (i + kInWord <= front) raw.word[i / kInWord] = worst;
#pragma unroll
    for (int some = 1; some < kInWord; ++some)
      if (i + some == front) raw.word[i / kInWord] = Stored::replaced(raw.word[i / kInWord], 0, some, worst);
  }
}

// Calls visit(vector, scores) for each of this thread's vectors, and ready() in front of the first visit. With kEarly
// the next vector is read ahead, since its load would queue behind the counts, and an overflow vector is loaded a piece
// ahead. With kLast no thread reads the ring afterwards, so that overflow vectors may be copied to where vectors were
// read. With kAlone, skip(vector) is called for vectors behind the row. With kInWords the scores are passed as they are
// in memory, two in a word, where those behind the row are the worst. Call by whole warps.
template <bool kEarly, bool kLast, bool kAlone, bool kCounted, bool kInWords = false, class Visit, class Skip,
          class Ready>
__device__ __forceinline__ void each_vector(int slot, int valid, Visit visit, Skip skip, Ready ready) {
  constexpr bool kReplaced = kLast && kOverflowVectors && kChunks > 1;
  constexpr bool kSkips = kAlone && kTile > 8192; // shorter rows do not pay for the branches
  auto overflow_address = [&](int vector) {       // the address is computed at each use, to save registers
    return static_cast<const Score*>(descriptor_at(slot).body) + vector * kStep + reread_tid() * kVector;
  };
  auto load_overflow = [&](int vector) {
    Raw raw = {};
    if (vector * kStep + reread_tid() * kVector < valid) raw = load_once(overflow_address(vector));
    return raw;
  };
  auto read = [&](int stage) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk)
      if (kChunks > 1 && stretch_begin(chunk_begin(chunk)) == stage) wait_chunk(slot, chunk);
    return load_shared_words(own_ring() + stage * kStageBytes);
  };
  auto look = [&](int vector, Raw raw) {
    if (!kRoomy && kSkips && vector * kStep >= valid) return skip(vector);
    if (kRoundsOut && vector == 0) clear_front<kCounted>(slot, raw);
    float score[kVector];
    if (kInWord == 1) unpack_vector<kCounted>(raw, score);
    if (unlikely(valid < (vector + 1) * kStep)) { // tested first, since it is true for one or two vectors alone
      if (kSkips && vector * kStep >= valid) return skip(vector);
      if constexpr (kInWord > 1) {
        clear_behind<kCounted>(vector, valid, raw);
      } else {
        clear_behind<kCounted>(vector, valid, score);
      }
    }
    if constexpr (kInWords) {
      visit(vector, raw);
    } else {
      if (kInWord > 1) unpack_vector<kCounted>(raw, score);
      visit(vector, score);
    }
    if (!kEarly && kEach >= 64) keep_apart(); // vectors
  };
  Raw next = {};
  Raw overflow = {};
  constexpr bool kReadsAhead = kEarly && kReadsVectorsAhead;
  if (kReadsAhead) next = read(0);
  if (kEarly && kOverflowVectors && !kReplaced) overflow = load_overflow(overflow_vector(0));
  ready();
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) {
    const Raw raw = kReadsAhead ? next : read(stage);
    if (kReadsAhead && stage + 1 < kStages) next = read(stage + 1);
    if (kReplaced && stage < kOverflowVectors && overflow_vector(stage) * kStep + own_offset() < valid)
      copy_ahead(own_ring() + stage * kStageBytes, overflow_address(overflow_vector(stage)));
    look(vector_of_stage(stage), raw);
    if constexpr (kOverflowVectors > 0 && !kReplaced)
#pragma unroll
      for (int i = 0; i < kOverflowPerPiece; ++i) {
        const int number = overflow_due(stage, kEarly && kRoomy) + i;
        if (number >= overflow_due(stage + 1, kEarly && kRoomy)) continue;
        const Raw raw = kEarly ? overflow : load_overflow(overflow_vector(number));
        if (kEarly && number + 1 < kOverflowVectors) overflow = load_overflow(overflow_vector(number + 1));
        look(overflow_vector(number), raw);
      }
  }
  if constexpr (kReplaced) {
    commit_copies();
    wait_all_copies();
#pragma unroll
    for (int stage = 0; stage < kOverflowVectors; ++stage)
      look(overflow_vector(stage), load_shared_words(own_ring() + stage * kStageBytes));
    fence_async_proxy(); // orders the next row's bulk copies behind these reads
  }
}

// The score outside the body that this thread processes; NaN, which is in the last bucket, if the thread has none.
struct Edge {
  int at;
  float score;
  bool valid;
};
__device__ __forceinline__ Edge load_edge(int slot) {
  const volatile RowDescriptor& row = descriptor_at(slot);
  const int body = static_cast<int>(row.bytes / sizeof(Score));
  int at = row.begin + static_cast<int>(threadIdx.x);
  if (at >= row.body_begin) at += kRoundsOut ? body - front_of(slot) : body;
  bool valid = threadIdx.x < 2 * kVector && at < row.end;
  const Score* scores = static_cast<const Score*>(row.scores);
  return {at, valid ? widen(scores[at]) : __uint_as_float(0x7fffffffu), valid};
}

// Calls visit(edge) in threads that have a score outside the body.
template <class Visit> __device__ __forceinline__ void each_edge(int slot, Visit visit) {
  if (!unlikely(descriptor_at(slot).edges)) return;
  Edge edge = load_edge(slot);
  if (edge.valid) visit(edge);
}
