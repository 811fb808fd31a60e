//! What the process holds of the machine's memory, and giving back what nothing lies in any more.

/// Bytes of memory that are the process's own or shared with others; None where the kernel does not say.
pub fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

/// Size of a page on the machines that this runs on.
const PAGE_BYTES: u64 = 4096;

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
