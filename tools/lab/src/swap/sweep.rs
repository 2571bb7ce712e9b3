//! The posted table: memory is swapped out from its first page to its last, and back in.
//!
//! A window of it is populated at a time, which is not timed, and swapped out by `MADV_PAGEOUT`. When all is
//! out, a window at a time is read, page after page, and unmapped.

use super::compressed;
use super::nothing::Nothing;
use crate::clock::timed;
use crate::linux::{Linux, rounds_on_host};
use crate::patterns::{Contents, Patterns};
use crate::prelude::*;
use crate::report::Metric;
use core::ops::Range;
use quire_measure::{HostSwap, Swap, SwapKind};

/// Bytes of zeros that are swapped out and in.
const ZEROS: [u64; 3] = [30 * GIB, 192 * MIB, 8 * MIB];
/// Bytes of other contents.
const OTHERS: [u64; 3] = [512 * MIB, 8 * MIB, 4 * MIB];
/// Bytes that are in memory at a time meanwhile: a round.
const WINDOW: [u64; 3] = [256 * MIB, 48 * MIB, 4 * MIB];
/// Rounds of the layer.
const ROUNDS: [usize; 3] = super::store::ROUNDS;

/// Whose memory goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    /// The program's own.
    Private,
    /// Shared memory.
    Shared,
}

const SIZES: [Folios; 2] = [Folios::PAGES, Folios::PMD];

/// Of one way. The ratio is of the time on the CPU: one thread does everything.
const WAY_ROWS: [Row; 3] = [
    Row::lower("time_min", "ns/page", 0, Series::min),
    Row::lower("time_median", "ns/page", 0, Series::median),
    Row::cpu_times("ns/page", 1),
];
/// Pages of a window that came back wrong.
const WRONG: usize = 2;
const DEVICE_ROWS: [Row; 3] = [
    Row::own("cache_memory", "kB", 3, Series::max),
    Row::own("metadata_unused", "kB/GiB", 4, Series::last),
    Row::own("device_memory", "kB", 5, Series::max),
];

/// Memory that goes out and comes back, a window at a time.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    folios: Folios,
    sharing: Sharing,
    patterns: Patterns,
    pub(crate) bytes: u64,
    window: u64,
    /// What the device keeps of it.
    kept: u64,
}

impl Sweep {
    pub(crate) fn new(folios: Folios, contents: Contents, bytes: u64, window: u64) -> Self {
        let kept = if contents == Contents::Zeros { 0 } else { bytes };
        let sharing = Sharing::Private;
        Self { folios, sharing, patterns: Patterns::of(contents), bytes, window, kept }
    }

    /// The same of this memory.
    pub(crate) fn of(self, sharing: Sharing) -> Self {
        Self { sharing, ..self }
    }

    /// Maps all of it.
    pub(crate) fn map(&self, process: &mut dyn Process) -> Done {
        match self.sharing {
            Sharing::Private => process.map(0, self.bytes),
            Sharing::Shared => process.share(0, self.bytes),
        }
    }

    /// The size of the device. The metadata of its slots takes whole pages, which would dominate on a smaller
    /// one than this.
    fn device(&self) -> u64 {
        self.bytes.max(GIB)
    }

    /// A machine with the device, on which all fits.
    pub(crate) fn site(&self, techniques: Techniques) -> Done<Site> {
        // A PTE and a word for each page, the device's own table, and what it keeps.
        let memory = self.window + self.device() / PAGE_SIZE * 32 + self.kept + self.kept / 8;
        let site = Site::new(techniques, memory, 1, self.folios)?;
        site.with_swap(|machine| compressed(machine, pages(self.device())))
    }

    /// The pages of window `nth`.
    fn pages(&self, nth: u64) -> Range<u64> {
        nth * pages(self.window)..(nth + 1) * pages(self.window)
    }

    /// Populates window `nth`.
    pub(crate) fn fill(&self, process: &mut dyn Process, nth: u64) -> Done {
        process.fill(self.pages(nth), self.folios, &self.patterns)
    }

    /// Swaps it out: its time for a page, on the clock and on the CPU.
    pub(crate) fn out(&self, process: &mut dyn Process, nth: u64) -> Done<[f64; 2]> {
        let (out, time) = timed(|| process.advise(nth * self.window, self.window, Advice::PageOut));
        out.map(|()| self.a_page(time))
    }

    /// Swaps it in: its time for a page, and how many pages came back wrong.
    pub(crate) fn back(&self, process: &mut dyn Process, nth: u64) -> Done<([f64; 2], u64)> {
        let (wrong, time) = timed(|| process.wrong(self.pages(nth), &self.patterns));
        wrong.map(|wrong| (self.a_page(time), wrong))
    }

    /// Drops it.
    pub(crate) fn give_up(&self, process: &mut dyn Process, nth: u64) -> Done {
        let advice = match self.sharing {
            Sharing::Private => Advice::DontNeed,
            Sharing::Shared => Advice::Remove,
        };
        process.advise(nth * self.window, self.window, advice)
    }

    fn a_page(&self, time: [f64; 2]) -> [f64; 2] {
        time.map(|time| time / pages(self.window) as f64)
    }

    /// Windows, each of them a round out and a round in.
    fn window_count(&self) -> u64 {
        self.bytes / self.window
    }

    /// All windows out, then all back: times and wrong pages.
    fn job(&self) -> impl Job + use<> {
        let (sweep, mut round) = (self.clone(), 0);
        move |process: &mut dyn Process| {
            if round == 0 {
                sweep.map(process)?;
            }
            let nth = round % sweep.window_count();
            let ([clock, cpu], wrong) = if round < sweep.window_count() {
                sweep.fill(process, nth)?;
                (sweep.out(process, nth)?, 0)
            } else {
                let back = sweep.back(process, nth)?;
                sweep.give_up(process, nth)?;
                back
            };
            round += 1;
            Ok(round_figures(&[clock, cpu, wrong as f64]))
        }
    }

    /// A device of the host for it, as long as the result lives. Nothing is touched that was there before:
    /// `None` where swap is in use already, or the host does not let us.
    fn host_swap(&self) -> Option<HostSwap> {
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        let swap = Swap { kind: SwapKind::Zram, bytes: self.bytes + 64 * MIB };
        if swaps.lines().count() == 1 { HostSwap::start(swap).ok() } else { None }
    }
}

pub(crate) fn posted(lab: &mut Lab<'_>, sharing: Sharing) -> Done {
    let scale = lab.scale;
    let (zeros, others, window) = (scale.of(ZEROS), scale.of(OTHERS), scale.of(WINDOW));
    // Less of it, but some rounds, of whole folios.
    let (zeros, others) =
        ((zeros, window.min(zeros)), (others, (others / 4).clamp(Order::PMD.bytes(), window)));
    let (title, sizes) = match sharing {
        Sharing::Private => ("Swapped", SIZES.as_slice()),
        Sharing::Shared => ("Shared memory swapped", &SIZES[..1]),
    };
    lab.part(format!("{title} out and in on compressed RAM, from the first page to the last"));
    let mut linux = false;
    for (contents, what, (bytes, window)) in [
        (Contents::Zeros, "zeros", zeros),
        (Contents::Half, "pages that compress to half", others),
        (Contents::Noise, "pages that do not compress", others),
    ] {
        for &folios in sizes {
            let (size, unit) = if bytes >= GIB { (bytes / GIB, "GiB") } else { (bytes / MIB, "MiB") };
            let name = format!("{size} {unit} of {what}, {folios}");
            let sweep = Sweep::new(folios, contents, bytes, window).of(sharing);
            lab.case(&name, |lab| {
                linux |= posted_case(lab, &name, &sweep)?;
                Ok(())
            })?;
        }
    }
    lab.remark(match (linux, scale.host_swap) {
        (true, _) => "Linux on a zram of its own, which is gone again",
        (false, true) => "Linux left out: that takes root, zram, and that no swap is in use",
        (false, false) => "Linux left out",
    });
    Ok(())
}

/// Returns whether Linux did the same.
fn posted_case(lab: &mut Lab<'_>, name: &str, sweep: &Sweep) -> Done<bool> {
    // First, while this process is small.
    let swap = if lab.scale.host_swap { sweep.host_swap() } else { None };
    let linux = swap.as_ref().and_then(|_| {
        let memory = 8 * (sweep.window + sweep.kept) + sweep.bytes / 64;
        Linux::start(memory, rounds_on_host(sweep.job(), sweep.bytes))
    });
    let windows = sweep.window_count() as usize;
    let gib = sweep.device() as f64 / GIB as f64;
    let make = |techniques| sweep.site(techniques);
    let outcome = lab.on_sites((0, 2 * windows), linux, make, |site, space| {
        let kib = |site: &Site| {
            let report = site.swap();
            let bytes = report.map_or([0; 2], |it| [it.metadata_bytes, it.device.used_bytes]);
            bytes.map(|bytes| bytes as f64 / 1024.0)
        };
        let ([unused, _], mut quire, mut job) = (kib(site), Quire::new(site, space), sweep.job());
        Ok(Box::new(move |_| {
            let mut figures = job(&mut quire)?;
            let [metadata, used] = kib(site);
            figures[3..6].copy_from_slice(&[metadata - unused, unused / gib, used]);
            Ok(figures)
        }))
    })?;
    let ways = [outcome.only(0..windows), outcome.only(windows..2 * windows)];
    for (way, outcome) in ["out", "in"].into_iter().zip(&ways) {
        lab.rows(&format!("swap-{way}, {name}"), outcome, &WAY_ROWS);
    }
    let name = format!("both ways, {name}");
    let [(out, linux_out), (back, linux_back)] = ways.map(|way| way.values(1, Series::median));
    let both = out.iter().zip(back).map(|(out, back)| out + back).collect();
    let linux = linux_out.zip(linux_back).map(|(out, back)| out + back);
    lab.add(&name, Metric::lower("cpu_median", "ns/page"), (both, linux));
    lab.rows(&name, &outcome, &DEVICE_ROWS);
    for (nth, wrong) in outcome.values(WRONG, Series::max).0.into_iter().enumerate() {
        let finding = || format!("up to {wrong} pages of a window came back wrong");
        lab.found(nth, (wrong > 0.0).then(finding));
    }
    Ok(linux.is_some())
}

/// A window without a device: the cost of the swap layer itself for each page. Pages are not zeros, which
/// their first word shows.
pub(crate) fn layer(lab: &mut Lab<'_>) -> Done {
    let (bytes, rounds) = (lab.scale.of(WINDOW), lab.scale.of(ROUNDS));
    lab.part("The layer alone: pages that are not zeros, and a device that keeps nothing");
    for folios in SIZES {
        let name = format!("{} MiB, {folios}", bytes / MIB);
        lab.case(&name, |lab| {
            let make = |techniques| {
                let site = Site::new(techniques, bytes + bytes / PAGE_SIZE * 32, 1, folios)?;
                site.with_swap(|_| Ok(Nothing { slots: pages(bytes), ..Nothing::default() }))
            };
            let outcome = lab.on_sites((1, rounds), None, make, |site, space| {
                let sweep = Sweep::new(folios, Contents::Numbers, bytes, bytes);
                let mut process = Quire::new(site, space);
                process.map(0, bytes)?;
                Ok(Box::new(move |_| {
                    sweep.fill(&mut process, 0)?;
                    let [_, out] = sweep.out(&mut process, 0)?;
                    let ([_, back], _) = sweep.back(&mut process, 0)?;
                    sweep.give_up(&mut process, 0)?;
                    Ok(round_figures(&[out, back]))
                }))
            })?;
            for (nth, way) in ["out", "in"].into_iter().enumerate() {
                let name = format!("swap-{way} without a device, {name}");
                lab.rows(&name, &outcome, &[Row::cpu_times("ns/page", nth)]);
            }
            Ok(())
        })?;
    }
    Ok(())
}
