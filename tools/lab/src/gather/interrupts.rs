//! Shootdowns and interrupts by cause: calls on a space that one CPU runs, that another one ran before, and
//! that another one runs meanwhile. Counts only: they are the same on a busy machine.

use super::{BYTES, PIECE, add_flushes};
use crate::crew::{pause, wait_until};
use crate::prelude::*;
use crate::site::{Flushes, RW, START};
use core::sync::atomic::{AtomicBool, Ordering};
use quire_arch::VirtAddr;
use quire_host::Vcpu;
use quire_mm::space::{MapFlags, MapRequest, Protection, RemapFlags};
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
    const ALL: [(Self, &'static str); 3] =
        [(Self::Absent, "one CPU"), (Self::Left, "another CPU ran it"), (Self::Runs, "another CPU runs it")];
}

/// A call whose flushes are counted, on a space with so many bytes from [`START`] on.
type Call = fn(&HostSpace<'_>, u64) -> Done;

const MUNMAP: Call = |space, bytes| Ok(space.munmap(START, bytes)?);
/// Leaves a page at each end, so that the tables there stay.
const MUNMAP_MIDDLE: Call =
    |space, bytes| Ok(space.munmap(VirtAddr(START.0 + PAGE_SIZE), bytes - 2 * PAGE_SIZE)?);
const DISCARD: Call = |space, bytes| Ok(space.madvise(START, bytes, Advice::DontNeed)?);
const PROTECT: Call = |space, bytes| Ok(space.mprotect(START, bytes, Protection::READ, false)?);
const REMAP: Call = |space, bytes| {
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    Ok(space.mremap(START, bytes, bytes, flags, TARGET).map(|_| ())?)
};
const FORK: Call = |space, _| Ok(space.fork().map(drop)?);
const NOTHING: Call = |_, _| Ok(());
const WRITE: Call =
    |space, _| space.fault(START, Access::Write).map_err(|error| LabError::Fault(START, error));

const ONE: Folios = Folios::PAGES;
const LARGE: Folios = Folios::of(Order::ALL[4]);

/// Each call with its name, the folios of the memory, whether a child shares all pages, and the bytes of
/// memory that it gets if these are not as many as the scale says.
const CALLS: [(&str, Folios, bool, Option<u64>, Call); 17] = [
    ("munmap of a page", ONE, false, Some(PAGE_SIZE), MUNMAP),
    ("munmap of 64 KiB", ONE, false, Some(PIECE), MUNMAP),
    ("munmap of all", ONE, false, None, MUNMAP),
    ("munmap of all, folios of 64 KiB", LARGE, false, None, MUNMAP),
    ("munmap of all, folios of 2 MiB", Folios::PMD, false, None, MUNMAP),
    ("munmap of all beside a child", ONE, true, None, MUNMAP),
    ("munmap of all beside a child, folios of 64 KiB", LARGE, true, None, MUNMAP),
    ("munmap of the middle beside a child", ONE, true, None, MUNMAP_MIDDLE),
    ("DONTNEED of all", ONE, false, None, DISCARD),
    ("DONTNEED of all beside a child", ONE, true, None, DISCARD),
    ("DONTNEED of all beside a child, folios of 64 KiB", LARGE, true, None, DISCARD),
    ("mprotect of all", ONE, false, None, PROTECT),
    ("mprotect of a page of 2 MiB", Folios::PMD, false, None, |space, _| PROTECT(space, PAGE_SIZE)),
    ("mremap of all", ONE, false, None, REMAP),
    ("fork", ONE, false, None, FORK),
    ("exit", ONE, false, None, NOTHING),
    ("a write beside a child", ONE, true, None, WRITE),
];

/// Keeps `vcpu` in the program's code until `stop`.
fn live(vcpu: &Vcpu, space: &HostSpace<'_>, running: &AtomicBool, stop: &AtomicBool) -> Done {
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
fn count(
    site: &Site,
    (folios, child, call): (Folios, bool, Call),
    other: Other,
    bytes: u64,
) -> Done<Flushes> {
    let vcpu = site.machine.vcpu(1)?;
    site.machine.memory().spaces().huge().set(folios.config());
    let space = site.space()?;
    Quire::new(site, &space).populate(0, bytes, 1, folios)?;
    let apart = MapRequest::anonymous(PAGE_SIZE, RW).at(APART, MapFlags::FIXED_NOREPLACE);
    site.run(|| space.mmap(&apart))?;
    let child = if child { Some(site.run(|| space.fork())?) } else { None };
    let (running, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    if other == Other::Left {
        vcpu.program(&space).touch(APART, Access::Read).map_err(|error| LabError::Access(APART, error))?;
        vcpu.run(|| space.spaces().deactivate(&space.spaces().platform().pin()));
    }
    let before = thread::scope(|scope| {
        let (space, running, stop) = (&space, &running, &stop);
        let living = (other == Other::Runs).then(|| scope.spawn(move || live(&vcpu, space, running, stop)));
        let stop = Stop(stop);
        let gone = || living.as_ref().is_none_or(thread::ScopedJoinHandle::is_finished);
        wait_until(|| running.load(Ordering::Acquire) || gone());
        let before = Flushes::of(&site.machine);
        site.run(|| call(space, bytes))?;
        drop(stop);
        if let Some(living) = living {
            living.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok::<_, LabError>(before)
    })?;
    // The other CPU, which leaves the space before it ends, flushes nothing itself.
    site.run(|| drop(space));
    let flushes = Flushes::of(&site.machine).since(before);
    site.run(|| drop(child));
    Ok(flushes)
}

pub(super) fn part(lab: &mut Lab<'_>) -> Done {
    let all = lab.scale.of(BYTES);
    // One machine for each strategy does for all calls.
    let mut sites: Vec<Site> = Vec::new();
    lab.part("Shootdowns and interrupts of a call, by cause");
    for (name, folios, child, bytes, call) in CALLS {
        lab.case(name, |lab| {
            if sites.is_empty() {
                sites = lab.made(|techniques| Site::new(techniques, 2 * all, 2, Folios::PAGES))?;
            }
            for (other, who) in Other::ALL {
                let bytes = bytes.unwrap_or(all);
                let counts = sites.iter().map(|site| count(site, (folios, child, call), other, bytes));
                let counts = counts.collect::<Done<Vec<_>>>()?;
                add_flushes(lab, &format!("{name}, {who}"), "per call", &counts);
            }
            for (nth, site) in sites.iter().enumerate() {
                lab.found(nth, site.findings());
            }
            Ok(())
        })?;
    }
    Ok(())
}
