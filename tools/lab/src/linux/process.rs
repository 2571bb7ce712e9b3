//! The process that measures Linux, making the same calls as a process of Quire.

use super::child::Child;
use super::controls::Control;
use super::memory::{Area, SharedWord};
use super::number;
use super::sharer::beside;
use crate::clock::now;
use crate::error::LabError;
use crate::folios::{Folios, pages};
use crate::patterns::Patterns;
use crate::process::{Calls, Cost, Done, Job, Process, ThreadWork};
use crate::rounds::RoundFigures;
use core::ops::Range;
use core::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicBool, Ordering};
use quire_arch::{Access, PAGE_SIZE};
use quire_mm::space::Advice;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::read;

/// What the area starts at a multiple of.
const BORDER: usize = 1 << 30;

/// The process itself, with the addresses of its area.
#[derive(Clone, Copy, Debug)]
struct Host<'c> {
    start: usize,
    control: &'c Control,
}

/// The address that a call returned, if it succeeded.
fn placed(result: *mut libc::c_void) -> Result<usize, LabError> {
    if result == libc::MAP_FAILED { Err(LabError::Linux) } else { Ok(result.expose_provenance()) }
}

impl<'c> Host<'c> {
    /// Finds `bytes` of free addresses. They stay free until the process maps something there itself, as long
    /// as it maps nothing large elsewhere.
    fn new(bytes: u64, control: &'c Control) -> Result<Self, LabError> {
        let bytes = bytes as usize + 3 * BORDER;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new addresses anywhere.
        let found = placed(unsafe { libc::mmap(null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) })?;
        // Free addresses on both sides, so that no neighbour shares a table of the area's; small mappings go
        // to its end.
        let host = Self { start: found, control };
        host.area(0, bytes as u64)?.unmap()?;
        Ok(Self { start: (found + BORDER).next_multiple_of(BORDER), ..host })
    }

    fn addr(&self, at: u64) -> usize {
        self.start.wrapping_add(at as usize)
    }

    fn at<T>(&self, at: u64) -> *mut T {
        with_exposed_provenance_mut(self.addr(at))
    }

    /// A part of the area that is mapped.
    fn area(&self, at: u64, bytes: u64) -> Result<Area, LabError> {
        NonNull::new(self.at(at)).map(|start| Area::new(start, bytes)).ok_or(LabError::Linux)
    }
}

impl Process for Host<'_> {
    fn map(&mut self, at: u64, bytes: u64) -> Done {
        Area::map(self.addr(at), bytes)?.advise(libc::MADV_NOHUGEPAGE)
    }

    fn populate(&mut self, at: u64, bytes: u64, stride: u64, folios: Folios) -> Done {
        let area = Area::map(self.addr(at), bytes)?;
        // SAFETY: mapped, writable, and only used here.
        area.fill(folios, self.control, stride, |page, at| unsafe { at.cast::<u64>().write_volatile(page) })
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
        let area = self.area(pages.start * PAGE_SIZE, (pages.end - pages.start) * PAGE_SIZE)?;
        area.fill(folios, self.control, 1, |page, at| {
            let page = pages.start + page;
            // SAFETY: mapped, writable, aligned, and only used here.
            unsafe {
                if let Some(bytes) = patterns.page(page) {
                    at.write(*bytes);
                }
                at.cast::<u64>().write(patterns.first_word(page));
            }
        })
    }

    fn wrong(&mut self, pages: Range<u64>, patterns: &Patterns) -> Result<u64, LabError> {
        Ok(pages.fold(0, |wrong, page| {
            // SAFETY: mapped, and only used here.
            let word = unsafe { self.at::<u64>(page * PAGE_SIZE).read_volatile() };
            wrong + u64::from(word != patterns.first_word(page))
        }))
    }

    fn advise(&mut self, at: u64, bytes: u64, advice: Advice) -> Done {
        self.area(at, bytes)?.advise(match advice {
            Advice::DontNeed => libc::MADV_DONTNEED,
            Advice::Free => libc::MADV_FREE,
            Advice::PageOut => libc::MADV_PAGEOUT,
            _ => return Err(LabError::Linux),
        })
    }

    /// Lazily freed pages need no device.
    fn reclaim(&mut self, at: u64, bytes: u64) -> Done {
        self.advise(at, bytes, Advice::PageOut)
    }

    fn unmap(&mut self, at: u64, bytes: u64) -> Done {
        self.area(at, bytes)?.unmap()
    }

    fn relocate(&mut self, at: u64, bytes: u64, to: u64) -> Done {
        let (bytes, flags) = (bytes as usize, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        // SAFETY: both places are in the area, and there is no reference into it.
        placed(unsafe { libc::mremap(self.at(at), bytes, bytes, flags, self.at::<u8>(to)) }).map(|_| ())
    }

    fn resize(&mut self, at: u64, bytes: u64, new: u64) -> Result<u64, LabError> {
        // SAFETY: it moves to where nothing is mapped, and there is no reference into it.
        let moved = unsafe { libc::mremap(self.at(at), bytes as usize, new as usize, libc::MREMAP_MAYMOVE) };
        Ok(placed(moved)?.wrapping_sub(self.start) as u64)
    }

    fn sizes(&mut self) -> Result<[u64; 2], LabError> {
        let status = open(c"/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let mut text = [0; 4096];
        let len = status.and_then(|status| read(status, &mut text)).map_err(|_| LabError::Linux)?;
        let figure = |name: &[u8]| {
            let at = text[..len].windows(name.len()).position(|part| part == name)? + name.len();
            Some(number(&text[at..len]))
        };
        let sizes = figure(b"VmPTE:").zip(figure(b"VmRSS:"));
        sizes.map(|(tables, resident)| [tables, resident]).ok_or(LabError::Linux)
    }

    fn together(&mut self, threads: usize, work: ThreadWork<'_>) -> Done {
        let host = *self;
        let failed = AtomicBool::new(false);
        let started = beside(threads - 1, &|thread| {
            if work(thread, &mut { host }).is_err() {
                failed.store(true, Ordering::Relaxed);
            }
        });
        started.filter(|()| !failed.into_inner()).ok_or(LabError::Linux)
    }

    fn fork(&mut self) -> Result<(Cost, u64), LabError> {
        let word = SharedWord::new().ok_or(LabError::Linux)?;
        let start = now();
        let child = Child::fork(|| {
            // Until its parent has left the call, so that the two do not disturb each other.
            while word.swap(0, Ordering::Acquire) == 0 {
                core::hint::spin_loop();
            }
            word.store(now(), Ordering::Release);
        });
        let time = now() - start;
        word.store(1, Ordering::Release);
        child.ok_or(LabError::Linux)?.wait();
        let exit = now().saturating_sub(word.load(Ordering::Acquire));
        Ok((Cost { time, ..Cost::default() }, exit))
    }

    fn exit(&mut self, bytes: u64, folios: Folios) -> Result<Cost, LabError> {
        let word = SharedWord::new().ok_or(LabError::Linux)?;
        let child = Child::fork(|| {
            if self.populate(0, bytes, 1, folios).is_ok() {
                word.store(now(), Ordering::Release);
            }
        });
        child.ok_or(LabError::Linux)?.wait();
        let (start, end) = (word.load(Ordering::Acquire), now());
        if start > 0 { Ok(Cost { time: end - start, ..Cost::default() }) } else { Err(LabError::Linux) }
    }

    fn beside_child(&mut self, work: Calls<'_>) -> Done {
        let child = Child::fork(|| {
            loop {
                rustix::event::pause();
            }
        });
        let child = child.ok_or(LabError::Linux)?;
        let worked = work(self);
        child.kill();
        child.wait();
        worked
    }

    fn in_kernel(&mut self, work: Calls<'_>) -> Done {
        work(self)
    }
}

/// The rounds of `job`, which uses `area` bytes of addresses, on memory in `folios`. To be made before the
/// process that calls it, since it allocates.
pub(crate) fn rounds_on_host(
    mut job: impl Job,
    area: u64,
    folios: Folios,
) -> impl FnMut() -> Option<RoundFigures> {
    let control = Control::of(folios);
    let mut start = None;
    move || {
        let control = &control;
        let mut host = match start {
            Some(start) => Host { start, control },
            None => Host::new(area, control).ok()?,
        };
        start = Some(host.start);
        job(&mut host).ok()
    }
}
