//! Pages of the file that a call has taken out of all mappings: neither side maps one of them after it.
//!
//! Which other pages are mapped cannot be compared once a call has changed the file.

use crate::observation::{Observation, Region};
use crate::program::names::{
    FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE,
    FALLOC_FL_ZERO_RANGE,
};
use crate::program::{Call, Outcome};
use quire_arch::PAGE_SIZE;
use quire_mm::space::PageState;
use std::ops::Range;

/// The bytes of the file whose pages a call has taken, from the first of a page up to the first of another.
fn taken(call: Call, args: [u64; 6], outcome: Outcome) -> Option<Range<u64>> {
    let [_, second, offset, len, ..] = args;
    let first = |at: u64| at & !(PAGE_SIZE - 1);
    if outcome != Outcome::Value(0) {
        return None;
    }
    match call {
        Call::Ftruncate => Some(second.next_multiple_of(PAGE_SIZE)..u64::MAX),
        Call::Fallocate => match second & u64::from(u32::MAX) & !FALLOC_FL_KEEP_SIZE {
            FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE => {
                Some(offset.next_multiple_of(PAGE_SIZE)..first(offset + len))
            }
            FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE => Some(first(offset)..u64::MAX),
            _ => None,
        },
        _ => None,
    }
}

/// Where a process maps a page of these bytes of the file, or of the memfd with this number.
fn mapped(seen: &Observation, memfd: u32, bytes: &Range<u64>) -> Option<u64> {
    let cached = || seen.pages.iter().filter(|run| run.state == PageState::File);
    let shows = |region: &&Region| region.memfd == memfd && (region.file || memfd != 0);
    seen.regions.iter().filter(shows).find_map(|region| {
        let there = cached().filter(|run| run.start < region.end && region.start < run.end);
        there.into_iter().find_map(|run| {
            let (start, end) = (region.start.max(run.start), region.end.min(run.end));
            let place = |addr: u64| region.offset.saturating_add(addr - region.start);
            let from = start + bytes.start.saturating_sub(place(start));
            (from < end && place(from) < bytes.end).then_some(from)
        })
    })
}

/// Looks for pages that a call was to take out of the file, or out of the memfd with this number.
pub(crate) fn check(
    call: Call,
    args: [u64; 6],
    outcome: Outcome,
    memfd: u32,
    [linux, quire]: [&Observation; 2],
) -> Result<(), String> {
    let Some(bytes) = taken(call, args, outcome) else { return Ok(()) };
    for (name, side) in [("Linux", linux), ("Quire", quire)] {
        if let Some(addr) = mapped(side, memfd, &bytes) {
            return Err(format!("{name} still maps a page at {addr:#x} that the call took out of the file"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Pages;
    use quire_mm::space::VmFlags;

    #[test]
    fn a_page_that_was_taken_is_found_in_whichever_mapping() {
        let region = |start, offset, file| Region {
            start,
            end: start + 0x4000,
            flags: VmFlags::READ,
            offset,
            file,
            memfd: 0,
        };
        let run = |start, end, state| Pages { start, end, state, large: false };
        let seen = Observation {
            regions: vec![region(0x1_0000, 0, false), region(0x2_0000, 0x5000, true)],
            pages: vec![
                run(0x1_0000, 0x1_4000, PageState::File),
                run(0x2_0000, 0x2_2000, PageState::File),
                run(0x2_2000, 0x2_3000, PageState::Anonymous),
            ],
            ..Observation::default()
        };
        assert_eq!(mapped(&seen, 0, &(0..u64::MAX)), Some(0x2_0000));
        assert_eq!(mapped(&seen, 0, &(0x6000..0x7000)), Some(0x2_1000));
        // A process's own copy, and what lies before.
        assert_eq!((mapped(&seen, 0, &(0x7000..0x8000)), mapped(&seen, 0, &(0..0x5000))), (None, None));
        let taken =
            |mode, offset, len| taken(Call::Fallocate, [200, mode, offset, len, 0, 0], Outcome::Value(0));
        assert_eq!(taken(FALLOC_FL_ZERO_RANGE, 0x800, 0x2000), Some(0x1000..0x2000));
        assert_eq!(taken(FALLOC_FL_INSERT_RANGE, 0x1000, 0x1000), Some(0x1000..u64::MAX));
        assert_eq!(taken(FALLOC_FL_KEEP_SIZE, 0, 0x1000), None);
    }
}
