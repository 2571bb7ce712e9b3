//! Whether memory is zeros, read at the speed of memory.

/// Bytes that are looked at together.
pub const ZEROS_BLOCK: usize = 512;

/// Whether the block at `block` is all zeros at this moment. Others may be writing to it, as hardware does.
///
/// # Safety
///
/// The block is readable, and aligned to 64 bytes.
#[inline]
pub unsafe fn are_zeros(block: *const [u8; ZEROS_BLOCK]) -> bool {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(miri)))]
    // SAFETY: the caller's promise.
    return unsafe { by_vectors(block) };
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2", not(miri))))]
    // SAFETY: the caller's promise.
    unsafe {
        by_words(block)
    }
}

/// The compiler does not make atomic loads a part of the instruction that uses them, and each other load may
/// not race with a store; so these are instructions, and what they read is read as by a device.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2", not(miri)))]
#[inline]
unsafe fn by_vectors(block: *const [u8; ZEROS_BLOCK]) -> bool {
    use core::arch::asm;
    use core::arch::x86_64::__m128i;
    let (first, second): (__m128i, __m128i);
    let (third, fourth): (__m128i, __m128i);
    let equal: u32;
    // SAFETY: the block is readable and aligned (caller); nothing is written. Four sums side by side, since
    // each instruction waits for the one before that has its sum.
    unsafe {
        asm!(
            "movdqa {a}, [{block}]",
            "movdqa {b}, [{block} + 16]",
            "movdqa {c}, [{block} + 32]",
            "movdqa {d}, [{block} + 48]",
            ".irp line, 64, 128, 192, 256, 320, 384, 448",
            "por {a}, [{block} + \\line]",
            "por {b}, [{block} + \\line + 16]",
            "por {c}, [{block} + \\line + 32]",
            "por {d}, [{block} + \\line + 48]",
            ".endr",
            "por {a}, {b}",
            "por {c}, {d}",
            "por {a}, {c}",
            "pxor {b}, {b}",
            "pcmpeqb {a}, {b}",
            "pmovmskb {equal:e}, {a}",
            block = in(reg) block,
            a = out(xmm_reg) first,
            b = out(xmm_reg) second,
            c = out(xmm_reg) third,
            d = out(xmm_reg) fourth,
            equal = out(reg) equal,
            options(nostack, readonly, preserves_flags)
        );
    }
    let _ = (first, second, third, fourth);
    equal == 0xffff
}

#[cfg(any(test, not(all(target_arch = "x86_64", target_feature = "sse2", not(miri)))))]
unsafe fn by_words(block: *const [u8; ZEROS_BLOCK]) -> bool {
    // Contents are no part of what the models explore.
    use core::sync::atomic::{AtomicU64, Ordering};
    const SUMS: usize = 4;
    // SAFETY: the block is readable and aligned (caller), and read by atomics.
    let words = unsafe { &*block.cast::<[AtomicU64; ZEROS_BLOCK / size_of::<u64>()]>() };
    // Several sums side by side, since each addition waits for the one before: so it goes at the speed of
    // memory.
    let mut sums = [0; SUMS];
    for part in words.chunks_exact(SUMS) {
        sums.iter_mut().zip(part).for_each(|(sum, word)| *sum |= word.load(Ordering::Relaxed));
    }
    sums.iter().fold(0, |all, sum| all | sum) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bit_that_is_set_is_found() {
        #[repr(align(64))]
        struct Blocks([u8; 3 * ZEROS_BLOCK]);
        let mut blocks = Blocks([0xff; 3 * ZEROS_BLOCK]);
        blocks.0[ZEROS_BLOCK..2 * ZEROS_BLOCK].fill(0);
        let is_zero = |blocks: &Blocks| {
            let block = blocks.0[ZEROS_BLOCK..].as_ptr().cast();
            // SAFETY: the middle block lies in the array, and begins at a multiple of 64 bytes.
            let both = unsafe { [are_zeros(block), by_words(block)] };
            assert_eq!(both[0], both[1]);
            both[0]
        };
        assert!(is_zero(&blocks), "what is beside it does not count");
        for byte in ZEROS_BLOCK..2 * ZEROS_BLOCK {
            for bit in [1, 0x80] {
                blocks.0[byte] = bit;
                assert!(!is_zero(&blocks), "byte {byte}, bit {bit:#x}");
            }
            blocks.0[byte] = 0;
        }
        assert!(is_zero(&blocks));
    }
}
