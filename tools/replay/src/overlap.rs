//! Calls whose order is not known: which they are, and what they depend on.

use super::args::populates;
use quire_trace::event::{Call, Fault};
use std::iter;
use std::ops::Range;

/// Bytes of which `mincore` is asked in a call that is tried: it writes a byte for each page.
const MOST_ASKED: u64 = 1 << 30;
/// Bytes that a call that is tried brings in.
const MOST_POPULATED: u64 = 4 << 20;

/// The pages that hold a range of bytes.
pub(super) fn pages_of(start: u64, len: u64) -> Range<u64> {
    let end = start.saturating_add(len).checked_next_multiple_of(4096).unwrap_or(!4095);
    start & !4095..end.max(start)
}

fn everything() -> Range<u64> {
    0..!4095
}

/// Whether a call can have changed mappings. Some that are refused at a mapping have changed those before it.
pub(super) fn changes(call: &Call) -> bool {
    let succeeded = call.errno().is_none();
    let in_part = !matches!(call.errno(), Some(libc::EINVAL | libc::EPERM));
    match i64::from(call.number) {
        libc::SYS_mmap
        | libc::SYS_mremap
        | libc::SYS_munmap
        | libc::SYS_brk
        | libc::SYS_mlockall
        | libc::SYS_munlockall => succeeded,
        libc::SYS_mprotect | libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock => in_part,
        libc::SYS_madvise => in_part && advice_changes(call),
        _ => false,
    }
}

/// Whether an advice is kept with the mappings.
fn advice_changes(call: &Call) -> bool {
    let advice = call.args[2] as i32;
    matches!(advice, libc::MADV_NORMAL..=libc::MADV_SEQUENTIAL | libc::MADV_DONTFORK..=libc::MADV_KEEPONFORK)
}

/// The ranges of which a call that [`changes`] mappings can have changed them, where the program break was
/// at `program_break`.
pub(super) fn changed_by(call: &Call, program_break: u64) -> Vec<Range<u64>> {
    let [first, second, third, ..] = call.args;
    let result = call.result as u64;
    match i64::from(call.number) {
        libc::SYS_mmap => vec![pages_of(result, second)],
        libc::SYS_mremap => vec![pages_of(first, second), pages_of(result, third)],
        libc::SYS_brk => {
            let start = program_break.min(result);
            vec![pages_of(start, program_break.max(result) - start)]
        }
        libc::SYS_mlockall | libc::SYS_munlockall => iter::once(everything()).collect(),
        _ => vec![pages_of(first, second)],
    }
}

/// What the result of a call depends on.
pub(super) struct Depends {
    /// The range whose mappings it depends on.
    pub(super) range: Range<u64>,
    /// The program's memory that it writes.
    pub(super) writes: Range<u64>,
    /// Whether it depends on limits, too, so that mappings elsewhere matter.
    pub(super) on_limits: bool,
}

/// What the result of a call depends on, if it is known, and no address that Linux chose.
pub(super) fn depends_on(call: &Call) -> Option<Depends> {
    let [first, second, third, flags, ..] = call.args;
    let here = pages_of(first, second);
    let of = |range, on_limits| Some(Depends { range, writes: 0..0, on_limits });
    match i64::from(call.number) {
        _ if does_much(call) => None,
        libc::SYS_madvise => match third as i32 {
            libc::MADV_COLLAPSE => None,
            _ => of(here, advice_changes(call)),
        },
        libc::SYS_mincore => {
            Some(Depends { range: here, writes: pages_of(third, second.div_ceil(4096)), on_limits: false })
        }
        libc::SYS_msync => of(here, false),
        libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_mlock | libc::SYS_mlock2 | libc::SYS_munlock => {
            of(here, true)
        }
        libc::SYS_mmap if flags as i32 & libc::MAP_ANONYMOUS == 0 => None,
        libc::SYS_mmap | libc::SYS_mremap if call.errno().is_some() => of(everything(), true),
        libc::SYS_mlockall => of(everything(), true),
        _ => None,
    }
}

/// What it depends on that a touch is refused: the mapping there, if there is one.
pub(super) fn touch_depends_on(fault: &Fault) -> Depends {
    Depends { range: pages_of(fault.addr, 1), writes: 0..0, on_limits: false }
}

/// Whether a call is not tried because of what it would do.
pub(super) fn does_much(call: &Call) -> bool {
    let [_, len, advice, ..] = call.args;
    match i64::from(call.number) {
        libc::SYS_madvise => populates(advice) && len > MOST_POPULATED,
        libc::SYS_mincore => len > MOST_ASKED,
        _ => false,
    }
}

/// What a call that is tried costs beside the mappings that it looks at or changes, in mappings that are
/// made: what it brings in, which may be gone after it, and what it writes.
pub(super) fn work_of(call: &Call) -> u64 {
    /// Pages that `mincore` is asked of for one mapping.
    const ASKED: u64 = 64;
    let [_, len, advice, ..] = call.args;
    match i64::from(call.number) {
        libc::SYS_madvise if populates(advice) => len / 4096,
        libc::SYS_mincore => len / 4096 / ASKED,
        _ => 0,
    }
}

/// Whether two ranges have a byte in common.
pub(super) fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_trace::event::CallDetail;

    #[test]
    fn pages_hold_all_bytes_of_a_range() {
        assert_eq!(pages_of(0x1001, 0x1000), 0x1000..0x3000);
    }

    #[test]
    fn a_call_costs_what_it_brings_in_and_writes() {
        let cost = |number: i64, len: u64, third: i32| {
            let args = [0, len, third as u64, 0, 0, 0];
            let call = Call { number: number as u32, args, result: 0, detail: CallDetail::None };
            (work_of(&call), does_much(&call), depends_on(&call).is_some())
        };
        let populate = libc::MADV_POPULATE_WRITE;
        assert_eq!(cost(libc::SYS_madvise, MOST_POPULATED, populate), (1 << 10, false, true));
        assert!(cost(libc::SYS_madvise, MOST_POPULATED + 1, populate).1);
        assert_eq!(cost(libc::SYS_madvise, 1 << 40, libc::MADV_DONTNEED), (0, false, true));
        assert_eq!(cost(libc::SYS_mincore, MOST_ASKED, 0), (1 << 12, false, true));
        assert_eq!(cost(libc::SYS_mincore, 1 << 31, 0), (1 << 13, true, false));
    }

    #[test]
    fn advice_that_drops_pages_changes_no_mapping() {
        let advice = |advice, result| Call {
            number: libc::SYS_madvise as u32,
            args: [0, 4096, advice as u64, 0, 0, 0],
            result,
            detail: CallDetail::None,
        };
        assert!(changes(&advice(libc::MADV_DONTFORK, 0)) && changes(&advice(libc::MADV_NORMAL, 0)));
        assert!(changes(&advice(libc::MADV_DONTFORK, -i64::from(libc::ENOMEM))));
        assert!(!changes(&advice(libc::MADV_DONTNEED, 0)) && !changes(&advice(libc::MADV_COLLAPSE, 0)));
    }
}
