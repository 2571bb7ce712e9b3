//! The process that measures Linux, making the same calls as a process of Quire.

use super::Child;
use crate::clock::now;
use crate::crew::on_threads;
use crate::error::{Done, LabError};
use crate::folios::{Folios, pages};
use crate::patterns::Patterns;
use crate::process::{Calls, Cost, Job, Process, ThreadWork};
use crate::rounds::RoundFigures;
use core::ops::Range;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::{Access, Order, PAGE_SIZE};
use quire_measure::{HostCounters, HostSettings};
use quire_mm::space::Advice;
use rustix::io::Errno;
use rustix::mm::{
    Advice as HostAdvice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mprotect,
    mremap, munmap,
};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// What the area starts at a multiple of.
const BORDER: usize = 1 << 30;

/// The process itself. Nothing in it refers to memory of its area.
#[derive(Clone, Copy, Debug)]
struct Host {
    /// The address of its area.
    start: usize,
    /// Shared with children: whether one may go on, and when it began to exit.
    shared: &'static [AtomicU64; 2],
}

const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// New memory at `at`, where nothing is mapped, or anywhere if it is 0: its address.
fn map(at: usize, bytes: u64, access: ProtFlags, flags: MapFlags) -> Done<usize> {
    let flags = flags | MapFlags::NORESERVE;
    let flags = if at > 0 { flags | MapFlags::FIXED_NOREPLACE } else { flags };
    let at = with_exposed_provenance_mut(at);
    // SAFETY: replaces nothing.
    Ok(unsafe { mmap_anonymous(at, bytes as usize, access, flags) }?.expose_provenance())
}

impl Host {
    /// Finds `bytes` of free addresses. They stay free until the process maps something there itself, as long
    /// as it maps nothing large elsewhere.
    fn new(bytes: u64) -> Done<Self> {
        let shared = with_exposed_provenance::<[AtomicU64; 2]>(map(0, PAGE_SIZE, RW, MapFlags::SHARED)?);
        // SAFETY: mapped to the end of the process, aligned, and only used as these words.
        let shared = unsafe { &*shared };
        let bytes = bytes + 3 * BORDER as u64;
        // Free addresses on both sides, so that no neighbour shares a table of the area's; small mappings go
        // to its end. What cannot be accessed counts as no memory, however little the process may have.
        let mut found = Self { start: map(0, bytes, ProtFlags::empty(), MapFlags::PRIVATE)?, shared };
        found.unmap(0, bytes)?;
        Ok(Self { start: (found.start + BORDER).next_multiple_of(BORDER), shared })
    }

    fn at<T>(&self, at: u64) -> *mut T {
        with_exposed_provenance_mut(self.start.wrapping_add(at as usize))
    }

    fn tell(&self, at: u64, bytes: u64, advice: HostAdvice) -> Done {
        // SAFETY: the advice changes how the area's own memory is backed, and there is no reference into it.
        Ok(unsafe { madvise(self.at(at), bytes as usize, advice) }?)
    }

    /// Forks a child that exits after its work, and waits for it: nanoseconds of the call and of the exit.
    fn child(&mut self, work: impl FnOnce(&mut Self) -> bool) -> Done<[u64; 2]> {
        let shared = self.shared;
        shared.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let start = now();
        let child = Child::fork(|| {
            if work(self) {
                shared[1].store(now(), Ordering::Release);
            }
        });
        let time = now() - start;
        shared[0].store(1, Ordering::Release);
        child.ok_or(LabError::NoProcess)?.wait();
        match shared[1].load(Ordering::Acquire) {
            0 => Err(LabError::HostFolios),
            exits => Ok([time, now() - exits]),
        }
    }

    /// Calls `write` with the place of each `stride`th page of memory that is mapped and not there yet. Fails
    /// if it does not come in `folios`, of which each is written to.
    fn back(&mut self, at: u64, bytes: u64, stride: u64, folios: Folios, write: impl Fn(u64)) -> Done {
        let set = Enabled::new(folios)?;
        let counted = |made: HostCounters| made.faults_by_size.get(&folios.bytes()).copied();
        let made = || set.as_ref().and_then(|_| counted(HostCounters::now())).unwrap_or(0);
        let had = made();
        let blocks = (at..at + bytes).step_by(Order::PMD.bytes() as usize);
        self.tell(at, bytes, HostAdvice::LinuxNoHugepage)?;
        if folios.order > Order::ZERO {
            // An empty page table for each 2 MiB: where one exists, Linux allocates no folio for a PMD entry,
            // whatever its control for that size says. It stays, since it is in use on both sides.
            for block in blocks.clone().filter(|_| folios.order < Order::PMD) {
                self.touch(block, PAGE_SIZE, 1, Access::Read)?;
                self.unmap(block, PAGE_SIZE)?;
                self.map(block, PAGE_SIZE)?;
            }
            self.tell(at, bytes, HostAdvice::LinuxHugepage)?;
        }
        (at..at + bytes).step_by((stride * PAGE_SIZE) as usize).for_each(write);
        // Others on the host may have made some too, but hardly of this size.
        if folios.order > Order::ZERO && made().wrapping_sub(had) < folios.in_bytes(bytes) {
            return Err(LabError::HostFolios);
        }
        drop(set);
        if folios.order == Order::PMD && !folios.by_pmd {
            for block in blocks {
                for access in [MprotectFlags::READ, MprotectFlags::READ | MprotectFlags::WRITE] {
                    // SAFETY: there is no reference into the area.
                    unsafe { mprotect(self.at(block), PAGE_SIZE as usize, access) }?;
                }
            }
        }
        Ok(())
    }
}

/// The control of a size that is set for all programs that ask for it, until this is dropped: for as short as
/// possible, since other programs on the host see it.
#[derive(Debug)]
struct Enabled {
    file: File,
    old: String,
}

impl Enabled {
    /// None for single pages.
    fn new(folios: Folios) -> Done<Option<Self>> {
        if folios.order == Order::ZERO {
            return Ok(None);
        }
        let name = format!("hugepages-{}kB/enabled", folios.bytes() / 1024);
        let set = || {
            let path = format!("/sys/kernel/mm/transparent_hugepage/{name}");
            let file = File::options().write(true).open(path).ok()?;
            // A second measuring process waits: two that restore what they found would not restore the
            // original.
            file.lock().ok()?;
            let set = Self { file, old: HostSettings::default().word(&name).ok()? };
            set.file.write_all_at(b"madvise", 0).ok()?;
            Some(set)
        };
        set().map(Some).ok_or(LabError::HostFolios)
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        let _ = self.file.write_all_at(self.old.as_bytes(), 0);
    }
}

impl Process for Host {
    fn map(&mut self, at: u64, bytes: u64) -> Done {
        map(self.start.wrapping_add(at as usize), bytes, RW, MapFlags::PRIVATE)?;
        self.tell(at, bytes, HostAdvice::LinuxNoHugepage)
    }

    fn share(&mut self, at: u64, bytes: u64) -> Done {
        map(self.start.wrapping_add(at as usize), bytes, RW, MapFlags::SHARED)?;
        self.tell(at, bytes, HostAdvice::LinuxNoHugepage)
    }

    fn populate(&mut self, at: u64, bytes: u64, stride: u64, folios: Folios) -> Done {
        self.map(at, bytes)?;
        let host = *self;
        // SAFETY: mapped, writable, and only used here.
        self.back(at, bytes, stride, folios, |at| unsafe { host.at::<u64>(at).write_volatile(at) })
    }

    fn touch(&mut self, at: u64, bytes: u64, stride: u64, access: Access) -> Done {
        for page in (0..pages(bytes)).step_by(stride as usize) {
            let word = self.at::<u64>(at + page * PAGE_SIZE);
            // SAFETY: mapped by this process, writable, and only used here.
            unsafe {
                if access == Access::Write {
                    word.write_volatile(page);
                } else {
                    word.read_volatile();
                }
            }
        }
        Ok(())
    }

    fn fill(&mut self, pages: Range<u64>, folios: Folios, patterns: &Patterns) -> Done {
        let (host, bytes) = (*self, (pages.end - pages.start) * PAGE_SIZE);
        self.back(pages.start * PAGE_SIZE, bytes, 1, folios, |at| {
            let page = at / PAGE_SIZE;
            // SAFETY: mapped, writable, aligned, and only used here.
            unsafe {
                if let Some(bytes) = patterns.page(page) {
                    host.at::<[u8; PAGE_SIZE as usize]>(at).write(*bytes);
                }
                host.at::<u64>(at).write(patterns.first_word(page));
            }
        })
    }

    fn wrong(&mut self, pages: Range<u64>, patterns: &Patterns) -> Done<u64> {
        Ok(pages.fold(0, |wrong, page| {
            // SAFETY: mapped, and only used here.
            let word = unsafe { self.at::<u64>(page * PAGE_SIZE).read_volatile() };
            wrong + u64::from(word != patterns.first_word(page))
        }))
    }

    fn advise(&mut self, at: u64, bytes: u64, advice: Advice) -> Done {
        let advice = match advice {
            Advice::DontNeed => HostAdvice::LinuxDontNeed,
            Advice::Free => HostAdvice::LinuxFree,
            Advice::PageOut => HostAdvice::LinuxPageOut,
            Advice::Remove => HostAdvice::LinuxRemove,
            _ => return Err(Errno::INVAL.into()),
        };
        self.tell(at, bytes, advice)
    }

    /// Lazily freed pages need no device.
    fn reclaim(&mut self, at: u64, bytes: u64) -> Done {
        self.advise(at, bytes, Advice::PageOut)
    }

    fn unmap(&mut self, at: u64, bytes: u64) -> Done {
        // SAFETY: the area owns its addresses, and there is no reference into it.
        Ok(unsafe { munmap(self.at(at), bytes as usize) }?)
    }

    fn relocate(&mut self, at: u64, bytes: u64, to: u64) -> Done {
        let (from, bytes, to) = (self.at(at), bytes as usize, self.at::<libc::c_void>(to));
        // rustix's `mremap_fixed` passes the C library another flag than `MREMAP_FIXED` (1.1.6).
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both places are in the area, and there is no reference into it.
        let moved = unsafe { libc::mremap(from, bytes, bytes, flags, to) };
        let failed = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        if moved == libc::MAP_FAILED { Err(failed().into()) } else { Ok(()) }
    }

    fn resize(&mut self, at: u64, bytes: u64, new: u64) -> Done<u64> {
        // SAFETY: it moves to where nothing is mapped, and there is no reference into it.
        let moved = unsafe { mremap(self.at(at), bytes as usize, new as usize, MremapFlags::MAYMOVE) }?;
        Ok(moved.expose_provenance().wrapping_sub(self.start) as u64)
    }

    fn sizes(&mut self) -> Done<[u64; 2]> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib = |name| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
        let sizes = ["VmPTE:", "VmRSS:"].map(|name| kib(name).and_then(|number| number.parse().ok()));
        let [Some(tables), Some(resident)] = sizes else { return Err(Errno::NODATA.into()) };
        Ok([tables, resident])
    }

    fn together(&mut self, threads: usize, work: ThreadWork<'_>) -> Done {
        let host = *self;
        on_threads(threads, |thread, _| work(thread, &mut { host })).into_iter().collect()
    }

    fn fork(&mut self) -> Done<(Cost, u64)> {
        // Until its parent has left the call, so that the two do not disturb each other.
        let [time, exit] = self.child(|host| {
            while host.shared[0].load(Ordering::Acquire) == 0 {
                core::hint::spin_loop();
            }
            true
        })?;
        Ok((Cost { time, ..Cost::default() }, exit))
    }

    fn exit(&mut self, bytes: u64, folios: Folios) -> Done<Cost> {
        let [_, time] = self.child(|host| host.populate(0, bytes, 1, folios).is_ok())?;
        Ok(Cost { time, ..Cost::default() })
    }

    fn client(&mut self, at: u64, bytes: u64) -> Done<u64> {
        let start = now();
        self.child(|host| host.touch(at, bytes, 1, Access::Write).is_ok())?;
        Ok(now() - start)
    }

    fn beside_child(&mut self, work: Calls<'_>) -> Done {
        let child = Child::fork(|| {
            loop {
                rustix::event::pause();
            }
        });
        let child = child.ok_or(LabError::NoProcess)?;
        let worked = work(self);
        child.kill();
        child.wait();
        worked
    }

    fn in_kernel(&mut self, work: Calls<'_>) -> Done {
        work(self)
    }
}

/// The rounds of `job`, which uses `area` bytes of addresses.
pub(crate) fn rounds_on_host(mut job: impl Job, area: u64) -> impl FnMut() -> Option<RoundFigures> {
    let mut host = None;
    move || {
        if host.is_none() {
            host = Host::new(area).ok();
        }
        job(host.as_mut()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::Linux;
    use crate::rounds::round_figures;
    use rustix::process::{Resource, Rlimit, setrlimit};

    /// Hazard: free addresses are counted as memory while they are looked for, and Linux is left out where a
    /// process may not have some GiB of it.
    #[test]
    fn free_addresses_take_no_memory() {
        let job = |process: &mut dyn Process| {
            process.populate(0, PAGE_SIZE, 1, Folios::PAGES)?;
            process.unmap(0, PAGE_SIZE)?;
            Ok(round_figures(&[1.0]))
        };
        let mut rounds = rounds_on_host(job, 1 << 20);
        // In the process that does the rounds.
        let round = move || {
            let status = std::fs::read_to_string("/proc/self/status").ok()?;
            let data = status.lines().find_map(|line| line.strip_prefix("VmData:"))?;
            let data: u64 = data.split_whitespace().next()?.parse().ok()?;
            let most = Some((data << 10) + (1 << 30));
            setrlimit(Resource::Data, Rlimit { current: most, maximum: most }).ok()?;
            rounds()
        };
        let mut linux = Linux::start(0, round).expect("a process");
        assert!(linux.round().is_some());
    }
}
