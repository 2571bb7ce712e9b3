//! A garbage collector that moves objects by moving their pages: one thread moves regions to and fro while
//! others fault in memory of their own. No fault may wait for a move.

use super::TIME_RATIO;
use super::scale::Scale;
use crate::crew::on_threads;
use crate::error::LabError;
use crate::folios::{Folios, pages};
use crate::linux::{Control, FIGURES, Host, Linux, RoundFigures, Work, beside, now};
use crate::process::{Process, Quire};
use crate::report::{Compared, Figure, Metric, Report, Section};
use crate::rounds::{Series, in_turn};
use crate::site::{HostSpace, RW, START, Site};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use quire_arch::{Access, PAGE_SIZE, VirtAddr};
use quire_mm::{MapFlags, MapRequest, RemapFlags};
use quire_space::RemapTechnique;

/// Threads that fault.
const FAULTING: [usize; 2] = [1, 3];
const REGIONS: u64 = 4;
const WARM_UP: usize = 1;
const GIB: u64 = 1 << 30;
/// Between one region and the next, and one thread's memory and the next: no table is shared.
const APART: u64 = GIB;
/// The other place of the first region: aligned as the first, to 2 MiB only.
const OTHER: u64 = 64 * GIB + (6 << 20);
/// The memory of the first thread that faults.
const OWN: u64 = 128 * GIB;
const AREA: u64 = 160 * GIB;

const PAUSE: Metric = Metric::lower("longest_pause", "us");
const FAULT: Metric = Metric::lower("fault_mean", "ns");
const INSIDE: Metric = Metric::higher("faults_inside_a_move", "per 1000 faults");
const FIRST: Metric = Metric::lower("first_fault_of_a_mapping", "us");
const MOVE: Metric = Metric::lower("move_median", "us/call");
const SHOOTDOWNS: Metric = Metric::lower("shootdowns", "per call");

/// What the threads share in a round, and its figures.
#[derive(Debug, Default)]
struct Board {
    ready: AtomicUsize,
    /// Threads that have faulted in all their memory.
    done: AtomicUsize,
    /// Odd while a move is under way.
    moving: AtomicU64,
    moves: AtomicU64,
    move_time: AtomicU64,
    faults: AtomicU64,
    fault_time: AtomicU64,
    longest: AtomicU64,
    /// The longest first fault of a thread, which gives its mapping an anon_vma and so takes the mmap lock.
    first: AtomicU64,
    inside: AtomicU64,
}

impl Board {
    /// Waits until the others come here.
    fn start(&self, threads: usize) {
        self.ready.fetch_add(1, Ordering::AcqRel);
        let mut attempt = 0;
        while self.ready.load(Ordering::Acquire) < threads {
            crate::crew::pause(attempt);
            attempt += 1;
        }
    }

    /// Moves until the others are done. `work` gets both places of a region.
    fn collect<E>(&self, faulting: usize, mut work: impl FnMut(u64, u64) -> Result<(), E>) -> Result<(), E> {
        let mut result = Ok(());
        while result.is_ok() && self.done.load(Ordering::Acquire) < faulting {
            for (from, to) in [(0, OTHER), (OTHER, 0)] {
                for region in 0..REGIONS {
                    let (from, to) = (from + region * APART, to + region * APART);
                    self.moving.fetch_add(1, Ordering::AcqRel);
                    let start = now();
                    let moved = work(from, to);
                    self.move_time.fetch_add(now() - start, Ordering::Relaxed);
                    self.moving.fetch_add(1, Ordering::AcqRel);
                    self.moves.fetch_add(1, Ordering::Relaxed);
                    result = result.and(moved);
                }
            }
        }
        result
    }

    /// Faults `count` pages in, from the first move on.
    fn fault<E>(&self, count: u64, mut touch: impl FnMut(u64) -> Result<(), E>) -> Result<(), E> {
        let (mut longest, mut time, mut inside, mut result) = (0, 0, 0, Ok(()));
        let mut attempt = 0;
        while self.moving.load(Ordering::Acquire) == 0 {
            crate::crew::pause(attempt);
            attempt += 1;
        }
        for page in 0..count {
            let before = self.moving.load(Ordering::Acquire);
            let start = now();
            result = touch(page);
            let took = now() - start;
            inside += u64::from(before % 2 == 1 && self.moving.load(Ordering::Acquire) == before);
            if page == 0 {
                self.first.fetch_max(took, Ordering::Relaxed);
            } else {
                (longest, time) = (longest.max(took), time + took);
            }
            if result.is_err() {
                break;
            }
        }
        self.faults.fetch_add(count, Ordering::Relaxed);
        self.fault_time.fetch_add(time, Ordering::Relaxed);
        self.inside.fetch_add(inside, Ordering::Relaxed);
        self.longest.fetch_max(longest, Ordering::Relaxed);
        self.done.fetch_add(1, Ordering::AcqRel);
        result
    }

    fn round_figures(self) -> RoundFigures {
        let (moves, faults) = (self.moves.into_inner().max(1) as f64, self.faults.into_inner().max(1) as f64);
        [
            self.longest.into_inner() as f64 / 1000.0,
            self.fault_time.into_inner() as f64 / faults,
            1000.0 * self.inside.into_inner() as f64 / faults,
            self.move_time.into_inner() as f64 / 1000.0 / moves,
            self.first.into_inner() as f64 / 1000.0,
        ]
    }
}

fn place(at: u64) -> VirtAddr {
    VirtAddr(START.0 + at)
}

/// The pattern in one space under one strategy.
struct Collector<'s> {
    site: &'s Site<RemapTechnique>,
    space: &'s HostSpace<'s>,
    faulting: usize,
    scale: Scale,
}

impl Collector<'_> {
    fn populate(&self) -> Result<(), LabError> {
        let mut process = Quire::new(self.site, self.space);
        (0..REGIONS)
            .try_for_each(|region| process.populate(region * APART, self.scale.region, 1, Folios::PAGES))
    }

    /// A round, and shootdowns for each move.
    fn round(&self) -> Result<(RoundFigures, f64), LabError> {
        let (space, machine, scale, faulting) = (self.space, self.site.machine(), &self.scale, self.faulting);
        let own = |thread: usize| OWN + thread as u64 * APART;
        for thread in 0..self.faulting {
            let request = MapRequest::anonymous(scale.fault_bytes, RW)
                .at(place(own(thread)), MapFlags::FIXED_NOREPLACE);
            self.site.run(|| space.mmap(&request))?;
        }
        let board = Board::default();
        let flushes = self.site.flushes();
        let worked = on_threads(1 + faulting, |thread, _| {
            let vcpu = machine.vcpu(1 + thread);
            board.start(1 + faulting);
            if thread == 0 {
                let vcpu = vcpu?;
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                return board.collect(faulting, |from, to| {
                    let moved = || space.mremap(place(from), scale.region, scale.region, flags, place(to));
                    vcpu.run(moved).map(|_| ()).map_err(LabError::from)
                });
            }
            let program = vcpu.as_ref().map(|vcpu| vcpu.program(space));
            board.fault(pages(scale.fault_bytes), |page| {
                let addr = place(own(thread - 1) + page * PAGE_SIZE);
                let Ok(program) = &program else { return Ok(()) };
                program.touch(addr, Access::Write).map_err(|error| LabError::Access(addr, error))
            })?;
            vcpu.map(|_| ()).map_err(LabError::from)
        });
        let flushes = self.site.flushes().since(flushes);
        worked.into_iter().collect::<Result<(), LabError>>()?;
        for thread in 0..self.faulting {
            self.site.run(|| space.munmap(place(own(thread)), scale.fault_bytes))?;
        }
        let moves = board.moves.load(Ordering::Relaxed);
        let sent: u64 = flushes.shootdowns.iter().sum();
        Ok((board.round_figures(), sent as f64 / moves.max(1) as f64))
    }
}

/// The same on Linux, by processes that share their memory.
struct OnLinux {
    faulting: usize,
    scale: Scale,
    control: Control,
    start: Option<usize>,
}

impl OnLinux {
    fn populate(&self, host: &mut Host<'_>) -> Result<(), ()> {
        (0..REGIONS).try_for_each(|region| host.populate(region * APART, self.scale.region, 1, Folios::PAGES))
    }
}

impl Work for OnLinux {
    fn round(&mut self) -> Option<RoundFigures> {
        let first = self.start.is_none();
        let mut host = Host::again(self.start, AREA, &self.control)?;
        self.start = Some(host.start());
        if first {
            self.populate(&mut host).ok()?;
        }
        let own = |thread: usize| OWN + thread as u64 * APART;
        (0..self.faulting).try_for_each(|thread| host.map(own(thread), self.scale.fault_bytes)).ok()?;
        let board = Board::default();
        let failed = AtomicUsize::new(0);
        let worked = beside(self.faulting, &|thread| {
            let mut host = host;
            board.start(1 + self.faulting);
            let worked = if thread == 0 {
                board.collect(self.faulting, |from, to| host.relocate(from, self.scale.region, to))
            } else {
                board.fault(pages(self.scale.fault_bytes), |page| {
                    host.touch(own(thread - 1) + page * PAGE_SIZE, PAGE_SIZE, 1, Access::Write)
                })
            };
            failed.fetch_add(usize::from(worked.is_err()), Ordering::Relaxed);
        });
        (0..self.faulting).try_for_each(|thread| host.unmap(own(thread), self.scale.fault_bytes)).ok()?;
        worked?;
        (failed.into_inner() == 0).then(|| board.round_figures())
    }
}

enum Subject<'s> {
    Quire(Collector<'s>, [Series; FIGURES], Series),
    Linux(Option<Linux>, [Series; FIGURES]),
}

impl Subject<'_> {
    fn round(&mut self, counts: bool) -> Result<(), LabError> {
        let (result, series) = match self {
            Self::Quire(work, series, shootdowns) => {
                let (result, sent) = work.round()?;
                if counts {
                    shootdowns.add(sent);
                }
                (result, series)
            }
            Self::Linux(linux, series) => {
                let Some(result) = linux.as_mut().and_then(Linux::round) else {
                    *linux = None;
                    return Ok(());
                };
                (result, series)
            }
        };
        if counts {
            series.iter_mut().zip(result).for_each(|(series, figure)| series.add(figure));
        }
        Ok(())
    }
}

pub(super) fn steps() -> u64 {
    FAULTING.len() as u64
}

pub(super) fn run(
    scale: &Scale,
    report: &mut Report<RemapTechnique>,
    step: &mut dyn FnMut(&str),
) -> Result<(), LabError> {
    let mut figures = Vec::new();
    for faulting in FAULTING {
        let name = format!(
            "regions of {} MiB move while {faulting} thread{} fault{}",
            scale.region >> 20,
            if faulting == 1 { "" } else { "s" },
            if faulting == 1 { "s" } else { "" }
        );
        step(&name);
        let bytes = REGIONS * scale.region + faulting as u64 * scale.fault_bytes;
        let work = OnLinux { faulting, scale: *scale, control: Control::of(Folios::PAGES), start: None };
        let linux = Linux::start(5 * bytes, work);
        let sites = Site::for_each_strategy(bytes, 2 + faulting, Folios::PAGES)?;
        let spaces = sites.iter().map(Site::space).collect::<Result<Vec<_>, _>>()?;
        let mut subjects = Vec::new();
        for (site, space) in sites.iter().zip(&spaces) {
            let work = Collector { site, space, faulting, scale: *scale };
            work.populate()?;
            subjects.push(Subject::Quire(work, Default::default(), Series::default()));
        }
        subjects.push(Subject::Linux(linux, Default::default()));
        in_turn(&mut subjects, WARM_UP + scale.other_rounds, |subject, number| {
            subject.round(number >= WARM_UP)
        })?;
        figures.extend(show(&name, &subjects));
        drop(subjects);
        for (site, space) in sites.iter().zip(spaces) {
            site.run(|| drop(space));
        }
        let found = sites.iter().flat_map(Site::findings);
        report.findings.extend(found.map(|finding| format!("{name}, {finding}")));
    }
    let title = "A collector moves regions while other threads fault in memory of their own".to_owned();
    report.sections.push(Section { title, figures });
    Ok(())
}

fn show(name: &str, subjects: &[Subject<'_>]) -> Vec<Figure<RemapTechnique>> {
    let of = |technique| {
        subjects.iter().find_map(|subject| match subject {
            Subject::Quire(work, series, sent) if work.site.technique == technique => Some((series, sent)),
            _ => None,
        })
    };
    let linux = subjects.iter().find_map(|subject| match subject {
        Subject::Linux(Some(_), series) => Some(series),
        _ => None,
    });
    let figure = |metric, nth: usize, value: fn(&Series) -> f64| {
        Figure::new(name, metric, |technique| of(technique).map(|(series, _)| value(&series[nth])))
            .with_linux(linux.map(|series| value(&series[nth])))
    };
    let base = of(RemapTechnique::BEFORE);
    vec![
        figure(PAUSE, 0, Series::max),
        figure(Metric { name: "longest_pause_of_a_round", ..PAUSE }, 0, Series::median),
        figure(FAULT, 1, Series::median),
        figure(INSIDE, 2, Series::median),
        figure(FIRST, 4, Series::median),
        figure(MOVE, 3, Series::median),
        Figure::new(name, SHOOTDOWNS, |technique| of(technique).map(|(_, sent)| sent.median())),
        Figure::new(name, TIME_RATIO, |technique| Some(of(technique)?.0[3].ratio_to(&base?.0[3]))),
    ]
}
