//! Files that a program reads and writes by calls.

use super::Space;
use crate::file::File;
use quire_arch::{Platform, part_of};
use quire_file::{PageError, Transfer, UserCopy};

part_of! {
    /// The program of a space as the one that reads and writes files: its memcg is charged for what comes
    /// into the cache.
    pub struct SpaceFiles { pub(super) space: Space<'w> }
}

impl<P: Platform> SpaceFiles<'_, P> {
    /// Reads a file as [`File::read`]. Nothing is read of a file of another machine
    /// ([`PageError::OtherMachine`]).
    pub fn read(self, file: &File<'_, P>, at: u64, to: &mut dyn UserCopy) -> Transfer {
        self.check(file).unwrap_or_else(|| file.read_for(at, to, &self.space.core().tables.membership))
    }

    /// Writes a file as [`File::write`]; otherwise as [`read`](Self::read).
    pub fn write(self, file: &File<'_, P>, at: u64, from: &mut dyn UserCopy) -> Transfer {
        self.check(file).unwrap_or_else(|| file.write_for(at, from, &self.space.core().tables.membership))
    }

    fn check(self, file: &File<'_, P>) -> Option<Transfer> {
        let other = Transfer { bytes: 0, stopped: Some(PageError::OtherMachine) };
        (!file.is_of(self.space.spaces)).then_some(other)
    }
}
