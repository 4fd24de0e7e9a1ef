/* A chunk of the codec blosc-lz4 with float16 values, decoded straight into float32; trainer/data/shards/halves.py
 * calls it.
 *
 * Decoding and casting one after the other writes a volume to memory, reads it again, and writes it a second
 * time in twice the size. Here a block is decompressed into memory that stays in the core's own cache, and
 * only the float32 values leave it. LZ4 itself is that of numcodecs, which is given as a function.
 *
 * Format: c-blosc 1.21, README_CHUNK_FORMAT.rst. Nothing is believed: every length is held against what is left
 * of the chunk, so that damaged bytes give another result or a refusal, and touch no other memory. */

#include "halves.h"

enum { HEADER = 16, FORMAT = 2, SHUFFLED = 0x01, PLAIN = 0x02, BITS_SHUFFLED = 0x04, NOT_SPLIT = 0x10, LZ4 = 1 };

/* LZ4_decompress_safe: returns the bytes that it wrote, negative where it refuses. */
typedef int (*decompress)(const char *in, char *out, int in_bytes, int out_bytes);

static size_t little_endian(const uint8_t *from) {
    return from[0] | (size_t)from[1] << 8 | (size_t)from[2] << 16 | (size_t)from[3] << 24;
}

/* Values whose low and whose high bytes lie together. */
FOR_EACH_GENERATION
static void join_by_bits(const uint8_t *restrict low, const uint8_t *restrict high, union word *restrict out,
                         size_t values) {
    for (size_t i = 0; i < values; i++) out[i].bits = raised(low[i] | (uint32_t)high[i] << 8);
}

#ifdef WITH_INSTRUCTION

WITH_INSTRUCTION static void join_by_instruction(const uint8_t *low, const uint8_t *high, union word *out,
                                                 size_t values, int is_large) {
    size_t i = 0;
    /* In whole lines of the caches: to share one with other stores is slower than all else. */
    for (; is_large && i < values && (uintptr_t)(out + i) % 64; i++) out[i].bits = raised(low[i] | high[i] << 8);
    for (; i + 16 <= values; i += 16) {
        __m128i lows = _mm_loadu_si128((const __m128i *)(low + i));
        __m128i highs = _mm_loadu_si128((const __m128i *)(high + i));
        __m256 first = eight(_mm_unpacklo_epi8(lows, highs)), second = eight(_mm_unpackhi_epi8(lows, highs));
        if (is_large) {
            _mm256_stream_ps((float *)(out + i), first);
            _mm256_stream_ps((float *)(out + i + 8), second);
        } else {
            _mm256_storeu_ps((float *)(out + i), first);
            _mm256_storeu_ps((float *)(out + i + 8), second);
        }
    }
    for (; i < values; i++) out[i].bits = raised(low[i] | high[i] << 8);
    if (is_large) _mm_sfence(); /* before another thread is told that the values are there */
}

static void join(const uint8_t *low, const uint8_t *high, union word *out, size_t values, int is_large) {
    if (HAS_INSTRUCTION) {
        join_by_instruction(low, high, out, values, is_large);
    } else {
        join_by_bits(low, high, out, values);
    }
}

#else

#define join(low, high, out, values, is_large) join_by_bits(low, high, out, values)

#endif

/* Where the `bytes` decoded bytes of the stream at *in are: there, or in `memory`; NULL if it is damaged. */
static const uint8_t *stream(const uint8_t **in, const uint8_t *in_end, uint8_t *memory, size_t bytes,
                             decompress lz4) {
    if (in_end - *in < 4) return NULL;
    size_t size = little_endian(*in);
    const uint8_t *from = *in + 4;
    if (size > (size_t)(in_end - from)) return NULL;
    *in = from + size;
    if (size == bytes) return from;
    return lz4((const char *)from, (char *)memory, (int)size, (int)bytes) == (int)bytes ? memory : NULL;
}

/* Bytes of a block of this chunk, which `cingulum_decode_halves` needs as memory; 0 if the chunk is not for it. */
size_t cingulum_halves_block(const uint8_t *chunk, size_t size, size_t values) {
    if (size < HEADER || size > INT32_MAX || values > INT32_MAX / 2) return 0;
    if (chunk[0] != FORMAT || chunk[3] != 2 || chunk[2] >> 5 != LZ4) return 0;
    if (!(chunk[2] & SHUFFLED) || chunk[2] & (PLAIN | BITS_SHUFFLED)) return 0;
    size_t bytes = little_endian(chunk + 4), block = little_endian(chunk + 8);
    if (bytes != 2 * values || !bytes || little_endian(chunk + 12) != size || !block || block % 2) return 0;
    return block < bytes ? block : bytes;
}

/* 1 if all values were decoded; 0 if the chunk is damaged or of another kind, and `out` is undefined.
 * `memory`: as many bytes as `cingulum_halves_block` says. */
int cingulum_decode_halves(const uint8_t *chunk, size_t size, union word *out, size_t values, uint8_t *memory,
                           decompress lz4) {
    if (!cingulum_halves_block(chunk, size, values)) return 0;
    size_t bytes = 2 * values, block = little_endian(chunk + 8), blocks = (bytes + block - 1) / block;
    if ((size - HEADER) / 4 < blocks) return 0;
    for (size_t number = 0; number < blocks; number++) {
        size_t first = little_endian(chunk + HEADER + 4 * number);
        if (first > size) return 0;
        size_t here = number + 1 < blocks ? block : bytes - number * block, half = here / 2;
        const uint8_t *in = chunk + first, *const in_end = chunk + size;
        int split = here == block && !(chunk[2] & NOT_SPLIT);
        const uint8_t *low = stream(&in, in_end, memory, split ? half : here, lz4);
        if (!low) return 0;
        const uint8_t *high = split ? stream(&in, in_end, memory + half, half, lz4) : low + half;
        if (!high) return 0;
        join(low, high, out + number * (block / 2), half, values * sizeof *out >= LARGE);
    }
    return 1;
}
