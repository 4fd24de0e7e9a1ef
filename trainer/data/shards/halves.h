/* float16 to float32, every value there is, bit for bit as NumPy has it.
 *
 * Most processors of x86 since 2013 convert eight values with one instruction. Others do it by arithmetic on bits,
 * without a branch, so that compilers turn a loop into one for many values at once; GCC makes it for several
 * generations of processors, of which the loader takes the newest that this one has. No arithmetic meets a
 * subnormal number: threads may be set to take those for zero. */

#ifndef CINGULUM_HALVES_H
#define CINGULUM_HALVES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef FOR_EACH_GENERATION
#elif defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define FOR_EACH_GENERATION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_GENERATION
#endif

union word {
    uint32_t bits;
    float value;
};

static inline uint32_t raised(uint32_t half) {
    uint32_t magnitude = half & 0x7FFFu;
    uint32_t mantissa = half & 0x03FFu;
    union word subnormal;
    subnormal.value = (float)(int32_t)mantissa * 0x1p-24f;
    uint32_t normal = (magnitude << 13) + (112u << 23); /* exponents count from 15, from 127 */
    uint32_t special = 0x7F800000u | (mantissa << 13);  /* infinite, or not a number */
    uint32_t is_subnormal = -(uint32_t)(magnitude < 0x0400u);
    uint32_t is_special = -(uint32_t)(magnitude >= 0x7C00u);
    return (half & 0x8000u) << 16 | (subnormal.bits & is_subnormal) | (special & is_special) |
           (normal & ~(is_subnormal | is_special));
}

/* Bytes from which on a result goes past the caches: it would push out of them more than it leaves there. */
enum { LARGE = 1 << 21 };

/* Tests define WITHOUT_INSTRUCTION, to have what other processors do. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(WITHOUT_INSTRUCTION)

#include <immintrin.h>

#define WITH_INSTRUCTION __attribute__((target("avx,f16c")))
#define HAS_INSTRUCTION (__builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c"))

/* Eight values. The instruction makes a signalling NaN a quiet one; NumPy leaves it as it is. */
WITH_INSTRUCTION static inline __m256 eight(__m128i halves) {
    __m128i above = _mm_cmpgt_epi16(_mm_and_si128(halves, _mm_set1_epi16(0x7FFF)), _mm_set1_epi16(0x7C00));
    if (__builtin_expect(_mm_movemask_epi8(above), 0)) {
        uint16_t from[8];
        union word found[8];
        memcpy(from, &halves, sizeof from);
        for (int i = 0; i < 8; i++) found[i].bits = raised(from[i]);
        __m256 values;
        memcpy(&values, found, sizeof values);
        return values;
    }
    return _mm256_cvtph_ps(halves);
}

#endif

#endif
