//! Shootdowns and interrupts by cause: calls on a space that one CPU runs, that another one ran before, and
//! that another one runs meanwhile. Counts only: they are the same on a busy machine.

use super::Scale;
use super::Site;
use super::teardown::PIECE;
use crate::crew::pause;
use crate::error::LabError;
use crate::experiment::{Measured, Part, found_by};
use crate::folios::Folios;
use crate::process::{Process, Quire};
use crate::report::{Figure, Metric};
use crate::site::{Flushes, HostSpace, RW, START};
use core::cell::OnceCell;
use core::sync::atomic::{AtomicBool, Ordering};
use quire_arch::{Access, Order, PAGE_SIZE, Platform, VirtAddr};
use quire_host::Vcpu;
use quire_mm::{
    internals::FlushCause,
    space::{Advice, GatherTechnique, MapFlags, MapRequest, Protection, RemapFlags},
};
use std::thread;

/// A page that stays mapped, for the other CPU to run on.
const APART: VirtAddr = VirtAddr(1 << 42);
/// Where a mapping moves to.
const TARGET: VirtAddr = VirtAddr(1 << 43);

/// What the other CPU does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Other {
    /// It never ran the space.
    Absent,
    /// It ran it once, and has nothing to run now.
    Left,
    /// It runs it all the time.
    Runs,
}

impl Other {
    const ALL: [Self; 3] = [Self::Absent, Self::Left, Self::Runs];

    const fn name(self) -> &'static str {
        match self {
            Self::Absent => "one CPU",
            Self::Left => "another CPU ran it",
            Self::Runs => "another CPU runs it",
        }
    }
}

/// A call whose flushes are counted.
struct Call {
    name: &'static str,
    folios: Folios,
    /// Whether a child shares all pages.
    child: bool,
    /// Bytes of memory, if not as many as the scale says.
    bytes: Option<u64>,
    work: fn(&Site, &HostSpace<'_>, u64) -> Result<(), LabError>,
}

impl Call {
    const fn new(name: &'static str, work: fn(&Site, &HostSpace<'_>, u64) -> Result<(), LabError>) -> Self {
        Self { name, folios: Folios::PAGES, child: false, bytes: None, work }
    }
}

fn munmap(_: &Site, space: &HostSpace<'_>, bytes: u64) -> Result<(), LabError> {
    Ok(space.munmap(START, bytes)?)
}

/// Leaves a page at each end, so that the tables there stay.
fn munmap_middle(_: &Site, space: &HostSpace<'_>, bytes: u64) -> Result<(), LabError> {
    Ok(space.munmap(VirtAddr(START.0 + PAGE_SIZE), bytes - 2 * PAGE_SIZE)?)
}

fn discard(_: &Site, space: &HostSpace<'_>, bytes: u64) -> Result<(), LabError> {
    Ok(space.madvise(START, bytes, Advice::DontNeed)?)
}

fn fork(_: &Site, space: &HostSpace<'_>, _: u64) -> Result<(), LabError> {
    drop(space.fork()?);
    Ok(())
}

fn calls() -> Vec<Call> {
    let large = Folios::of(Order::ALL[4]);
    vec![
        Call { bytes: Some(PAGE_SIZE), ..Call::new("munmap of a page", munmap) },
        Call { bytes: Some(PIECE), ..Call::new("munmap of 64 KiB", munmap) },
        Call::new("munmap of all", munmap),
        Call { folios: large, ..Call::new("munmap of all, folios of 64 KiB", munmap) },
        Call { folios: Folios::PMD, ..Call::new("munmap of all, folios of 2 MiB", munmap) },
        Call { child: true, ..Call::new("munmap of all beside a child", munmap) },
        Call {
            child: true,
            folios: large,
            ..Call::new("munmap of all beside a child, folios of 64 KiB", munmap)
        },
        Call { child: true, ..Call::new("munmap of the middle beside a child", munmap_middle) },
        Call::new("DONTNEED of all", discard),
        Call { child: true, ..Call::new("DONTNEED of all beside a child", discard) },
        Call {
            child: true,
            folios: large,
            ..Call::new("DONTNEED of all beside a child, folios of 64 KiB", discard)
        },
        Call::new("mprotect of all", |_, space, bytes| {
            Ok(space.mprotect(START, bytes, Protection::READ, false)?)
        }),
        Call {
            folios: Folios::PMD,
            ..Call::new("mprotect of a page of 2 MiB", |_, space, _| {
                Ok(space.mprotect(START, PAGE_SIZE, Protection::READ, false)?)
            })
        },
        Call::new("mremap of all", |_, space, bytes| {
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            space.mremap(START, bytes, bytes, flags, TARGET)?;
            Ok(())
        }),
        Call::new("fork", fork),
        Call::new("exit", |_, _, _| Ok(())),
        Call {
            child: true,
            ..Call::new("a write beside a child", |_, space, _| {
                space.fault(START, Access::Write).map_err(|error| LabError::Fault(START, error))
            })
        },
    ]
}

/// Keeps `vcpu` in the program's code until `stop`.
fn live(vcpu: &Vcpu, space: &HostSpace<'_>, running: &AtomicBool, stop: &AtomicBool) -> Result<(), LabError> {
    vcpu.program(space).inside(|guest| {
        let mut attempt = 0;
        while !stop.load(Ordering::Acquire) {
            guest.touch(APART, Access::Read).map_err(|error| LabError::Access(APART, error))?;
            running.store(true, Ordering::Release);
            pause(attempt);
            attempt += 1;
        }
        Ok(())
    })
}

/// Tells the other CPU to stop, also after a panic.
struct Stop<'f>(&'f AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Makes the call on a new space and returns what it sent to other CPUs, the space's exit included.
fn count(site: &Site, call: &Call, other: Other, bytes: u64) -> Result<Flushes, LabError> {
    let vcpu = site.machine().vcpu(1)?;
    site.machine().memory().spaces().huge().set(call.folios.config());
    let space = site.space()?;
    Quire::new(site, &space).populate(0, bytes, 1, call.folios)?;
    let apart = MapRequest::anonymous(PAGE_SIZE, RW).at(APART, MapFlags::FIXED_NOREPLACE);
    site.run(|| space.mmap(&apart))?;
    let child = if call.child { Some(site.run(|| space.fork())?) } else { None };
    let (running, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    if other == Other::Left {
        vcpu.program(&space).touch(APART, Access::Read).map_err(|error| LabError::Access(APART, error))?;
        vcpu.run(|| space.spaces().deactivate(&space.spaces().platform().pin()));
    }
    let called = thread::scope(|scope| {
        let (space, running, stop) = (&space, &running, &stop);
        let living = (other == Other::Runs).then(|| scope.spawn(move || live(&vcpu, space, running, stop)));
        let stop = Stop(stop);
        let mut attempt = 0;
        while living.as_ref().is_some_and(|living| !living.is_finished()) && !running.load(Ordering::Acquire)
        {
            pause(attempt);
            attempt += 1;
        }
        let before = site.flushes();
        site.run(|| (call.work)(site, space, bytes))?;
        let flushes = site.flushes().since(before);
        drop(stop);
        match living.map(thread::ScopedJoinHandle::join) {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            Some(Ok(lived)) => lived.map(|()| flushes),
            None => Ok(flushes),
        }
    })?;
    let before = site.flushes();
    site.run(|| drop(space));
    let exited = site.flushes().since(before);
    site.run(|| drop(child));
    Ok(called.plus(exited))
}

pub(super) fn part(scale: &Scale) -> Part<'_, GatherTechnique> {
    // One machine for each strategy does for all calls.
    let sites = OnceCell::new();
    Part::new(
        "Shootdowns and interrupts of a call, by cause",
        calls(),
        |call| call.name.to_owned(),
        move |name, call| {
            if sites.get().is_none() {
                let made: Vec<Site> = Site::for_each_strategy(2 * scale.other_bytes, 2, Folios::PAGES)?;
                let _ = sites.set(made);
            }
            let sites = sites.get().map_or(&[][..], Vec::as_slice);
            let bytes = call.bytes.unwrap_or(scale.other_bytes);
            let mut figures = Vec::new();
            for other in Other::ALL {
                let counts = sites
                    .iter()
                    .map(|site| Ok((site.technique, count(site, &call, other, bytes)?)))
                    .collect::<Result<Vec<_>, LabError>>()?;
                figures.extend(by_cause(&format!("{name}, {}", other.name()), "per call", &counts));
            }
            let findings = sites.iter().flat_map(|site| found_by(site.technique, site.findings()));
            Ok(Measured::new(figures, findings))
        },
    )
}

/// All flushes and interrupts, and those for each cause that there was.
pub(super) fn by_cause(
    case: &str,
    unit: &'static str,
    counts: &[(GatherTechnique, Flushes)],
) -> Vec<Figure<GatherTechnique>> {
    let figure = |name, value: &dyn Fn(&Flushes) -> u64| {
        Figure::of_each(case, Metric::lower(name, unit), counts, |flushes| value(flushes) as f64)
    };
    let mut figures = vec![
        figure("shootdowns", &|flushes| flushes.shootdowns.iter().sum()),
        figure("interrupts", &|flushes| flushes.interrupts.iter().sum()),
    ];
    for (nth, cause) in FlushCause::ALL.iter().enumerate() {
        if counts.iter().any(|(_, flushes)| flushes.shootdowns[nth] > 0) {
            figures.push(figure(cause.shootdowns().name(), &|flushes| flushes.shootdowns[nth]));
            figures.push(figure(cause.interrupts().name(), &|flushes| flushes.interrupts[nth]));
        }
    }
    figures
}
