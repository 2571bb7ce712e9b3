//! Resident pages by what they hold.

use quire_frame::Kind;

/// Pages of each kind, as `/proc/PID/status` tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Residency {
    pub(crate) anonymous: u64,
    pub(crate) file: u64,
}

impl Residency {
    pub(crate) fn of(kind: Kind, pages: u64) -> Self {
        let mut residency = Self::default();
        residency.add(kind, pages);
        residency
    }

    #[inline]
    pub(crate) fn add(&mut self, kind: Kind, pages: u64) {
        match kind {
            Kind::Anonymous => self.anonymous += pages,
            _ => self.file += pages,
        }
    }
}
