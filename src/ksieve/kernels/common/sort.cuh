// Sorts elements of shared or global memory by all threads of a CTA.
#pragma once
#include "common/params.cuh"

constexpr int kPerLane = 4;
constexpr int kSortChunk = 32 * kPerLane; // elements that one warp sorts in its registers; fewest elements of a sort

// Exchanges two elements if they are not in the wanted order.
template <class T> __device__ __forceinline__ void put_in_order(T& a, T& b, bool ascending) {
  bool swap = (b < a) == ascending;
  T kept = a;
  a = swap ? b : a;
  b = swap ? kept : b;
}

// Runs the steps of a bitonic merge of `size` elements that stay within a lane's kPerLane neighbours or within its
// warp; `at` is the index of the lane's first element. Call by whole warps.
template <class T> __device__ __forceinline__ void merge_in_registers(T (&v)[kPerLane], int at, int size) {
#pragma unroll
  for (int stride = kSortChunk / 2; stride >= kPerLane; stride /= 2) {
    if (stride >= size) continue;
    bool keep_less = ((at & stride) == 0) == ((at & size) == 0);
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      T other = __shfl_xor_sync(kFullWarp, v[e], stride / kPerLane);
      v[e] = (other < v[e]) == keep_less ? other : v[e];
    }
  }
#pragma unroll
  for (int stride = kPerLane / 2; stride >= 1; stride /= 2) {
    if (stride >= size) continue;
#pragma unroll
    for (int e = 0; e < kPerLane; ++e)
      if ((e & stride) == 0) put_in_order(v[e], v[e + stride], ((at + e) & size) == 0);
  }
}

// Puts each of at most kThreads elements where as many are less. Call by all threads; starts and ends with a barrier.
template <class T> __device__ __forceinline__ void rank_area(T* area, int n) {
  const int own = static_cast<int>(threadIdx.x);
  T mine = {};
  int rank = 0;
  __syncthreads(); // every element is there
  if (own < n) {
    mine = area[own];
#pragma unroll 4
    for (int i = 0; i < n; ++i) {
      const T other = area[i];
      rank += other < mine || (i < own && !(mine < other));
    }
  }
  __syncthreads(); // every element is ranked
  if (own < n) area[rank] = mine;
  __syncthreads(); // every element has its place, for all threads
}

// Sorts n elements, ascending, by a bitonic sort; n is a power of two and at least kSortChunk. Call by all threads;
// starts and ends with a barrier.
template <class T> __device__ __forceinline__ void sort_area(T* area, int n) {
  int lane = threadIdx.x & 31;
  int warp = threadIdx.x >> 5;
  for (int size = kSortChunk; size <= n; size *= 2) {
    for (int stride = size / 2; stride >= kSortChunk; stride /= 2) {
      __syncthreads(); // every thread's exchanges of the previous step are written
      for (int i = threadIdx.x; i < n / 2; i += kThreads) {
        int low = 2 * i - (i & (stride - 1));
        T a = area[low];
        T b = area[low + stride];
        put_in_order(a, b, (low & size) == 0);
        area[low] = a;
        area[low + stride] = b;
      }
    }
    __syncthreads(); // the exchanges are written; the rest of this merge stays within chunks
    for (int chunk = warp * kSortChunk; chunk < n; chunk += kWarps * kSortChunk) {
      int at = chunk + lane * kPerLane;
      T v[kPerLane];
#pragma unroll
      for (int e = 0; e < kPerLane; ++e)
        v[e] = area[at + e];
      if (size == kSortChunk) {
#pragma unroll
        for (int small = 2; small < kSortChunk; small *= 2)
          merge_in_registers(v, at, small);
      }
      merge_in_registers(v, at, size);
#pragma unroll
      for (int e = 0; e < kPerLane; ++e)
        area[at + e] = v[e];
    }
  }
  __syncthreads(); // every chunk is written, for all threads
}
