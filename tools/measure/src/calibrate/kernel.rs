//! What the kernel keeps for a thread, a process and a mapping, as memory cgroups are charged.
//!
//! A process in a cgroup of its own makes many of one kind, and what the group is charged for the kernel is
//! read before and after: `memory.kmem.usage_in_bytes`, or `kernel` of `memory.stat` in version 2. Page
//! tables are taken off. It only makes system calls after the fork: its maker may have threads.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr;

use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

use crate::limit::{CgroupRoot, Group};
use crate::run::Status;

/// What the kernel keeps for programs, in bytes, beside page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelMemory {
    /// A thread: its stack in the kernel, its descriptor.
    pub thread: u64,
    /// A process beside its first thread and its mappings.
    pub process: u64,
    /// A mapping that is touched.
    pub mapping: u64,
}

/// How many are made: the charge of each is spread over batches of the kernel's.
const THREADS: usize = 256;
const PROCESSES: usize = 64;
const MAPPINGS: usize = 4096;
const PAGE: usize = 4096;
const STACK: usize = 4 * PAGE;

/// What is made many times.
#[derive(Clone, Copy)]
enum Kind {
    Threads,
    Processes,
    Mappings,
}

/// Measures it; none without memory cgroups that may be made.
pub(super) fn measure() -> Option<KernelMemory> {
    let group = CgroupRoot::of_host().ok()?.group(&format!("quire-kernel-{}", std::process::id()));
    group.make().ok()?;
    let measured = (|| {
        let thread = charged(&group, Kind::Threads).ok()?.bytes / THREADS as u64;
        let mapping = charged(&group, Kind::Mappings).ok()?.bytes / MAPPINGS as u64;
        let processes = charged(&group, Kind::Processes).ok()?;
        // Most of its mappings are of files, and have none of what finds pages: they take half as much.
        let beside = thread + processes.mappings * mapping / 2;
        let process = (processes.bytes / PROCESSES as u64).saturating_sub(beside).max(PAGE as u64);
        (thread > 0 && mapping > 0).then_some(KernelMemory { thread, process, mapping })
    })();
    // Its last process has been waited for.
    let _ = fs::remove_dir(group.folder());
    measured
}

/// What a group was charged.
struct Charged {
    /// For all, without page tables.
    bytes: u64,
    /// Mappings of the process that made them.
    mappings: u64,
}

/// A process in `group` makes many of a kind.
fn charged(group: &Group, kind: Kind) -> io::Result<Charged> {
    let (said, say) = pipe_with(PipeFlags::CLOEXEC)?;
    let (wait, go) = pipe_with(PipeFlags::CLOEXEC)?;
    let entrance = group.entrance().map_err(io::Error::other)?;
    let pipes = (say.as_raw_fd(), wait.as_raw_fd(), go.as_raw_fd());
    // SAFETY: the child makes system calls only, which is safe after a fork of a process with threads, and
    // ends without returning.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        // SAFETY: the descriptors are open in this copy of the process.
        unsafe { make(kind, entrance.as_raw_fd(), pipes) }
    }
    drop((say, wait));
    let hear = || matches!(rustix::io::read(&said, &mut [0; 1]), Ok(1)).then_some(());
    let tell = || rustix::io::write(&go, b"g").is_ok();
    let found = (|| {
        hear()?;
        let (before, tables) = (group.charge().kernel, tables_in(group));
        let mappings = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?.lines().count() as u64;
        tell().then_some(())?;
        hear()?;
        let grown = tables_in(group).saturating_sub(tables);
        let bytes = group.charge().kernel.saturating_sub(before).saturating_sub(grown);
        Some(Charged { bytes, mappings })
    })();
    // It ends at the end of the pipe, and those that it made end with it.
    drop(go);
    // SAFETY: a child of this process that nothing else waits for.
    unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
    found.ok_or_else(|| io::Error::other("the process ended early"))
}

/// Page tables of the processes in `group`, in bytes.
fn tables_in(group: &Group) -> u64 {
    let of = |pid: &str| Some(Status::of(pid.parse().ok()?)?.page_tables);
    let processes = fs::read_to_string(group.folder().join("cgroup.procs")).unwrap_or_default();
    processes.lines().filter_map(of).sum()
}

extern "C" fn idle(_: *mut libc::c_void) -> i32 {
    loop {
        // SAFETY: it only waits.
        unsafe { libc::pause() };
    }
}

/// What the child does: enters the group, says so, waits, makes them, says so, waits.
///
/// # Safety
///
/// The descriptors are open, and it is a process that was just forked.
unsafe fn make(kind: Kind, entrance: i32, (say, wait, go): (i32, i32, i32)) -> ! {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    let pages = match kind {
        Kind::Threads => THREADS * STACK,
        Kind::Processes => 0,
        Kind::Mappings => 2 * MAPPINGS * PAGE,
    };
    // SAFETY: system calls with memory of this process: the mapping, which holds a stack for each thread, and
    // bytes on this stack. Children of the last kind only wait until they are killed.
    unsafe {
        // So that it sees the other end close.
        libc::close(go);
        let mut heard = [0_u8; 1];
        let memory = match pages {
            0 => ptr::null_mut(),
            pages => libc::mmap(ptr::null_mut(), pages, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0),
        };
        if memory == libc::MAP_FAILED
            || libc::write(entrance, b"0".as_ptr().cast(), 1) != 1
            || libc::write(say, b"e".as_ptr().cast(), 1) != 1
            || libc::read(wait, heard.as_mut_ptr().cast(), 1) != 1
        {
            libc::_exit(1);
        }
        let mut children = [0; PROCESSES];
        // Fewer than that, as where the host limits them, would count for less.
        let mut are_made = true;
        match kind {
            Kind::Threads => {
                let flags = libc::CLONE_VM
                    | libc::CLONE_THREAD
                    | libc::CLONE_SIGHAND
                    | libc::CLONE_FILES
                    | libc::CLONE_FS
                    | libc::CLONE_SYSVSEM;
                for thread in 1..=THREADS {
                    are_made &=
                        libc::clone(idle, memory.byte_add(thread * STACK), flags, ptr::null_mut()) > 0;
                }
            }
            Kind::Processes => {
                for child in &mut children {
                    *child = libc::fork();
                    if *child == 0 {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        idle(ptr::null_mut());
                    }
                    are_made &= *child > 0;
                }
            }
            Kind::Mappings => {
                for mapping in 0..MAPPINGS {
                    are_made &=
                        libc::mprotect(memory.byte_add(mapping * 2 * PAGE), PAGE, libc::PROT_READ) == 0;
                }
            }
        }
        // Without this word the other end hears that this process ended.
        if are_made && libc::write(say, b"m".as_ptr().cast(), 1) == 1 {
            libc::read(wait, heard.as_mut_ptr().cast(), 1);
        }
        for child in children.into_iter().filter(|child| *child > 0) {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, ptr::null_mut(), 0);
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As root. On a host that is busy the charges differ by a batch or two.
    #[test]
    fn what_the_kernel_keeps_is_measured() {
        let Some(found) = measure() else { return eprintln!("skipped: no memory cgroup can be made") };
        assert!((16 << 10..64 << 10).contains(&found.thread), "{found:?}");
        assert!((4 << 10..256 << 10).contains(&found.process), "{found:?}");
        // A VMA at least, and what finds its pages.
        assert!((150..2000).contains(&found.mapping), "{found:?}");
        let left = CgroupRoot::of_host().unwrap().group(&format!("quire-kernel-{}", std::process::id()));
        assert!(!left.folder().exists());
    }
}
