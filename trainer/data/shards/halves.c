/* float16 to float32, from one array to another; trainer/data/shards/halves.py calls it. */

#include "halves.h"

/* A box of planes x rows x values; the values of a row lie side by side, and steps are counted in values. */
FOR_EACH_GENERATION
static void raise_by_bits(const uint16_t *stored, size_t stored_plane, size_t stored_row, union word *out,
                          size_t out_plane, size_t out_row, size_t planes, size_t rows, size_t values) {
    for (size_t plane = 0; plane < planes; plane++) {
        for (size_t row = 0; row < rows; row++) {
            const uint16_t *restrict from = stored + plane * stored_plane + row * stored_row;
            union word *restrict to = out + plane * out_plane + row * out_row;
            for (size_t i = 0; i < values; i++) to[i].bits = raised(from[i]);
        }
    }
}

#ifdef WITH_INSTRUCTION

static inline __m128i eight_halves(const uint16_t *from) { return _mm_loadu_si128((const __m128i *)from); }

WITH_INSTRUCTION static void raise_row(const uint16_t *from, union word *to, size_t values) {
    size_t i = 0;
    for (; i + 8 <= values; i += 8) _mm256_storeu_ps((float *)(to + i), eight(eight_halves(from + i)));
    for (; i < values; i++) to[i].bits = raised(from[i]);
}

/* The same, past the caches, in whole lines of them: to share a line with other stores is slower than all else. */
WITH_INSTRUCTION static void raise_past_caches(const uint16_t *from, union word *to, size_t values) {
    size_t i = 0;
    for (; i < values && (uintptr_t)(to + i) % 64; i++) to[i].bits = raised(from[i]);
    for (; i + 16 <= values; i += 16) {
        _mm256_stream_ps((float *)(to + i), eight(eight_halves(from + i)));
        _mm256_stream_ps((float *)(to + i + 8), eight(eight_halves(from + i + 8)));
    }
    for (; i < values; i++) to[i].bits = raised(from[i]);
    _mm_sfence(); /* before another thread is told that the values are there */
}

/* The same box as above, with the processor's own instruction. */
static void raise_by_instruction(const uint16_t *stored, size_t stored_plane, size_t stored_row,
                                 union word *out, size_t out_plane, size_t out_row, size_t planes, size_t rows,
                                 size_t values) {
    int is_whole = stored_row == values && out_row == values && stored_plane == rows * values &&
                   out_plane == rows * values;
    if (is_whole && planes * rows * values * sizeof *out >= LARGE) {
        raise_past_caches(stored, out, planes * rows * values);
        return;
    }
    for (size_t plane = 0; plane < planes; plane++) {
        for (size_t row = 0; row < rows; row++) {
            raise_row(stored + plane * stored_plane + row * stored_row,
                      out + plane * out_plane + row * out_row, values);
        }
    }
}

#else

#define HAS_INSTRUCTION 0
#define raise_by_instruction raise_by_bits

#endif

/* The same, in the way that is fastest here. */
void cingulum_raise_halves(const uint16_t *stored, size_t stored_plane, size_t stored_row, union word *out,
                           size_t out_plane, size_t out_row, size_t planes, size_t rows, size_t values) {
    (HAS_INSTRUCTION ? raise_by_instruction : raise_by_bits)(
        stored, stored_plane, stored_row, out, out_plane, out_row, planes, rows, values);
}
