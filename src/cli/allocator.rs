//! How the command's allocator is set up, so that memory of many short lives goes back.

/// Blocks of so many bytes and more are mappings of their own, gone when they are freed. Unset, glibc
/// raises this to 32 MiB once such a block was freed, and the holes of large buffers fill with what
/// stays.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_MAPPING_BYTES: libc::c_int = 128 << 10;

/// Gives glibc an arena for each core in place of eight, since every arena keeps what was freed in it.
/// What the environment says of arenas goes first.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn set_up() {
    if std::env::var_os("MALLOC_ARENA_MAX").is_some() {
        return;
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let arenas = libc::c_int::try_from(cores).unwrap_or(libc::c_int::MAX);
    // SAFETY: it takes two numbers and sets a parameter under the allocator's own lock; one that it
    // refuses changes nothing.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas);
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES);
    }
}

/// Other allocators are left as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn set_up() {}
