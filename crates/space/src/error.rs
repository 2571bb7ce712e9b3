//! Why a memory call failed, and Linux's error number for it.

use core::fmt;
use quire_file::FileError;
use quire_frame::AllocError;

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Self = Self(1);
    /// No such file or directory.
    pub const ENOENT: Self = Self(2);
    /// Input/output error.
    pub const EIO: Self = Self(5);
    /// Bad file descriptor.
    pub const EBADF: Self = Self(9);
    /// Try again.
    pub const EAGAIN: Self = Self(11);
    /// Out of memory.
    pub const ENOMEM: Self = Self(12);
    /// Permission denied.
    pub const EACCES: Self = Self(13);
    /// Bad address.
    pub const EFAULT: Self = Self(14);
    /// Device or resource busy.
    pub const EBUSY: Self = Self(16);
    /// File exists.
    pub const EEXIST: Self = Self(17);
    /// No such device.
    pub const ENODEV: Self = Self(19);
    /// Invalid argument.
    pub const EINVAL: Self = Self(22);
    /// Text file busy.
    pub const ETXTBSY: Self = Self(26);
    /// File too large.
    pub const EFBIG: Self = Self(27);
    /// No space left on device.
    pub const ENOSPC: Self = Self(28);
    /// Result too large.
    pub const ERANGE: Self = Self(34);
    /// Function not implemented.
    pub const ENOSYS: Self = Self(38);
    /// Value too large.
    pub const EOVERFLOW: Self = Self(75);
    /// Operation not supported.
    pub const EOPNOTSUPP: Self = Self(95);
    /// Stale file handle.
    pub const ESTALE: Self = Self(116);
    /// Quota exceeded.
    pub const EDQUOT: Self = Self(122);

    /// The symbolic name, or `None` for a number that is not used here.
    #[doc(hidden)]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::EPERM => "EPERM",
            Self::ENOENT => "ENOENT",
            Self::EIO => "EIO",
            Self::EBADF => "EBADF",
            Self::EAGAIN => "EAGAIN",
            Self::ENOMEM => "ENOMEM",
            Self::EACCES => "EACCES",
            Self::EFAULT => "EFAULT",
            Self::EBUSY => "EBUSY",
            Self::EEXIST => "EEXIST",
            Self::ENODEV => "ENODEV",
            Self::EINVAL => "EINVAL",
            Self::ETXTBSY => "ETXTBSY",
            Self::EFBIG => "EFBIG",
            Self::ENOSPC => "ENOSPC",
            Self::ERANGE => "ERANGE",
            Self::ENOSYS => "ENOSYS",
            Self::EOVERFLOW => "EOVERFLOW",
            Self::EOPNOTSUPP => "EOPNOTSUPP",
            Self::ESTALE => "ESTALE",
            Self::EDQUOT => "EDQUOT",
            _ => return None,
        })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

/// Why a memory call failed. [`errno`](Self::errno) returns Linux's error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A length of zero where that is not allowed.
    ZeroLength,
    /// An address or size that is not a multiple of the page size.
    Unaligned,
    /// Unknown flags or advice, or an invalid combination.
    BadFlags,
    /// The range runs past the end of user space, or wraps.
    OutOfRange,
    /// The arguments contradict each other (sizes, overlap).
    BadArgument,
    /// A page offset that does not fit.
    OffsetOverflow,
    /// `MAP_FIXED_NOREPLACE` over an existing mapping.
    Occupied,
    /// No free range is large enough.
    NoRoom,
    /// Part of the range is not mapped; the call was applied to the rest.
    NotMapped,
    /// The address is not mapped, as `mremap` reports it, or a result cannot be written there.
    BadAddress,
    /// Growth in place is blocked and the mapping may not move.
    CannotGrow,
    /// The file or mapping does not allow the access.
    AccessDenied,
    /// The caller may not do this to its mappings.
    NotPermitted,
    /// The advice does not fit the mapping (locked, shared, of the wrong kind).
    WrongMapping,
    /// Mlocked memory prevents it.
    Locked,
    /// A page in use prevents it for now.
    Busy,
    /// The limit on locked memory, where Linux returns EAGAIN.
    LockLimitAgain,
    /// The limit on locked memory, where Linux returns ENOMEM.
    LockLimit,
    /// `RLIMIT_AS`.
    AddressSpaceLimit,
    /// `RLIMIT_DATA`.
    DataLimit,
    /// The limit of a memcg, where a large folio is asked for.
    MemcgLimit,
    /// `max_map_count`.
    MapCountLimit,
    /// The same while changing a mapping's advice, where Linux asks to try again.
    MapCountLimitAgain,
    /// More memory was requested than the [`Overcommit`](crate::Overcommit) policy allows; by default, more
    /// than RAM plus swap in one mapping.
    CommitLimit,
    /// No frame for a page, a table or metadata.
    NoFrames(AllocError),
    /// The same while changing a mapping's advice, where Linux asks to try again.
    TryAgain(AllocError),
    /// No such open file.
    BadDescriptor,
    /// The file cannot be mapped like this.
    RefusedByFile(Errno),
    /// A seal of the shared memory refuses it.
    Sealed,
    /// The file cannot be sealed.
    NotSealable,
    /// A mapping may write to the file, or a page of it is pinned for a device.
    InUse,
    /// No attachment of a segment begins at the address.
    NotAttached,
    /// There is no such segment.
    NoSegment,
    /// No segment has the key.
    NoKey,
    /// A segment has the key.
    KeyInUse,
    /// No segment can be, or is, so large.
    SegmentSize,
    /// There are as many segments as can be.
    TooManySegments,
    /// There are no huge pages for a segment.
    NoHugePages,
    /// The file could not be written.
    File(FileError),
    /// The file does not support a flag that must be supported.
    NotSupportedByFile,
    /// The call or one of its forms is not implemented yet; see docs/differences.md.
    NotSupported,
}

impl Error {
    /// Whether the file's operation refuses to map it, not the checks before: those find that there is no
    /// such operation (ENODEV), or that the file is sealed or its mount does not allow execution (EPERM).
    pub(crate) fn is_of_the_operation(self) -> bool {
        matches!(self, Self::RefusedByFile(errno) if errno != Errno::ENODEV && errno != Errno::EPERM)
    }

    /// What Linux returns for this.
    pub const fn errno(self) -> Errno {
        match self {
            Self::ZeroLength
            | Self::Unaligned
            | Self::BadFlags
            | Self::BadArgument
            | Self::WrongMapping
            | Self::NotSealable
            | Self::NotAttached
            | Self::NoSegment
            | Self::SegmentSize => Errno::EINVAL,
            Self::OffsetOverflow => Errno::EOVERFLOW,
            Self::Occupied | Self::KeyInUse => Errno::EEXIST,
            Self::NoKey => Errno::ENOENT,
            Self::OutOfRange
            | Self::NoRoom
            | Self::NotMapped
            | Self::CannotGrow
            | Self::LockLimit
            | Self::AddressSpaceLimit
            | Self::DataLimit
            | Self::MapCountLimit
            | Self::CommitLimit
            | Self::NoHugePages
            | Self::NoFrames(_) => Errno::ENOMEM,
            Self::BadAddress => Errno::EFAULT,
            Self::AccessDenied => Errno::EACCES,
            Self::NotPermitted | Self::Sealed => Errno::EPERM,
            Self::Locked | Self::MemcgLimit | Self::InUse => Errno::EBUSY,
            Self::Busy | Self::LockLimitAgain | Self::MapCountLimitAgain | Self::TryAgain(_) => Errno::EAGAIN,
            Self::BadDescriptor => Errno::EBADF,
            Self::RefusedByFile(errno) => errno,
            Self::File(FileError::Io | FileError::Corrupt) => Errno::EIO,
            Self::TooManySegments | Self::File(FileError::NoSpace) => Errno::ENOSPC,
            Self::File(FileError::Quota) => Errno::EDQUOT,
            Self::File(FileError::Stale) => Errno::ESTALE,
            Self::NotSupportedByFile => Errno::EOPNOTSUPP,
            Self::NotSupported => Errno::ENOSYS,
        }
    }
}

impl From<AllocError> for Error {
    fn from(error: AllocError) -> Self {
        Self::NoFrames(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({})", self, self.errno())
    }
}

impl core::error::Error for Error {}
