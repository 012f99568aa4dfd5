// Where the rows of arrays lie. KSIEVE_LEADING is a specialisation of its own: rows, or the numbers of rows, of each
// array have two leading strides of their own. Included by common/params.cuh alone.
#pragma once

// Arrays that have a row, or a number, for each row: backends/cuda/runtime/launch.py, LEADING.
enum class Array {
  kScores,
  kLengths,
  kIndices,
  kStarts,
  kRowK,
  kRequestOf,
  kOffsets,
  kValues,
  kRaw,
  kCounts,
  kTails,
  kPositions,
};
constexpr int kArrays = 12;

// Row r begins at r / size * outer + r % size * inner, in elements.
struct Leading {
  i64 outer;
  i64 inner;
  int size;
  int reserved;
};

#if KSIEVE_LEADING
constexpr int kLeadingBytes = kArrays * sizeof(Leading);
template <class AnyParams> __device__ __forceinline__ i64 row_at(const AnyParams& p, Array array, int row) {
  const Leading& own = p.leading[static_cast<int>(array)];
  const int outer = row / own.size;
  return outer * own.outer + (row - outer * own.size) * own.inner;
}
#define KSIEVE_ROW_AT(p, array, row, pitch) row_at(p, Array::array, row)
#define KSIEVE_INDEX_AT(p, array, row) row_at(p, Array::array, row)
#else // macros, because a function would change the machine code of some kernels
constexpr int kLeadingBytes = 0;
// Where a row of an array begins, in elements; `pitch` is that of rows with one leading stride.
#define KSIEVE_ROW_AT(p, array, row, pitch) ((row) * (pitch))
// Where the number of a row, or of a request, lies in an array of one for each.
#define KSIEVE_INDEX_AT(p, array, row) (row)
#endif
// Where a row of scores begins, and behind which column there are none. Segments share one row of `pitch` scores.
#if KSIEVE_SEGMENTS
#define KSIEVE_SCORES_AT(p, row) 0
#define KSIEVE_COLUMNS_OF(p) ((p).pitch)
#else
#define KSIEVE_SCORES_AT(p, row) KSIEVE_ROW_AT(p, kScores, row, (p).pitch)
#define KSIEVE_COLUMNS_OF(p) ((p).width)
#endif
