/* The pod sandbox's process: holds the namespaces open, reaps orphans as PID 1 of a shared PID namespace, and ends on
 * SIGTERM or SIGINT. Built static, so that the image needs nothing but this file. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

int main(void) {
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &watched, NULL) != 0) return EXIT_FAILURE;
    for (;;) {
        int received = sigwaitinfo(&watched, NULL);
        if (received == SIGTERM || received == SIGINT) return EXIT_SUCCESS;
        if (received < 0 && errno != EINTR) return EXIT_FAILURE;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
}
