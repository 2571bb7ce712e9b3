//! Memory that moves back and forth between two places: of all sizes, aligned in every way, in small and in
//! large folios.

use super::ROWS;
use crate::prelude::*;
use crate::scale::Scale;
use core::fmt;

/// In moves of more than 64 MiB one page of so many is present.
const STRIDE: [u64; 3] = [1, 16, 512];
/// The most bytes that move at a time.
const LARGEST: [u64; 3] = [16 * GIB, 16 * GIB, GIB];
/// Bytes that move in large folios.
const FOLIO_BYTES: [u64; 3] = [GIB, 64 * MIB, 4 * MIB];
/// Rounds.
const ROUNDS: [usize; 3] = [21, 7, 1];
/// From one place to the other: more than the largest move, and a multiple of the range of a PUD entry.
const APART: u64 = 32 * GIB;

/// How the two places are aligned: its name, and the places.
pub(super) type Alignment = (&'static str, [u64; 2]);

/// At borders of PUD entries.
pub(super) const PUD: Alignment = ("aligned to 1 GiB", [0, APART]);
/// At borders of PMD entries, and not alike at those of PUD entries.
pub(super) const PMD: Alignment = ("aligned to 2 MiB", [0, APART + 3 * Order::PMD.bytes()]);
/// A page behind borders of PUD entries, both.
pub(super) const SAME_PAGE: Alignment = ("both offset by a page", [PAGE_SIZE, APART + PAGE_SIZE]);
/// One at such a border, one a page behind it.
pub(super) const PAGE: Alignment = ("one offset by a page", [0, APART + PAGE_SIZE]);

const ALL: &[Alignment] = &[PUD, PMD, SAME_PAGE, PAGE];
/// Those that differ in what moves at a time.
const DISTINCT: &[Alignment] = &[PUD, PMD, PAGE];
/// Those of moves that no PUD entry fits into.
const SMALL: &[Alignment] = &[PMD, PAGE];

/// What moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) bytes: u64,
    pub(super) alignment: Alignment,
    /// Of so many pages one is present.
    pub(super) stride: u64,
    pub(super) folios: Folios,
    /// Whether the pages are read between moves.
    pub(super) read: bool,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            GIB.. => write!(f, "{} GiB", self.bytes / GIB)?,
            MIB.. => write!(f, "{} MiB", self.bytes / MIB)?,
            _ => write!(f, "{} KiB", self.bytes / KIB)?,
        }
        write!(f, ", {}", self.alignment.0)?;
        if self.folios.order > Order::ZERO {
            write!(f, ", {}", self.folios)?;
        }
        if self.stride > 1 {
            write!(f, ", a page in {}", self.stride)?;
        }
        if self.read { f.write_str(", read between") } else { Ok(()) }
    }
}

/// Moves back and forth, `pairs` times in a round.
pub(super) fn moves(what: Move, pairs: u64) -> impl Job + Clone {
    let Move { bytes, alignment, stride, folios, read } = what;
    let (_, [here, there]) = alignment;
    let mut populated = false;
    move |process: &mut dyn Process| {
        if !populated {
            process.populate(here, bytes, stride, folios)?;
            populated = true;
        }
        let mut time = 0;
        let mut start = now();
        for (from, to) in (0..pairs).flat_map(|_| [(here, there), (there, here)]) {
            if read {
                process.touch(from, bytes, stride, Access::Read)?;
                start = now();
            }
            process.relocate(from, bytes, to)?;
            if read {
                time += now() - start;
            }
        }
        // Where nothing comes between the moves, the clock is read once.
        let time = if read { time } else { now() - start };
        let a_call = time as f64 / (2 * pairs) as f64;
        Ok(round_figures(&[a_call / 1000.0, a_call / what.pages() as f64]))
    }
}

impl Move {
    /// Pages that are present.
    const fn pages(&self) -> u64 {
        pages(self.bytes).div_ceil(self.stride)
    }
}

/// Each part with its moves.
fn all(scale: Scale) -> [(&'static str, Vec<Move>); 3] {
    let (one, some, few) = (Folios::PAGES, scale.of(STRIDE), scale.of(FOLIO_BYTES));
    // Bytes, in folios, of which one page in so many is present and read or not, by alignment.
    let each = |cases: &[(u64, Folios, u64, bool, &[Alignment])]| {
        let moves = cases.iter().flat_map(|&(bytes, folios, stride, read, alignments)| {
            alignments.iter().map(move |&alignment| Move { bytes, alignment, stride, folios, read })
        });
        moves.collect::<Vec<_>>()
    };
    let small = each(&[
        (4 * KIB, one, 1, false, SMALL),
        (64 * KIB, one, 1, false, SMALL),
        (2 * MIB, one, 1, false, SMALL),
        (64 * MIB, one, 1, false, SMALL),
        (64 * MIB, one, 1, true, SMALL),
    ]);
    let mut gib = each(&[
        (GIB, one, some, false, ALL),
        (GIB, one, some, true, ALL),
        // So many pages do not fit into memory: one for each table.
        (scale.of(LARGEST), one, 512, false, DISTINCT),
    ]);
    if scale.of(LARGEST) == GIB {
        gib.truncate(2 * ALL.len());
    }
    let large =
        each(&[(few, Folios::of(Order::ALL[4]), 1, false, DISTINCT), (few, Folios::PMD, 1, false, DISTINCT)]);
    [
        ("mremap of up to 64 MiB of pages", small),
        ("mremap of 1 GiB of pages and more", gib),
        ("mremap of large folios", large),
    ]
}

pub(super) fn parts(lab: &mut Lab<'_>) -> Done {
    let rounds = lab.scale.of(ROUNDS);
    for (title, cases) in all(lab.scale) {
        lab.part(title);
        for what in cases {
            // Two sets of tables: the old ones, and those that a move needs.
            let memory = what.pages() * PAGE_SIZE + what.bytes / 256 + 8 * MIB;
            let terms = Terms { folios: what.folios, ..Terms::warm(memory, 2 * APART, rounds) };
            // So that a round is long enough for the clock.
            let job = moves(what, (GIB / what.bytes).clamp(2, 500));
            lab.both(&what.to_string(), terms, job, &ROWS)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_its_name() {
        let cases: Vec<_> = all(Scale::FULL).into_iter().flat_map(|(_, cases)| cases).collect();
        let names: std::collections::HashSet<_> = cases.iter().map(ToString::to_string).collect();
        assert_eq!((names.len(), cases.len()), (27, 27));
        assert!(names.contains("1 GiB, one offset by a page, read between"));
        assert!(names.contains("16 GiB, aligned to 2 MiB, a page in 512"));
        assert!(names.contains("1 GiB, aligned to 1 GiB, folios of 64 KiB"));
    }
}
