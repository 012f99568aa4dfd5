// Idioms that steer the compiler. None changes what is computed; each says what ptxas does without it.
// docs/decisions/0017-code-generation.md has the measurements.
#pragma once
#include "common/ptx.cuh"

// Rare branches: their code is kept out of the way of what every row runs, which matters as much as its length does,
// since a CTA meets most of it only once.
__device__ __forceinline__ bool unlikely(bool condition) { return __builtin_expect(condition, false); }

// A value that the compiler cannot trace back: what depends on it is computed where it is used, and not kept in a
// register, and spilled, from the beginning.
// By macro: as functions, their callers are scheduled in another way.
#define KSIEVE_OPAQUE(value) asm volatile("" : "+r"(value))
#define KSIEVE_OPAQUE_64(value) asm volatile("" : "+l"(value))
// Loads of 16 bytes are waited for here.
#define KSIEVE_AWAIT_WORDS(value)                                                                                      \
  asm volatile("" : "+r"((value).word[0]), "+r"((value).word[1]), "+r"((value).word[2]), "+r"((value).word[3]))

// Rare functions. Where slots are sorted, registers do not suffice to have them inlined.
#if KSIEVE_ORDER
#define KSIEVE_COLD __noinline__
#else
#define KSIEVE_COLD __forceinline__
#endif
