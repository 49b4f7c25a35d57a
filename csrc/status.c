/* How every unit reports a fault: one place fills it, so that none is half filled. */
#include "oncelog.h"

ol_status ol_fail(ol_fault *fault, ol_status status, const char *what) {
    fault->status = status;
    fault->what = what;
    return status;
}
