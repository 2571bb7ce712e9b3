//! A swap device of the comparison's own on the host: compressed RAM, which has written a page when the call returns.
//!
//! It is there for one run. A process that outlives this one, in a session of its own, waits for the end of it and puts the host
//! back as it was: also after a failure, a signal from the terminal or a kill.

use super::raw::{EXIT_GROUP, FORK, syscall};
use std::ffi::CString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

const PAGE: u64 = 4096;
const READAHEAD: &str = "/proc/sys/vm/page-cluster";
const ADD: &str = "/sys/class/zram-control/hot_add";
const REMOVE: &str = "/sys/class/zram-control/hot_remove";

/// Why the host has no swap device for the comparison.
#[derive(Debug)]
pub struct HostSwapError {
    step: String,
    error: io::Error,
}

impl fmt::Display for HostSwapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no swap device on this host: {}: {} (it needs root and zram)", self.step, self.error)
    }
}

impl std::error::Error for HostSwapError {}

/// Whether the host has a swap device already.
pub(crate) fn host_swaps() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().nth(1).is_some())
}

/// A swap device of the host that is the comparison's own. Dropping it takes it away.
#[derive(Debug)]
pub struct HostSwap {
    bytes: u64,
    /// The guard waits for the end of this; as long as any process of the comparison has it, it is needed.
    alive: Option<OwnedFd>,
    guard: i64,
}

impl HostSwap {
    /// Adds a device of `bytes` bytes. While it is there Linux reads nothing ahead from swap: what that brings in depends on more
    /// than the program.
    ///
    /// # Errors
    ///
    /// [`HostSwapError`], with everything as it was: the host swaps already, or it is not allowed.
    pub fn start(bytes: u64) -> Result<Self, HostSwapError> {
        let at = |step: &str| {
            let step = step.to_owned();
            move |error| HostSwapError { step, error }
        };
        if host_swaps() {
            return Err(at("/proc/swaps")(io::Error::other("there is swap space already")));
        }
        let readahead = fs::read_to_string(READAHEAD).map_err(at(READAHEAD))?;
        let number = fs::read_to_string(ADD).map_err(at(ADD))?.trim().to_owned();
        // From here on the guard cleans up, whatever fails.
        let swap = Self::guarded(bytes, &number, readahead.trim())?;
        let size = format!("/sys/block/zram{number}/disksize");
        fs::write(&size, bytes.to_string()).map_err(at(&size))?;
        let device = format!("/dev/zram{number}");
        write_header(&device, bytes / PAGE).map_err(at(&device))?;
        fs::write(READAHEAD, "0").map_err(at(READAHEAD))?;
        let path = CString::new(device.as_str()).map_err(|error| at(&device)(error.into()))?;
        // SAFETY: the path ends with a zero.
        if unsafe { libc::swapon(path.as_ptr(), 0) } != 0 {
            return Err(at("swapon")(io::Error::last_os_error()));
        }
        Ok(swap)
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn guarded(bytes: u64, number: &str, readahead: &str) -> Result<Self, HostSwapError> {
        let failed = |error: io::Error| {
            let _ = fs::write(REMOVE, number);
            HostSwapError { step: "a process that cleans up".to_owned(), error }
        };
        let plan = Plan::new(number, readahead).map_err(|error| failed(error.into()))?;
        let (end, alive) = io::pipe().map_err(failed)?;
        // SAFETY: the child allocates nothing and takes no lock.
        let guard = unsafe { syscall(FORK, [0; 6]) };
        if guard == 0 {
            plan.wait_and_clean_up(end.as_raw_fd(), alive.as_raw_fd());
        }
        if guard < 0 {
            return Err(failed(io::Error::from_raw_os_error(-guard as i32)));
        }
        Ok(Self { bytes, alive: Some(alive.into()), guard })
    }
}

impl Drop for HostSwap {
    fn drop(&mut self) {
        self.alive = None;
        // SAFETY: waits for our own child, which ends when the last process of the comparison is gone.
        unsafe { libc::waitpid(self.guard as i32, core::ptr::null_mut(), 0) };
    }
}

/// What `mkswap` writes.
fn write_header(device: &str, pages: u64) -> io::Result<()> {
    let mut page = [0_u8; PAGE as usize];
    let last = u32::try_from(pages - 1).map_err(io::Error::other)?;
    page[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last.to_ne_bytes());
    page[PAGE as usize - 10..].copy_from_slice(b"SWAPSPACE2");
    let mut file = File::options().write(true).open(device)?;
    file.write_all_at(&page, 0)?;
    file.flush()?;
    file.sync_all()
}

/// How the host is put back, made ready before the fork: nothing is allocated after it.
struct Plan {
    device: CString,
    /// Files, and what is written to them.
    writes: [(CString, CString); 3],
}

impl Plan {
    fn new(number: &str, readahead: &str) -> Result<Self, std::ffi::NulError> {
        let text = |path: String, word: &str| Ok((CString::new(path)?, CString::new(word)?));
        Ok(Self {
            device: CString::new(format!("/dev/zram{number}"))?,
            writes: [
                text(READAHEAD.to_owned(), readahead)?,
                text(format!("/sys/block/zram{number}/reset"), "1")?,
                text(REMOVE.to_owned(), number)?,
            ],
        })
    }

    /// The guard's life.
    fn wait_and_clean_up(&self, end: i32, alive: i32) -> ! {
        let mut byte = 0_u8;
        // SAFETY: calls about descriptors of this process and texts that end with a zero; no other thread exists here.
        unsafe {
            libc::close(alive);
            libc::setsid();
            // A signal to everybody, as at the end of a session, must not take the guard away.
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
                libc::signal(signal, libc::SIG_IGN);
            }
            while libc::read(end, (&raw mut byte).cast(), 1) != 0 {}
            libc::swapoff(self.device.as_ptr());
            for (path, word) in &self.writes {
                let file = libc::open(path.as_ptr(), libc::O_WRONLY);
                libc::write(file, word.as_ptr().cast(), libc::strlen(word.as_ptr()));
                libc::close(file);
            }
            loop {
                syscall(EXIT_GROUP, [0; 6]);
            }
        }
    }
}
