/* In an image in place of the dynamic loader. If a container can run the program that started it,
   this runs instead, with that program's file at hand, and tries to change it. Without libraries,
   because nothing has loaded any. */

#include <fcntl.h>
#include <sys/syscall.h>

static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

void _start(void) {
    static const char started[] = "started\n", changed[] = "changed\n";
    call(SYS_write, 1, (long)started, sizeof started - 1);
    long program = call(SYS_open, (long)"/proc/self/exe", O_RDONLY, 0);
    if (call(SYS_fchmod, program, 04777, 0) == 0) {
        call(SYS_write, 1, (long)changed, sizeof changed - 1);
    }
    call(SYS_exit, 0, 0, 0);
    for (;;) {
    }
}
