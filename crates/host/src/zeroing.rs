//! Zeroing large blocks of RAM with non-temporal stores.
//!
//! A block as large as a core's cache would evict everything else from it, for pages that no access asked
//! for. Non-temporal stores leave the cache alone, and take half the time. A program that uses all of the
//! block right afterwards pays that back: `cargo bench -p quire-host --bench faults` prints both. So this is
//! for zeroing ahead of use, not for a fault.

use quire_arch::Order;

/// Blocks from this order on are zeroed bypassing the caches: 2 MiB, about a core's own cache.
pub(crate) const PAST_CACHES: Order = Order::PMD;

/// Fills the `bytes` from `start` on with zeros, bypassing the caches if the CPU can.
///
/// # Safety
///
/// The memory is the caller's, and starts at a border of 64 bytes; `bytes` is a multiple of that.
pub(crate) unsafe fn zero_past_caches(start: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{__m128i, _mm_setzero_si128, _mm_sfence, _mm_stream_si128};
        debug_assert!(start.addr().is_multiple_of(64) && bytes.is_multiple_of(64));
        // SAFETY: every CPU of this architecture has the instructions; the stores lie inside the caller's
        // memory, and are aligned as that is.
        unsafe {
            let zeros = _mm_setzero_si128();
            for line in 0..bytes / 64 {
                let line = start.add(line * 64).cast::<__m128i>();
                _mm_stream_si128(line, zeros);
                _mm_stream_si128(line.add(1), zeros);
                _mm_stream_si128(line.add(2), zeros);
                _mm_stream_si128(line.add(3), zeros);
            }
            // A release store does not order these stores: a CPU that finds the block by one would miss some
            // of the zeros.
            _mm_sfence();
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's contract.
    unsafe {
        start.write_bytes(0, bytes);
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn all_is_zero_and_nothing_else_is() {
        #[repr(align(64))]
        struct Block([u8; 4096 + 192]);
        let mut block = Box::new(Block([0xa5; 4096 + 192]));
        // SAFETY: the block is the test's, and what is zeroed lies inside of it.
        unsafe { zero_past_caches(block.0.as_mut_ptr().add(64), 4096) };
        let (before, rest) = block.0.split_at(64);
        let (zeros, after) = rest.split_at(4096);
        assert!(zeros.iter().all(|&byte| byte == 0));
        assert!(before.iter().chain(after).all(|&byte| byte == 0xa5));
    }
}
