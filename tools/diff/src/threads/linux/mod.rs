//! The host's Linux: the threads of this process work on a window of its own address space.
//!
//! No other process is needed: the window lies where nothing else is ever mapped, and a refused access is
//! caught where it happens. All threads of the process share its memory lock, so what else the process does
//! only adds to the noise.

mod access;

use super::Side;
use super::crew::{Hands, World};
use super::history::{ChildPage, Clock, Outcome, Refusal};
use super::program::{Call, MAX_PAGES, MAX_THREADS, Op, Window};
use core::ptr;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// There is one window in the process.
static WINDOW: Mutex<()> = Mutex::new(());

/// What a child says about each page: whether and what it read, whether it could write.
type Report = [[AtomicU64; 3]; MAX_PAGES as usize];

/// The process, for one crew.
#[derive(Debug)]
pub(super) struct LinuxWorld {
    /// One for each thread, in memory that is shared with children.
    reports: &'static [Report; MAX_THREADS],
    _window: MutexGuard<'static, ()>,
}

impl LinuxWorld {
    pub(super) fn new() -> Self {
        let window = WINDOW.lock().unwrap_or_else(PoisonError::into_inner);
        access::catch_faults();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let len = size_of::<[Report; MAX_THREADS]>();
        // SAFETY: a new mapping, which replaces nothing.
        let reports = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(reports, libc::MAP_FAILED, "no shared memory: {}", io::Error::last_os_error());
        // SAFETY: mapped above, zeroed, which is valid, and unmapped only when the world goes.
        let reports = unsafe { &*reports.cast::<[Report; MAX_THREADS]>() };
        clear_window();
        Self { reports, _window: window }
    }
}

impl Drop for LinuxWorld {
    fn drop(&mut self) {
        let reports = ptr::from_ref(self.reports).cast_mut();
        // SAFETY: mapped by `new`, and no seat, which borrows the world, is left.
        unsafe { libc::munmap(reports.cast(), size_of::<[Report; MAX_THREADS]>()) };
    }
}

fn system_call(call: Call) -> i64 {
    let [a, b, c, d, e, f] = call.args;
    // SAFETY: only calls of `Window::call`, which concern pages of the window, and the window is this
    // module's.
    match unsafe { libc::syscall(i64::from(call.number), a, b, c, d, e, f) } {
        -1 => -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        returned => returned,
    }
}

fn clear_window() {
    let (addr, len) = Window::largest();
    // SAFETY: as in `system_call`.
    let result = unsafe { libc::munmap(ptr::without_provenance_mut(addr as usize), len as usize) };
    assert_eq!(result, 0, "the window cannot be cleared: {}", io::Error::last_os_error());
}

/// A thread, with the place where its children report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat<'w>(&'w Report);

impl World for LinuxWorld {
    const SIDE: Side = Side::Linux;

    type Seat<'w> = Seat<'w>;
    type Memory<'w> = ();

    fn seat(&self, number: usize) -> Seat<'_> {
        Seat(&self.reports[number])
    }

    fn open(&self) {}

    fn with_hands(seat: &Seat<'_>, (): &(), window: Window, work: &mut dyn FnMut(&mut dyn Hands)) {
        work(&mut InProcess { report: seat.0, window });
    }

    fn close(&self, (): ()) -> Vec<String> {
        clear_window();
        Vec::new()
    }

    fn abandon(self) {}
}

struct InProcess<'w> {
    report: &'w Report,
    window: Window,
}

/// What a child's report says instead of a code when the access succeeded.
const SUCCESS: u64 = 0;

fn refusal(code: i32) -> Option<Refusal> {
    const MAPERR: i32 = 1;
    const ACCERR: i32 = 2;
    match code {
        MAPERR => Some(Refusal::NotMapped),
        ACCERR => Some(Refusal::Denied),
        _ => None,
    }
}

fn outcome<T>(result: Result<T, i32>, success: impl FnOnce(T) -> Outcome) -> Outcome {
    match result {
        Ok(value) => success(value),
        Err(code) => refusal(code)
            .map_or_else(|| Outcome::Strange(format!("SIGSEGV with code {code}")), Outcome::Refused),
    }
}

impl InProcess<'_> {
    /// The life of a child: no allocation, no lock, nothing of std, since other threads' locks were copied as
    /// they happened to be.
    fn live_as_child(&self) -> ! {
        let code = |code: i32| code as u64;
        for (page, report) in (0..self.window.pages).zip(self.report) {
            let addr = self.window.addr(page).0;
            // SAFETY: faults are caught, and the window is this module's.
            let (read, written) =
                unsafe { (access::read(addr), access::write(addr, self.window.word(Window::CHILD))) };
            report[1].store(read.unwrap_or(0), Ordering::Relaxed);
            report[0].store(read.err().map_or(SUCCESS, code), Ordering::Relaxed);
            report[2].store(written.err().map_or(SUCCESS, code), Ordering::Relaxed);
        }
        // SAFETY: ends the child and nothing else.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
        unreachable!("a process that has ended goes on");
    }

    /// Waits for the child's end and reads its report.
    fn hear(&self, child: i64) -> Outcome {
        let mut status = 0;
        loop {
            // SAFETY: waits for a child that no other code waits for.
            let waited = unsafe { libc::waitpid(child as libc::pid_t, &raw mut status, 0) };
            match waited {
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ if i64::from(waited) == child && status == 0 => break,
                _ => return Outcome::Strange(format!("a child ended with status {status:#x}")),
            }
        }
        let access = |code: &AtomicU64| match code.load(Ordering::Relaxed) {
            SUCCESS => Ok(Ok(())),
            code => refusal(code as i32).map(Err).ok_or_else(|| format!("a child's SIGSEGV had code {code}")),
        };
        let page = |[read, word, write]: &[AtomicU64; 3]| {
            let word = self.window.decode(word.load(Ordering::Relaxed));
            Ok(ChildPage { read: access(read)?.map(|()| word), write: access(write)? })
        };
        let pages = self.report[..usize::from(self.window.pages)].iter().map(page);
        pages.collect::<Result<_, String>>().map_or_else(Outcome::Strange, Outcome::Child)
    }
}

impl Hands for InProcess<'_> {
    fn perform(&mut self, op: Op, clock: &Clock) -> (u64, u64, Outcome) {
        let window = self.window;
        let begin = clock.stamp();
        match op {
            Op::Read { page } => {
                // SAFETY: faults are caught, and the window is this module's.
                let result = unsafe { access::read(window.addr(page).0) };
                (begin, clock.stamp(), outcome(result, |word| Outcome::Word(window.decode(word))))
            }
            Op::Write { page, value } => {
                // SAFETY: as above.
                let result = unsafe { access::write(window.addr(page).0, window.word(value)) };
                (begin, clock.stamp(), outcome(result, |()| Outcome::Done))
            }
            Op::Fork => {
                // SAFETY: the child keeps to `live_as_child`. The raw call, since libc's would wait for its
                // own locks.
                let child = unsafe { libc::syscall(libc::SYS_fork) };
                if child == 0 {
                    self.live_as_child();
                }
                let end = clock.stamp();
                let outcome = if child > 0 {
                    self.hear(child)
                } else {
                    Outcome::Strange(format!("fork failed: {}", io::Error::last_os_error()))
                };
                (begin, end, outcome)
            }
            _ => {
                let outcome = window.call(op).map(|call| Outcome::of_call(system_call(call), call.result));
                let end = clock.stamp();
                (begin, end, outcome.unwrap_or_else(|| Outcome::Strange("no call".to_owned())))
            }
        }
    }
}

/// Whether the running kernel is the one that the model describes: 6.17 is the first in which `mremap` moves
/// several mappings at once, and looks at the source before it unmaps the target.
pub(super) fn is_recent() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(17))
}
