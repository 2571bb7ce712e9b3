//! Page faults of one, two and four threads of a process, each in memory of its own: what faults pay for
//! tables that may be freed.

use super::TIME_RATIO;
use super::scale::Scale;
use crate::contest::{Outcome, Terms};
use crate::crew::on_threads;
use crate::error::LabError;
use crate::experiment::{Measured, Part};
use crate::folios::pages;
use crate::linux::{Area, Linux, RoundFigures, Work, beside, now, round_figures};
use crate::report::Metric;
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

/// Faults by `threads` threads, each on `bytes`, in one space.
#[derive(Clone, Copy)]
struct Faults {
    threads: usize,
    bytes: u64,
}

impl Faults {
    /// Nanoseconds from the first fault to the last of all.
    fn round(self, site: &Site<TablesTechnique>, space: &HostSpace<'_>) -> Result<f64, LabError> {
        let Self { threads, bytes } = self;
        let machine = site.machine();
        let start = |thread: usize| VirtAddr(START.0 + thread as u64 * APART);
        for thread in 0..threads {
            let request = MapRequest::anonymous(bytes, RW).at(start(thread), MapFlags::FIXED_NOREPLACE);
            site.run(|| space.mmap(&request))?;
        }
        let times = on_threads(threads, |thread, line| {
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
        for thread in 0..threads {
            site.run(|| space.munmap(start(thread), bytes))?;
        }
        let began = times.iter().map(|&(began, _)| began).min();
        let ended = times.iter().map(|&(_, ended)| ended).max();
        Ok(began.zip(ended).map_or(0.0, |(began, ended)| (ended - began).as_nanos() as f64))
    }
}

/// The same on Linux, by processes that share their memory.
impl Work for Faults {
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
        Some(round_figures([time as f64 / pages(self.threads as u64 * self.bytes) as f64]))
    }
}

pub(super) fn part(scale: &Scale) -> Part<'_, TablesTechnique> {
    Part::new(
        "Page faults in memory of one process, each thread in a mapping of its own",
        THREADS,
        |&threads| format!("page faults, {threads} thread{}", if threads == 1 { "" } else { "s" }),
        |name, threads| {
            let work = Faults { threads, bytes: scale.fault_bytes };
            let all = threads as u64 * scale.fault_bytes;
            let terms = Terms { cpus: 1 + threads, warm_up: WARM_UP, ..Terms::pages(all, scale.rounds) };
            let outcome = Outcome::in_spaces(
                terms,
                Linux::start(4 * all, work),
                |_, _| Ok(()),
                |site, space, ()| Ok(round_figures([work.round(site, space)? / pages(all) as f64])),
            )?;
            // Of all threads together.
            let rate = outcome.figure(name, RATE, 0, |series| 60e3 / series.median());
            let times = outcome.times(name, [TIME_MIN, TIME_MEDIAN, TIME_RATIO], 0);
            Ok(Measured::new([rate].into_iter().chain(times), outcome.findings))
        },
    )
}
