//! Memory that moves back and forth between two places: of all sizes, aligned in every way, in small and in
//! large folios.

use super::Scale;
use crate::contest::{Job, Outcome, Terms};
use crate::experiment::{Measured, Part};
use crate::folios::{Folios, pages};
use crate::linux::{RoundFigures, now, round_figures};
use crate::process::Process;
use crate::report::{Figure, Metric};
use crate::rounds::Series;
use crate::scale::{GIB, MIB};
use core::fmt;
use quire_arch::{Access, Order, PAGE_SIZE};
use quire_space::RemapTechnique;

const KIB: u64 = 1 << 10;
/// From one place to the other: more than the largest move, and a multiple of the range of a PUD entry.
const APART: u64 = 32 * GIB;
const WARM_UP: usize = 1;

const TIMES: [Metric; 2] = Metric::times("us/call");
const A_PAGE: Metric = Metric::lower("time_a_page", "ns/page");

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
    const ALL: [Self; 4] = [Self::Pud, Self::Pmd, Self::SamePage, Self::Page];

    const fn places(self) -> [u64; 2] {
        match self {
            Self::Pud => [0, APART],
            Self::Pmd => [0, APART + 3 * Order::PMD.bytes()],
            Self::SamePage => [PAGE_SIZE, APART + PAGE_SIZE],
            Self::Page => [0, APART + PAGE_SIZE],
        }
    }
}

impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pud => "aligned to 1 GiB",
            Self::Pmd => "aligned to 2 MiB",
            Self::SamePage => "both offset by a page",
            Self::Page => "one offset by a page",
        })
    }
}

/// What moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) bytes: u64,
    pub(super) alignment: Alignment,
    /// Of so many pages one is present.
    pub(super) stride: u64,
    pub(super) folios: Folios,
    /// Whether the pages are read between moves.
    pub(super) read: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            GIB.. => write!(f, "{} GiB", self.bytes / GIB)?,
            MIB.. => write!(f, "{} MiB", self.bytes / MIB)?,
            _ => write!(f, "{} KiB", self.bytes / KIB)?,
        }
        write!(f, ", {}", self.alignment)?;
        if self.folios.order > Order::ZERO {
            write!(f, ", {}", self.folios)?;
        }
        if self.stride > 1 {
            write!(f, ", a page in {}", self.stride)?;
        }
        if self.read { f.write_str(", read between") } else { Ok(()) }
    }
}

/// Moves back and forth.
#[derive(Clone, Debug)]
pub(super) struct Moves {
    case: Case,
    /// Pairs of moves in a round.
    pairs: u64,
    populated: bool,
}

impl Moves {
    pub(super) const fn new(case: Case, pairs: u64) -> Self {
        Self { case, pairs, populated: false }
    }

    /// Pages that are present.
    const fn pages(&self) -> u64 {
        pages(self.case.bytes).div_ceil(self.case.stride)
    }
}

impl Job for Moves {
    fn area(&self) -> u64 {
        2 * APART
    }

    fn round<P: Process>(&mut self, process: &mut P) -> Result<RoundFigures, P::Error> {
        let Case { bytes, alignment, stride, folios, read } = self.case;
        let [here, there] = alignment.places();
        if !self.populated {
            process.populate(here, bytes, stride, folios)?;
            self.populated = true;
        }
        let mut time = 0;
        if read {
            for (from, to) in (0..self.pairs).flat_map(|_| [(here, there), (there, here)]) {
                process.touch(from, bytes, stride, Access::Read)?;
                let start = now();
                process.relocate(from, bytes, to)?;
                time += now() - start;
            }
        } else {
            let start = now();
            for (from, to) in (0..self.pairs).flat_map(|_| [(here, there), (there, here)]) {
                process.relocate(from, bytes, to)?;
            }
            time = now() - start;
        }
        let a_call = time as f64 / (2 * self.pairs) as f64;
        Ok(round_figures([a_call / 1000.0, a_call / self.pages() as f64]))
    }
}

fn all(scale: &Scale) -> Vec<(&'static str, Vec<Case>)> {
    let case =
        |bytes, alignment, stride, read| Case { bytes, alignment, stride, folios: Folios::PAGES, read };
    let small = [4 * KIB, 64 * KIB, 2 * MIB, 64 * MIB]
        .into_iter()
        .flat_map(|bytes| [Alignment::Pmd, Alignment::Page].map(|alignment| case(bytes, alignment, 1, false)))
        .chain([Alignment::Pmd, Alignment::Page].map(|alignment| case(64 * MIB, alignment, 1, true)));
    let gib = [false, true]
        .into_iter()
        .flat_map(|read| Alignment::ALL.map(|alignment| case(GIB, alignment, scale.stride, read)));
    // So many pages do not fit into memory: one for each table.
    let largest = [Alignment::Pud, Alignment::Pmd, Alignment::Page]
        .map(|alignment| case(scale.largest, alignment, 512, false));
    let folios = [Folios::of(Order::ALL[4]), Folios::PMD].into_iter().flat_map(|folios| {
        [Alignment::Pud, Alignment::Pmd, Alignment::Page]
            .map(|alignment| Case { folios, ..case(scale.folio_bytes, alignment, 1, false) })
    });
    let mut gib: Vec<_> = gib.collect();
    if scale.largest > GIB {
        gib.extend(largest);
    }
    vec![
        ("mremap of up to 64 MiB of pages", small.collect()),
        ("mremap of 1 GiB of pages and more", gib),
        ("mremap of large folios", folios.collect()),
    ]
}

pub(super) fn parts(scale: &Scale) -> impl Iterator<Item = Part<'_, RemapTechnique>> {
    all(scale).into_iter().map(|(title, cases)| {
        Part::new(title, cases, Case::to_string, |name, case| {
            // So that a round is long enough for the clock.
            let job = Moves::new(case, (GIB / case.bytes).clamp(2, 500));
            // Two sets of tables: the old ones, and those that a move needs.
            let memory = job.pages() * PAGE_SIZE + case.bytes / 256 + (8 << 20);
            let terms = Terms {
                folios: case.folios,
                warm_up: WARM_UP,
                host_controls: scale.host_controls,
                ..Terms::pages(memory, scale.rounds)
            };
            let outcome = Outcome::of(terms, &job)?;
            Ok(Measured::new(times(&outcome, name), outcome.findings))
        })
    })
}

/// The times of calls, and of each page.
pub(super) fn times(outcome: &Outcome<RemapTechnique>, name: &str) -> Vec<Figure<RemapTechnique>> {
    let times = outcome.times(name, TIMES, 0);
    times.into_iter().chain([outcome.figure(name, A_PAGE, 1, Series::min)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_its_name() {
        let cases: Vec<_> = all(&Scale::FULL).into_iter().flat_map(|(_, cases)| cases).collect();
        let names: std::collections::HashSet<_> = cases.iter().map(ToString::to_string).collect();
        assert_eq!((names.len(), cases.len()), (27, 27));
        assert!(names.contains("1 GiB, one offset by a page, read between"));
        assert!(names.contains("16 GiB, aligned to 2 MiB, a page in 512"));
        assert!(names.contains("1 GiB, aligned to 1 GiB, folios of 64 KiB"));
    }
}
