//! The host's Linux, swapping to a compressed device of its own.
//!
//! Nothing is touched that was there before: where any swap is in use already, nothing is done.

use super::stage::{Contents, Patterns, timed};
use super::table::Case;
use crate::folios::{Folios, pages};
use crate::linux::{Area, Control, Linux, RoundFigures, Work, round_figures};
use quire_measure::{HostSwap, Swap, SwapKind};

/// A device for `case`, for as long as the result lives. `None` where swap is in use already, or the host
/// does not let us.
pub(super) fn swap_for(case: &Case) -> Option<HostSwap> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let swap = Swap { kind: SwapKind::Zram, bytes: case.bytes + (64 << 20) };
    if swaps.lines().count() == 1 { HostSwap::start(swap).ok() } else { None }
}

/// Quire's job, in a process of Linux's.
#[derive(Debug)]
pub(super) struct Swapping {
    case: Case,
    patterns: Patterns,
    control: Control,
    area: Option<Area>,
    round: u64,
}

impl Swapping {
    /// Starts the process. `None` where the host has too little memory.
    pub(super) fn start(case: &Case) -> Option<Linux> {
        let (patterns, control) = (Patterns::of(case.contents), Control::of(case.folios));
        let work = Self { case: *case, patterns, control, area: None, round: 0 };
        let kept = if case.contents == Contents::Zeros { 0 } else { case.bytes };
        Linux::start(8 * (case.window + kept) + case.bytes / 64, work)
    }

    fn fill(&self, part: Area) -> Option<()> {
        let set = self.control.set()?;
        let had = set.made();
        let huge = self.case.folios == Folios::PMD;
        part.advise(if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE })?;
        let first = self.round * pages(self.case.window);
        part.write_pages(|page, into| {
            let page = first + page;
            if let Some(bytes) = self.patterns.page(page) {
                into.copy_from_slice(bytes);
            }
            into[..8].copy_from_slice(&self.patterns.first_word(page).to_ne_bytes());
        });
        let made = set.made().wrapping_sub(had);
        (!huge || made >= self.case.folios.in_bytes(self.case.window)).then_some(())
    }
}

impl Work for Swapping {
    fn round(&mut self) -> Option<RoundFigures> {
        if self.area.is_none() {
            self.area = Some(Area::empty(self.case.bytes)?);
        }
        let windows = self.case.windows();
        let window = self.case.window as usize;
        let part = self.area?.part((self.round % windows) as usize * window, window);
        let of_a_page = |time: f64| time / pages(self.case.window) as f64;
        let time = if self.round < windows {
            self.fill(part)?;
            let (out, time) = timed(|| part.advise(libc::MADV_PAGEOUT));
            out?;
            time
        } else {
            let ((), time) = timed(|| part.read());
            part.advise(libc::MADV_DONTNEED)?;
            time
        };
        self.round += 1;
        Some(round_figures(time.map(of_a_page)))
    }
}
