/*
 * Processes that begin and end in every way that Linux has. Usage: stress SEED COUNT.
 * Makes at least COUNT processes. Ends with code 0, or 3 if a call failed that must not.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t state;
static const char *self;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void nap(long most_ns)
{
    struct timespec pause = {0, (long)(next() % (uint64_t)most_ns)};
    nanosleep(&pause, NULL);
}

static void use_memory(void)
{
    size_t pages = 1 + next() % 8;
    char *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return;
    for (size_t page = 0; page < pages; page++)
        memory[page * 4096] = 1;
    munmap(memory, pages * 4096);
}

static void *thread_forks(void *unused)
{
    (void)unused;
    if (fork() == 0)
        _exit(0);
    return NULL;
}

/* What threads and processes do until they are killed fits into the recorder's buffers, however late that
 * is. */
#define ROUNDS 50

static void *thread_maps(void *unused)
{
    for (int round = 0; round < ROUNDS; round++)
        use_memory();
    for (;;)
        pause();
    return unused;
}

static void *thread_executes(void *unused)
{
    char *words[] = {(char *)self, "leaf", NULL};
    execv(self, words);
    return unused;
}

static void *thread_ends_late(void *unused)
{
    struct timespec pause = {0, 200000};
    nanosleep(&pause, NULL);
    use_memory();
    return unused;
}

static void begin(void *(*body)(void *))
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, NULL) == 0)
        pthread_detach(thread);
}

static int leaf(void *unused)
{
    (void)unused;
    syscall(SYS_exit, 0);
    return 0;
}

/* A clone with flags that seed chooses; what Linux refuses is a call that failed. */
static void clone_somehow(void)
{
    static const unsigned long choices[] = {
        CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_VFORK, CLONE_PARENT, CLONE_SYSVSEM, CLONE_IO,
        CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP,
        CLONE_SETTLS, CLONE_PTRACE, CLONE_DETACHED, CLONE_CHILD_CLEARTID,
    };
    static char stacks[16][16384] __attribute__((aligned(16)));
    static unsigned used;
    unsigned long flags = SIGCHLD;
    for (unsigned count = next() % 5; count > 0; count--)
        flags |= choices[next() % (sizeof choices / sizeof choices[0])];
    flags &= ~(unsigned long)CLONE_SETTLS;
    if (flags & CLONE_VM) {
        clone(leaf, stacks[used++ % 16] + 16384, (int)flags, NULL);
        return;
    }
    long child = syscall(SYS_clone, flags, NULL, NULL, NULL, NULL);
    if (child == 0) {
        use_memory();
        syscall(SYS_exit, 0);
    }
}

static void one_process(unsigned how)
{
    pid_t child;
    int pipe_ends[2];
    use_memory();
    switch (how) {
    case 0:
        exit(1);
    case 1:
        _exit(2);
    case 2: /* one thread makes a process while another ends all */
        begin(thread_forks);
        nap(100000);
        syscall(SYS_exit_group, 0);
        break;
    case 3: /* threads in the middle of calls when all end */
        begin(thread_maps);
        begin(thread_maps);
        nap(300000);
        syscall(SYS_exit_group, 3);
        break;
    case 4: /* the first thread leaves before the others */
        begin(thread_ends_late);
        pthread_exit(NULL);
    case 5:
        begin(thread_ends_late);
        syscall(SYS_exit, 5);
        break;
    case 6:
        raise(SIGKILL);
        break;
    case 7: /* a core dump, into nothing or as the limit says */
        *(volatile int *)8 = 1;
        break;
    case 8:
        begin(thread_maps);
        nap(100000);
        abort();
    case 9: /* exec by a thread that is not the first, beside a busy one */
        begin(thread_maps);
        begin(thread_executes);
        for (;;)
            pause();
    case 10:
        thread_executes(NULL);
        break;
    case 11:
        child = vfork();
        if (child == 0)
            thread_executes(NULL);
        break;
    case 12:
        child = vfork();
        if (child == 0)
            _exit(0);
        break;
    case 13: /* killed at a random place by another process */
        child = fork();
        if (child == 0) {
            for (int round = 0; round < ROUNDS; round++) {
                use_memory();
                if (next() % 8 == 0) {
                    pid_t other = fork();
                    if (other == 0)
                        _exit(0);
                    waitpid(other, NULL, 0);
                }
            }
            for (;;)
                pause();
        }
        nap(3000000);
        kill(child, SIGKILL);
        break;
    case 14: /* stopped, then killed or continued */
        if (pipe(pipe_ends) != 0)
            _exit(4);
        child = fork();
        if (child == 0) {
            raise(SIGSTOP);
            use_memory();
            _exit(0);
        }
        waitpid(child, NULL, WUNTRACED);
        kill(child, next() % 2 ? SIGKILL : SIGCONT);
        break;
    case 15: /* exec and exit_group at once */
        begin(thread_executes);
        begin(thread_forks);
        nap(200000);
        syscall(SYS_exit_group, 6);
        break;
    case 16: /* a vfork child whose parent is killed */
        child = fork();
        if (child == 0) {
            if (vfork() == 0) {
                struct timespec pause = {0, 2000000};
                nanosleep(&pause, NULL);
                _exit(0);
            }
            _exit(0);
        }
        nap(1000000);
        kill(child, SIGKILL);
        break;
    default:
        clone_somehow();
        break;
    }
    while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR)
        ;
    _exit(0);
}

int main(int count, char **words)
{
    if (count == 2 && strcmp(words[1], "leaf") == 0)
        return 0;
    if (count != 3)
        return 2;
    self = words[0];
    state = strtoull(words[1], NULL, 10) * 0x9e3779b97f4a7c15ull | 1;
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    unsigned long wanted = strtoul(words[2], NULL, 10), running = 0;
    for (unsigned long made = 0; made < wanted; made++) {
        unsigned how = (unsigned)(next() % 24);
        uint64_t seed = next();
        pid_t child = fork();
        if (child < 0)
            return 3;
        if (child == 0) {
            state = seed | 1;
            one_process(how);
        }
        /* A few at a time. */
        if (++running >= 4) {
            wait(NULL);
            running--;
        }
    }
    while (wait(NULL) > 0)
        ;
    return 0;
}
