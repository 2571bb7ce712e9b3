//! The host's Linux: the threads of this process work on a window of its own address space.
//!
//! No other process is needed: the window lies where nothing else is ever mapped, and a refused access is
//! caught where it happens. All threads of the process share its memory lock, so what else the process does
//! only adds to the noise.

use super::Side;
use super::crew::{Hands, World};
use super::history::{Access, ChildPage, Outcome, Refusal};
use super::program::{Call, MAX_PAGES, MAX_THREADS, Window};
use crate::linux::access::{self, Accessed};
use crate::linux::raw::{exit, syscall};
use crate::linux::shared::{Atomics, Shared};
use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use quire_arch::VirtAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// There is one window in the process.
static WINDOW: Mutex<()> = Mutex::new(());

/// What a child says about each page: what it read, and the signals of its read and its write with their
/// codes.
type PagesOfChild = [[AtomicU64; 3]; MAX_PAGES as usize];
/// One for each thread.
type PagesOfChildren = [PagesOfChild; MAX_THREADS];

// SAFETY: all of it is atomics.
unsafe impl Atomics for PagesOfChildren {}

/// The process, for one crew.
pub(super) struct LinuxWorld {
    reports: Shared<PagesOfChildren>,
    _window: MutexGuard<'static, ()>,
}

impl LinuxWorld {
    pub(super) fn new() -> Self {
        static CATCH: Once = Once::new();
        let window = WINDOW.lock().unwrap_or_else(PoisonError::into_inner);
        // The stack of the thread serves: SA_ONSTACK keeps to one where there is one, which std has for each
        // thread.
        CATCH.call_once(|| access::catch_signals(libc::SA_ONSTACK | libc::SA_RESTART));
        let reports = Shared::new().expect("the host has memory to share");
        clear_window();
        Self { reports, _window: window }
    }
}

fn system_call(call: Call) -> i64 {
    // SAFETY: only calls of `Window::call`, which concern pages of the window, and the window is this
    // module's.
    unsafe { syscall(call.number.into(), call.args) }
}

fn clear_window() {
    let (addr, len) = Window::largest();
    let call = Call { number: libc::SYS_munmap as u32, args: [addr, len, 0, 0, 0, 0], result: 0 };
    assert_eq!(system_call(call), 0, "the window cannot be cleared");
}

/// A thread, with the place where its children report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat<'w>(&'w PagesOfChild);

impl World for LinuxWorld {
    const SIDE: Side = Side::Linux;

    type Seat<'w> = Seat<'w>;
    type Memory<'w> = ();

    fn seat(&self, number: usize) -> Seat<'_> {
        Seat(&self.reports[number])
    }

    fn open(&self) {}

    fn with_hands(seat: &Seat<'_>, (): &(), work: &mut dyn FnMut(&mut dyn Hands)) {
        work(&mut InProcess { report: seat.0 });
    }

    fn close(&self, (): ()) -> Vec<String> {
        clear_window();
        Vec::new()
    }

    fn abandon(self) {}
}

struct InProcess<'w> {
    report: &'w PagesOfChild,
}

/// The outcome of an access.
fn access(Accessed { value, signal, code }: Accessed) -> Result<Access<u64>, String> {
    match (signal.cast_signed(), code) {
        (0, _) => Ok(Ok(value)),
        (libc::SIGSEGV, 1) => Ok(Err(Refusal::NotMapped)),
        (libc::SIGSEGV, 2) => Ok(Err(Refusal::Denied)),
        _ => Err(format!("signal {signal} with code {code}")),
    }
}

/// Reads the word at an address of the window, or writes `word` there.
fn touch(addr: VirtAddr, word: Option<u64>) -> Accessed {
    // SAFETY: signals are caught, and the window is this module's.
    unsafe {
        match word {
            None => access::read(addr.0),
            Some(word) => access::write(addr.0, word),
        }
    }
}

impl InProcess<'_> {
    /// The life of a child: no allocation, no lock, nothing of std, since other threads' locks were copied as
    /// they happened to be.
    fn live_as_child(&self, window: Window) -> ! {
        let told = |accessed: Accessed| u64::from(accessed.signal) << 32 | u64::from(accessed.code);
        for (page, report) in (0..window.pages).zip(self.report) {
            let addr = window.addr(page);
            let read = touch(addr, None);
            report[0].store(read.value, Ordering::Relaxed);
            report[1].store(told(read), Ordering::Relaxed);
            let written = touch(addr, Some(window.word(Window::CHILD)));
            report[2].store(told(written), Ordering::Relaxed);
        }
        exit();
    }

    /// Waits for the child's end and reads its report.
    fn hear(&self, child: Pid, window: Window) -> Outcome {
        let status = loop {
            match waitpid(child, None) {
                Err(Errno::EINTR) => {}
                status => break status,
            }
        };
        if status != Ok(WaitStatus::Exited(child, 0)) {
            return Outcome::Strange(format!("a child ended with {status:?}"));
        }
        let page = |report: &[AtomicU64; 3]| {
            let [value, read, write] = report.each_ref().map(|word| word.load(Ordering::Relaxed));
            let of = |told| access(Accessed { value, signal: (told >> 32) as u32, code: told as u32 });
            let read = of(read)?.map(|word| window.decode(word));
            Ok(ChildPage { read, write: of(write)?.map(|_| ()) })
        };
        Outcome::of_child(self.report[..usize::from(window.pages)].iter().map(page))
    }
}

impl Hands for InProcess<'_> {
    fn read(&mut self, addr: VirtAddr) -> Result<Access<u64>, String> {
        access(touch(addr, None))
    }

    fn write(&mut self, addr: VirtAddr, word: u64) -> Result<Access<()>, String> {
        access(touch(addr, Some(word))).map(|access| access.map(|_| ()))
    }

    fn call(&mut self, call: Call) -> Option<i64> {
        Some(system_call(call))
    }

    fn fork(&mut self, window: Window, forked: &mut dyn FnMut()) -> Outcome {
        // SAFETY: the child keeps to `live_as_child`. The raw call, since libc's would wait for its own
        // locks.
        let child = unsafe { syscall(libc::SYS_fork, [0; 6]) };
        if child == 0 {
            self.live_as_child(window);
        }
        forked();
        match child {
            ..0 => Outcome::Strange(format!("fork failed: {}", Errno::from_raw(-child as i32))),
            child => self.hear(Pid::from_raw(child as i32), window),
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
