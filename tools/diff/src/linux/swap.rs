//! A swap device of the comparison's own on the host: compressed RAM, which has written a page when the call
//! returns.
//!
//! It is there for one run. A process that outlives this one, in a session of its own, waits for the end of
//! it and puts the host back as it was: also after a failure, a signal from the terminal or a kill.

use super::raw::{EXIT_GROUP, FORK, syscall};
use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

const PAGE: u64 = 4096;
const READAHEAD: &str = "/proc/sys/vm/page-cluster";
const ADD: &str = "/sys/class/zram-control/hot_add";

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
    /// Adds a device of `bytes` bytes. While it is there Linux reads nothing ahead from swap: what that
    /// brings in depends on more than the program.
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
        // Opening adds nothing, and says whether it is allowed.
        File::open(ADD).map_err(at(ADD))?;
        let (swap, number) = Self::guarded(bytes, &readahead).map_err(at(ADD))?;
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

    /// Starts the guard, which adds the device and tells its number: whatever happens from then on, it cleans
    /// up.
    fn guarded(bytes: u64, readahead: &str) -> io::Result<(Self, String)> {
        let readahead = CString::new(readahead.trim())?;
        let (end, alive) = io::pipe()?;
        let (mut told, tells) = io::pipe()?;
        // SAFETY: the child allocates nothing and takes no lock.
        let guard = unsafe { syscall(FORK, [0; 6]) };
        if guard == 0 {
            guard_host(end.as_raw_fd(), alive.as_raw_fd(), tells.as_raw_fd(), &readahead);
        }
        if guard < 0 {
            return Err(io::Error::from_raw_os_error(-guard as i32));
        }
        let swap = Self { bytes, alive: Some(alive.into()), guard };
        drop(tells);
        let mut number = String::new();
        told.read_to_string(&mut number)?;
        if number.is_empty() {
            return Err(io::Error::other("no device was added"));
        }
        Ok((swap, number.trim().to_owned()))
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

/// Bytes of the longest path here, and more.
const PATH: usize = 64;

/// Texts one after the other, with a zero at the end. It allocates nothing, and does not panic.
fn joined(parts: [&[u8]; 3]) -> [u8; PATH] {
    let mut all = [0; PATH];
    let room = all[..PATH - 1].iter_mut();
    room.zip(parts.into_iter().flatten()).for_each(|(to, from)| *to = *from);
    all
}

/// Writes a text to a file of the kernel's.
///
/// # Safety
///
/// Both texts end with a zero.
unsafe fn write_text(path: *const u8, text: *const u8) {
    // SAFETY: the caller's promise; a descriptor that is none is refused.
    unsafe {
        let file = libc::open(path.cast(), libc::O_WRONLY);
        libc::write(file, text.cast(), libc::strlen(text.cast()));
        libc::close(file);
    }
}

/// The guard's life: it adds a device, tells its number, waits until no process has `alive` open any more,
/// and puts the host back.
fn guard_host(end: i32, alive: i32, tells: i32, readahead: &CStr) -> ! {
    let mut number = [0_u8; 16];
    let mut byte = 0_u8;
    // SAFETY: calls about descriptors of this process and texts that end with a zero; no other thread exists
    // here.
    unsafe {
        libc::close(alive);
        libc::setsid();
        // A signal to all, as at the end of a session, must not take the guard away.
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        let add = libc::open(c"/sys/class/zram-control/hot_add".as_ptr(), libc::O_RDONLY);
        let added = libc::read(add, number.as_mut_ptr().cast(), number.len() - 1) > 0;
        libc::close(add);
        number.iter_mut().filter(|digit| !digit.is_ascii_digit()).for_each(|other| *other = 0);
        let digits = number.split(|digit| *digit == 0).next().unwrap_or(&[]);
        libc::write(tells, digits.as_ptr().cast(), if added { digits.len() } else { 0 });
        libc::close(tells);
        while added && libc::read(end, (&raw mut byte).cast(), 1) != 0 {}
        if added {
            libc::swapoff(joined([b"/dev/zram", digits, b""]).as_ptr().cast());
            write_text(c"/proc/sys/vm/page-cluster".as_ptr().cast(), readahead.as_ptr().cast());
            let reset = joined([b"/sys/block/zram", digits, b"/reset"]);
            write_text(reset.as_ptr(), c"1".as_ptr().cast());
            let removed = joined([digits, b"", b""]);
            write_text(c"/sys/class/zram-control/hot_remove".as_ptr().cast(), removed.as_ptr());
        }
        loop {
            syscall(EXIT_GROUP, [0; 6]);
        }
    }
}
