//! Why a call fails: Linux's errors.

use quire_mm::file::{FileError, PageError};
use quire_mm::frame::AllocError;

/// Why a call on a tmpfs fails. Nothing has changed then, unless the call says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[repr(i32)]
pub enum Error {
    /// The caller may not do this with such an inode (`EPERM`).
    #[error("not permitted")]
    NotPermitted = 1,
    /// There is no such name (`ENOENT`).
    #[error("there is no such name")]
    NotFound = 2,
    /// The program was killed (`EINTR`).
    #[error("the program was killed")]
    Interrupted = 4,
    /// The bytes cannot be had (`EIO`).
    #[error("the bytes cannot be had")]
    Io = 5,
    /// The position is past the end of the file (`ENXIO`).
    #[error("the position is past the end")]
    PastEnd = 6,
    /// The value is too large (`E2BIG`).
    #[error("the value is too large")]
    ValueTooLarge = 7,
    /// There is no memory (`ENOMEM`).
    #[error("there is no memory")]
    NoMemory = 12,
    /// The program may not search a directory (`EACCES`).
    #[error("access denied")]
    Access = 13,
    /// The program's memory cannot be accessed (`EFAULT`).
    #[error("the program's memory cannot be accessed")]
    BadAddress = 14,
    /// It is in use, or is one of `.`, `..` and `/` (`EBUSY`).
    #[error("it is in use")]
    Busy = 16,
    /// The name exists (`EEXIST`).
    #[error("the name exists")]
    Exists = 17,
    /// The inodes are of two file systems (`EXDEV`).
    #[error("the inodes are of two file systems")]
    OtherFileSystem = 18,
    /// It is no file with bytes (`ENODEV`).
    #[error("it has no bytes")]
    NoDevice = 19,
    /// It is no directory (`ENOTDIR`).
    #[error("it is no directory")]
    NotDirectory = 20,
    /// It is a directory (`EISDIR`).
    #[error("it is a directory")]
    IsDirectory = 21,
    /// The arguments contradict each other or the kind of the inode (`EINVAL`).
    #[error("invalid argument")]
    Invalid = 22,
    /// A program executes the file (`ETXTBSY`).
    #[error("the file is open for execution")]
    TextBusy = 26,
    /// The file would be too large (`EFBIG`).
    #[error("the file would be too large")]
    FileTooLarge = 27,
    /// The limit of pages or of inodes is reached (`ENOSPC`).
    #[error("the limit of pages or of inodes is reached")]
    NoSpace = 28,
    /// It is a pipe (`ESPIPE`).
    #[error("it is a pipe")]
    Pipe = 29,
    /// The inode has as many links as can be counted (`EMLINK`).
    #[error("too many links")]
    TooManyLinks = 31,
    /// The buffer is too small, or the name of an attribute too long (`ERANGE`).
    #[error("the buffer is too small, or the name too long")]
    Range = 34,
    /// A name has more than 255 bytes, or a path more than 4095 (`ENAMETOOLONG`).
    #[error("the name is too long")]
    NameTooLong = 36,
    /// The directory has entries (`ENOTEMPTY`).
    #[error("the directory is not empty")]
    NotEmpty = 39,
    /// More than 40 symbolic links in a path (`ELOOP`).
    #[error("too many symbolic links")]
    Loop = 40,
    /// There is no such attribute (`ENODATA`).
    #[error("there is no such attribute")]
    NoData = 61,
    /// This is not supported (`EOPNOTSUPP`).
    #[error("not supported")]
    NotSupported = 95,
}

impl Error {
    /// Linux's number of it.
    pub const fn errno(self) -> i32 {
        self as i32
    }
}

impl From<AllocError> for Error {
    fn from(_: AllocError) -> Self {
        Self::NoMemory
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::NoSpace | FileError::Quota => Self::NoSpace,
            _ => Self::Io,
        }
    }
}

impl From<PageError> for Error {
    fn from(error: PageError) -> Self {
        match error {
            PageError::PastEnd => Self::PastEnd,
            PageError::TooLarge => Self::FileTooLarge,
            PageError::File(error) => error.into(),
            PageError::OtherMachine | PageError::NotForWriting => Self::Invalid,
            PageError::TextBusy => Self::TextBusy,
            PageError::NotSupported => Self::NotSupported,
            PageError::Sealed => Self::NotPermitted,
            // No call returns that a page is swapped out.
            PageError::Swapped(_) => Self::Io,
            PageError::Killed => Self::Interrupted,
            PageError::BadAddress => Self::BadAddress,
            PageError::NoMemory(_) | PageError::OverLimit(_) => Self::NoMemory,
        }
    }
}
