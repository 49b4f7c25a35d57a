/* Tables that grow: what they had stays, what is new is zero, small or large. */
#include "check.h"
#include "oncelog.h"

static void what_is_new_is_zero_and_the_rest_stays(void) {
    static const size_t sizes[] = {1, 512, 100000, 5 << 20, 9 << 20, (20 << 20) + 7};
    uint8_t *table = NULL;
    size_t had = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        table = ol_grow_zeroed(table, had, sizes[i]);
        CHECK(table != NULL);
        bool kept = true, zero = true;
        for (size_t at = 0; at < had; at++) kept &= table[at] == (uint8_t)(at % 251 + 1);
        for (size_t at = had; at < sizes[i]; at++) {
            zero &= table[at] == 0;
            table[at] = (uint8_t)(at % 251 + 1);
        }
        CHECK(kept);
        CHECK(zero);
        had = sizes[i];
    }
    free(table);
}

int main(void) {
    what_is_new_is_zero_and_the_rest_stays();
    return check_result();
}
