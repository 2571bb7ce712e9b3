//! `fallocate`: what a file system like tmpfs or ext4 does with the page cache.

use super::{Bytes, Opened, ProgramFile, Raw, errno_of};
use crate::program::names::{
    FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE,
    FALLOC_FL_UNSHARE_RANGE, FALLOC_FL_ZERO_RANGE,
};
use quire_arch::PAGE_SIZE;
use quire_mm::file::{FileBacking as _, FileError, PageBytes, PageError, UserCopy};
use quire_mm::space::Errno;
use std::ops::Range;

/// What a call is about to do, and whether the file keeps its size.
#[derive(Clone, Copy)]
enum Form {
    Allocate { keeps_size: bool },
    Punch,
    Zero { keeps_size: bool },
    Collapse,
    Insert,
    Unshare,
}

impl Form {
    /// Of a mode that Linux knows: one operation, and the flag where it may be.
    fn of(mode: u64) -> Option<Self> {
        // An `int`.
        let mode = mode & u64::from(u32::MAX);
        let keeps_size = mode & FALLOC_FL_KEEP_SIZE != 0;
        match mode & !FALLOC_FL_KEEP_SIZE {
            0 => Some(Self::Allocate { keeps_size }),
            FALLOC_FL_ZERO_RANGE => Some(Self::Zero { keeps_size }),
            FALLOC_FL_UNSHARE_RANGE => Some(Self::Unshare),
            FALLOC_FL_PUNCH_HOLE => keeps_size.then_some(Self::Punch),
            FALLOC_FL_COLLAPSE_RANGE => (!keeps_size).then_some(Self::Collapse),
            FALLOC_FL_INSERT_RANGE => (!keeps_size).then_some(Self::Insert),
            _ => None,
        }
    }
}

/// Whether Linux knows this mode.
pub(crate) fn is_fallocate_mode(mode: u64) -> bool {
    Form::of(mode).is_some()
}

impl Bytes {
    /// Takes a range out.
    fn take_out(&self, range: Range<u64>) {
        let mut bytes = self.lock();
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
        let range = place(range.start)..place(range.end);
        bytes.drain(range);
    }

    /// Puts zeros in, as far as there is something behind them.
    fn put_in(&self, at: u64, len: u64) -> Result<(), FileError> {
        let mut bytes = self.lock();
        let len = usize::try_from(len).map_err(|_| FileError::NoSpace)?;
        match usize::try_from(at) {
            Ok(at) if at < bytes.len() => {
                bytes.try_reserve(len).map_err(|_| FileError::NoSpace)?;
                bytes.splice(at..at, std::iter::repeat_n(0, len));
            }
            _ => {}
        }
        Ok(())
    }
}

impl ProgramFile<'_> {
    /// The call, by an opening.
    pub(super) fn fallocate(
        &self,
        Opened { file, writes, .. }: Opened<'_, '_>,
        mode: u64,
        (offset, len): (u64, u64),
    ) -> Result<Raw, Errno> {
        if offset.cast_signed() < 0 || len.cast_signed() <= 0 {
            return Err(Errno::EINVAL);
        }
        let form = Form::of(mode).ok_or(Errno::EOPNOTSUPP)?;
        writes.then_some(()).ok_or(Errno::EBADF)?;
        let end = offset.checked_add(len).filter(|end| *end <= self.facts.max_bytes).ok_or(Errno::EFBIG)?;
        let size = file.size();
        let whole_page = size.next_multiple_of(PAGE_SIZE);
        let is_unit = |unit: u64| offset.is_multiple_of(unit) && len.is_multiple_of(unit);
        let done = match (form, self.facts.moves) {
            (Form::Allocate { keeps_size: true }, _) => Ok(()),
            (Form::Allocate { keeps_size: false }, _) => self.grow(end),
            // ext4 does nothing past the end, and goes on to the end of the page from there.
            (Form::Punch, _) if !self.facts.tail_stays && offset >= size => Ok(()),
            (Form::Punch, _) if !self.facts.tail_stays && end >= size => self.make_zero(offset..whole_page),
            (Form::Punch, _) => self.make_zero(offset..end),
            (Form::Zero { keeps_size }, _) if self.facts.zeroes => {
                let grown = if keeps_size { Ok(()) } else { self.grow(end) };
                grown.and_then(|()| self.make_zero(offset..end))
            }
            (Form::Collapse, Some(unit)) => {
                (is_unit(unit) && end < size).then_some(()).ok_or(Errno::EINVAL)?;
                file.replace_from(offset, size - len, || {
                    self.bytes.take_out(offset..end);
                    Ok(())
                })
            }
            (Form::Insert, Some(unit)) => {
                (is_unit(unit) && offset < size).then_some(()).ok_or(Errno::EINVAL)?;
                (len <= self.facts.max_bytes - size).then_some(()).ok_or(Errno::EFBIG)?;
                file.replace_from(offset, size + len, || self.bytes.put_in(offset, len))
            }
            (Form::Zero { .. } | Form::Collapse | Form::Insert | Form::Unshare, _) => {
                return Err(Errno::EOPNOTSUPP);
            }
        };
        done.map(|()| 0).map_err(errno_of)
    }

    fn make_zero(&self, range: Range<u64>) -> Result<(), PageError> {
        self.openings[0].punch(range, |whole| self.bytes.punch(whole))
    }

    /// Makes the file larger, if it ends before `end`. Of the page that it ended in ext4 makes zeros up to
    /// there, and leaves what a program wrote behind that.
    fn grow(&self, end: u64) -> Result<(), PageError> {
        let file = &self.openings[0];
        let size = file.size();
        if end <= size {
            return Ok(());
        }
        if self.facts.tail_stays || end > size.next_multiple_of(PAGE_SIZE) {
            return file.set_size(end);
        }
        file.write(size, &mut Zeros(end - size)).stopped.map_or(Ok(()), Err)
    }
}

/// So many zeros to be written.
struct Zeros(u64);

impl UserCopy for Zeros {
    fn left(&self) -> u64 {
        self.0
    }

    fn fault_in(&mut self, bytes: usize) -> usize {
        bytes
    }

    fn copy(&mut self, page: PageBytes<'_>) -> usize {
        page.set(0, &[0; PAGE_SIZE as usize][..page.len()])
    }

    fn advance(&mut self, bytes: usize) {
        self.0 -= bytes as u64;
    }
}
