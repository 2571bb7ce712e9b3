//! The bytes of regular files: what changes with them in the inode.

use super::Node;
use crate::attributes::Kind;
use crate::backend::{Backend, FileData, Seek};
use crate::error::Error;
use crate::inode::Content;
use crate::sleeping::Sleeping;
use quire_mm::platform::PAGE_SIZE;

/// The largest size of a file, in bytes.
const LARGEST: u64 = i64::MAX as u64;

/// What `fallocate` does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Makes pages of holes, and makes the file as large as that needs (mode 0).
    Extend,
    /// Makes pages of holes, also past the end (`KEEP_SIZE`).
    KeepSize,
    /// Makes a hole (`PUNCH_HOLE` with `KEEP_SIZE`).
    Punch,
}

impl Allocate {
    /// What the mode of a call says.
    ///
    /// # Errors
    ///
    /// [`Error::NotSupported`]: tmpfs has no other modes.
    pub const fn of_mode(mode: u32) -> Result<Self, Error> {
        match mode {
            0 => Ok(Self::Extend),
            1 => Ok(Self::KeepSize),
            3 => Ok(Self::Punch),
            _ => Err(Error::NotSupported),
        }
    }
}

impl<B: Backend> Node<'_, B> {
    fn regular(&self) -> Option<(&Sleeping<()>, &B::Data)> {
        match &self.inode().content {
            Content::Regular { lock, data } => Some((lock, data)),
            _ => None,
        }
    }

    /// The bytes of a regular file, to open them, to map, seek or execute what was opened. Who reads uses
    /// [`read`](Self::read), who changes them [`write`](Self::write).
    ///
    /// # Errors
    ///
    /// [`Error::IsDirectory`]; [`Error::NoDevice`]: all else has none.
    pub fn data(&self) -> Result<&B::Data, Error> {
        match self.regular() {
            Some((_, data)) => Ok(data),
            None if self.inode().kind.is_directory() => Err(Error::IsDirectory),
            None => Err(Error::NoDevice),
        }
    }

    /// Calls `read`, which reads bytes, and marks the file as read.
    ///
    /// # Errors
    ///
    /// As for [`data`](Self::data).
    pub fn read<R>(&self, read: impl FnOnce(&B::Data) -> R) -> Result<R, Error> {
        let result = read(self.data()?);
        self.accessed();
        Ok(result)
    }

    /// Calls `write`, which writes bytes, with the inode locked: so it knows the size (`O_APPEND`). The file
    /// is marked as modified first, as in Linux; a call that writes no bytes is not made. What else follows
    /// (a write clears set-user-ID) is the embedder's.
    ///
    /// # Errors
    ///
    /// As for [`data`](Self::data); [`Error::TextBusy`], as no program has it open for writing then.
    pub fn write<R>(&self, write: impl FnOnce(&B::Data) -> R) -> Result<R, Error> {
        let data = self.data()?;
        let _writing = data.writing()?;
        let _held = self.lock_bytes();
        self.modified();
        Ok(write(data))
    }

    /// A program has changed bytes in a way that is not a call here: it wrote to a shared mapping.
    pub fn modified(&self) {
        let now = self.instance.now();
        self.attributes(|attributes| attributes.modify(now));
    }

    /// Changes the size (`truncate`, `ftruncate`, `O_TRUNC`).
    ///
    /// # Errors
    ///
    /// [`Error::IsDirectory`]; [`Error::Invalid`]: it has no size, or no file can have that one;
    /// [`Error::TextBusy`]; [`Error::FileTooLarge`]; [`Error::NoMemory`].
    pub fn set_size(&self, size: u64) -> Result<(), Error> {
        let data = self.data().map_err(|error| match error {
            Error::NoDevice => Error::Invalid,
            error => error,
        })?;
        if size > LARGEST {
            return Err(Error::Invalid);
        }
        let _writing = data.writing()?;
        let _held = self.lock_bytes();
        data.set_size(size)?;
        self.modified();
        Ok(())
    }

    /// Makes pages or a hole of `length` bytes from `at` on (`fallocate`), for which `program` pays.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: no bytes; [`Error::FileTooLarge`]; [`Error::NoSpace`] and [`Error::NoMemory`]: no
    /// page was made; [`Error::IsDirectory`]; [`Error::Pipe`]; [`Error::NoDevice`];
    /// [`Error::NotSupported`]; [`Error::TextBusy`], as no program has it open for writing then.
    pub fn allocate(
        &self,
        mode: Allocate,
        (at, length): (u64, u64),
        program: Option<&<B::Data as FileData>::Program>,
    ) -> Result<(), Error> {
        if length == 0 || at > LARGEST {
            return Err(Error::Invalid);
        }
        if self.inode().kind == Kind::Fifo {
            return Err(Error::Pipe);
        }
        let data = self.data()?;
        let end = at.checked_add(length).filter(|end| *end <= LARGEST).ok_or(Error::FileTooLarge)?;
        let _writing = data.writing()?;
        let _held = self.lock_bytes();
        if mode == Allocate::Punch {
            data.punch(at..end, program)?;
        } else {
            let pages = end.div_ceil(PAGE_SIZE) - at / PAGE_SIZE;
            // As Linux: what is more than the file system has is refused, whatever the file has of it.
            if self.instance.counts().pages().1.is_some_and(|limit| pages > limit) {
                return Err(Error::NoSpace);
            }
            data.allocate(at..end, program)?;
            if mode == Allocate::Extend && end > data.size() {
                data.set_size(end)?;
            }
        }
        self.modified();
        Ok(())
    }

    /// The next byte from `at` on that has data or is in a hole (`lseek`).
    ///
    /// # Errors
    ///
    /// [`Error::PastEnd`]: `at` is not before the end, or there is no more data; as for [`data`](Self::data).
    pub fn seek(&self, at: u64, what: Seek) -> Result<u64, Error> {
        let data = self.data()?;
        let _held = self.lock_bytes();
        if at >= data.size() {
            return Err(Error::PastEnd);
        }
        data.seek(at, what).ok_or(Error::PastEnd)
    }

    fn lock_bytes(&self) -> Option<crate::sleeping::Write<'_, (), B::Platform>> {
        self.regular().map(|(lock, _)| lock.write(self.instance.backend.platform()))
    }
}
