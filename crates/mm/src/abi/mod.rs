//! Linux's memory calls as a program makes them: numbers in, a number out.
//!
//! A kernel's system-call entry, the replay of a recording and the comparison with the host's Linux share
//! this layer. It decodes flag words, gets the properties of files from [`Files`], and writes results in
//! memory through [`UserMemory`].

mod decode;
mod memfd;
mod number;
mod process;
mod user;

pub use memfd::Memfd;
pub use number::CallNumber;
pub use user::{FaultIn, UserMemory};

use crate::file::File;
use crate::space::{Errno, Error, Space, VmFlags};
use quire_arch::{Platform, VirtAddr};
use quire_space::{LockAll, Protection, RemapFlags, SyncFlags};

/// The embedder's description of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenFile {
    /// A number for the open file. Mappings with equal numbers can become one, which Linux does only for the
    /// same opening of a file.
    pub id: u64,
    /// The descriptor allows reading.
    pub readable: bool,
    /// The descriptor allows writing.
    pub writable: bool,
    /// The error if the file cannot be mapped at all: ENODEV for a directory or a pipe.
    pub refused: Option<Errno>,
    /// The error for a writable mapping of this kind (shared or private): EPERM for sealed memory. `mprotect`
    /// may not allow it later.
    pub write_refused: Option<Errno>,
    /// The same for execution: EPERM where the file system is mounted without it.
    pub exec_refused: Option<Errno>,
    /// As [`MappedFile::max_bytes`](crate::space::MappedFile::max_bytes).
    pub max_bytes: u64,
    /// The file system wants large mappings aligned for huge pages.
    pub huge_alignment: bool,
    /// As [`MappedFile::vm_flags`](crate::space::MappedFile::vm_flags).
    pub vm_flags: VmFlags,
}

/// The open files of a process.
pub trait Files<P: Platform> {
    /// The file behind `descriptor`, or `None` if it is not open (or open without access).
    fn open_file(&self, descriptor: i32) -> Option<OpenFile>;

    /// The opening that a mapping of `descriptor` shows, if that has contents: it takes the place of
    /// [`OpenFile::id`]. Without one each mapping has pages of its own, which begin as zeros.
    fn opening(&self, descriptor: i32) -> Option<&File<'_, P>> {
        let _ = descriptor;
        None
    }
}

/// For processes that map no files.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl<P: Platform> Files<P> for NoFiles {
    fn open_file(&self, _descriptor: i32) -> Option<OpenFile> {
        None
    }
}

/// The result of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallOutcome {
    /// It succeeded with this value.
    Done(u64),
    /// It failed.
    Failed(Errno),
    /// The call, or the requested form of it, is not implemented.
    Unsupported,
}

impl CallOutcome {
    /// The value as Linux returns it: failures as small negative numbers. `None` for what is not implemented.
    pub const fn raw(self) -> Option<i64> {
        match self {
            Self::Done(value) => Some(value as i64),
            Self::Failed(errno) => Some(-(errno.0 as i64)),
            Self::Unsupported => None,
        }
    }
}

impl From<Result<u64, Error>> for CallOutcome {
    fn from(result: Result<u64, Error>) -> Self {
        match result {
            Ok(value) => Self::Done(value),
            Err(Error::NotSupported) => Self::Unsupported,
            Err(error) => Self::Failed(error.errno()),
        }
    }
}

/// Makes the call `number` with its six argument words in `space`.
pub fn call<P: Platform>(
    space: &Space<'_, P>,
    number: CallNumber,
    args: [u64; 6],
    files: &impl Files<P>,
    user: &impl UserMemory,
) -> CallOutcome {
    let [addr, len, third, fourth, fifth, _] = args;
    let at = VirtAddr(addr);
    match number {
        CallNumber::Mmap => decode::mmap(args, files).and_then(|request| {
            let opening = request.file.and_then(|_| files.opening(fifth as i32));
            let addr = match opening {
                Some(file) => space.mmap_file(&request, file),
                None => space.mmap(&request),
            };
            Ok(addr?.0)
        }),
        CallNumber::Munmap => space.munmap(at, len).map(|()| 0),
        CallNumber::Mprotect => mprotect(space, at, len, third),
        // Without protection keys there is only the default key.
        CallNumber::PkeyMprotect if fourth as i32 == -1 => mprotect(space, at, len, third),
        CallNumber::Brk => Ok(space.brk(at).0),
        CallNumber::Mremap => {
            // Bits above the low 32 are part of the word that Linux checks too.
            match u32::try_from(fourth).ok().and_then(RemapFlags::from_bits) {
                Some(flags) => space.mremap(at, len, third, flags, VirtAddr(fifth)).map(|addr| addr.0),
                None => Err(Error::BadFlags),
            }
        }
        CallNumber::Madvise => {
            decode::advice(third as i32).and_then(|advice| space.madvise(at, len, advice)).map(|()| 0)
        }
        CallNumber::Mincore => user::mincore(space, user, at, len, VirtAddr(third)),
        CallNumber::Msync => match SyncFlags::from_bits(third as u32) {
            Some(flags) => space.msync(at, len, flags).map(|()| 0),
            None => Err(Error::BadFlags),
        },
        CallNumber::Mlock => space.mlock(at, len, false).map(|()| 0),
        // An `int`.
        CallNumber::Mlock2 => match third as u32 {
            flags @ (0 | 1) => space.mlock(at, len, flags == 1).map(|()| 0),
            _ => Err(Error::BadFlags),
        },
        CallNumber::Munlock => space.munlock(at, len).map(|()| 0),
        CallNumber::Mlockall => match LockAll::from_bits(addr as u32) {
            Some(what) => space.mlockall(what).map(|()| 0),
            None => Err(Error::BadFlags),
        },
        CallNumber::Munlockall => {
            space.munlockall();
            Ok(0)
        }
        CallNumber::Prctl => process::prctl(space, args),
        CallNumber::PkeyMprotect | CallNumber::Other(_) => Err(Error::NotSupported),
    }
    .into()
}

fn mprotect<P: Platform>(space: &Space<'_, P>, addr: VirtAddr, len: u64, word: u64) -> Result<u64, Error> {
    let (down, up) = (word & decode::PROT_GROWSDOWN != 0, word & decode::PROT_GROWSUP != 0);
    let rest = word & !(decode::PROT_GROWSDOWN | decode::PROT_GROWSUP);
    if down && up {
        return Err(Error::BadFlags);
    }
    let unknown = rest & !decode::PROT_KNOWN != 0;
    if unknown || up {
        // Linux checks the address and the length before the bits.
        space.mprotect(addr, 0, Protection::empty(), false)?;
        if len == 0 {
            return Ok(0);
        }
        if addr.0.checked_add(len).is_none_or(|end| end > u64::MAX - 4095) {
            return Err(Error::OutOfRange);
        }
        if !unknown {
            // A hole is seen first; then no stack grows upwards here, so there is none for such a call to
            // find.
            space.mincore(addr, 1, |_| ())?;
        }
        return Err(Error::BadFlags);
    }
    let protection = Protection::from_bits_truncate(rest as u32);
    space.mprotect(addr, len, protection, down).map(|()| 0)
}
