//! Memory that moves back and forth between two places: of all sizes, aligned in every way, in small and in
//! large folios.

use super::add_times;
use crate::case::Terms;
use crate::clock::now;
use crate::error::LabError;
use crate::experiment::Lab;
use crate::folios::{Folios, pages};
use crate::process::{Job, Process};
use crate::rounds::round_figures;
use crate::scale::{GIB, KIB, MIB, Scale};
use core::fmt;
use quire_arch::{Access, Order, PAGE_SIZE};

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

/// How the two places are aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alignment {
    /// At borders of PUD entries.
    Pud,
    /// At borders of PMD entries, and not alike at those of PUD entries.
    Pmd,
    /// A page behind borders of PUD entries, both.
    SamePage,
    /// One at such a border, one a page behind it.
    Page,
}

impl Alignment {
    /// Every alignment.
    const ALL: [Self; 4] = [Self::Pud, Self::Pmd, Self::SamePage, Self::Page];
    /// Those that differ in what moves at a time.
    const DISTINCT: [Self; 3] = [Self::Pud, Self::Pmd, Self::Page];
    /// Those of moves that no PUD entry fits into.
    const SMALL: [Self; 2] = [Self::Pmd, Self::Page];

    /// Its name, and the two places.
    const fn row(self) -> (&'static str, [u64; 2]) {
        match self {
            Self::Pud => ("aligned to 1 GiB", [0, APART]),
            Self::Pmd => ("aligned to 2 MiB", [0, APART + 3 * Order::PMD.bytes()]),
            Self::SamePage => ("both offset by a page", [PAGE_SIZE, APART + PAGE_SIZE]),
            Self::Page => ("one offset by a page", [0, APART + PAGE_SIZE]),
        }
    }
}

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
        write!(f, ", {}", self.alignment.row().0)?;
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
    let (_, [here, there]) = alignment.row();
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
        Ok(round_figures([a_call / 1000.0, a_call / what.pages() as f64]))
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
    let a_move =
        |bytes, alignment, stride, read| Move { bytes, alignment, stride, folios: Folios::PAGES, read };
    let (mut small, mut gib, mut large) = (Vec::new(), Vec::new(), Vec::new());
    for (bytes, read) in
        [(4 * KIB, false), (64 * KIB, false), (2 * MIB, false), (64 * MIB, false), (64 * MIB, true)]
    {
        small.extend(Alignment::SMALL.map(|alignment| a_move(bytes, alignment, 1, read)));
    }
    for read in [false, true] {
        gib.extend(Alignment::ALL.map(|alignment| a_move(GIB, alignment, scale.of(STRIDE), read)));
    }
    let largest = scale.of(LARGEST);
    if largest > GIB {
        // So many pages do not fit into memory: one for each table.
        gib.extend(Alignment::DISTINCT.map(|alignment| a_move(largest, alignment, 512, false)));
    }
    for folios in [Folios::of(Order::ALL[4]), Folios::PMD] {
        let bytes = scale.of(FOLIO_BYTES);
        large.extend(
            Alignment::DISTINCT.map(|alignment| Move { folios, ..a_move(bytes, alignment, 1, false) }),
        );
    }
    [
        ("mremap of up to 64 MiB of pages", small),
        ("mremap of 1 GiB of pages and more", gib),
        ("mremap of large folios", large),
    ]
}

pub(super) fn parts(lab: &mut Lab<'_>) -> Result<(), LabError> {
    for (title, cases) in all(lab.scale) {
        lab.part(title);
        for what in cases {
            lab.case(&what.to_string(), |case, name| {
                // Two sets of tables: the old ones, and those that a move needs.
                let memory = what.pages() * PAGE_SIZE + what.bytes / 256 + 8 * MIB;
                let terms = Terms { folios: what.folios, ..Terms::warm(memory, case.scale.of(ROUNDS)) };
                // So that a round is long enough for the clock.
                let job = moves(what, (GIB / what.bytes).clamp(2, 500));
                let outcome = case.on_both(terms, 2 * APART, &job)?;
                add_times(case, name, &outcome);
                Ok(())
            })?;
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
