//! The pages that a call's raw arguments refer to.
//!
//! Arguments are whatever a program put into its registers: lengths that reach beyond the end of memory,
//! addresses that are no multiple of a page, results that are no addresses. A [`PageRange`] made of them is
//! always a range.

use quire_trace::event::is_error;

const PAGE: u64 = 4096;
/// The start of the last page.
const LAST: u64 = !(PAGE - 1);
/// How far beyond a lowered break pages can have been.
const BREAK_SPAN: u64 = 1 << 30;

/// Pages from `start` up to, and without, `end`: both multiples of a page, and `start` is never above `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRange {
    start: u64,
    end: u64,
}

impl PageRange {
    /// No page.
    pub const NONE: Self = Self { start: 0, end: 0 };
    /// Every page.
    pub const ALL: Self = Self { start: 0, end: LAST };

    /// The pages that `len` bytes from `addr` on lie in. What would reach beyond the end of memory ends
    /// there.
    #[must_use]
    pub fn covering(addr: u64, len: u64) -> Self {
        let (start, end) = (addr & LAST, round_up(addr.saturating_add(len)));
        if len == 0 || end <= start { Self::NONE } else { Self { start, end } }
    }

    /// The first address.
    #[must_use]
    pub fn start(self) -> u64 {
        self.start
    }

    /// The address after the last.
    #[must_use]
    pub fn end(self) -> u64 {
        self.end
    }

    /// Whether there is no page in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// What it has in common with the addresses from `start` up to `end`.
    #[must_use]
    pub(crate) fn clip(self, start: u64, end: u64) -> Self {
        let (start, end) = (self.start.max(start), self.end.min(end));
        if start < end { Self { start, end } } else { Self::NONE }
    }
}

/// The next multiple of a page, or the start of the last page if there is none.
fn round_up(addr: u64) -> u64 {
    addr.checked_next_multiple_of(PAGE).unwrap_or(LAST)
}

/// The pages whose state is to be read before a call, which may remove them. `brk` is the program break.
#[must_use]
pub fn pages_before_call(number: u64, args: &[u64; 6], brk: u64) -> PageRange {
    match number as i64 {
        libc::SYS_brk if args[0] != 0 && args[0] < brk => PageRange::covering(args[0], brk - args[0]),
        libc::SYS_brk => PageRange::NONE,
        libc::SYS_shmdt | libc::SYS_mlockall => PageRange::ALL,
        _ => PageRange::covering(args[0], args[1]),
    }
}

/// The pages that a call may have populated or removed; the program did not touch those that are present
/// afterwards. `brk` is the program break after the call.
#[must_use]
pub fn pages_after_call(number: u64, args: &[u64; 6], result: i64, brk: u64) -> [PageRange; 2] {
    let placed = result as u64;
    let named = pages_before_call(number, args, brk);
    match number as i64 {
        _ if is_error(result) => [PageRange::NONE; 2],
        libc::SYS_mmap => [PageRange::covering(placed, args[1]), PageRange::NONE],
        libc::SYS_mremap => [named, PageRange::covering(placed, args[2])],
        // What lies beyond the break is gone.
        libc::SYS_brk => [PageRange::covering(round_up(brk), BREAK_SPAN), PageRange::NONE],
        libc::SYS_munmap
        | libc::SYS_madvise
        | libc::SYS_shmdt
        | libc::SYS_mlock
        | libc::SYS_mlock2
        | libc::SYS_mlockall
        | libc::SYS_mprotect
        | libc::SYS_pkey_mprotect => [named, PageRange::NONE],
        _ => [PageRange::NONE; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange { start, end }
    }

    #[test]
    fn a_length_beyond_the_end_of_memory_ends_there() {
        let args = [0x7000, -8192_i64 as u64, 1, 0, 0, 0];
        assert_eq!(pages_before_call(libc::SYS_mprotect as u64, &args, 0), pages(0x7000, LAST));
        assert_eq!(PageRange::covering(u64::MAX, 1), PageRange::NONE);
        assert_eq!(PageRange::covering(u64::MAX - 0x1800, u64::MAX), pages(LAST - 0x1000, LAST));
    }

    #[test]
    fn whole_pages_are_named() {
        assert_eq!(PageRange::covering(0x1234, 1), pages(0x1000, 0x2000));
        assert_eq!(PageRange::covering(0x1fff, 2), pages(0x1000, 0x3000));
        assert_eq!(PageRange::covering(0x1234, 0), PageRange::NONE);
        let lowered = [0x5008, 0, 0, 0, 0, 0];
        assert_eq!(pages_before_call(libc::SYS_brk as u64, &lowered, 0x8010), pages(0x5000, 0x9000));
        assert_eq!(pages_before_call(libc::SYS_brk as u64, &lowered, 0x5000), PageRange::NONE);
    }

    /// Numbers near the borders, and all others.
    fn word() -> impl Strategy<Value = u64> {
        prop_oneof![
            (0_u32..64, -4097_i64..4098).prop_map(|(bit, by)| (1_u64 << bit).wrapping_add_signed(by)),
            (0_u64..16).prop_map(|by| u64::MAX - by),
            (-4096_i64..0).prop_map(|pages| (pages * 4096) as u64),
            any::<u64>(),
        ]
    }

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..480, any::<u64>()]
    }

    proptest! {
        #[test]
        fn any_arguments_give_ranges(
            number in number(),
            args in prop::array::uniform6(word()),
            result in word(),
            brk in word(),
        ) {
            let before = pages_before_call(number, &args, brk);
            let [first, second] = pages_after_call(number, &args, result as i64, brk);
            for range in [before, first, second] {
                prop_assert!(range.start() <= range.end());
                prop_assert!(range.start().is_multiple_of(PAGE) && range.end().is_multiple_of(PAGE));
            }
            if number == libc::SYS_munmap as u64 && args[1] != 0 && args[0] < LAST {
                prop_assert!((before.start()..before.end()).contains(&args[0]));
            }
        }
    }
}
