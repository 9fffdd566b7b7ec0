// Who waits in Open MPI calls this between two looks, and looks without a pause. Where
// several runs share the cores, as in checks, a fifth of their time went by that.
#include <time.h>

extern "C" int sched_yield() noexcept {
    const timespec pause = {0, 100000};
    return nanosleep(&pause, nullptr);
}
