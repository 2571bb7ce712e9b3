//! Memory that is touched and dropped. The posted loop goes over a large mapping once: its page tables at the
//! end, and its time. Borders are touched and dropped again and again: where freeing tables gains nothing.

use super::ROUNDS;
use crate::prelude::*;

/// What the loop drops in a step, and what a table maps.
const TABLE: u64 = Order::PMD.bytes();

/// Bytes of addresses that the loops go over.
const SPAN: [u64; 3] = [50 * GIB, 4 * GIB, 64 * MIB];
/// Rounds in which they do.
const SWEEP_ROUNDS: [usize; 3] = [50, 8, 2];
/// Of so many pages one is touched, in the loops that are not as posted.
const STRIDE: [u64; 3] = [8, 32, 64];
/// Calls in a round at borders.
const CALLS: [u64; 3] = [10_000, 1000, 20];

const SWEEP_ROWS: [Row; 3] = [
    Row::lower("page_tables_at_the_end", "kB", 1, Series::last),
    Row::lower("most_page_tables", "kB", 1, Series::max),
    Row::times("us/step", 0),
];

/// How the loop drops memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Emptying {
    /// By `DONTNEED` of pieces of this size, after such an access: reads map just the zero page.
    DontNeed { offset: u64, piece: u64, access: Access },
    /// By `munmap` of the first half of each step, which alone was touched.
    Unmap,
    /// By `mremap` of that half to elsewhere, over what was moved there before.
    Move,
    /// By `FREE` of each step: reclaim takes the pages when memory is short, and at the end all that are
    /// left.
    Free,
}
use Emptying::{DontNeed, Free, Move, Unmap};

pub(super) const fn written(offset: u64, piece: u64) -> Emptying {
    DontNeed { offset, piece, access: Access::Write }
}
const ZEROS: Emptying = DontNeed { offset: PAGE_SIZE, piece: TABLE, access: Access::Read };

/// The loops, with the title of each and whether each page is touched whatever the scale says.
const SWEEPS: [(&str, Emptying, bool); 10] = [
    ("DONTNEED of 2 MiB, as posted", written(0, TABLE), true),
    ("DONTNEED of 2 MiB", written(0, TABLE), false),
    ("DONTNEED of 2 MiB at an offset of 4 KiB", written(PAGE_SIZE, TABLE), false),
    ("DONTNEED of 2 MiB at an offset of 1 MiB", written(MIB, TABLE), false),
    ("DONTNEED of 1 MiB", written(0, MIB), false),
    ("DONTNEED of 64 KiB", written(0, 64 * KIB), false),
    ("DONTNEED of 2 MiB of zero pages at an offset of 4 KiB", ZEROS, false),
    ("munmap of every second 1 MiB", Unmap, false),
    ("mremap of every second 1 MiB", Move, false),
    ("FREE of 2 MiB, and reclaim", Free, false),
];

pub(super) fn sweeps(lab: &mut Lab<'_>) -> Done {
    let (span, rounds) = (lab.scale.of(SPAN), lab.scale.of(SWEEP_ROUNDS));
    let gib = span as f64 / GIB as f64;
    lab.part(format!("{gib} GiB touched and dropped 2 MiB at a time: page tables at the end"));
    for (what, emptying, each_page) in SWEEPS {
        let stride = if each_page { 1 } else { lab.scale.of(STRIDE) };
        let pages = if each_page { String::new() } else { format!(", a page in {stride}") };
        // Its tables, two mappings a step, and what is touched.
        let terms = Terms::pages(span / 256 + 32 * MIB, apart(span) + TABLE, rounds);
        let job = sweep(emptying, stride, span, rounds as u64);
        lab.both(&format!("{gib} GiB, {what}{pages}"), terms, job, &SWEEP_ROWS)?;
    }
    Ok(())
}

/// A place behind `span` bytes, at a border of PMD tables.
fn apart(span: u64) -> u64 {
    span.next_multiple_of(GIB) + GIB
}

/// The loop over `span` bytes, a part of it in each of `rounds` rounds.
pub(super) fn sweep(emptying: Emptying, stride: u64, span: u64, rounds: u64) -> impl Job + Clone {
    let a_round = span / TABLE / rounds;
    // Where it is, and the page tables that the process had before.
    let (mut at, mut own) = (0, 0);
    move |process: &mut dyn Process| {
        if at == 0 {
            [own, _] = process.sizes()?;
            process.map(0, span + TABLE)?;
        }
        let start = now();
        for at in (0..a_round).map(|nth| at + nth * TABLE) {
            let (at, bytes, access) = match emptying {
                DontNeed { offset, access, .. } => (at + offset, TABLE, access),
                Unmap | Move => (at, TABLE / 2, Access::Write),
                Free => (at, TABLE, Access::Write),
            };
            process.touch(at, bytes, stride, access)?;
            match emptying {
                DontNeed { piece, .. } => (0..bytes / piece)
                    .try_for_each(|nth| process.advise(at + nth * piece, piece, Advice::DontNeed)),
                Unmap => process.unmap(at, bytes),
                Move => process.relocate(at, bytes, apart(span)),
                Free => process.advise(at, bytes, Advice::Free),
            }?;
        }
        let time = (now() - start) as f64 / 1000.0 / a_round as f64;
        at += a_round * TABLE;
        if emptying == Free && at == a_round * TABLE * rounds {
            process.reclaim(0, at)?;
        }
        let [tables, _] = process.sizes()?;
        Ok(round_figures(&[time, tables.saturating_sub(own) as f64]))
    }
}

/// What is touched and dropped again and again: a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Border {
    /// Whether its table has another page, so that it is never empty.
    beside: bool,
    at: u64,
    /// Bytes that are dropped from there on.
    dropped: u64,
    /// From there to the page that is touched every second time.
    apart: u64,
}

/// Each with its name, and what it is called where instructions are counted.
pub(super) const BORDERS: [(&str, &str, Border); 5] = {
    let page = Border { beside: false, at: TABLE / 2, dropped: PAGE_SIZE, apart: 0 };
    [
        ("a page, its table in use", "beside", Border { beside: true, ..page }),
        ("a page, its table empty", "page", page),
        ("2 MiB with a page in it", "whole", Border { at: 0, dropped: TABLE, ..page }),
        ("a page of two tables in turn", "tables", Border { apart: TABLE, ..page }),
        ("a page of two PMD tables in turn", "pmds", Border { apart: GIB, ..page }),
    ]
};

pub(super) fn borders(lab: &mut Lab<'_>) -> Done {
    lab.part("Memory that is touched and dropped again and again: ns for both");
    let (rounds, calls) = (lab.scale.of(ROUNDS), lab.scale.of(CALLS));
    BORDERS.into_iter().try_for_each(|(what, _, kind)| {
        let terms = Terms::warm(16 * MIB, 2 * GIB, rounds);
        let name = format!("touch and DONTNEED of {what}");
        lab.both(&name, terms, border(kind, calls), &[Row::times("ns/call", 0)])
    })
}

/// `calls` pairs of a touch and a `DONTNEED` in each round.
pub(super) fn border(kind: Border, calls: u64) -> impl Job + Clone {
    let mut mapped = false;
    move |process: &mut dyn Process| {
        if !mapped {
            process.map(0, 2 * GIB)?;
            mapped = true;
            if kind.beside {
                process.touch(0, PAGE_SIZE, 1, Access::Write)?;
            }
        }
        let start = now();
        for nth in 0..calls {
            let at = kind.at + nth % 2 * kind.apart;
            process.touch(at, PAGE_SIZE, 1, Access::Write)?;
            process.advise(at, kind.dropped, Advice::DontNeed)?;
        }
        Ok(round_figures(&[(now() - start) as f64 / calls as f64]))
    }
}
