/* UTF-8: what is valid is left alone, what is not becomes U+FFFD part by part. */
#include "check.h"
#include "oncelog.h"

#define FFFD "\xEF\xBF\xBD"

static const struct {
    const char *text, *repaired;
} known[] = {
    {"", ""},
    {"plain", "plain"},
    {"gr\xC3\xB6\xC3\x9F"
     "e",
     "gr\xC3\xB6\xC3\x9F"
     "e"},
    {"\xED\x9F\xBF", "\xED\x9F\xBF"},         /* U+D7FF, before the surrogates */
    {"\xEE\x80\x80", "\xEE\x80\x80"},         /* U+E000, behind them */
    {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"}, /* U+10FFFF, the last one */
    {"\xC2\x80\xE0\xA0\x80\xF0\x90\x80\x80", "\xC2\x80\xE0\xA0\x80\xF0\x90\x80\x80"},
    {"\x80", FFFD},          /* a continuation with no lead */
    {"\xC0\xAF", FFFD FFFD}, /* an overlong slash */
    {"\xC1\xBF", FFFD FFFD},
    {"\xE0\x9F\xBF", FFFD FFFD FFFD},          /* overlong in three bytes */
    {"\xED\xA0\x80", FFFD FFFD FFFD},          /* a surrogate */
    {"\xF0\x8F\xBF\xBF", FFFD FFFD FFFD FFFD}, /* overlong in four bytes */
    {"\xF4\x90\x80\x80", FFFD FFFD FFFD FFFD}, /* past the last one */
    {"\xF5\x80\x80\x80", FFFD FFFD FFFD FFFD},
    {"\xFF\xFE", FFFD FFFD},
    {"\xE2\x82", FFFD}, /* cut off: one part */
    {"\xF0\x9F\x98", FFFD},
    {"\xF0\x9F\x98x", FFFD "x"},
    {"a\xE2\x82"
     "b\xF0\x9F"
     "c\xC3",
     "a" FFFD "b" FFFD "c" FFFD},
    {"12345678\xFF", "12345678" FFFD}, /* behind a word of ASCII */
    {"1234567\xFF"
     "8",
     "1234567" FFFD "8"},
};

static void check_text(const uint8_t *text, size_t size, const uint8_t *repaired,
                       size_t repaired_size) {
    uint8_t *exact = exact_copy(text, size);
    uint8_t *out = malloc(3 * size + 1);
    if (!out) abort();
    size_t found = ol_utf8_repair(out, exact, size);
    CHECK_INT(found, repaired_size);
    if (found == repaired_size && found) CHECK_BYTES(out, repaired, found);
    bool valid = size == repaired_size && memcmp(text, repaired, size) == 0;
    CHECK_INT(ol_utf8_valid(exact, size), valid);
    CHECK(ol_utf8_valid(out, found));
    free(out);
    free(exact);
}

/* Decodes by the table of the Unicode standard (3-7), one branch a row. */
static int well_formed(const uint8_t *t, size_t size) {
#define IN(i, low, high) (size > (i) && t[i] >= (low) && t[i] <= (high))
    if (t[0] <= 0x7F) return 1;
    if (t[0] >= 0xC2 && t[0] <= 0xDF) return IN(1, 0x80, 0xBF) ? 2 : 0;
    if (t[0] == 0xE0) return IN(1, 0xA0, 0xBF) && IN(2, 0x80, 0xBF) ? 3 : 0;
    if (t[0] >= 0xE1 && t[0] <= 0xEC) return IN(1, 0x80, 0xBF) && IN(2, 0x80, 0xBF) ? 3 : 0;
    if (t[0] == 0xED) return IN(1, 0x80, 0x9F) && IN(2, 0x80, 0xBF) ? 3 : 0;
    if (t[0] == 0xEE || t[0] == 0xEF) return IN(1, 0x80, 0xBF) && IN(2, 0x80, 0xBF) ? 3 : 0;
    if (t[0] == 0xF0) return IN(1, 0x90, 0xBF) && IN(2, 0x80, 0xBF) && IN(3, 0x80, 0xBF) ? 4 : 0;
    if (t[0] >= 0xF1 && t[0] <= 0xF3)
        return IN(1, 0x80, 0xBF) && IN(2, 0x80, 0xBF) && IN(3, 0x80, 0xBF) ? 4 : 0;
    if (t[0] == 0xF4) return IN(1, 0x80, 0x8F) && IN(2, 0x80, 0xBF) && IN(3, 0x80, 0xBF) ? 4 : 0;
    return 0;
#undef IN
}

static bool valid_by_table(const uint8_t *text, size_t size) {
    for (size_t at = 0; at < size;) {
        int step = well_formed(text + at, size - at);
        if (!step) return false;
        at += (size_t)step;
    }
    return true;
}

int main(void) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        check_text((const uint8_t *)known[i].text, strlen(known[i].text),
                   (const uint8_t *)known[i].repaired, strlen(known[i].repaired));
    /* All of one, two and three bytes, and many of four, agree with the standard's table. */
    for (uint32_t bits = 0; bits < 1u << 24; bits += bits < 1u << 16 ? 1 : 5) {
        uint8_t text[3] = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint8_t)(bits >> 16)};
        size_t size = bits < 1u << 8 ? 1 : bits < 1u << 16 ? 2 : 3;
        if (ol_utf8_valid(text, size) != valid_by_table(text, size)) CHECK(!"validity differs");
    }
    for (int i = 0; i < 300000; i++) {
        uint8_t text[24], out[72];
        size_t size = check_random() % 25;
        for (size_t j = 0; j < size; j++) {
            static const uint8_t likely[] = {0x41, 0x80, 0xBF, 0xC3, 0xE0,
                                             0xE2, 0xED, 0xF0, 0xF4, 0x9F};
            text[j] = check_random() & 1 ? likely[check_random() % sizeof likely]
                                         : (uint8_t)check_random();
        }
        uint8_t *exact = exact_copy(text, size);
        CHECK_INT(ol_utf8_valid(exact, size), valid_by_table(text, size));
        size_t repaired = ol_utf8_repair(out, exact, size);
        CHECK(repaired <= 3 * size && valid_by_table(out, repaired));
        free(exact);
    }
    return check_result();
}
