//! The process that measures Linux, making the same calls as a process of Quire.

use super::child::Child;
use super::controls::Control;
use super::memory::{Area, SharedWord};
use super::sharer::beside;
use super::{RoundFigures, Work, now};
use crate::contest::Job;
use crate::folios::{Folios, pages};
use crate::process::{Cost, Process, ThreadWork};
use core::ptr::{null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicBool, Ordering};
use quire_arch::{Access, PAGE_SIZE};
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

impl<'c> Host<'c> {
    /// Finds `bytes` of free addresses. They stay free until the process maps something there itself, as long
    /// as it maps nothing large elsewhere.
    fn new(bytes: u64, control: &'c Control) -> Option<Self> {
        let bytes = bytes as usize + 3 * BORDER;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new addresses anywhere, without a reference when they are unmapped.
        let found = unsafe { libc::mmap(null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if found == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: as above.
        unsafe { libc::munmap(found, bytes) };
        // Free addresses on both sides, so that no neighbour shares a table of the area's; small mappings go
        // to its end.
        Some(Self { start: (found.addr() + BORDER).next_multiple_of(BORDER), control })
    }

    fn advise(&self, at: u64, bytes: u64, advice: i32) -> Result<(), ()> {
        // SAFETY: there is no reference into the area.
        done(unsafe { libc::madvise(self.at(at), bytes as usize, advice) })
    }

    fn at<T>(&self, at: u64) -> *mut T {
        with_exposed_provenance_mut(self.start.wrapping_add(at as usize))
    }
}

/// The result of a call that returns 0 on success.
fn done(result: i32) -> Result<(), ()> {
    if result == 0 { Ok(()) } else { Err(()) }
}

impl Process for Host<'_> {
    type Error = ();

    fn map(&mut self, at: u64, bytes: u64) -> Result<(), ()> {
        let area = Area::at(self.at::<u8>(at).addr(), bytes).ok_or(())?;
        area.advise(libc::MADV_NOHUGEPAGE).ok_or(())
    }

    fn populate(&mut self, at: u64, bytes: u64, stride: u64, folios: Folios) -> Result<(), ()> {
        let area = Area::at(self.at::<u8>(at).addr(), bytes).ok_or(())?;
        area.fill(folios, self.control, stride).ok_or(())
    }

    fn touch(&mut self, at: u64, bytes: u64, stride: u64, access: Access) -> Result<(), ()> {
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

    fn dont_need(&mut self, at: u64, bytes: u64) -> Result<(), ()> {
        self.advise(at, bytes, libc::MADV_DONTNEED)
    }

    fn free(&mut self, at: u64, bytes: u64) -> Result<(), ()> {
        self.advise(at, bytes, libc::MADV_FREE)
    }

    /// Lazily freed pages need no device.
    fn reclaim(&mut self, at: u64, bytes: u64) -> Result<(), ()> {
        self.advise(at, bytes, libc::MADV_PAGEOUT)
    }

    fn unmap(&mut self, at: u64, bytes: u64) -> Result<(), ()> {
        // SAFETY: there is no reference into the area.
        done(unsafe { libc::munmap(self.at(at), bytes as usize) })
    }

    fn relocate(&mut self, at: u64, bytes: u64, to: u64) -> Result<(), ()> {
        let (bytes, flags) = (bytes as usize, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        // SAFETY: as above; the target is in the area too.
        let moved = unsafe { libc::mremap(self.at(at), bytes, bytes, flags, self.at::<u8>(to)) };
        if moved == libc::MAP_FAILED { Err(()) } else { Ok(()) }
    }

    fn resize(&mut self, at: u64, bytes: u64, new: u64) -> Result<u64, ()> {
        // SAFETY: as above; it moves to where nothing is mapped.
        let moved = unsafe { libc::mremap(self.at(at), bytes as usize, new as usize, libc::MREMAP_MAYMOVE) };
        if moved == libc::MAP_FAILED { Err(()) } else { Ok((moved.addr().wrapping_sub(self.start)) as u64) }
    }

    fn sizes(&mut self) -> Result<[u64; 2], ()> {
        let status = open(c"/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let mut text = [0; 4096];
        let len = read(status.map_err(|_| ())?, &mut text).map_err(|_| ())?;
        let figure = |name: &[u8]| {
            let at = text[..len].windows(name.len()).position(|part| part == name)? + name.len();
            let digits = text[at..len].iter().skip_while(|byte| byte.is_ascii_whitespace());
            let digits = digits.take_while(|byte| byte.is_ascii_digit());
            Some(digits.fold(0, |number, &digit| number * 10 + u64::from(digit - b'0')))
        };
        figure(b"VmPTE:").zip(figure(b"VmRSS:")).map(|(tables, resident)| [tables, resident]).ok_or(())
    }

    fn together(&mut self, threads: usize, work: ThreadWork<'_, ()>) -> Result<(), ()> {
        let host = *self;
        let failed = AtomicBool::new(false);
        let started = beside(threads - 1, &|thread| {
            if work(thread, &mut { host }).is_err() {
                failed.store(true, Ordering::Relaxed);
            }
        });
        started.filter(|()| !failed.into_inner()).ok_or(())
    }

    fn fork(&mut self) -> Result<(Cost, u64), ()> {
        let word = SharedWord::new().ok_or(())?;
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
        child.ok_or(())?.wait();
        let exit = now().saturating_sub(word.load(Ordering::Acquire));
        Ok((Cost { time, ..Cost::default() }, exit))
    }

    fn exit(&mut self, bytes: u64, folios: Folios) -> Result<Cost, ()> {
        let word = SharedWord::new().ok_or(())?;
        let child = Child::fork(|| {
            if self.populate(0, bytes, 1, folios).is_ok() {
                word.store(now(), Ordering::Release);
            }
        });
        child.ok_or(())?.wait();
        let (start, end) = (word.load(Ordering::Acquire), now());
        if start > 0 { Ok(Cost { time: end - start, ..Cost::default() }) } else { Err(()) }
    }

    fn beside_child(&mut self, work: impl FnOnce(&mut Self) -> Result<Cost, ()>) -> Result<Cost, ()> {
        let child = Child::fork(|| {
            loop {
                rustix::event::pause();
            }
        });
        let child = child.ok_or(())?;
        let cost = work(self);
        child.kill();
        child.wait();
        cost
    }
}

/// A job for the process.
#[derive(Debug)]
pub(crate) struct OnHost<J> {
    job: J,
    control: Control,
    /// Where its area starts, once it has one.
    start: Option<usize>,
}

impl<J: Job> OnHost<J> {
    /// A job on memory in `folios`.
    pub(crate) fn new(job: J, folios: Folios) -> Self {
        Self { job, control: Control::of(folios), start: None }
    }
}

impl<J: Job> Work for OnHost<J> {
    fn round(&mut self) -> Option<RoundFigures> {
        let control = &self.control;
        let mut host = match self.start {
            Some(start) => Host { start, control },
            None => Host::new(self.job.area(), control)?,
        };
        self.start = Some(host.start);
        self.job.round(&mut host).ok()
    }
}
