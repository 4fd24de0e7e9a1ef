/* float16 to float32, every value there is, bit for bit as NumPy has it; trainer/data/halves.py calls it.
 *
 * There is no branch, so that compilers turn the inner loop into one for many values at once; GCC makes it
 * for several generations of processors, of which the loader takes the newest that this one has. No
 * arithmetic meets a subnormal number: threads may be set to take those for zero. */

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define FOR_EACH_GENERATION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_GENERATION
#endif

union word {
    uint32_t bits;
    float value;
};

/* A box of planes x rows x values; the values of a row lie side by side, and steps are counted in values. */
FOR_EACH_GENERATION
void cingulum_raise_halves(const uint16_t *stored, size_t stored_plane, size_t stored_row, union word *out,
                           size_t out_plane, size_t out_row, size_t planes, size_t rows, size_t values) {
    for (size_t plane = 0; plane < planes; plane++) {
        for (size_t row = 0; row < rows; row++) {
            const uint16_t *restrict from = stored + plane * stored_plane + row * stored_row;
            union word *restrict to = out + plane * out_plane + row * out_row;
            for (size_t i = 0; i < values; i++) {
                uint32_t half = from[i];
                uint32_t magnitude = half & 0x7FFFu;
                uint32_t mantissa = half & 0x03FFu;
                union word subnormal;
                subnormal.value = (float)(int32_t)mantissa * 0x1p-24f;
                uint32_t normal = (magnitude << 13) + (112u << 23); /* exponents count from 15, from 127 */
                uint32_t special = 0x7F800000u | (mantissa << 13);  /* infinite, or not a number */
                uint32_t is_subnormal = -(uint32_t)(magnitude < 0x0400u);
                uint32_t is_special = -(uint32_t)(magnitude >= 0x7C00u);
                to[i].bits = (half & 0x8000u) << 16 | (subnormal.bits & is_subnormal) | (special & is_special) |
                             (normal & ~(is_subnormal | is_special));
            }
        }
    }
}
