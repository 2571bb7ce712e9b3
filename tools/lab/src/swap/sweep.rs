//! The posted table: memory is swapped out from its first page to its last, and back in.
//!
//! A window of it is populated at a time, which is not timed, and swapped out by `MADV_PAGEOUT`. When all is
//! out, a window at a time is read, page after page, and unmapped.

use super::compressed;
use crate::case::Outcome;
use crate::clock::timed;
use crate::error::LabError;
use crate::experiment::Lab;
use crate::folios::{Folios, pages};
use crate::linux::{Linux, rounds_on_host};
use crate::patterns::{Contents, Patterns};
use crate::process::{Job, Process, Quire};
use crate::report::Metric;
use crate::rounds::{Series, round_figures};
use crate::scale::{GIB, MIB};
use crate::site::Site;
use core::ops::Range;
use quire_arch::{Order, PAGE_SIZE, Platform};
use quire_measure::{HostSwap, Swap, SwapKind};
use quire_mm::{
    Techniques,
    space::Advice,
    swap::{DeviceFlags, DeviceMemory, PageIo, Submitted, SwapDevice},
};

/// Bytes of zeros that are swapped out and in.
const ZEROS: [u64; 3] = [30 * GIB, 192 * MIB, 8 * MIB];
/// Bytes of other contents.
const OTHERS: [u64; 3] = [512 * MIB, 8 * MIB, 4 * MIB];
/// Bytes that are in memory at a time meanwhile: a round.
const WINDOW: [u64; 3] = [256 * MIB, 48 * MIB, 4 * MIB];
/// Rounds of the layer.
const ROUNDS: [usize; 3] = super::store::ROUNDS;

const SIZES: [Folios; 2] = [Folios::PAGES, Folios::PMD];

const TIMES: [Metric; 2] = Metric::times("ns/page");
/// The time of one thread, which does everything, on the CPU.
const CPU_TIMES: [Metric; 2] = [Metric::lower("cpu_min", "ns/page"), Metric::lower("cpu_median", "ns/page")];
const CACHE: Metric = Metric::lower("cache_memory", "kB");
const UNUSED: Metric = Metric::lower("metadata_unused", "kB/GiB");
const USED: Metric = Metric::lower("device_memory", "kB");

/// Memory that goes out and comes back, a window at a time.
#[derive(Clone, Debug)]
pub(super) struct Sweep {
    folios: Folios,
    patterns: Patterns,
    pub(super) bytes: u64,
    window: u64,
    /// What the device keeps of it.
    kept: u64,
}

impl Sweep {
    pub(super) fn new(folios: Folios, contents: Contents, bytes: u64, window: u64) -> Self {
        let kept = if contents == Contents::Zeros { 0 } else { bytes };
        Self { folios, patterns: Patterns::of(contents), bytes, window, kept }
    }

    /// The size of the device. The metadata of its slots takes whole pages, which would dominate on a smaller
    /// one than this.
    fn device(&self) -> u64 {
        self.bytes.max(GIB)
    }

    /// A machine with the device, on which all fits.
    pub(super) fn site(&self, techniques: Techniques) -> Result<Site, LabError> {
        // A PTE and a word for each page, the device's own table, and what it keeps.
        let memory = self.window + self.device() / PAGE_SIZE * 32 + self.kept + self.kept / 8;
        let site = Site::new(techniques, memory, 1, self.folios.config())?;
        site.with_swap(|machine| compressed(machine, pages(self.device())))
    }

    /// The pages of window `nth`.
    fn pages(&self, nth: u64) -> Range<u64> {
        nth * pages(self.window)..(nth + 1) * pages(self.window)
    }

    /// Populates window `nth`.
    pub(super) fn fill(&self, process: &mut dyn Process, nth: u64) -> Result<(), LabError> {
        process.fill(self.pages(nth), self.folios, &self.patterns)
    }

    /// Swaps it out: its time for a page, on the clock and on the CPU.
    pub(super) fn out(&self, process: &mut dyn Process, nth: u64) -> Result<[f64; 2], LabError> {
        let (out, time) = timed(|| process.advise(nth * self.window, self.window, Advice::PageOut));
        out.map(|()| self.a_page(time))
    }

    /// Swaps it in: its time for a page, and how many pages came back wrong.
    pub(super) fn back(&self, process: &mut dyn Process, nth: u64) -> Result<([f64; 2], u64), LabError> {
        let (wrong, time) = timed(|| process.wrong(self.pages(nth), &self.patterns));
        wrong.map(|wrong| (self.a_page(time), wrong))
    }

    /// Drops it.
    pub(super) fn give_up(&self, process: &mut dyn Process, nth: u64) -> Result<(), LabError> {
        process.advise(nth * self.window, self.window, Advice::DontNeed)
    }

    fn a_page(&self, time: [f64; 2]) -> [f64; 2] {
        time.map(|time| time / pages(self.window) as f64)
    }

    /// Windows, each of them a round out and a round in.
    fn window_count(&self) -> u64 {
        self.bytes / self.window
    }

    /// All windows out, then all back: times and wrong pages.
    fn job(&self) -> impl Job + Clone {
        let (sweep, mut round) = (self.clone(), 0);
        move |process: &mut dyn Process| {
            if round == 0 {
                process.map(0, sweep.bytes)?;
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
            Ok(round_figures([clock, cpu, wrong as f64]))
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

pub(super) fn posted(lab: &mut Lab<'_>) -> Result<(), LabError> {
    let scale = lab.scale;
    let (zeros, others, window) = (scale.of(ZEROS), scale.of(OTHERS), scale.of(WINDOW));
    // Less of it, but some rounds, of whole folios.
    let (zeros, others) =
        ((zeros, window.min(zeros)), (others, (others / 4).clamp(Order::PMD.bytes(), window)));
    lab.part("Swapped out and in on compressed RAM, from the first page to the last");
    let mut linux = false;
    for (contents, what, (bytes, window)) in [
        (Contents::Zeros, "zeros", zeros),
        (Contents::Half, "pages that compress to half", others),
        (Contents::Noise, "pages that do not compress", others),
    ] {
        for folios in SIZES {
            let (size, unit) = if bytes >= GIB { (bytes / GIB, "GiB") } else { (bytes / MIB, "MiB") };
            let name = format!("{size} {unit} of {what}, {folios}");
            linux |= posted_case(lab, &name, &Sweep::new(folios, contents, bytes, window))?;
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
fn posted_case(lab: &mut Lab<'_>, name: &str, sweep: &Sweep) -> Result<bool, LabError> {
    let mut on_linux = false;
    lab.case(name, |case, name| {
        let job = sweep.job();
        // First, while this process is small.
        let swap = if case.scale.host_swap { sweep.host_swap() } else { None };
        let linux = swap.as_ref().and_then(|_| {
            let memory = 8 * (sweep.window + sweep.kept) + sweep.bytes / 64;
            Linux::start(memory, rounds_on_host(job.clone(), sweep.bytes, sweep.folios))
        });
        let windows = sweep.window_count() as usize;
        let make = |techniques| sweep.site(techniques);
        let (outcome, unused) = case.on_sites(make, |_, spaces| {
            let metadata = |site: &Site| site.swap().map_or(0, |report| report.metadata_bytes) as f64;
            let unused: Vec<f64> = spaces.iter().map(|(site, _)| metadata(site)).collect();
            let mut subjects: Vec<_> = spaces.iter().map(|subject| (subject, job.clone())).collect();
            let rounds = (0, 2 * windows);
            let outcome = Outcome::in_rounds(&mut subjects, linux, rounds, |((site, space), job), _| {
                let mut figures = job(&mut Quire::new(site, space))?;
                let used = site.swap().map_or(0, |report| report.device.used_bytes);
                figures[3..5].copy_from_slice(&[metadata(site), used as f64]);
                Ok(figures)
            })?;
            Ok((outcome, unused))
        })?;
        let [out, back] = [outcome.only(0..windows), outcome.only(windows..2 * windows)];
        for (way, outcome) in [("out", &out), ("in", &back)] {
            let name = format!("swap-{way}, {name}");
            case.rows(&name, outcome, &[(TIMES[0], 0, Series::min), (TIMES[1], 0, Series::median)]);
            // Of the time on the CPU: one thread does everything.
            case.times(&name, outcome, CPU_TIMES, 1);
        }
        let name = &format!("both ways, {name}");
        let [out_values, back_values] = [&out, &back].map(|outcome| outcome.values(1, Series::median));
        let both = out_values.iter().zip(back_values).map(|(out, back)| out + back).collect();
        let linux = out.on_linux(1, Series::median).zip(back.on_linux(1, Series::median));
        on_linux = linux.is_some();
        case.add_both(name, CPU_TIMES[1], both, linux.map(|(out, back)| out + back));
        let most = outcome.values(3, Series::max);
        let cache = most.iter().zip(&unused).map(|(most, unused)| (most - unused) / 1024.0);
        case.add(name, CACHE, cache.collect());
        let device = sweep.device() as f64 / GIB as f64;
        case.of_each(name, &unused, &[(UNUSED, &|unused| unused / 1024.0 / device)]);
        case.own_rows(name, &outcome, &[(USED, 4, |used| used.max() / 1024.0)]);
        for (nth, wrong) in outcome.values(2, Series::max).into_iter().enumerate() {
            case.found(
                nth,
                (wrong > 0.0).then(|| format!("up to {wrong} pages of a window came back wrong")),
            );
        }
        Ok(())
    })?;
    Ok(on_linux)
}

/// A device that keeps nothing: a write completes at once, and a read leaves the frame as it is. So pages do
/// not come back with their contents.
struct Nothing {
    slots: u64,
}

impl<P: Platform> SwapDevice<P> for Nothing {
    fn kind(&self) -> &'static str {
        "nothing"
    }

    fn slots(&self) -> u64 {
        self.slots
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::SYNCHRONOUS
    }

    unsafe fn submit(&self, _memory: DeviceMemory<'_, P>, _io: PageIo) -> Submitted {
        Submitted::Done(Ok(()))
    }
}

/// A window without a device: the cost of the swap layer itself for each page. Pages are not zeros, which
/// their first word shows.
pub(super) fn layer(lab: &mut Lab<'_>) -> Result<(), LabError> {
    let bytes = lab.scale.of(WINDOW);
    lab.part("The layer alone: pages that are not zeros, and a device that keeps nothing");
    for folios in SIZES {
        lab.case(&format!("{} MiB, {folios}", bytes / MIB), |case, name| {
            let sweep = Sweep::new(folios, Contents::Numbers, bytes, bytes);
            let memory = bytes + bytes / PAGE_SIZE * 32;
            let make = |techniques| {
                let site = Site::new(techniques, memory, 1, folios.config())?;
                site.with_swap(|_| Ok(Nothing { slots: pages(bytes) }))
            };
            let rounds = (1, case.scale.of(ROUNDS));
            let outcome = case.on_sites(make, |_, spaces| {
                let mut processes: Vec<_> =
                    spaces.iter().map(|(site, space)| Quire::new(site, space)).collect();
                processes.iter_mut().try_for_each(|process| process.map(0, bytes))?;
                Outcome::in_rounds(&mut processes, None, rounds, |process, _| {
                    sweep.fill(process, 0)?;
                    let [_, out] = sweep.out(process, 0)?;
                    let ([_, back], _) = sweep.back(process, 0)?;
                    sweep.give_up(process, 0)?;
                    Ok(round_figures([out, back]))
                })
            })?;
            for (nth, way) in ["out", "in"].into_iter().enumerate() {
                case.times(&format!("swap-{way} without a device, {name}"), &outcome, CPU_TIMES, nth);
            }
            Ok(())
        })?;
    }
    Ok(())
}
