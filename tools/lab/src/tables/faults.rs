//! Page faults of one, two and four threads of a process, each in memory of its own: what faults pay for
//! tables that may be freed.

use super::TIME_RATIO;
use super::scale::Scale;
use crate::crew::on_threads;
use crate::error::LabError;
use crate::folios::{Folios, pages};
use crate::linux::{Area, Linux, RoundFigures, Work, beside, now, round_figures};
use crate::report::{Compared, Figure, Metric, Report, Section};
use crate::rounds::{Series, in_turn};
use crate::site::{HostSpace, RW, START, Site};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use quire_arch::{Access, PAGE_SIZE, VirtAddr};
use quire_mm::{MapFlags, MapRequest};
use quire_space::TablesTechnique;
use std::time::Instant;

const THREADS: [usize; 3] = [1, 2, 4];
const WARM_UP: usize = 2;
/// Between the memory of one thread and the next.
const APART: u64 = 1 << 30;

const RATE: Metric = Metric::higher("faults_a_minute", "millions");
const TIME_MIN: Metric = Metric::lower("time_min", "ns/fault");
const TIME_MEDIAN: Metric = Metric::lower("time_median", "ns/fault");

/// Faults in one space under one strategy.
struct Faults<'s> {
    site: &'s Site<TablesTechnique>,
    space: &'s HostSpace<'s>,
    threads: usize,
    bytes: u64,
}

impl Faults<'_> {
    /// Nanoseconds from the first fault to the last of all.
    fn round(&self) -> Result<f64, LabError> {
        let (space, bytes, machine) = (self.space, self.bytes, self.site.machine());
        let start = |thread: usize| VirtAddr(START.0 + thread as u64 * APART);
        for thread in 0..self.threads {
            let request = MapRequest::anonymous(bytes, RW).at(start(thread), MapFlags::FIXED_NOREPLACE);
            self.site.run(|| space.mmap(&request))?;
        }
        let times = on_threads(self.threads, |thread, line| {
            let vcpu = machine.vcpu(1 + thread);
            let touch_first = || {
                let addr = start(thread);
                let vcpu = vcpu.as_ref().map_err(|&error| LabError::Vcpu(error))?;
                let program = vcpu.program(space);
                program.touch(addr, Access::Write).map_err(|error| LabError::Access(addr, error))
            };
            // The first private page of a mapping takes the slow path.
            let first = touch_first();
            line.wait(1);
            first?;
            let began = Instant::now();
            vcpu?.program(space).inside(|guest| {
                (1..pages(bytes)).try_for_each(|page| {
                    let addr = VirtAddr(start(thread).0 + page * PAGE_SIZE);
                    guest.touch(addr, Access::Write).map_err(|error| LabError::Access(addr, error))
                })
            })?;
            Ok((began, Instant::now()))
        });
        let times = times.into_iter().collect::<Result<Vec<_>, LabError>>()?;
        for thread in 0..self.threads {
            self.site.run(|| space.munmap(start(thread), bytes))?;
        }
        let began = times.iter().map(|&(began, _)| began).min();
        let ended = times.iter().map(|&(_, ended)| ended).max();
        Ok(began.zip(ended).map_or(0.0, |(began, ended)| (ended - began).as_nanos() as f64))
    }
}

/// The same on Linux, by processes that share their memory.
struct OnLinux {
    threads: usize,
    bytes: u64,
}

impl Work for OnLinux {
    fn round(&mut self) -> Option<RoundFigures> {
        let areas: [Option<Area>; 4] =
            core::array::from_fn(|thread| if thread < self.threads { Area::empty(self.bytes) } else { None });
        let ready = AtomicUsize::new(0);
        let (began, ended) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        let fault = |thread: usize| {
            ready.fetch_add(1, Ordering::AcqRel);
            while ready.load(Ordering::Acquire) < self.threads {
                core::hint::spin_loop();
            }
            began.fetch_min(now(), Ordering::Relaxed);
            if let Some(area) = areas[thread] {
                area.write();
            }
            ended.fetch_max(now(), Ordering::Relaxed);
        };
        let worked = beside(self.threads - 1, &fault);
        areas.into_iter().flatten().for_each(Area::unmap);
        worked?;
        let time = ended.load(Ordering::Relaxed) - began.load(Ordering::Relaxed);
        Some(round_figures([time as f64]))
    }
}

enum Subject<'s> {
    Quire(Faults<'s>, Series),
    Linux(Option<Linux>, Series),
}

impl Subject<'_> {
    fn round(&mut self, counts: bool, faults: f64) -> Result<(), LabError> {
        let (time, series) = match self {
            Self::Quire(work, series) => (work.round()?, series),
            Self::Linux(linux, series) => {
                let Some([time, ..]) = linux.as_mut().and_then(Linux::round) else {
                    *linux = None;
                    return Ok(());
                };
                (time, series)
            }
        };
        if counts {
            series.add(time / faults);
        }
        Ok(())
    }
}

pub(super) fn steps() -> u64 {
    THREADS.len() as u64
}

pub(super) fn run(
    scale: &Scale,
    report: &mut Report<TablesTechnique>,
    step: &mut dyn FnMut(&str),
) -> Result<(), LabError> {
    let mut figures = Vec::new();
    for threads in THREADS {
        let name = format!("page faults, {threads} thread{}", if threads == 1 { "" } else { "s" });
        step(&name);
        let all = threads as u64 * scale.fault_bytes;
        let linux = Linux::start(4 * all, OnLinux { threads, bytes: scale.fault_bytes });
        let sites = Site::for_each_strategy(all, 1 + threads, Folios::PAGES)?;
        let spaces = sites.iter().map(Site::space).collect::<Result<Vec<_>, _>>()?;
        let mut subjects: Vec<_> = sites
            .iter()
            .zip(&spaces)
            .map(|(site, space)| {
                let work = Faults { site, space, threads, bytes: scale.fault_bytes };
                Subject::Quire(work, Series::default())
            })
            .collect();
        subjects.push(Subject::Linux(linux, Series::default()));
        let faults = pages(all) as f64;
        in_turn(&mut subjects, WARM_UP + scale.rounds, |subject, number| {
            subject.round(number >= WARM_UP, faults)
        })?;
        figures.extend(show(&name, &subjects));
        drop(subjects);
        for (site, space) in sites.iter().zip(spaces) {
            site.run(|| drop(space));
        }
        let found = sites.iter().flat_map(Site::findings);
        report.findings.extend(found.map(|finding| format!("{name}, {finding}")));
    }
    let title = "Page faults in memory of one process, each thread in a mapping of its own".to_owned();
    report.sections.push(Section { title, figures });
    Ok(())
}

fn show(name: &str, subjects: &[Subject<'_>]) -> Vec<Figure<TablesTechnique>> {
    let of = |technique| {
        subjects.iter().find_map(|subject| match subject {
            Subject::Quire(work, series) if work.site.technique == technique => Some(series),
            _ => None,
        })
    };
    let linux = subjects.iter().find_map(|subject| match subject {
        Subject::Linux(Some(_), series) => Some(series),
        _ => None,
    });
    let figure = |metric, value: fn(&Series) -> f64| {
        Figure::new(name, metric, |technique| of(technique).map(value)).with_linux(linux.map(value))
    };
    let base = of(TablesTechnique::BEFORE);
    vec![
        // Of all threads together.
        figure(RATE, |series| 60e3 / series.median()),
        figure(TIME_MIN, Series::min),
        figure(TIME_MEDIAN, Series::median),
        Figure::new(name, TIME_RATIO, |technique| Some(of(technique)?.ratio_to(base?))),
    ]
}
