//! Memory of the C library's allocator. Without a limit it keeps an arena for each thread, up to
//! eight for each processor, and what was freed in one is free for that arena alone: a program
//! that parses large text in many threads grows to several times of what it uses: mallopt(3).

/// Number of arenas. Threads have small pieces ready of their own, and seldom wait for each other.
#[cfg(target_env = "gnu")]
const ARENAS: i32 = 2;

/// Limits the arenas. To be called before threads exist.
#[cfg(target_env = "gnu")]
pub fn limit_arenas() {
    // SAFETY: it takes two numbers, and no other thread allocates memory yet.
    #[allow(unsafe_code, reason = "the allocator has no other interface")]
    let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS) };
}

/// Gives what is free in all arenas back to the system: malloc_trim(3). By itself the library gives
/// back only what is free at the end of an arena, and a single piece in use keeps everything before
/// it.
#[cfg(target_env = "gnu")]
pub fn trim() {
    // SAFETY: it takes a number, and locks each arena itself.
    #[allow(unsafe_code, reason = "the allocator has no other interface")]
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Other C libraries have no arenas.
#[cfg(not(target_env = "gnu"))]
pub fn limit_arenas() {}
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}
