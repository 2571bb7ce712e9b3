//! What the process does in a round.

use super::controls::Control;
use super::memory::Area;
use super::{Answer, Job};
use crate::gather::PIECE;
use crate::gather::folios::{Folios, pages};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

/// A job with what it keeps from round to round.
#[derive(Debug)]
pub(super) struct Work {
    job: Job,
    bytes: u64,
    folios: Folios,
    /// What a fork copies.
    area: Option<Area>,
    /// Where a child leaves the time.
    word: Option<&'static AtomicU64>,
}

/// Nanoseconds on the clock that all processes share.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is the caller's own.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Calls `child` in a new process, which ends then, if it has not before.
fn fork(child: impl FnOnce()) -> Option<libc::pid_t> {
    // SAFETY: the process has one thread, and the child allocates nothing and ends with `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child();
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    }
    (pid > 0).then_some(pid)
}

fn wait(pid: libc::pid_t) {
    // SAFETY: a child of this process.
    unsafe { libc::waitpid(pid, null_mut(), 0) };
}

impl Work {
    pub(super) const fn new(job: Job, bytes: u64, folios: Folios) -> Self {
        Self { job, bytes, folios, area: None, word: None }
    }

    pub(super) fn round(&mut self, control: &Control) -> Option<Answer> {
        match self.job {
            Job::Munmap => self.munmap(control),
            Job::Pieces => self.pieces(control),
            Job::Shared => self.shared(control),
            Job::Exit => self.exit(control),
            Job::Fork => self.fork(control),
        }
    }

    fn populated(&self, control: &Control) -> Option<Area> {
        Area::populated(self.bytes, self.folios, control)
    }

    fn a_page(&self, ns: u64) -> f64 {
        ns as f64 / pages(self.bytes) as f64
    }

    fn munmap(&self, control: &Control) -> Option<Answer> {
        let area = self.populated(control)?;
        let start = now();
        area.unmap();
        Some([self.a_page(now() - start), 0.0])
    }

    fn pieces(&self, control: &Control) -> Option<Answer> {
        let area = self.populated(control)?;
        let mut pieces = (0..self.bytes / PIECE).map(|nth| area.part((nth * PIECE) as usize, PIECE as usize));
        let start = now();
        pieces.by_ref().step_by(2).for_each(Area::unmap);
        // Half of the pages.
        let time = 2 * (now() - start);
        area.unmap();
        Some([self.a_page(time), 0.0])
    }

    fn shared(&self, control: &Control) -> Option<Answer> {
        let area = self.populated(control)?;
        let child = fork(|| {
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        })?;
        let start = now();
        area.unmap();
        let time = now() - start;
        // SAFETY: the child, which exists until it is waited for.
        unsafe { libc::kill(child, libc::SIGKILL) };
        wait(child);
        Some([self.a_page(time), 0.0])
    }

    /// A word that children share with this process.
    fn word(&mut self) -> Option<&'static AtomicU64> {
        if self.word.is_none() {
            let (access, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            // SAFETY: new memory anywhere.
            let page = unsafe { libc::mmap(null_mut(), size_of::<AtomicU64>(), access, flags, -1, 0) };
            if page != libc::MAP_FAILED {
                // SAFETY: mapped until the process ends, aligned, and only used as this word.
                self.word = Some(unsafe { AtomicU64::from_ptr(page.cast()) });
            }
        }
        self.word
    }

    fn exit(&mut self, control: &Control) -> Option<Answer> {
        let word = self.word()?;
        word.store(0, Ordering::Relaxed);
        let child = fork(|| {
            if self.populated(control).is_some() {
                word.store(now(), Ordering::Release);
            }
        })?;
        wait(child);
        let end = now();
        let start = word.load(Ordering::Acquire);
        (start > 0).then(|| [self.a_page(end - start), 0.0])
    }

    fn fork(&mut self, control: &Control) -> Option<Answer> {
        let word = self.word()?;
        if self.area.is_none() {
            self.area = self.populated(control);
        }
        self.area?.write();
        let start = now();
        let child = fork(|| {
            // Until its parent has left the call, so that the two do not disturb each other.
            while word.swap(0, Ordering::Acquire) == 0 {
                core::hint::spin_loop();
            }
            word.store(now(), Ordering::Release);
        })?;
        let forked = now() - start;
        word.store(1, Ordering::Release);
        wait(child);
        let end = now();
        let started = word.swap(0, Ordering::Acquire);
        Some([self.a_page(forked), self.a_page(end.saturating_sub(started))])
    }
}
