//! Memory that a burst of writes leaves free in between what stays.

/// Gives pages that hold nothing back to the kernel. Takes some milliseconds, in which others wait for memory, so it is
/// for quiet moments.
#[allow(unsafe_code)]
pub fn give_back() {
    // SAFETY: malloc_trim has no preconditions; it takes the allocator's own locks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
