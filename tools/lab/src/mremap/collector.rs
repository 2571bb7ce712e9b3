//! A garbage collector that moves objects by moving their pages: one thread moves regions to and fro while
//! others fault in memory of their own. No fault may wait for a move.

use super::TIME_RATIO;
use super::scale::Scale;
use crate::contest::{Outcome, Terms};
use crate::crew::on_threads;
use crate::error::LabError;
use crate::experiment::{Measured, Part};
use crate::folios::{Folios, pages};
use crate::linux::{Control, Host, Linux, RoundFigures, Work, beside, now};
use crate::process::{Process, Quire};
use crate::report::Metric;
use crate::rounds::Series;
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

    /// The figures, with `shootdowns` that were sent meanwhile.
    fn round_figures(self, shootdowns: u64) -> RoundFigures {
        let (moves, faults) = (self.moves.into_inner().max(1) as f64, self.faults.into_inner().max(1) as f64);
        [
            self.longest.into_inner() as f64 / 1000.0,
            self.fault_time.into_inner() as f64 / faults,
            1000.0 * self.inside.into_inner() as f64 / faults,
            self.move_time.into_inner() as f64 / 1000.0 / moves,
            self.first.into_inner() as f64 / 1000.0,
            shootdowns as f64 / moves,
        ]
    }
}

fn place(at: u64) -> VirtAddr {
    VirtAddr(START.0 + at)
}

/// The pattern, with so many threads that fault.
#[derive(Clone, Copy)]
struct Collector {
    faulting: usize,
    scale: Scale,
}

impl Collector {
    fn populate<P: Process>(self, process: &mut P) -> Result<(), P::Error> {
        (0..REGIONS)
            .try_for_each(|region| process.populate(region * APART, self.scale.region, 1, Folios::PAGES))
    }

    fn round(self, site: &Site<RemapTechnique>, space: &HostSpace<'_>) -> Result<RoundFigures, LabError> {
        let Self { faulting, scale } = self;
        let machine = site.machine();
        let own = |thread: usize| OWN + thread as u64 * APART;
        for thread in 0..faulting {
            let request = MapRequest::anonymous(scale.fault_bytes, RW)
                .at(place(own(thread)), MapFlags::FIXED_NOREPLACE);
            site.run(|| space.mmap(&request))?;
        }
        let board = Board::default();
        let flushes = site.flushes();
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
        let flushes = site.flushes().since(flushes);
        worked.into_iter().collect::<Result<(), LabError>>()?;
        for thread in 0..faulting {
            site.run(|| space.munmap(place(own(thread)), scale.fault_bytes))?;
        }
        Ok(board.round_figures(flushes.shootdowns.iter().sum()))
    }
}

/// The same on Linux, by processes that share their memory.
struct OnLinux {
    collector: Collector,
    control: Control,
    start: Option<usize>,
}

impl Work for OnLinux {
    fn round(&mut self) -> Option<RoundFigures> {
        let Collector { faulting, scale } = self.collector;
        let first = self.start.is_none();
        let mut host = Host::again(self.start, AREA, &self.control)?;
        self.start = Some(host.start());
        if first {
            self.collector.populate(&mut host).ok()?;
        }
        let own = |thread: usize| OWN + thread as u64 * APART;
        (0..faulting).try_for_each(|thread| host.map(own(thread), scale.fault_bytes)).ok()?;
        let board = Board::default();
        let failed = AtomicUsize::new(0);
        let worked = beside(faulting, &|thread| {
            let mut host = host;
            board.start(1 + faulting);
            let worked = if thread == 0 {
                board.collect(faulting, |from, to| host.relocate(from, scale.region, to))
            } else {
                board.fault(pages(scale.fault_bytes), |page| {
                    host.touch(own(thread - 1) + page * PAGE_SIZE, PAGE_SIZE, 1, Access::Write)
                })
            };
            failed.fetch_add(usize::from(worked.is_err()), Ordering::Relaxed);
        });
        (0..faulting).try_for_each(|thread| host.unmap(own(thread), scale.fault_bytes)).ok()?;
        worked?;
        (failed.into_inner() == 0).then(|| board.round_figures(0))
    }
}

pub(super) fn part(scale: &Scale) -> Part<'_, RemapTechnique> {
    Part::new(
        "A collector moves regions while other threads fault in memory of their own",
        FAULTING,
        |&faulting| {
            let mib = scale.region >> 20;
            let (plural, singular) = if faulting == 1 { ("", "s") } else { ("s", "") };
            format!("regions of {mib} MiB move while {faulting} thread{plural} fault{singular}")
        },
        |name, faulting| measure(name, Collector { faulting, scale: *scale }),
    )
}

fn measure(name: &str, collector: Collector) -> Result<Measured<RemapTechnique>, LabError> {
    let Collector { faulting, scale } = collector;
    let bytes = REGIONS * scale.region + faulting as u64 * scale.fault_bytes;
    let on_linux = OnLinux { collector, control: Control::of(Folios::PAGES), start: None };
    let terms = Terms { cpus: 2 + faulting, warm_up: WARM_UP, ..Terms::pages(bytes, scale.other_rounds) };
    let outcome = Outcome::in_spaces(
        terms,
        Linux::start(5 * bytes, on_linux),
        |site, space| collector.populate(&mut Quire::new(site, space)),
        |site, space, ()| collector.round(site, space),
    )?;
    let figures = [
        outcome.figure(name, PAUSE, 0, Series::max),
        outcome.figure(name, Metric { name: "longest_pause_of_a_round", ..PAUSE }, 0, Series::median),
        outcome.figure(name, FAULT, 1, Series::median),
        outcome.figure(name, INSIDE, 2, Series::median),
        outcome.figure(name, FIRST, 4, Series::median),
        outcome.figure(name, MOVE, 3, Series::median),
        outcome.own_figure(name, SHOOTDOWNS, 5, Series::median),
        outcome.ratio(name, TIME_RATIO, 3),
    ];
    Ok(Measured::new(figures, outcome.findings))
}
