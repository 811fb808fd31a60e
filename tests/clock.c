/* Clocks that are ahead by as many seconds as a file says, for a program into which this is preloaded. The file has two
 * numbers of 64 bits: seconds for the clock on the wall, and for those that only count. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *ahead;

__attribute__((constructor)) static void look_up(void)
{
    const char *path = getenv("CLOCK_AHEAD");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, 2 * sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        ahead = page;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (failed || !ahead)
        return failed;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        now->tv_sec += ahead[0];
    else if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME)
        now->tv_sec += ahead[1];
    return 0;
}
