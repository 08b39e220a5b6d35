/* Attempts of escapes.c on control groups, version 1 and 2: to lift limits and to leave the group. */

/* Calls `try_in` with directories of control groups until it succeeds: the root that the container
   sees, and the process's own group of this controller (/proc/self/cgroup) with all above it. */
static int in_each_group(const char *controller, int (*try_in)(const char *, const char *), const char *file) {
    char line[1024], root[64], path[1200];
    if (try_in("/sys/fs/cgroup", file)) return 1;
    FILE *groups = fopen("/proc/self/cgroup", "r");
    while (groups && fgets(line, sizeof line, groups)) {
        char *names = strchr(line, ':') + 1, *group = strchr(names, ':');
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        int is_version_2 = !*names;
        if (!is_version_2 && !strstr(names, controller)) continue;
        snprintf(root, sizeof root, "/sys/fs/cgroup%s%s", is_version_2 ? "" : "/", is_version_2 ? "" : controller);
        for (;;) {
            snprintf(path, sizeof path, "%s%s", root, group);
            if (try_in(path, file)) return 1;
            char *last = strrchr(group, '/');
            if (!last) break;
            *last = 0;
        }
    }
    if (groups) fclose(groups);
    return 0;
}
/* Writes what the file has, so that nothing changes. */
static int can_rewrite(const char *dir, const char *name) {
    char path[1300], value[64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, value, sizeof value);
    return length > 0 && pwrite(file, value, length, 0) == length;
}
static int lift_directly(const char *controller, const char *old, const char *new) {
    return in_each_group(controller, can_rewrite, old) || in_each_group(controller, can_rewrite, new);
}
static int lift_by_mount(const char *controller, const char *old, const char *new) {
    char path[128];
    if (!in_new_namespaces(CLONE_NEWNS | CLONE_NEWCGROUP)) return 0;
    snprintf(path, sizeof path, TMP "/%s", old);
    if (mount("none", TMP, "cgroup", 0, controller) == 0) return can_write(path, "-1") || can_write(path, "max") || can_write(path, "a *:* rwm");
    snprintf(path, sizeof path, TMP "/%s", new);
    return mount("none", TMP, "cgroup2", 0, 0) == 0 && can_write(path, "max");
}
static int lift_memory(void) { return lift_directly("memory", "memory.limit_in_bytes", "memory.max"); }
static int lift_pids(void) { return lift_directly("pids", "pids.max", "pids.max"); }
static int lift_cpu(void) { return lift_directly("cpu", "cpu.cfs_quota_us", "cpu.max"); }
static int lift_memory_by_mount(void) { return lift_by_mount("memory", "memory.memsw.limit_in_bytes", "memory.max"); }
static int lift_pids_by_mount(void) { return lift_by_mount("pids", "pids.max", "pids.max"); }
static int lift_cpu_by_mount(void) { return lift_by_mount("cpu", "cpu.cfs_quota_us", "cpu.max"); }
static int lift_devices_by_mount(void) { return lift_by_mount("devices", "devices.allow", "cgroup.procs"); }
static int can_enter(const char *dir, const char *name) {
    char path[1300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return can_write(path, "0");
}
/* A new group in this one; the process returns to a group above it, so that nothing is left. */
static int can_enter_new(const char *dir, const char *name) {
    char group[1300];
    snprintf(group, sizeof group, "%s/escapes", dir);
    if (mkdir(group, 0755)) return 0;
    int is_done = can_enter(group, name);
    in_each_group("memory", can_enter, name);
    rmdir(group);
    return is_done;
}
static int leave_cgroup(void) {
    return in_each_group("memory", can_enter_new, "cgroup.procs") || in_each_group("memory", can_enter, "cgroup.procs");
}
static int release_agent(void) {
    return can_open("/sys/fs/cgroup/memory/release_agent", O_WRONLY) || can_open("/sys/fs/cgroup/memory/notify_on_release", O_WRONLY);
}
