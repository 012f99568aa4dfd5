// Rows: where each starts and ends, and how its scores are read, 16 bytes at a time at any alignment.
#pragma once
#include "common/blocks.cuh"
#include "common/positions.cuh"

struct PlainRow {
  const Score* scores;
  int id;
  int length; // clamped to [0, width]; 0 for a row past the live count
  static constexpr int slots = 0, base = 0;
};
struct WindowRow { // begins at the row's window: positions count from there
  const Score* scores;
  int id;
  int length;
  int slots; // the row's own k
  int base;  // added to each index that is written
};
struct BlockRow {      // entries are blocks of scores; they are in memory only once pool_row has written them
  const Score* scores; // entries: float32, ranked
  int id;
  int length; // entries of the row
  int slots;
  int base;         // number of the first block
  const void* from; // where its first score is, or would be without the window
  int low;          // scores [low, high) from there on are valid
  int high;
};
using Row = Choose<kBlockRows, BlockRow, Choose<kWindows, WindowRow, PlainRow>::Type>::Type;

// Returns the row's own k; it differs from p.k only with windows.
__device__ __forceinline__ int slots_of(const Params& p, const Row& row) { return kWindows ? row.slots : p.k; }

// Returns the number of a row's scores; of those that have positions, once they are counted (find_present).
__device__ __forceinline__ int size_of(const Row& row) {
  return kPositions ? PositionedRow::of_row().count : row.length;
}

// Returns a row without the scores behind its last one that has a position, if all in front have one.
__device__ __forceinline__ Row present_part(Row row) {
  if constexpr (kPositions) {
    if (PositionedRow::of_row().dense()) row.length = size_of(row);
  }
  return row;
}

using Column = Choose<kSegments, i64, int>::Type; // of a row of scores
__device__ __forceinline__ Column window_start(const Params& p, int id) {
  const auto& o = p.options;
  if (!o.starts) return 0;
  const i64 start = o.flags & kWideStarts ? reinterpret_cast<const i64*>(o.starts)[KSIEVE_INDEX_AT(p, kStarts, id)]
                                          : o.starts[KSIEVE_INDEX_AT(p, kStarts, id)];
  return static_cast<Column>(min(max(start, i64{0}), static_cast<i64>(KSIEVE_COLUMNS_OF(p))));
}

// Returns the length of a segment from its start on, clamped to [0, width].
__device__ __forceinline__ int segment_length(const Params& p, int id, i64 start) {
  return static_cast<int>(min(max(window_start(p, id + 1) - start, i64{0}), static_cast<i64>(p.width)));
}

// Returns the live row count as the caller gives it; row_of clamps it.
__device__ __forceinline__ int live_rows(const Params& p) { return p.num_rows ? *p.num_rows : p.rows; }

// Returns an entry of the lengths. One of 64 bits is clamped to what 32 bits hold.
__device__ __forceinline__ int length_entry(const Params& p, int entry) {
  if constexpr (!kLongLengths) return p.lengths[KSIEVE_INDEX_AT(p, kLengths, entry)];
  constexpr i64 kMost = 0x7fffffff;
  return static_cast<int>(
      min(max(reinterpret_cast<const i64*>(p.lengths)[KSIEVE_INDEX_AT(p, kLengths, entry)], -kMost), kMost));
}
__device__ __forceinline__ int length_of(const Params& p, int id) { return p.lengths ? length_entry(p, id) : p.width; }

// Returns how many scores, or positions, at the end of its request a row does not see yet.
__device__ __forceinline__ int hidden_of(const Params& p, int id) {
  return p.options.next_n - 1 - id % p.options.next_n;
}

// Returns the length of a row in positions, at least 0; of rows that are live.
__device__ __forceinline__ int tail_length(const Params& p, int id) {
  const int hidden = hidden_of(p, id);
  return max(p.options.tails[KSIEVE_INDEX_AT(p, kTails, id / p.options.next_n)], hidden) - hidden;
}

#if KSIEVE_FOLD
// Returns whether a row's own numbers are in their ranges; otherwise it counts as empty.
__device__ __forceinline__ bool usable(const Params& p, int id) {
  const float temperature = p.fold.temperature ? p.fold.temperature[id] : 1.0f;
  return temperature >= 0x1p-100f && temperature <= 0x1p100f && (!p.fold.row_k || p.fold.row_k[id] > 0);
}
// Returns whether a slot of a row is one of the row's own k, and its score is a number.
__device__ __forceinline__ bool fills(const Params& p, int id, int slot, float score) {
  return (!p.fold.row_k || slot < p.fold.row_k[id]) && score > -infinity();
}
#else
__device__ __forceinline__ bool usable(const Params&, int) { return true; }
__device__ __forceinline__ bool fills(const Params&, int, int, float) { return true; }
#endif

// Returns a row from its length and the live row count, both as the caller gives them: they are clamped here.
__device__ __forceinline__ Row row_of(const Params& p, int id, int length, int live) {
  const bool alive = id < min(max(live, 0), p.rows) && usable(p, id);
  return {static_cast<const Score*>(p.scores) + KSIEVE_SCORES_AT(p, id), id, alive ? min(max(length, 0), p.width) : 0};
}
__device__ __forceinline__ Row row_of(const Params& p, int id, int length) {
  return row_of(p, id, length, live_rows(p));
}

#include "common/entries.cuh"

// Returns a row; loads its length, or its window.
__device__ __forceinline__ Row load_row(const Params& p, int id) {
  if constexpr (kWindows) {
    return others_of(load_entries<Row>(p, id));
  } else {
    return row_of(p, id, length_of(p, id));
  }
}

// Returns a row at its full width, for loads before its length is known. Not for windows.
__device__ __forceinline__ Row widest_row(const Params& p, int id) {
  return {static_cast<const Score*>(p.scores) + KSIEVE_SCORES_AT(p, id), id, p.width};
}

using Raw = Words; // 16 bytes of scores

// Loads 16 bytes of a row's scores. Pooled ones were written by this kernel, to shared memory or to the workspace.
__device__ __forceinline__ Raw load_scores(const Score* scores) {
  if constexpr (kBlockRows) return *reinterpret_cast<const Raw*>(scores);
  return load_once(scores);
}

// Returns one of the loaded scores; `unpack` its ranked score, as float32.
__device__ __forceinline__ Score loaded(const Raw& raw, int i) { return score_of_bits(Stored::bits_at(raw, i)); }
__device__ __forceinline__ float unpack(const Raw& raw, int i) { return widen(loaded(raw, i)); }

// Returns a ranked score of the row, or minus infinity if it does not count. A row's scores are read by this function
// or with `allowed_bits`.
__device__ __forceinline__ float allowed_score(float score, int at) {
  if constexpr (!kAllowed) return score;
  return is_allowed(shared_storage().allowed, at) ? score : -infinity();
}

// Returns which of the row's scores [at, at + kVector) count, in the lowest bits.
__device__ __forceinline__ u32 allowed_bits(int at) {
  const u32* words = shared_storage().allowed + static_cast<u32>(at) / 32;
  const u32 from = static_cast<u32>(at) % 32;
  u32 bits = words[0] >> from;
  if (from + kVector > 32) bits |= words[1] << (32 - from); // no word behind the row's is read
  return bits;
}

// Replaces scores of a vector that do not count by minus infinity.
__device__ __forceinline__ void keep_allowed(Raw& raw, u32 bits) {
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    if (!(bits >> i & 1)) Stored::put(raw, i, kWorstBits);
}

// Vectors of ranked scores: ranked_words makes one of loaded scores, and unpack_ranked returns one of its scores.
__device__ __forceinline__ Raw ranked_words(Raw raw) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    raw.word[i] = ranked_word(raw.word[i]);
  return raw;
}
__device__ __forceinline__ float unpack_ranked(const Raw& raw, int i) { return float_of(loaded(raw, i)); }

// The 16-byte aligned part of positions [begin, end) of a row.
struct Body {
  int begin;
  int end;
};
__device__ __forceinline__ Body body_of(const Score* scores, int begin, int end) {
  int misaligned = static_cast<int>(reinterpret_cast<u64>(scores + begin) / sizeof(Score) % kVector);
  int body = min(begin + (kVector - misaligned) % kVector, end);
  return {body, body + (end - body) / kVector * kVector};
}

// The ordered keys of scores of few values in as many bits, without gaps; +0 and -0 have two.
__device__ __forceinline__ u32 narrow_key(float score) { // of the nearest one, or one beside it
  const u32 bits = Source::kConverts ? Source::bits_of(score)
                                     : (__float_as_uint(score) + Source::kKeyStep / 2) >> (32 - Source::kBits);
  return bits & Source::kSign ? bits : bits ^ (Source::kSign - 1);
}
__device__ __forceinline__ float score_of_narrow_key(u32 key) {
  const u32 bits = key & Source::kSign ? key : key ^ (Source::kSign - 1);
  return Source::number(static_cast<Source::Bits>(bits));
}

// Writes 16 bytes of scores, whose ranked scores are minus infinity, to the ring behind a row.
__device__ __forceinline__ void fill_behind(u32 ring) { fill_shared_words<Stored::word_of(kWorstBits)>(ring); }

constexpr u32 kStageBytes = kThreads * 16; // bytes of a stage of the ring
constexpr int kTurn = kStages * kStep;     // scores in one turn of the ring

// Returns the shared address of this thread's 16 bytes in the ring's first stage.
__device__ __forceinline__ u32 own_ring() {
  return static_cast<u32>(__cvta_generic_to_shared(&shared_storage().ring[0][threadIdx.x]));
}

// Writes minus infinity to this thread's vectors of the ring that lie behind the body, where the body is shorter than
// one turn of the ring.
__device__ __forceinline__ void fill_rest(Body body) {
  u32 ring = own_ring();
#pragma unroll 1
  for (int stage = (body.end - body.begin) / kStep; stage < kStages; ++stage) {
    int first = body.begin + moved_on(own_offset(), stage / kBatch);
    if (first + stage * kStep >= body.end) fill_behind(ring + stage * kStageBytes);
  }
}

// Replaces scores of a batch that have no position by minus infinity; returns one bit for each that has one. The batch
// begins at `first`, and `left` scores of the body are there.
__device__ __forceinline__ u32 keep_present(Raw (&raw)[kBatch], int first, int left) {
  const PositionedRow& row = PositionedRow::of_row();
  u32 present = 0;
  if (row.dense()) {
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
      present |= u * kStep < left ? ((1u << kVector) - 1) << (u * kVector) : 0u;
    return present;
  }
#pragma unroll
  for (int u = 0; u < kBatch; ++u)
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int at = u * kStep + i;
      if (at < left && row.at(first + at) >= 0) {
        present |= 1u << (u * kVector + i);
      } else {
        Stored::put(raw[u], i, kWorstBits);
      }
    }
  return present;
}

// Starts the first loads of a scan, so that they arrive while a cutoff is computed. Call by all threads; a scan over
// the same positions must follow.
__device__ __forceinline__ void start_scan(const Score* scores, int begin, int end) {
  Body body = body_of(scores, begin, end);
  if (kColumns && threadIdx.x == 0) shared_storage().origin = body.begin;
  u32 ring = own_ring();
  constexpr int kUnrolled = kMaxResident ? 1 : kBatches; // kernels for resident rows scan rarely: short code
#pragma unroll kUnrolled
  for (int batch = 0; batch < kBatches; ++batch) {
    int first = body.begin + moved_on(own_offset(), batch);
    const Score* from = scores + first;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      int stage = batch * kBatch + u;
      if (first + stage * kStep < body.end) copy_ahead(ring + stage * kStageBytes, from + stage * kStep);
    }
    commit_copies();
  }
  if (body.end - body.begin < kTurn) fill_rest(body);
}

// Visits every score in [begin, end), at any alignment. Call by all threads; start_scan must come first. The body is
// loaded 16 bytes at a time through a ring in shared memory, kStages vectors ahead. A thread reads back only what it
// copied, so the ring needs no barrier and no registers. The at most kVector - 1 scores on either side of the body come
// last, one per lane. A visitor's `see` takes loaded vectors, their shared address in the ring, the index of the first
// score (vectors are kStep apart) and the number of scores of the body from there on: a vector is wholly valid, or
// minus infinity throughout. Its `edge` takes one score, valid or not. Both are called by whole warps. With kResident
// the ring holds the whole row, and keeps it.
template <bool kResident = false, class Visitor>
__device__ __forceinline__ void scan(const Score* scores, int begin, int end, Visitor& visitor) {
  Body body = body_of(scores, begin, end);
  const u32 ring = own_ring();
  u32 slot = ring;
  // In small CTAs, whose threads move on (moved_on), addresses are computed for each batch; elsewhere they are
  // incremented.
  if (kSmall || kBatch > 2) KSIEVE_OPAQUE_64(scores); // otherwise addresses are computed outside the loop, and spilled
  int offset = own_offset();
  int first = body.begin + offset;
  const Score* next = scores + body.begin + kTurn + moved_on(offset, kBatches);
  // After a batch that begins at or before `steady`, every load is inside the body.
  const int steady = body.end - kTurn - kBatch * kStep;
#pragma unroll 1
  for (int batch = body.begin; batch < body.end;
       batch += kBatch * kStep) { // the same number of iterations for every thread
    u32 allowed[kBatch];
    if constexpr (kAllowed) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) // behind the body there is minus infinity
        allowed[u] = first + u * kStep < body.end ? allowed_bits(first + u * kStep) : 0;
    }
    wait_copies<kBatches - 1>();
    Raw raw[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u)
      raw[u] = load_shared_words(slot + u * kStageBytes);
    if constexpr (kAllowed) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        keep_allowed(raw[u], allowed[u]);
        store_shared_words(slot + u * kStageBytes, raw[u]); // visitors read hits back
      }
    }
    if constexpr (kPositions) {
      const int left = body.end - first;
      visitor.see(raw, slot, first, left_of<Left>(left, keep_present(raw, first, left)));
    } else {
      visitor.see(raw, slot, first, body.end - first);
    }
    if (kSmall) next = scores + batch + kTurn + moved_on(offset, kBatches);
    if (kResident) {
      // the row stays in the ring
    } else if (!unlikely(batch > steady)) {
#pragma unroll
      for (int u = 0; u < kBatch; ++u)
        copy_ahead(slot + u * kStageBytes, next + u * kStep);
    } else {
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        int ahead = kSmall ? batch + moved_on(offset, kBatches) : first;
        if (ahead + kTurn + u * kStep < body.end) {
          copy_ahead(slot + u * kStageBytes, next + u * kStep);
        } else {
          fill_behind(slot + u * kStageBytes);
        }
      }
    }
    commit_copies();
    offset = moved_on(offset, 1);
    first = kSmall ? batch + kBatch * kStep + offset : first + kBatch * kStep;
    next += kBatch * kStep;
    slot += kBatch * kStageBytes;
    if (slot == ring + kStages * kStageBytes) slot = ring;
  }
  if (unlikely(body.begin != begin || body.end != end)) {
    int edge = begin + static_cast<int>(threadIdx.x);
    if (edge >= body.begin) edge += body.end - body.begin;
    bool valid = threadIdx.x < 2 * kVector && edge < end;
    if constexpr (kPositions) valid = valid && PositionedRow::of_row().at(edge) >= 0;
    visitor.edge(valid ? allowed_score(widen(scores[edge]), edge) : 0.0f, edge, valid);
  }
  visitor.finish();
}

// Returns the scores per part of a row cut into `splits`: a multiple of 32, so that parts of an aligned row are
// aligned.
__device__ __forceinline__ int part_size(int length, int splits) { return ((length - 1) / splits + 32) / 32 * 32; }
