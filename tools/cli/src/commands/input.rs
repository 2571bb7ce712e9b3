//! The standard input of a command that runs several times: each run has all of it, from its beginning.
//!
//! A regular file is opened anew for each run, at the offset that it had. What comes through a pipe or a
//! socket is kept in a temporary file; a thread gives it to the program through a pipe: first what is kept,
//! then what comes, as far as the pipe has room. So a program whose input has no end runs, and who waits for
//! its output before writing on is not kept waiting. A terminal, and a device such as /dev/null, is the
//! program's as it is.

use crate::failure::Failure;
use crate::interrupt::with_signals_blocked;
use quire_output::temporary_file;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::FileType;
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio::stdin;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The standard input of this process, for several runs of a command.
pub(crate) struct Input(Source);

enum Source {
    /// As it is.
    Inherited,
    /// A regular file, and where it begins.
    File(u64),
    /// What comes through it is kept.
    Stream { kept: Arc<File>, feeder: RefCell<Option<Feeder>> },
}

impl Input {
    /// For a command that does not run.
    pub(crate) fn none() -> Self {
        Self(Source::Inherited)
    }

    /// That of this process. Nothing is read yet.
    pub(crate) fn of_this_process() -> Result<Self, Failure> {
        let kind = rustix::fs::fstat(stdin()).map(|facts| FileType::from_raw_mode(facts.st_mode));
        let source = match kind {
            Ok(FileType::RegularFile) if reopened().is_ok() => {
                Source::File(rustix::fs::tell(stdin()).map_err(failed)?)
            }
            Ok(FileType::RegularFile | FileType::Fifo | FileType::Socket) => {
                Source::Stream { kept: Arc::new(temporary_file()?), feeder: RefCell::new(None) }
            }
            _ => Source::Inherited,
        };
        Ok(Self(source))
    }

    /// That of the next run, which begins when the one before has ended; none if it is this process's own.
    ///
    /// # Errors
    ///
    /// The file cannot be opened again, or not all of what came through the pipe could be kept.
    pub(crate) fn next(&self) -> io::Result<Option<File>> {
        match &self.0 {
            Source::Inherited => Ok(None),
            Source::File(offset) => {
                let file = reopened()?;
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(*offset))?;
                Ok(Some(file))
            }
            Source::Stream { kept, feeder } => {
                self.end()?;
                let (read, new) = Feeder::start(Arc::clone(kept))?;
                *feeder.borrow_mut() = Some(new);
                Ok(Some(read))
            }
        }
    }

    /// The last run has ended.
    ///
    /// # Errors
    ///
    /// It may not have had all of the input: that could not be read or kept.
    pub(crate) fn end(&self) -> io::Result<()> {
        match &self.0 {
            Source::Stream { feeder, .. } => feeder.borrow_mut().take().map_or(Ok(()), Feeder::end),
            Source::Inherited | Source::File(_) => Ok(()),
        }
    }

    /// The same, for a command of the standard library.
    pub(crate) fn stdio(&self) -> io::Result<Stdio> {
        Ok(self.next()?.map_or_else(Stdio::inherit, Stdio::from))
    }
}

/// The regular file, with an offset of its own.
fn reopened() -> io::Result<File> {
    File::open("/proc/self/fd/0")
}

pub(crate) fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::work(format!("the standard input cannot be given to each run: {error}"))
}

/// A thread that gives a program what is kept, and then what comes.
struct Feeder {
    thread: Option<JoinHandle<io::Result<()>>>,
    stop: Arc<OwnedFd>,
}

impl Feeder {
    /// Starts it, and returns what the program reads from.
    fn start(kept: Arc<File>) -> io::Result<(File, Self)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // The thread's end only: the program's blocks.
        rustix::io::ioctl_fionbio(&write, true)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let seen = Arc::clone(&stop);
        let feed = move || Feed { kept: &kept, stop: seen.as_fd(), program: write.as_fd() }.run();
        let spawn = || std::thread::Builder::new().name("quire-input".into()).spawn(feed);
        let thread = with_signals_blocked(spawn)??;
        Ok((read.into(), Self { thread: Some(thread), stop }))
    }

    /// The program has ended: what it has not read is for the next.
    fn end(mut self) -> io::Result<()> {
        self.stopped()
    }

    fn stopped(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes())?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread ended early")))
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        // The command ends for another reason, which is told.
        let _ = self.stopped();
    }
}

/// The thread's work.
struct Feed<'f> {
    kept: &'f File,
    /// Readable when it is to end.
    stop: BorrowedFd<'f>,
    program: BorrowedFd<'f>,
}

/// Why the thread waits no longer.
#[derive(PartialEq, Eq)]
enum Woken {
    Ready,
    /// The program has ended, or closed its input.
    Over,
}

impl Feed<'_> {
    fn run(&self) -> io::Result<()> {
        let mut bytes = vec![0; 64 << 10];
        let mut at = 0;
        loop {
            let mut count = self.kept.read_at(&mut bytes, at)?;
            if count == 0 {
                // More is taken when the program has room for it.
                if self.wait(None)? == Woken::Over || self.wait(Some(stdin()))? == Woken::Over {
                    return Ok(());
                }
                count = retry_on_intr(|| rustix::io::read(stdin(), &mut bytes))?;
                if count == 0 {
                    return Ok(());
                }
                self.kept.write_all_at(&bytes[..count], at)?;
            }
            at += count as u64;
            let mut rest = &bytes[..count];
            while !rest.is_empty() {
                if self.wait(None)? == Woken::Over {
                    return Ok(());
                }
                match rustix::io::write(self.program, rest) {
                    Ok(written) => rest = &rest[written..],
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(Errno::PIPE) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    /// Waits until the program's pipe has room, or until there is something to read from `input`.
    fn wait(&self, input: Option<BorrowedFd<'_>>) -> io::Result<Woken> {
        let program = if input.is_some() { PollFlags::empty() } else { PollFlags::OUT };
        let stop = PollFd::from_borrowed_fd(self.stop, PollFlags::IN);
        let program = PollFd::from_borrowed_fd(self.program, program);
        let input = input.map(|input| PollFd::from_borrowed_fd(input, PollFlags::IN));
        let mut all: Vec<PollFd<'_>> = [stop, program].into_iter().chain(input).collect();
        retry_on_intr(|| poll(&mut all, None))?;
        let is_over = !all[0].revents().is_empty() || all[1].revents().contains(PollFlags::ERR);
        Ok(if is_over { Woken::Over } else { Woken::Ready })
    }
}
