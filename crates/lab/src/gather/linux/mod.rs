//! The host's Linux doing the same, in a process of its own.
//!
//! The process is forked off before a machine is built, so that it has no large memory but its own. It does a round
//! whenever it is asked, so that Linux's rounds take turns with Quire's. Between `fork` and its end it allocates nothing:
//! another thread may have held the allocator's lock.

mod controls;
mod jobs;
mod memory;

use super::folios::Folios;
use controls::Control;
use jobs::Work;
use quire_arch::Order;
use rustix::fd::OwnedFd;
use rustix::io::{read, write};
use rustix::pipe::pipe;

/// What the process does in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Job {
    /// Populates memory and unmaps all of it at once.
    Munmap,
    /// Unmaps every second piece of populated memory, in calls of [`PIECE`](super::PIECE) bytes.
    Pieces,
    /// Unmaps populated memory that a child maps too.
    Shared,
    /// Ends a child that populated memory.
    Exit,
    /// Writes to all of populated memory, forks, and ends the child.
    Fork,
}

/// The most figures that a round has.
const FIGURES: usize = 2;
type Answer = [f64; FIGURES];
const ANSWER: usize = size_of::<Answer>();

const ROUND: u8 = b'r';
const END: u8 = b'e';

/// The process.
#[derive(Debug)]
pub(super) struct Linux {
    pid: libc::pid_t,
    requests: OwnedFd,
    answers: OwnedFd,
}

impl Linux {
    /// Starts the process for `job` on `bytes` of memory in `folios`. `None` where the host does not have the memory to
    /// spare, or where it would have to set a control and may not.
    pub(super) fn start(job: Job, bytes: u64, folios: Folios, may_set: bool) -> Option<Self> {
        let needs_control = folios.order > Order::ZERO;
        // A machine for each strategy comes beside it.
        if needs_control && !may_set || memory::available()? < 4 * bytes {
            return None;
        }
        let control = Control::of(folios);
        let (requests_end, requests) = pipe().ok()?;
        let (answers, answers_end) = pipe().ok()?;
        // SAFETY: the child calls nothing but `serve`, which allocates nothing and ends with `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // Else it would keep itself waiting after this process is gone.
            drop(requests);
            serve(&mut Work::new(job, bytes, folios), &control, &requests_end, &answers_end);
        }
        (pid > 0).then_some(Self { pid, requests, answers })
    }

    /// Does a round and answers its figures in nanoseconds for each page. `None` where Linux cannot do the same: it has no
    /// such folios, does not let us set its controls, or had none to give.
    pub(super) fn round(&mut self) -> Option<Answer> {
        write(&self.requests, &[ROUND]).ok()?;
        let mut bytes = [0; ANSWER];
        (read(&self.answers, &mut bytes).ok()? == ANSWER).then_some(())?;
        let mut answer = Answer::default();
        for (figure, bytes) in answer.iter_mut().zip(bytes.as_chunks().0) {
            *figure = f64::from_ne_bytes(*bytes);
        }
        answer.iter().all(|figure| figure.is_finite()).then_some(answer)
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        let _ = write(&self.requests, &[END]);
        // SAFETY: a child of this process that nobody else waits for.
        unsafe { libc::waitpid(self.pid, core::ptr::null_mut(), 0) };
    }
}

/// The life of the process: rounds until it is told to end, or whoever asks is gone. It finishes its round and restores
/// the controls also when that process panics or is killed.
fn serve(work: &mut Work, control: &Control, requests: &OwnedFd, answers: &OwnedFd) -> ! {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler is installed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut request = [0];
    while matches!(read(requests, &mut request), Ok(1)) && request[0] == ROUND {
        let answer = work.round(control).unwrap_or([f64::NAN; FIGURES]);
        let mut bytes = [0; ANSWER];
        for (bytes, figure) in bytes.as_chunks_mut().0.iter_mut().zip(answer) {
            *bytes = figure.to_ne_bytes();
        }
        if write(answers, &bytes).is_err() {
            break;
        }
    }
    // SAFETY: ends the process at once, as after a fork.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_with_pages_round_after_round() {
        for job in [Job::Munmap, Job::Pieces, Job::Shared, Job::Exit, Job::Fork] {
            let mut linux = Linux::start(job, 8 << 20, Folios::PAGES, false).expect("room for 8 MiB");
            for round in 0..3 {
                let figures = linux.round().expect("pages need no control");
                assert!(figures[0] > 0.0, "{job:?}, round {round}: {figures:?}");
            }
        }
    }
}
