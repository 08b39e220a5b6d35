/* Tries what a container must not be able to do, each attempt in a process of its own. Prints a line
   for each: name, what it tries, "yes" or "no", and the error. A static program without arguments. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TMP "/tmp/escapes"

/* An attempt returns whether it succeeded; if not, errno says why. */

/* The kernel got as far as to look at the arguments, which are nonsense. */
static int reached(long result) {
    return result >= 0 || (errno != EPERM && errno != EACCES && errno != ENOSYS);
}

static int can_open(const char *path, int flags) {
    return open(path, flags | O_CLOEXEC) >= 0;
}

static int can_write(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    return file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
}

/* The first byte; a masked file is empty or a directory. */
static int can_read(const char *path) {
    char byte;
    int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    errno = file < 0 ? errno : ENODATA;
    return file >= 0 && read(file, &byte, 1) == 1;
}

static int can_open_device(mode_t type, int major_number, int minor_number, int flags) {
    /* A file system that allows no devices may be beside one that does. */
    static const char *const places[] = {TMP "/node", "/dev/escapes", "/dev/shm/escapes"};
    for (int i = 0; i < 3; i++) {
        unlink(places[i]);
        if (mknod(places[i], type | 0600, makedev(major_number, minor_number)) == 0
            && can_open(places[i], flags)) return 1;
    }
    return 0;
}

static int in_new_namespaces(int flags) {
    return unshare(CLONE_NEWUSER | flags) == 0;
}

/* Namespaces. */
static int unshare_user(void) { return in_new_namespaces(0); }
static int unshare_mounts(void) { return unshare(CLONE_NEWNS) == 0; }
static int unshare_cgroup(void) { return unshare(CLONE_NEWCGROUP) == 0; }
static int unshare_network(void) { return unshare(CLONE_NEWNET) == 0; }
static int unshare_time(void) { return unshare(0x80 /* CLONE_NEWTIME */) == 0; }
static int raw_clone(unsigned long flags) {
    long child = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    return child > 0;
}
static int clone_user(void) { return raw_clone(CLONE_NEWUSER); }
static int clone_mounts(void) { return raw_clone(CLONE_NEWNS); }
static int clone3_user(void) {
    uint64_t arguments[8] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};
    long child = syscall(SYS_clone3, arguments, sizeof arguments);
    if (child == 0) _exit(0);
    return child > 0;
}
static int enter_namespace(void) {
    int file = open("/proc/1/ns/uts", O_RDONLY);
    return file >= 0 && setns(file, 0) == 0;
}

/* Mounts. */
static int mount_tmpfs(void) { return mount("none", TMP, "tmpfs", 0, 0) == 0; }
static int mount_proc(void) { return mount("none", TMP, "proc", 0, 0) == 0; }
static int mount_bind(void) { return mount("/", TMP, 0, MS_BIND, 0) == 0; }
static int mount_cgroup1(void) { return mount("none", TMP, "cgroup", 0, "memory") == 0; }
static int mount_cgroup2(void) { return mount("none", TMP, "cgroup2", 0, 0) == 0; }
static int remount(const char *path) {
    return mount(0, path, 0, MS_REMOUNT | MS_BIND, 0) == 0;
}
static int remount_cgroup(void) { return remount("/sys/fs/cgroup") || remount("/sys/fs/cgroup/memory"); }
static int remount_sysctl(void) { return remount("/proc/sys"); }
static int uncover_proc(void) { return umount2("/proc/kcore", MNT_DETACH) == 0 || umount2("/proc", MNT_DETACH) == 0; }
static int fs_open(void) { return syscall(SYS_fsopen, "tmpfs", 0) >= 0; }
static int open_tree_copy(void) { return syscall(SYS_open_tree, AT_FDCWD, "/", 1 /* OPEN_TREE_CLONE */) >= 0; }
static int change_mounts(void) {
    uint64_t clear_read_only[4] = {0, 1 /* MOUNT_ATTR_RDONLY */, 0, 0};
    return syscall(SYS_mount_setattr, AT_FDCWD, "/proc/sys", 0, clear_read_only, sizeof clear_read_only) == 0;
}
static int change_root(void) { return reached(syscall(SYS_pivot_root, TMP, TMP)); }
static int leave_chroot(void) {
    struct stat before, after;
    int root = open("/", O_RDONLY | O_DIRECTORY);
    if (root < 0 || fstat(root, &before) || mkdir(TMP "/jail", 0700) || chroot(TMP "/jail") || fchdir(root)) return 0;
    for (int level = 0; level < 64; level++)
        if (chdir("..")) return 0;
    if (chroot(".") || stat("/", &after)) return 0;
    errno = EXDEV;
    return before.st_dev != after.st_dev || before.st_ino != after.st_ino;
}
static int open_by_handle(void) {
    struct { struct file_handle head; char rest[128]; } handle = {.head = {.handle_bytes = 128}};
    int id, root = open("/etc", O_RDONLY);
    if (name_to_handle_at(AT_FDCWD, "/etc", &handle.head, &id, 0)) handle.head.handle_bytes = 8;
    return reached(open_by_handle_at(root, &handle.head, O_RDONLY));
}

/* Limits. */
#include "escapes_cgroups.h"
static int raise_hard_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_max = limit.rlim_max == RLIM_INFINITY ? RLIM_INFINITY : limit.rlim_max + 1;
    return setrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max != RLIM_INFINITY;
}
static int raise_priority(void) { return setpriority(PRIO_PROCESS, 0, -5) == 0; }
static int hide_from_oom(void) { return can_write("/proc/self/oom_score_adj", "-999"); }

/* Devices. */
static int disk(void) {
    char line[128];
    int major_number, minor_number;
    FILE *partitions = fopen("/proc/partitions", "r");
    while (partitions && fgets(line, sizeof line, partitions))
        if (sscanf(line, "%d %d", &major_number, &minor_number) == 2)
            return can_open_device(S_IFBLK, major_number, minor_number, O_RDONLY);
    return can_open_device(S_IFBLK, 8, 0, O_RDONLY);
}
static int memory_device(void) { return can_open("/dev/mem", O_RDONLY) || can_open_device(S_IFCHR, 1, 1, O_RDONLY); }
static int kernel_log_device(void) { return can_open("/dev/kmsg", O_RDONLY) || can_open_device(S_IFCHR, 1, 11, O_RDONLY); }
static int tun(void) { return can_open("/dev/net/tun", O_RDWR) || can_open_device(S_IFCHR, 10, 200, O_RDWR); }
static int fuse(void) { return can_open("/dev/fuse", O_RDWR) || can_open_device(S_IFCHR, 10, 229, O_RDWR); }
static int virtual_machine(void) { return can_open("/dev/kvm", O_RDWR) || can_open_device(S_IFCHR, 10, 232, O_RDWR); }
static int loop_control(void) { return can_open("/dev/loop-control", O_RDWR) || can_open_device(S_IFCHR, 10, 237, O_RDWR); }

/* Files of the kernel. */
static int sysrq(void) { return can_open("/proc/sysrq-trigger", O_WRONLY); }
static int core_pattern(void) { return can_open("/proc/sys/kernel/core_pattern", O_WRONLY); }
static int modprobe_path(void) { return can_open("/proc/sys/kernel/modprobe", O_WRONLY); }
static int uevent_helper(void) { return can_open("/sys/kernel/uevent_helper", O_WRONLY) || can_open("/sys/kernel/mm/ksm/run", O_WRONLY); }
static int kcore(void) { return can_read("/proc/kcore"); }
static int timer_list(void) { return can_read("/proc/timer_list"); }
/* The kernel's file, and no cover: it has what the reader may see, which may be nothing. */
static int keys(void) {
    struct stat found;
    int file = open("/proc/keys", O_RDONLY | O_CLOEXEC);
    return file >= 0 && fstat(file, &found) == 0 && S_ISREG(found.st_mode);
}
static int irq(void) { return can_open("/proc/irq/default_smp_affinity", O_WRONLY); }
static int efi(void) { return can_open("/sys/firmware/acpi/tables/DSDT", O_RDONLY) || can_open("/sys/firmware/memmap/0/start", O_RDONLY); }

/* Parts of the kernel. */
static int load_bpf(void) {
    uint32_t map[16] = {2 /* BPF_MAP_TYPE_ARRAY */, 4, 4, 1};
    return syscall(SYS_bpf, 0 /* BPF_MAP_CREATE */, map, sizeof map) >= 0;
}
static int perf(void) {
    struct perf_event_attr event = {.type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_CPU_CLOCK, .exclude_kernel = 1};
    return syscall(SYS_perf_event_open, &event, 0, -1, -1, 0) >= 0;
}
static int io_uring(void) { char parameters[256] = {0}; return syscall(SYS_io_uring_setup, 2, parameters) >= 0; }
static int user_fault(void) { return syscall(SYS_userfaultfd, 1 /* UFFD_USER_MODE_ONLY */) >= 0; }
static int add_a_key(void) { return syscall(SYS_add_key, "user", "escapes", "x", 1, -2 /* process */) >= 0; }
static int key_ring(void) { return syscall(SYS_keyctl, 0, -3 /* session */, 0) >= 0; }
static int ask_for_key(void) { return reached(syscall(SYS_request_key, "user", "escapes", 0, 0)); }
static int load_module(void) { return reached(syscall(SYS_init_module, 0, 0, "")) || reached(syscall(SYS_finit_module, -1, "", 0)); }
static int remove_module(void) { return reached(syscall(SYS_delete_module, "no_such_module", O_NONBLOCK)); }
static int load_kernel(void) { return reached(syscall(SYS_kexec_load, 0, 0, 0, ~0ul)); }
static int kernel_log(void) { char text[64]; return syscall(SYS_syslog, 3, text, sizeof text) >= 0; }
static int watch_files(void) { return syscall(SYS_fanotify_init, 0, 0) >= 0; }
static int compare_processes(void) { return syscall(SYS_kcmp, getpid(), getpid(), 0, 1, 1) >= 0; }
static int steal_descriptor(void) {
    int file = syscall(SYS_pidfd_open, getpid(), 0);
    return file >= 0 && syscall(SYS_pidfd_getfd, file, 1, 0) >= 0;
}
static int move_memory(void) { return reached(syscall(SYS_move_pages, 0, 0, 0, 0, 0, 0)); }
static int ports(void) {
#ifdef __x86_64__
    return reached(syscall(SYS_iopl, 3)) || reached(syscall(SYS_ioperm, 0x80, 1, 1));
#else
    errno = ENOSYS;
    return 0;
#endif
}
static int fixed_addresses(void) { return personality(ADDR_NO_RANDOMIZE) >= 0; }
static int executable_memory(void) { return personality(READ_IMPLIES_EXEC) >= 0; }

/* The node. */
static int set_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return clock_settime(CLOCK_REALTIME, &now) == 0;
}
static int set_name(void) { return sethostname("escapes", 7) == 0; }
static int restart(void) { return reached(syscall(SYS_reboot, 0, 0, 0, 0)); }
static int swap(void) { return reached(syscall(SYS_swapon, TMP "/nothing", 0)) || reached(syscall(SYS_swapoff, TMP "/nothing")); }
static int account(void) { return reached(syscall(SYS_acct, TMP)); }
static int quota(void) { return reached(syscall(SYS_quotactl, 0x80000100 /* Q_SYNC */, "/nothing", 0, 0)); }

/* Network. */
static int vsock(void) { return socket(40, SOCK_STREAM, 0) >= 0; }
/* The kernel takes 32 bits of the 64 that a filter compares. */
static int wide_vsock(void) { return syscall(SYS_socket, 0x100000028ul, SOCK_STREAM, 0) >= 0; }
static int crypto_socket(void) { return socket(38, SOCK_SEQPACKET, 0) >= 0; }
static int set_interface(void) {
    struct ifreq request = {.ifr_name = "lo"};
    int file = socket(AF_INET, SOCK_DGRAM, 0);
    return file >= 0 && ioctl(file, SIOCGIFFLAGS, &request) == 0 && ioctl(file, SIOCSIFFLAGS, &request) == 0;
}

/* Privileges. */
static int new_privileges(void) { errno = EPERM; return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0; }
static int gain_capability(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{1u << CAP_SYS_ADMIN, 1u << CAP_SYS_ADMIN, 0}};
    return syscall(SYS_capset, &header, data) == 0;
}
static int other_architecture(void) {
#ifdef __x86_64__
    long pid;
    __asm__ volatile("int $0x80" : "=a"(pid) : "0"(20L) : "memory", "r8", "r9", "r10", "r11");
    errno = ENOSYS;
    return pid == getpid();
#else
    errno = ENOSYS;
    return 0;
#endif
}
static int x32(void) {
#ifdef __x86_64__
    return syscall(0x40000000 | SYS_getpid) > 0;
#else
    errno = ENOSYS;
    return 0;
#endif
}

/* What programs need. */
static int start_process(void) { return raw_clone(0); }
static int start_thread_flags(void) {
    uint64_t arguments[8] = {0, 0, 0, 0, SIGCHLD};
    long child = syscall(SYS_clone3, arguments, sizeof arguments);
    if (child == 0) _exit(0);
    return child > 0 || errno == ENOSYS;
}
static int ask_personality(void) { return personality(0xffffffff) >= 0; }
static int unix_socket(void) { return socket(AF_UNIX, SOCK_STREAM, 0) >= 0; }
static int internet_socket(void) { return socket(AF_INET6, SOCK_STREAM, 0) >= 0 || socket(AF_INET, SOCK_STREAM, 0) >= 0; }
static int netlink_socket(void) { return socket(AF_NETLINK, SOCK_RAW, 0) >= 0; }
static int trace_child(void) {
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    int is_traced = WIFSTOPPED(status);
    kill(child, SIGKILL);
    return is_traced;
}
static int place_memory(void) { return syscall(SYS_set_mempolicy, 0 /* MPOL_DEFAULT */, 0, 0) == 0; }
static int newest_call(void) { syscall(SYS_set_mempolicy, -1, 0, 0); return syscall(0x3fff, 0) < 0 && errno == ENOSYS; }

static const struct { const char *name, *tries; int (*attempt)(void); } ATTEMPTS[] = {
    {"unshare-user", "a user namespace by `unshare`", unshare_user},
    {"unshare-mounts", "a mount namespace by `unshare`", unshare_mounts},
    {"unshare-cgroup", "a cgroup namespace by `unshare`", unshare_cgroup},
    {"unshare-network", "a network namespace by `unshare`", unshare_network},
    {"unshare-time", "a time namespace by `unshare`", unshare_time},
    {"clone-user", "a user namespace by `clone`", clone_user},
    {"clone-mounts", "a mount namespace by `clone`", clone_mounts},
    {"clone3-user", "a user namespace by `clone3`", clone3_user},
    {"setns", "enters a namespace", enter_namespace},
    {"mount-tmpfs", "mounts a tmpfs", mount_tmpfs},
    {"mount-proc", "mounts an uncovered /proc", mount_proc},
    {"mount-bind", "mounts a directory at another place", mount_bind},
    {"mount-cgroup1", "mounts the memory controller, version 1", mount_cgroup1},
    {"mount-cgroup2", "mounts control groups, version 2", mount_cgroup2},
    {"remount-cgroup", "makes /sys/fs/cgroup writable", remount_cgroup},
    {"remount-sysctl", "makes /proc/sys writable", remount_sysctl},
    {"uncover-proc", "unmounts what covers /proc", uncover_proc},
    {"fsopen", "opens a file system by `fsopen`", fs_open},
    {"open-tree", "copies a mount by `open_tree`", open_tree_copy},
    {"mount-setattr", "makes /proc/sys writable by `mount_setattr`", change_mounts},
    {"pivot-root", "changes the root of the mount namespace", change_root},
    {"leave-chroot", "leaves the container's root through an open directory", leave_chroot},
    {"open-by-handle", "opens a file of the node by its handle", open_by_handle},
    {"lift-memory", "lifts the memory limit in /sys/fs/cgroup", lift_memory},
    {"lift-pids", "lifts the limit of processes in /sys/fs/cgroup", lift_pids},
    {"lift-cpu", "lifts the CPU limit in /sys/fs/cgroup", lift_cpu},
    {"lift-memory-by-mount", "mounts control groups in new namespaces, lifts the memory limit", lift_memory_by_mount},
    {"lift-pids-by-mount", "the same with the limit of processes", lift_pids_by_mount},
    {"lift-cpu-by-mount", "the same with the CPU limit", lift_cpu_by_mount},
    {"lift-devices-by-mount", "the same with the list of devices", lift_devices_by_mount},
    {"leave-cgroup", "moves itself to another control group", leave_cgroup},
    {"release-agent", "has the node run a program when the group is empty", release_agent},
    {"raise-hard-limit", "raises a hard resource limit", raise_hard_limit},
    {"raise-priority", "raises its priority above the node's processes", raise_priority},
    {"hide-from-oom", "protects itself from the kernel's out-of-memory killer", hide_from_oom},
    {"disk", "reads a disk of the node through a device node of its own", disk},
    {"dev-mem", "opens the node's memory", memory_device},
    {"dev-kmsg", "opens the kernel's log", kernel_log_device},
    {"dev-tun", "opens /dev/net/tun", tun},
    {"dev-fuse", "opens /dev/fuse", fuse},
    {"dev-kvm", "opens /dev/kvm", virtual_machine},
    {"dev-loop", "opens /dev/loop-control", loop_control},
    {"sysrq", "opens /proc/sysrq-trigger for writing", sysrq},
    {"core-pattern", "opens the kernel's core_pattern for writing", core_pattern},
    {"modprobe", "opens the kernel's modprobe path for writing", modprobe_path},
    {"uevent-helper", "opens settings in /sys/kernel for writing", uevent_helper},
    {"irq", "opens settings in /proc/irq for writing", irq},
    {"kcore", "reads /proc/kcore", kcore},
    {"timer-list", "reads /proc/timer_list", timer_list},
    {"keys", "reads /proc/keys", keys},
    {"firmware", "reads tables in /sys/firmware", efi},
    {"bpf", "makes a BPF map", load_bpf},
    {"perf", "counts events of the CPU", perf},
    {"io-uring", "makes an io_uring", io_uring},
    {"userfaultfd", "handles its own page faults", user_fault},
    {"add-key", "adds a key to the kernel's key ring", add_a_key},
    {"keyctl", "reads the session's key ring", key_ring},
    {"request-key", "has the kernel look for a key", ask_for_key},
    {"load-module", "loads a kernel module", load_module},
    {"remove-module", "removes a kernel module", remove_module},
    {"kexec", "loads another kernel", load_kernel},
    {"syslog", "reads the kernel's log by `syslog`", kernel_log},
    {"fanotify", "watches the files of a file system", watch_files},
    {"kcmp", "compares processes", compare_processes},
    {"pidfd-getfd", "takes an open file of another process", steal_descriptor},
    {"move-pages", "moves pages of memory between NUMA nodes", move_memory},
    {"ports", "opens ports of devices", ports},
    {"fixed-addresses", "turns random addresses off", fixed_addresses},
    {"executable-memory", "makes all its memory executable", executable_memory},
    {"clock", "sets the node's clock", set_clock},
    {"host-name", "sets the host name", set_name},
    {"reboot", "restarts the node", restart},
    {"swap", "changes the node's swap", swap},
    {"acct", "starts the accounting of processes", account},
    {"quota", "changes quotas of a disk", quota},
    {"vsock", "opens a socket to the hypervisor", vsock},
    {"vsock-wide", "the same, with bits that only a filter sees", wide_vsock},
    {"af-alg", "opens a socket to the kernel's cryptography", crypto_socket},
    {"interface", "changes a network interface", set_interface},
    {"new-privileges", "may get privileges from a program with setuid", new_privileges},
    {"gain-capability", "gives itself CAP_SYS_ADMIN", gain_capability},
    {"i386", "makes system calls of i386", other_architecture},
    {"x32", "makes system calls of x32", x32},
    {"+start-process", "starts a process", start_process},
    {"+clone3", "`clone3` works, or does not exist so that libraries use `clone`", start_thread_flags},
    {"+ask-personality", "asks for its personality", ask_personality},
    {"+unix-socket", "opens a Unix socket", unix_socket},
    {"+internet-socket", "opens an internet socket", internet_socket},
    {"+netlink", "asks for network interfaces", netlink_socket},
    {"+trace-child", "traces a child, as debuggers do", trace_child},
    {"+numa", "places its memory on NUMA nodes", place_memory},
    {"+newest-call", "a system call that is newer than the profile does not exist", newest_call},
};

int main(void) {
    /* As root on a node it would unmount /proc, set the clock, and so on: what it tries succeeds. */
    if (access("/bin/escapes", X_OK)) {
        fputs("escapes runs in a container, as /bin/escapes\n", stderr);
        return 2;
    }
    setvbuf(stdout, 0, _IOLBF, 0);
    mkdir(TMP, 0755);
    for (size_t i = 0; i < sizeof ATTEMPTS / sizeof *ATTEMPTS; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            errno = 0;
            _exit(ATTEMPTS[i].attempt() ? 0 : errno ? errno : 255);
        }
        waitpid(child, &status, 0);
        int is_done = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        const char *reason = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : strerror(WEXITSTATUS(status));
        printf("%s\t%s\t%s\t%s\n", ATTEMPTS[i].name, ATTEMPTS[i].tries, is_done ? "yes" : "no", is_done ? "" : reason);
    }
    return 0;
}
