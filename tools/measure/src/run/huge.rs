//! 2 MiB pages that the program's own page faults allocate.
//!
//! The kernel counts them for the whole host only. So hits of its tracepoint of page allocations with the
//! order of a PMD are counted in the program's processes: by a perf event of the first one that all others
//! inherit. khugepaged allocates in a thread of its own and is not counted; `MADV_COLLAPSE` is.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};
use perf_event_open_sys::ioctls;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// The tracepoint's number, in tracefs.
const ID: &str = "events/kmem/mm_page_alloc/id";
const TRACEFS: &str = "/sys/kernel/tracing";
const HUGE: u64 = 2 << 20;

/// The count of a program.
#[derive(Debug)]
pub(crate) struct HugeFaults(Counter);

impl HugeFaults {
    /// Of a process that has not executed its program yet: it counts from its `exec` on.
    pub(crate) fn of(pid: i32, page: u64) -> io::Result<Self> {
        let mut builder = Builder::new(Tracepoint::with_id(tracepoint()?));
        builder.observe_pid(pid).any_cpu().inherit(true).enable_on_exec(true);
        builder.exclude_kernel(false).exclude_hv(false);
        let counter = builder.build()?;
        let filter = CString::new(format!("order=={}", (HUGE / page).ilog2()))?;
        // SAFETY: the descriptor is an open event of a tracepoint, and the text ends with a zero and outlives
        // the call, which only reads it.
        match unsafe { ioctls::SET_FILTER(counter.as_raw_fd(), filter.as_ptr().cast_mut()) } {
            0 => Ok(Self(counter)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// What was counted so far, in all processes.
    pub(crate) fn count(&mut self) -> io::Result<u64> {
        self.0.read()
    }
}

/// Where tracefs is not mounted, a detached mount is read: no other process sees it, and it is removed with
/// its descriptor.
fn tracepoint() -> io::Result<u64> {
    let text = fs::read_to_string(format!("{TRACEFS}/{ID}")).or_else(|_| {
        let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let mount: OwnedFd = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        io::read_to_string(File::from(openat(&mount, ID, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?))
    })?;
    text.trim().parse().map_err(|_| io::Error::other("the tracepoint has no number"))
}
