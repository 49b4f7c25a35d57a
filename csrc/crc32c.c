/* CRC-32C (Castagnoli, reflected 0x82F63B78), as Kafka's record batches carry it.
 *
 * Four kernels: AVX-512 carry-less folding for long inputs, the crc32 instruction in three
 * interleaved streams (SSE4.2 + PCLMUL, ARMv8 + PMULL), and slicing by eight. The CPU's best is chosen
 * on the first call. Folding constants are powers of x modulo the polynomial; they are computed then,
 * too, so that no table of magic numbers has to be believed.
 *
 * Polynomials are bit-reflected: bit 31 of a 32-bit value is the coefficient of x^0. */
#include <pthread.h>
#include <string.h>

#include "oncelog.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define OL_X86 1
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define OL_ARM 1
#elif defined(__aarch64__) && defined(__APPLE__)
#include <arm_acle.h>
#include <arm_neon.h>
#define OL_ARM 1
#endif

#define POLYNOMIAL 0x82F63B78u

/* ---------------------------------------------------------------- polynomial arithmetic */

static uint32_t times_x(uint32_t value) { return (value >> 1) ^ (POLYNOMIAL & (0u - (value & 1))); }

static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        product ^= b & (0u - ((a >> bit) & 1));
        b = times_x(b);
    }
    return product;
}

static uint32_t byte_power[64]; /* x^(8 * 2^k) */

/* x^bits modulo the polynomial */
static uint32_t power_of_x(uint64_t bits) {
    uint32_t square = 0x40000000u, result = 0x80000000u; /* x^1, x^0 */
    for (; bits; bits >>= 1) {
        if (bits & 1) result = multiply(result, square);
        square = multiply(square, square);
    }
    return result;
}

/* ---------------------------------------------------------------- portable */

static uint32_t slices[8][256];

static uint32_t crc_portable(uint32_t start, const uint8_t *data, size_t size) {
    uint32_t crc = ~start;
    for (; size >= 8; size -= 8, data += 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        low = __builtin_bswap32(low);
        high = __builtin_bswap32(high);
#endif
        low ^= crc;
        crc = slices[7][low & 0xff] ^ slices[6][low >> 8 & 0xff] ^ slices[5][low >> 16 & 0xff] ^
              slices[4][low >> 24] ^ slices[3][high & 0xff] ^ slices[2][high >> 8 & 0xff] ^
              slices[1][high >> 16 & 0xff] ^ slices[0][high >> 24];
    }
    while (size--) crc = (crc >> 8) ^ slices[0][(crc ^ *data++) & 0xff];
    return ~crc;
}

/* ---------------------------------------------------------------- three streams of an instruction */

/* A stream's CRC moves past n bytes by a carry-less product with x^(8n - 33): the product of two
 * reflected 32-bit values is one bit short, and the crc32 instruction multiplies by x^32. */
enum { LONG = 1024, SHORT = 128 };
static uint64_t past_long, past_two_long, past_short, past_two_short;

#if OL_X86
#define TARGET_STREAMS __attribute__((target("sse4.2,pclmul")))
#define CRC8(crc, byte) _mm_crc32_u8((uint32_t)(crc), (byte))
#define CRC32(crc, half) _mm_crc32_u32((uint32_t)(crc), (half))
#define CRC64(crc, word) _mm_crc32_u64((crc), (word))
TARGET_STREAMS static inline uint64_t product(uint64_t a, uint64_t b) {
    return (uint64_t)_mm_cvtsi128_si64(
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)a), _mm_cvtsi64_si128((int64_t)b), 0));
}
#elif OL_ARM
#if defined(__clang__)
#define TARGET_STREAMS __attribute__((target("crc,aes")))
#else
#define TARGET_STREAMS __attribute__((target("+crc+crypto")))
#endif
#define CRC8(crc, byte) __crc32cb((uint32_t)(crc), (byte))
#define CRC32(crc, half) __crc32cw((uint32_t)(crc), (half))
#define CRC64(crc, word) __crc32cd((uint32_t)(crc), (word))
TARGET_STREAMS static inline uint64_t product(uint64_t a, uint64_t b) {
    return vgetq_lane_u64(vreinterpretq_u64_p128(vmull_p64((poly64_t)a, (poly64_t)b)), 0);
}
#endif

#if OL_X86 || OL_ARM
static inline uint64_t load_word(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

static inline uint32_t load_half(const uint8_t *at) {
    uint32_t half;
    memcpy(&half, at, 4);
    return half;
}

TARGET_STREAMS static inline uint64_t three_streams(uint64_t a, const uint8_t *data, size_t stride,
                                                    uint64_t past_one, uint64_t past_two) {
    uint64_t b = 0, c = 0;
    for (size_t at = 0; at < stride; at += 8) {
        a = CRC64(a, load_word(data + at));
        b = CRC64(b, load_word(data + stride + at));
        c = CRC64(c, load_word(data + 2 * stride + at));
    }
    return CRC64(0, product(a, past_two) ^ product(b, past_one)) ^ c;
}

/* Less than three streams are worth. */
TARGET_STREAMS static inline uint64_t one_stream(uint64_t crc, const uint8_t *data, size_t size) {
    for (; size >= 32; size -= 32, data += 32) {
        crc = CRC64(crc, load_word(data));
        crc = CRC64(crc, load_word(data + 8));
        crc = CRC64(crc, load_word(data + 16));
        crc = CRC64(crc, load_word(data + 24));
    }
    for (; size >= 8; size -= 8, data += 8) crc = CRC64(crc, load_word(data));
    if (size & 4) {
        crc = CRC32(crc, load_half(data));
        data += 4;
    }
    if (size & 2) {
        crc = CRC8(CRC8(crc, data[0]), data[1]);
        data += 2;
    }
    if (size & 1) crc = CRC8(crc, *data);
    return crc;
}

TARGET_STREAMS static uint32_t crc_streams(uint32_t start, const uint8_t *data, size_t size) {
    uint64_t crc = ~start;
    for (; size >= 3 * LONG; size -= 3 * LONG, data += 3 * LONG)
        crc = three_streams(crc, data, LONG, past_long, past_two_long);
    for (; size >= 3 * SHORT; size -= 3 * SHORT, data += 3 * SHORT)
        crc = three_streams(crc, data, SHORT, past_short, past_two_short);
    return ~(uint32_t)one_stream(crc, data, size);
}
#endif

/* ---------------------------------------------------------------- AVX-512 folding */

#if OL_X86
#define TARGET_FOLD \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,vpclmulqdq,pclmul,sse4.2")))

/* One core gets more from memory that is in no cache if it reads at four places, each of its own pages: 12 GB/s instead of
 * 8 where this was measured. What lies in a cache loses nothing by it. */
enum { FAR = 8192 };
static uint64_t fold_far[3][2], fold_256[2], fold_64[2], fold_tail[8] __attribute__((aligned(64)));

/* The pair that moves a 128-bit lane on by `bits`: its low half is 64 bits further from the end. */
static void fold_pair(uint64_t pair[2], uint64_t bits) {
    pair[0] = (uint64_t)power_of_x(bits + 32) << 1;
    pair[1] = (uint64_t)power_of_x(bits - 32) << 1;
}

TARGET_FOLD static inline __m512i fold(__m512i lanes, __m512i by, __m512i onto) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, by, 0x00),
                                     _mm512_clmulepi64_epi128(lanes, by, 0x11), onto, 0x96);
}
TARGET_FOLD static inline __m512i load_lanes(const uint8_t *at) { return _mm512_loadu_si512(at); }

TARGET_FOLD static inline __m512i load_pair(const uint64_t pair[2]) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)pair));
}

TARGET_FOLD static uint32_t crc_fold(uint32_t start, const uint8_t *data, size_t size) {
    if (size < 256) return ~(uint32_t)one_stream(~start, data, size);
    __m512i by = load_pair(fold_64), b, c, d;
    __m512i a =
        _mm512_xor_si512(load_lanes(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~start)));
    data += 64;
    for (size -= 64; size >= 4 * FAR; size -= 4 * FAR, data += 4 * FAR) {
        const uint8_t *second = data + FAR, *third = second + FAR, *fourth = third + FAR;
        a = fold(a, by, load_lanes(data));
        b = load_lanes(second), c = load_lanes(third), d = load_lanes(fourth);
        for (size_t at = 64; at < FAR; at += 64) {
            a = fold(a, by, load_lanes(data + at));
            b = fold(b, by, load_lanes(second + at));
            c = fold(c, by, load_lanes(third + at));
            d = fold(d, by, load_lanes(fourth + at));
        }
        d = fold(b, load_pair(fold_far[1]), fold(c, load_pair(fold_far[0]), d));
        a = fold(a, load_pair(fold_far[2]), d);
    }
    if (size >= 256) {
        __m512i by_four = load_pair(fold_256);
        a = fold(a, by, load_lanes(data));
        b = load_lanes(data + 64), c = load_lanes(data + 128), d = load_lanes(data + 192);
        data += 256;
        for (size -= 256; size >= 256; size -= 256, data += 256) {
            a = fold(a, by_four, load_lanes(data));
            b = fold(b, by_four, load_lanes(data + 64));
            c = fold(c, by_four, load_lanes(data + 128));
            d = fold(d, by_four, load_lanes(data + 192));
        }
        a = fold(fold(fold(a, by, b), by, c), by, d);
    }
    for (; size >= 64; size -= 64, data += 64) a = fold(a, by, load_lanes(data));
    /* The first three lanes move on to the fourth, each by its own distance. */
    __m512i moved = fold(a, _mm512_load_si512(fold_tail), _mm512_setzero_si512());
    __m128i rest = _mm_xor_si128(
        _mm_xor_si128(_mm512_extracti32x4_epi32(moved, 0), _mm512_extracti32x4_epi32(moved, 1)),
        _mm_xor_si128(_mm512_extracti32x4_epi32(moved, 2), _mm512_extracti32x4_epi32(a, 3)));
    uint64_t crc =
        CRC64(CRC64(0, (uint64_t)_mm_cvtsi128_si64(rest)), (uint64_t)_mm_extract_epi64(rest, 1));
    return ~(uint32_t)one_stream(crc, data, size);
}
#endif

/* ---------------------------------------------------------------- choice */

/* Each inverts the CRC before and after, so that whoever chooses jumps to it and does not have to come back. */
typedef uint32_t kernel_function(uint32_t crc, const uint8_t *data, size_t size);
typedef struct kernel {
    const char *name;
    kernel_function *run;
} kernel;

static kernel kernels[4];
static int kernel_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t first_call(uint32_t crc, const uint8_t *data, size_t size);
static kernel_function *_Atomic best = first_call;

static void offer(const char *name, kernel_function *run) {
    kernels[kernel_count++] = (kernel){name, run};
}

static void prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = times_x(crc);
        slices[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = slices[table - 1][byte];
            slices[table][byte] = (crc >> 8) ^ slices[0][crc & 0xff];
        }
    byte_power[0] = power_of_x(8);
    for (int k = 1; k < 64; k++) byte_power[k] = multiply(byte_power[k - 1], byte_power[k - 1]);
    past_long = power_of_x(8 * LONG - 33);
    past_two_long = power_of_x(16 * LONG - 33);
    past_short = power_of_x(8 * SHORT - 33);
    past_two_short = power_of_x(16 * SHORT - 33);
#if OL_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("vpclmulqdq")) {
            for (int k = 0; k < 3; k++) fold_pair(fold_far[k], 8 * FAR * (uint64_t)(k + 1));
            fold_pair(fold_256, 8 * 256);
            fold_pair(fold_64, 8 * 64);
            for (int lane = 0; lane < 3; lane++) fold_pair(fold_tail + 2 * lane, 128 * (3 - lane));
            offer("avx512", crc_fold);
        }
        offer("sse42", crc_streams);
    }
#elif OL_ARM && defined(__APPLE__)
    offer("armv8", crc_streams);
#elif OL_ARM
    unsigned long have = getauxval(AT_HWCAP);
    if ((have & HWCAP_CRC32) && (have & HWCAP_PMULL)) offer("armv8", crc_streams);
#endif
    offer("portable", crc_portable);
    best = kernels[0].run;
}

static uint32_t first_call(uint32_t crc, const uint8_t *data, size_t size) {
    pthread_once(&once, prepare);
    return kernels[0].run(crc, data, size);
}

uint32_t ol_crc32c(uint32_t crc, const void *data, size_t size) { return best(crc, data, size); }

const char *ol_crc32c_kernel(int index) {
    pthread_once(&once, prepare);
    return index >= 0 && index < kernel_count ? kernels[index].name : NULL;
}

bool ol_crc32c_with(const char *name, uint32_t crc, const void *data, size_t size, uint32_t *out) {
    pthread_once(&once, prepare);
    for (int index = 0; index < kernel_count; index++)
        if (strcmp(kernels[index].name, name) == 0) {
            *out = kernels[index].run(crc, data, size);
            return true;
        }
    return false;
}

uint32_t ol_crc32c_shift(uint32_t crc, uint64_t size) {
    pthread_once(&once, prepare);
    for (int k = 0; size; size >>= 1, k++)
        if (size & 1) crc = multiply(byte_power[k], crc);
    return crc;
}

uint32_t ol_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b) {
    return ol_crc32c_shift(crc_a, size_b) ^ crc_b;
}
