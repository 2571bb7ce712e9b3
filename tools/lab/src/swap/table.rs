//! The posted table: memory is swapped out from its first page to its last, and back in.
//!
//! A window of it is populated at a time, which is not timed, and swapped out by `MADV_PAGEOUT`. When all is
//! out, a window at a time is read, page after page, and unmapped.

use super::CPU_TIMES;
use super::Scale;
use super::linux::{Swapping, swap_for};
use super::stage::{Contents, Patterns, Stage, on_stages, timed};
use crate::contest::Outcome;
use crate::error::LabError;
use crate::experiment::{Measured, Part};
use crate::folios::{Folios, pages};
use crate::linux::round_figures;
use crate::report::{Figure, Metric};
use crate::rounds::Series;
use crate::scale::{GIB, MIB};
use crate::site::HostSpace;
use quire_arch::{Order, PAGE_SIZE};
use quire_swap::SwapTechnique;

const CASES: [(Folios, Contents); 6] = [
    (Folios::PAGES, Contents::Zeros),
    (Folios::PMD, Contents::Zeros),
    (Folios::PAGES, Contents::Half),
    (Folios::PMD, Contents::Half),
    (Folios::PAGES, Contents::Noise),
    (Folios::PMD, Contents::Noise),
];

const TIMES: [Metric; 2] = Metric::times("ns/page");
const CACHE: Metric = Metric::lower("cache_memory", "kB");
const UNUSED: Metric = Metric::lower("metadata_unused", "kB/GiB");
const USED: Metric = Metric::lower("device_memory", "kB");

/// The smallest device: the metadata of its slots takes whole pages, which would dominate on a smaller one.
const LEAST_DEVICE: u64 = 1 << 30;

/// The parameters of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) folios: Folios,
    pub(super) contents: Contents,
    pub(super) bytes: u64,
    pub(super) window: u64,
}

impl Case {
    pub(super) fn new(folios: Folios, contents: Contents, scale: &Scale) -> Self {
        if contents == Contents::Zeros {
            return Self { folios, contents, bytes: scale.zeros, window: scale.window.min(scale.zeros) };
        }
        // Less of it, but some rounds, of whole folios.
        let window = (scale.contents / 4).clamp(Order::PMD.bytes(), scale.window);
        Self { folios, contents, bytes: scale.contents, window }
    }

    /// Windows, each of them a round out and a round in.
    pub(super) fn windows(&self) -> u64 {
        self.bytes / self.window
    }

    fn name(&self) -> String {
        let what = match self.contents {
            Contents::Zeros => "zeros",
            Contents::Numbers => "numbers",
            Contents::Half => "pages that compress to half",
            Contents::Noise => "pages that do not compress",
        };
        let (size, unit) =
            if self.bytes >= GIB { (self.bytes / GIB, "GiB") } else { (self.bytes / MIB, "MiB") };
        format!("{size} {unit} of {what}, {}", self.folios)
    }

    /// The size of the device.
    fn device(&self) -> u64 {
        self.bytes.max(LEAST_DEVICE)
    }

    /// RAM beside what is populated: a PTE and a word for each page, the device's own table, and what it
    /// keeps.
    fn memory(&self) -> u64 {
        let kept = if self.contents == Contents::Zeros { 0 } else { self.bytes };
        self.window + self.device() / PAGE_SIZE * 32 + kept + kept / 8
    }
}

/// The memory of every space under one strategy.
pub(super) struct Sweep<'s> {
    stage: &'s Stage,
    space: &'s HostSpace<'s>,
    patterns: &'s Patterns,
    pages: u64,
    wrong: u64,
    /// Metadata of the slots before anything was swapped, and the most after.
    metadata: (u64, u64),
    used: u64,
}

impl<'s> Sweep<'s> {
    pub(super) fn new(
        stage: &'s Stage,
        space: &'s HostSpace<'s>,
        patterns: &'s Patterns,
        window: u64,
    ) -> Self {
        let unused = stage.report().map_or(0, |report| report.metadata_bytes);
        Self { stage, space, patterns, pages: pages(window), wrong: 0, metadata: (unused, unused), used: 0 }
    }

    /// Populates window `nth`.
    pub(super) fn fill(&self, nth: u64) -> Result<(), LabError> {
        self.stage.fill(self.space, (nth * self.pages, self.pages), self.patterns)
    }

    /// Swaps it out: its time for a page, on the clock and on the CPU.
    pub(super) fn out(&mut self, nth: u64) -> Result<[f64; 2], LabError> {
        let first = nth * self.pages;
        let (out, time) = timed(|| self.stage.page_out(self.space, first, self.pages));
        out?;
        if let Some(report) = self.stage.report() {
            self.metadata.1 = self.metadata.1.max(report.metadata_bytes);
            self.used = self.used.max(report.device.used_bytes);
        }
        Ok(time.map(|time| time / self.pages as f64))
    }

    /// Swaps it in.
    pub(super) fn back(&mut self, nth: u64) -> Result<[f64; 2], LabError> {
        let first = nth * self.pages;
        let (read, time) = timed(|| self.stage.read(self.space, (first, self.pages), self.patterns));
        self.wrong += read?;
        Ok(time.map(|time| time / self.pages as f64))
    }

    /// Drops it.
    pub(super) fn give_up(&self, nth: u64) -> Result<(), LabError> {
        self.stage.drop_pages(self.space, nth * self.pages, self.pages)
    }
}

/// A machine for `case` with its device, on which all fits.
pub(super) fn stage(technique: SwapTechnique, case: &Case) -> Result<Stage, LabError> {
    Stage::compressed(technique, (case.memory(), 1), case.folios, pages(case.device()))
}

pub(super) fn part(scale: &Scale) -> Part<'_, SwapTechnique> {
    Part::new(
        "Swapped out and in on compressed RAM, from the first page to the last",
        CASES.map(|(folios, contents)| Case::new(folios, contents, scale)),
        Case::name,
        |name, case| measure(name, &case, scale),
    )
    .with_remark(|figures| {
        let linux = figures.iter().any(|figure| figure.linux.is_some());
        let remark = match (linux, scale.host_swap) {
            (true, _) => "Linux on a zram of its own, which is gone again",
            (false, true) => "Linux left out: that takes root, zram, and that no swap is in use",
            (false, false) => "Linux left out",
        };
        remark.to_owned()
    })
}

fn measure(name: &str, case: &Case, scale: &Scale) -> Result<Measured<SwapTechnique>, LabError> {
    let patterns = Patterns::of(case.contents);
    // First, while this process is small.
    let swap = if scale.host_swap { swap_for(case) } else { None };
    let mut linux = swap.as_ref().and_then(|_| Swapping::start(case));
    let windows = case.windows() as usize;
    let ((figures, mut findings), found) = on_stages(
        (case.bytes, None),
        |technique| stage(technique, case),
        |programs| {
            let mut sweeps: Vec<_> = programs
                .iter()
                .map(|(stage, space)| (stage.technique, Sweep::new(stage, space, &patterns, case.window)))
                .collect();
            let out = Outcome::in_rounds(&mut sweeps, &mut linux, (0, windows), |sweep, nth| {
                sweep.fill(nth as u64)?;
                sweep.out(nth as u64).map(round_figures)
            })?;
            let back = Outcome::in_rounds(&mut sweeps, &mut linux, (0, windows), |sweep, nth| {
                let times = sweep.back(nth as u64)?;
                sweep.give_up(nth as u64)?;
                Ok(round_figures(times))
            })?;
            // Linux has figures only where it went both ways.
            let out = if linux.is_some() { out } else { out.without_linux() };
            let wrong = sweeps.iter().filter(|(_, sweep)| sweep.wrong > 0).map(|(technique, sweep)| {
                format!("{}: {} pages came back wrong", technique.name(), sweep.wrong)
            });
            Ok((figures(name, case, [&out, &back], &sweeps), wrong.collect::<Vec<_>>()))
        },
    )?;
    findings.extend(found);
    Ok(Measured::new(figures, findings))
}

/// The figures of what went out and came back.
fn figures(
    name: &str,
    case: &Case,
    ways: [&Outcome<SwapTechnique>; 2],
    sweeps: &[(SwapTechnique, Sweep<'_>)],
) -> Vec<Figure<SwapTechnique>> {
    let mut figures = Vec::new();
    for (way, outcome) in ["out", "in"].into_iter().zip(ways) {
        let name = format!("swap-{way}, {name}");
        figures.push(outcome.figure(&name, TIMES[0], 0, Series::min));
        figures.push(outcome.figure(&name, TIMES[1], 0, Series::median));
        // Of the time on the CPU: one thread does everything.
        figures.extend(outcome.times(&name, CPU_TIMES, 1));
    }
    let name = format!("both ways, {name}");
    let [out, back] = ways.map(|outcome| outcome.figure(&name, CPU_TIMES[1], 1, Series::median));
    let linux = out.linux.zip(back.linux).map(|(out, back)| out + back);
    let both = Figure::new(&name, CPU_TIMES[1], |technique| Some(out.of(technique)? + back.of(technique)?));
    let of_sweep = |metric, value: &dyn Fn(&Sweep<'_>) -> f64| Figure::of_each(&name, metric, sweeps, value);
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    let device = case.device() as f64 / f64::from(1 << 30);
    figures.extend([
        both.with_linux(linux),
        of_sweep(CACHE, &|sweep| kib(sweep.metadata.1 - sweep.metadata.0)),
        of_sweep(UNUSED, &|sweep| kib(sweep.metadata.0) / device),
        of_sweep(USED, &|sweep| kib(sweep.used)),
    ]);
    figures
}
