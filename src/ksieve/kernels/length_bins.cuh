// Which rows a launch works on: all of a matrix, or those listed for its range of lengths (length_bins.cu). Kernels
// number the rows of their launch from 0; the functions here turn such a number into a row.
#pragma once
#include "common/load.cuh"
#include "common/workspace.cuh"

constexpr bool kBinned = KSIEVE_OPTION(KSIEVE_BINNED); // rows are listed for several launches
constexpr bool kPassesOn =
    KSIEVE_OPTION(KSIEVE_PASSES_ON); // the first of two launches lists them, and the queue counts them
// This launch's bin; in the kernel that lists the rows, the last bin.
constexpr int kLengthBin = KSIEVE_OPTION(KSIEVE_LENGTH_BIN);

// An entry of a list of rows. In the workspace, from Params::lists on: the number of rows of each launch; kHeaderBytes
// further on, the lists, each with room for all rows.
struct alignas(8) BinnedRow {
  int id;
  int length;
};
__device__ __forceinline__ unsigned char* length_bin_lists(const Params& p) {
  i64 lists = p.lists;
  KSIEVE_OPAQUE_64(lists);
  return p.workspace + lists;
}
__device__ __forceinline__ int* length_bin_counts(const Params& p) {
  return reinterpret_cast<int*>(length_bin_lists(p));
}
__device__ __forceinline__ BinnedRow* binned_row(const Params& p, int number, int bin) {
  BinnedRow* rows = reinterpret_cast<BinnedRow*>(length_bin_lists(p) + kHeaderBytes);
  return rows + static_cast<i64>(bin) * p.rows + number;
}

// Returns the number of rows of this launch.
__device__ __forceinline__ int rows_of(const Params& p) {
  if (kPassesOn) return min(static_cast<int>(queue_of(p)->next), p.rows);
  return kBinned ? min(length_bin_counts(p)[kLengthBin], p.rows) : p.rows;
}

// Delays a CTA that is the `turn`-th of its multiprocessor, where each has several rows. Otherwise all of them load,
// then all of them work on chip, and memory is idle meanwhile. A turn takes `clocks` for each KiB of a row of width()
// scores, of which one multiprocessor's share of memory takes 58, and at most `most`.
template <class AnyScore, class Width>
__device__ __forceinline__ void stagger_start(int turn, Width width, i64 clocks, i64 most) {
  const i64 begin = clock64();
  const i64 late = turn * min(width() * static_cast<i64>(sizeof(AnyScore)) / 1024 * clocks, most);
  while (turn && clock64() - begin < late)
    __nanosleep(100);
}

// Adds rows to the list of the second launch; returns how many it had.
__device__ __forceinline__ int list_rows(const Params& p, int rows) { return atomicAdd(&queue_of(p)->next, rows); }

constexpr bool kFetchesLength = !kWindows && !kLongLengths;

// Returns a row whose length is already loaded; the length of a window, or of 64 bits, is loaded again.
__device__ __forceinline__ Row row_of_length(const Params& p, int id, int length) {
  if constexpr (!kFetchesLength) return load_row(p, id);
  return row_of(p, id, length);
}

// Returns the row with a number of this launch.
__device__ __forceinline__ Row nth_row(const Params& p, int number) {
  if constexpr (!kBinned) return load_row(p, number);
  BinnedRow listed = *binned_row(p, number, kLengthBin);
  return row_of_length(p, listed.id, listed.length);
}

// Starts loading the length, and with length bins the id, of a coming row, by thread 0 (wait_all_copies).
__device__ __forceinline__ void fetch_row(const Params& p, int number) {
  if (threadIdx.x != 0) return;
  SharedStorage& s = shared_storage();
  if constexpr (kBinned) {
    const BinnedRow* listed = binned_row(p, number, kLengthBin);
    copy_int_ahead(s.next_id, &listed->id);
    copy_int_ahead(s.next_length, &listed->length);
  } else if (kFetchesLength && p.lengths) {
    copy_int_ahead(s.next_length, p.lengths + KSIEVE_INDEX_AT(p, kLengths, number));
  }
}

// Returns the row that fetch_row has loaded. Call by thread 0 behind wait_all_copies(), by others behind a barrier.
__device__ __forceinline__ Row fetched_row(const Params& p, int number) {
  const SharedStorage& s = shared_storage();
  if (kBinned) return row_of_length(p, s.next_id, s.next_length);
  return row_of_length(p, number, p.lengths ? s.next_length : p.width);
}
