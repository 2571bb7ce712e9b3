//! Starts a program so that it is traced from its first instruction.
//!
//! The program is a grandchild. If it were a child, the standard library, which waits for a child that could
//! not be executed, would take the stops from the tracer, since both are one process. Its parent only waits
//! for it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::thread::{self, JoinHandle};

use rustix::pipe::{PipeFlags, pipe_with};

/// A process that waits before its `exec` until it is traced.
#[derive(Debug)]
pub(crate) struct Launch {
    pid: i32,
    go: OwnedFd,
    /// It returns once the program has been started: when the tracer has seen its `exec`.
    launcher: JoinHandle<io::Result<Child>>,
}

impl Launch {
    /// The program enters the memory cgroup whose file `entrance` is.
    pub(crate) fn start(
        mut command: Command,
        thp_disabled: bool,
        entrance: Option<File>,
    ) -> io::Result<Self> {
        let (said, say) = pipe_with(PipeFlags::CLOEXEC)?;
        let (wait, go) = pipe_with(PipeFlags::CLOEXEC)?;
        let (say_end, wait_end, go_end) = (say.as_raw_fd(), wait.as_raw_fd(), go.as_raw_fd());
        // SAFETY: between fork and exec only system calls are made, which is safe after a fork of a process
        // with threads; the descriptors are open in the child: their owners live until the spawn is over,
        // that of the cgroup's file as long as the command.
        unsafe {
            command.pre_exec(move || {
                step_aside()?;
                if let Some(entrance) = &entrance {
                    enter(entrance.as_raw_fd())?;
                }
                attend(thp_disabled, say_end, wait_end, go_end)
            });
        }
        let launcher = thread::spawn(move || {
            let child = command.spawn();
            drop((say, wait));
            child
        });
        let mut pid = [0; 4];
        match rustix::io::read(&said, &mut pid) {
            Ok(4) => Ok(Self { pid: i32::from_ne_bytes(pid), go, launcher }),
            // There is no child: the launcher has the reason.
            _ => Err(join(launcher).err().unwrap_or_else(|| io::Error::other("it did not start"))),
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Resumes it.
    pub(crate) fn release(&self) {
        let _ = rustix::io::write(&self.go, &[1]);
    }

    /// Ends it.
    pub(crate) fn cancel(self) {
        let _ = rustix::io::write(&self.go, &[0]);
        let _ = self.finish();
    }

    /// Returns why the program could not be executed.
    pub(crate) fn finish(self) -> io::Result<()> {
        join(self.launcher)?.wait().map(drop)
    }
}

fn join(launcher: JoinHandle<io::Result<Child>>) -> io::Result<Child> {
    launcher.join().unwrap_or_else(|_| Err(io::Error::other("the launcher panicked")))
}

/// In the child: forks a child, in which this returns, and waits for its end.
fn step_aside() -> io::Result<()> {
    // SAFETY: the process has one thread, and the allocator is whole, since the fork that made it took care
    // of that.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(()),
        child => {
            // SAFETY: nothing of this process is used any more but these calls. With its copies of
            // descriptors closed, it keeps no pipe of the program's open.
            unsafe {
                libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
                while libc::waitpid(child, std::ptr::null_mut(), 0) == -1
                    && *libc::__errno_location() == libc::EINTR
                {}
                libc::_exit(0)
            }
        }
    }
}

/// In the program's process: enters a memory cgroup. What it has so far stays charged where it is.
fn enter(group: RawFd) -> io::Result<()> {
    // SAFETY: the descriptor is open, and one byte is there. 0 stands for the process that writes it.
    match unsafe { libc::write(group, c"0".as_ptr().cast(), 1) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// In the program's process: sets its huge pages, sends its pid, and waits.
fn attend(thp_disabled: bool, say: RawFd, wait: RawFd, go: RawFd) -> io::Result<()> {
    let off = libc::c_ulong::from(thp_disabled);
    // SAFETY: the call takes numbers only. A kernel without huge pages refuses it, and has none to turn off.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, off, 0_usize, 0_usize, 0_usize) };
    // SAFETY: it cannot fail, and takes nothing.
    let pid = unsafe { libc::getpid() }.to_ne_bytes();
    // SAFETY: the descriptor is open, and `pid` is as long as is said.
    if unsafe { libc::write(say, pid.as_ptr().cast(), pid.len()) } != 4 {
        return Err(io::Error::last_os_error());
    }
    // With its own copy of the other end it would never see that the tracer is gone.
    // SAFETY: the descriptor is this process's copy, which nothing else in it uses.
    unsafe { libc::close(go) };
    let mut word = 0_u8;
    loop {
        // SAFETY: the descriptor is open, and `word` is a byte.
        match unsafe { libc::read(wait, (&raw mut word).cast(), 1) } {
            1 if word == 1 => return Ok(()),
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return Err(io::Error::from_raw_os_error(libc::ECANCELED)),
        }
    }
}
