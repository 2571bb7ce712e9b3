//! The work of the process that measures the host's Linux.

use super::PIECE;
use crate::folios::{Folios, pages};
use crate::linux::{Area, Child, Control, Linux, RoundFigures, Work, now, round_figures};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_arch::Order;

/// What the process does in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Job {
    /// Populates memory and unmaps all of it at once.
    Munmap,
    /// Unmaps every second piece of populated memory, in calls of [`PIECE`] bytes.
    Pieces,
    /// Unmaps populated memory that a child maps too.
    Shared,
    /// Exits a child that populated memory.
    Exit,
    /// Writes to all of populated memory, forks, and waits for the exit of the child.
    Fork,
}

/// Starts the process for `job` on `bytes` of memory in `folios`. `None` where the host has too little free
/// memory, or where it would have to set a control and may not.
pub(super) fn start(job: Job, bytes: u64, folios: Folios, may_set: bool) -> Option<Linux> {
    if folios.order > Order::ZERO && !may_set {
        return None;
    }
    // A machine for each strategy comes beside it.
    Linux::start(
        4 * bytes,
        Teardown { job, bytes, folios, control: Control::of(folios), area: None, word: None },
    )
}

/// A job and what it keeps from round to round.
#[derive(Debug)]
struct Teardown {
    job: Job,
    bytes: u64,
    folios: Folios,
    control: Control,
    /// What a fork copies.
    area: Option<Area>,
    /// Where a child leaves the time.
    word: Option<&'static AtomicU64>,
}

impl Work for Teardown {
    fn round(&mut self) -> Option<RoundFigures> {
        match self.job {
            Job::Munmap => self.munmap(),
            Job::Pieces => self.pieces(),
            Job::Shared => self.shared(),
            Job::Exit => self.exit(),
            Job::Fork => self.fork(),
        }
    }
}

impl Teardown {
    fn populated(&self) -> Option<Area> {
        Area::populated(self.bytes, self.folios, &self.control)
    }

    fn a_page(&self, ns: u64) -> f64 {
        ns as f64 / pages(self.bytes) as f64
    }

    fn munmap(&self) -> Option<RoundFigures> {
        let area = self.populated()?;
        let start = now();
        area.unmap();
        Some(round_figures([self.a_page(now() - start)]))
    }

    fn pieces(&self) -> Option<RoundFigures> {
        let area = self.populated()?;
        let mut pieces = (0..self.bytes / PIECE).map(|nth| area.part((nth * PIECE) as usize, PIECE as usize));
        let start = now();
        pieces.by_ref().step_by(2).for_each(Area::unmap);
        // Half of the pages.
        let time = 2 * (now() - start);
        area.unmap();
        Some(round_figures([self.a_page(time)]))
    }

    fn shared(&self) -> Option<RoundFigures> {
        let area = self.populated()?;
        let child = Child::fork(|| {
            loop {
                rustix::event::pause();
            }
        })?;
        let start = now();
        area.unmap();
        let time = now() - start;
        child.kill();
        child.wait();
        Some(round_figures([self.a_page(time)]))
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

    fn exit(&mut self) -> Option<RoundFigures> {
        let word = self.word()?;
        word.store(0, Ordering::Relaxed);
        let child = Child::fork(|| {
            if self.populated().is_some() {
                word.store(now(), Ordering::Release);
            }
        })?;
        child.wait();
        let end = now();
        let start = word.load(Ordering::Acquire);
        (start > 0).then(|| round_figures([self.a_page(end - start)]))
    }

    fn fork(&mut self) -> Option<RoundFigures> {
        let word = self.word()?;
        if self.area.is_none() {
            self.area = self.populated();
        }
        self.area?.write();
        let start = now();
        let child = Child::fork(|| {
            // Until its parent has left the call, so that the two do not disturb each other.
            while word.swap(0, Ordering::Acquire) == 0 {
                core::hint::spin_loop();
            }
            word.store(now(), Ordering::Release);
        })?;
        let forked = now() - start;
        word.store(1, Ordering::Release);
        child.wait();
        let end = now();
        let started = word.swap(0, Ordering::Acquire);
        Some(round_figures([self.a_page(forked), self.a_page(end.saturating_sub(started))]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_with_pages_round_after_round() {
        for job in [Job::Munmap, Job::Pieces, Job::Shared, Job::Exit, Job::Fork] {
            let mut linux = start(job, 8 << 20, Folios::PAGES, false).expect("room for 8 MiB");
            for round in 0..3 {
                let figures = linux.round().expect("pages need no control");
                assert!(figures[0] > 0.0, "{job:?}, round {round}: {figures:?}");
            }
        }
    }
}
