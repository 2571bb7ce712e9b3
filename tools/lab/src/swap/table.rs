//! The posted table: memory is swapped out from its first page to its last, and back in.
//!
//! A window of it is populated at a time, which is not timed, and swapped out by `MADV_PAGEOUT`. When all is
//! out, a window at a time is read, page after page, and unmapped.

use super::TIME_RATIO;
use super::linux::Swapping;
use super::scale::Scale;
use super::stage::{Contents, Patterns, Stage, timed};
use crate::error::LabError;
use crate::folios::{Folios, pages};
use crate::linux::{FIGURES, Linux};
use crate::report::{Compared, Figure, Metric, Report, Section};
use crate::rounds::{Series, in_turn};
use crate::site::HostSpace;
use quire_arch::{Order, PAGE_SIZE};
use quire_mm::{CompressedRam, Lz4};
use quire_swap::SwapTechnique;

const CASES: [(Folios, Contents); 6] = [
    (Folios::PAGES, Contents::Zeros),
    (Folios::PMD, Contents::Zeros),
    (Folios::PAGES, Contents::Half),
    (Folios::PMD, Contents::Half),
    (Folios::PAGES, Contents::Noise),
    (Folios::PMD, Contents::Noise),
];

const MIN: Metric = Metric::lower("time_min", "ns/page");
const MEDIAN: Metric = Metric::lower("time_median", "ns/page");
const CPU: Metric = Metric::lower("cpu_median", "ns/page");
const CPU_MIN: Metric = Metric::lower("cpu_min", "ns/page");
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
        let size = if self.bytes >= 1 << 30 {
            format!("{} GiB", self.bytes >> 30)
        } else {
            format!("{} MiB", self.bytes >> 20)
        };
        format!("{size} of {what}, {}", self.folios)
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
    /// Out and in, each on the clock and on the CPU.
    series: [Series; 4],
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
        let (metadata, series) = ((unused, unused), Default::default());
        Self { stage, space, patterns, pages: pages(window), wrong: 0, series, metadata, used: 0 }
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

enum Subject<'s> {
    Quire(Box<Sweep<'s>>),
    Linux(Option<Linux>, [Series; FIGURES]),
}

impl Subject<'_> {
    fn round(&mut self, number: u64, windows: u64) -> Result<(), LabError> {
        let out = number < windows;
        let first = if out { 0 } else { 2 };
        match self {
            Self::Quire(sweep) => {
                let times = if out {
                    sweep.fill(number)?;
                    sweep.out(number)?
                } else {
                    let times = sweep.back(number - windows)?;
                    sweep.give_up(number - windows)?;
                    times
                };
                sweep.series[first..].iter_mut().zip(times).for_each(|(series, time)| series.add(time));
            }
            Self::Linux(linux, series) => match linux.as_mut().and_then(Linux::round) {
                Some(result) => {
                    series[first..].iter_mut().zip(&result[..2]).for_each(|(series, time)| series.add(*time));
                }
                None => *linux = None,
            },
        }
        Ok(())
    }
}

pub(super) fn steps() -> u64 {
    CASES.len() as u64
}

/// A machine for `case` with its device, on which all fits.
pub(super) fn stage(technique: SwapTechnique, case: &Case) -> Result<Stage, LabError> {
    Stage::new(technique, (case.memory(), 1), case.folios, |site| {
        Ok(CompressedRam::new(site.machine().memory().frames(), pages(case.device()), Lz4)?)
    })
}

pub(super) fn run(
    scale: &Scale,
    report: &mut Report<SwapTechnique>,
    step: &mut dyn FnMut(&str),
) -> Result<(), LabError> {
    let mut figures = Vec::new();
    let mut linux = false;
    for (folios, contents) in CASES {
        let case = Case::new(folios, contents, scale);
        step(&case.name());
        linux |= run_case(&case, scale, report, &mut figures)?;
    }
    let beside = match (linux, scale.host_swap) {
        (true, _) => "Linux on a zram of its own, which is gone again",
        (false, true) => "Linux left out: that takes root, zram, and that no swap is in use",
        (false, false) => "Linux left out",
    };
    let title = format!("Swapped out and in on compressed RAM, from the first page to the last ({beside})");
    report.sections.push(Section { title, figures });
    Ok(())
}

/// Returns whether Linux did the same.
fn run_case(
    case: &Case,
    scale: &Scale,
    report: &mut Report<SwapTechnique>,
    figures: &mut Vec<Figure<SwapTechnique>>,
) -> Result<bool, LabError> {
    let patterns = Patterns::of(case.contents);
    // First, while this process is small.
    let linux = if scale.host_swap { Swapping::start(case) } else { None };
    let all = SwapTechnique::ALL;
    let stages = all.iter().map(|&technique| stage(technique, case)).collect::<Result<Vec<_>, _>>()?;
    let spaces = stages.iter().map(|stage| stage.program(case.bytes, None)).collect::<Result<Vec<_>, _>>()?;
    let mut subjects: Vec<_> = stages
        .iter()
        .zip(&spaces)
        .map(|(stage, space)| Subject::Quire(Box::new(Sweep::new(stage, space, &patterns, case.window))))
        .collect();
    subjects.push(Subject::Linux(linux, Default::default()));
    let windows = case.windows();
    in_turn(&mut subjects, 2 * windows as usize, |subject, number| subject.round(number as u64, windows))?;
    let did = show(case, &subjects, report, figures);
    drop(subjects);
    for (stage, space) in stages.iter().zip(spaces) {
        stage.run(|| drop(space));
    }
    let found = stages.into_iter().flat_map(Stage::end);
    report.findings.extend(found.map(|finding| format!("{}, {finding}", case.name())));
    Ok(did)
}

fn show(
    case: &Case,
    subjects: &[Subject<'_>],
    report: &mut Report<SwapTechnique>,
    figures: &mut Vec<Figure<SwapTechnique>>,
) -> bool {
    let of = |technique| {
        subjects.iter().find_map(|subject| match subject {
            Subject::Quire(sweep) if sweep.stage.technique == technique => Some(sweep),
            _ => None,
        })
    };
    let linux = subjects.iter().find_map(|subject| match subject {
        Subject::Linux(Some(_), series) => Some(series),
        _ => None,
    });
    for subject in subjects {
        if let Subject::Quire(sweep) = subject
            && sweep.wrong > 0
        {
            let technique = sweep.stage.technique.name();
            report.findings.push(format!(
                "{}, {technique}: {} pages came back wrong",
                case.name(),
                sweep.wrong
            ));
        }
    }
    let base = of(SwapTechnique::BEFORE);
    for (which, first) in [("out", 0), ("in", 2)] {
        let name = format!("swap-{which}, {}", case.name());
        let mut add = |metric, nth: usize, value: fn(&Series) -> f64| {
            let figure =
                Figure::new(&name, metric, |technique| of(technique).map(|sweep| value(&sweep.series[nth])));
            figures.push(figure.with_linux(linux.map(|series| value(&series[nth]))));
        };
        add(MIN, first, Series::min);
        add(MEDIAN, first, Series::median);
        add(CPU_MIN, first + 1, Series::min);
        add(CPU, first + 1, Series::median);
        figures.push(Figure::new(&name, TIME_RATIO, |technique| {
            // Of the time on the CPU: one thread does everything.
            Some(of(technique)?.series[first + 1].ratio_to(&base?.series[first + 1]))
        }));
    }
    let both = format!("both ways, {}", case.name());
    let two_ways = |series: &[Series]| series[1].median() + series[3].median();
    let figure = Figure::new(&both, CPU, |technique| of(technique).map(|sweep| two_ways(&sweep.series)));
    figures.push(figure.with_linux(linux.map(|series| two_ways(series))));
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    figures.push(Figure::new(&both, CACHE, |technique| {
        of(technique).map(|sweep| kib(sweep.metadata.1 - sweep.metadata.0))
    }));
    figures.push(Figure::new(&both, UNUSED, |technique| {
        of(technique).map(|sweep| kib(sweep.metadata.0) / (case.device() as f64 / f64::from(1 << 30)))
    }));
    figures.push(Figure::new(&both, USED, |technique| of(technique).map(|sweep| kib(sweep.used))));
    linux.is_some()
}
