//! `shmctl`.

use super::ShmNamespace;
use super::caller::ShmCaller;
use super::segment::ShmStatus;
use crate::space::Error;
use quire_arch::{PAGE_SIZE, Platform};

/// Which segment is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShmQuery {
    /// That with this number, if the caller may read it (`IPC_STAT`).
    Id(i32),
    /// That in this place, if the caller may read it (`SHM_STAT`).
    Place(u32),
    /// That in this place, for any caller (`SHM_STAT_ANY`).
    PlaceOfAny(u32),
}

/// A change of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShmChange {
    /// Other owners and permissions (`IPC_SET`).
    Owner {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
        /// The permissions. Other bits are ignored.
        mode: u32,
    },
    /// It goes with its last attachment, and loses its key (`IPC_RMID`).
    Remove,
    /// What is in memory of it stays there (`SHM_LOCK`).
    Lock,
    /// No more (`SHM_UNLOCK`).
    Unlock,
}

/// The segments of a name space (`SHM_INFO`), at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShmTotals {
    /// How many there are.
    pub segments: u32,
    /// The highest place in use.
    pub highest: u32,
    /// Their pages.
    pub pages: u64,
    /// Those of them that are in memory.
    pub resident: u64,
    /// Those of them that are on swap devices.
    pub swapped: u64,
}

impl<P: Platform> ShmNamespace<'_, P> {
    /// What is known of a segment.
    ///
    /// # Errors
    ///
    /// [`Error::NoSegment`] and [`Error::AccessDenied`].
    pub fn status(&self, query: ShmQuery, caller: &ShmCaller<'_>) -> Result<ShmStatus, Error> {
        self.with_table(|table| {
            let segment = match query {
                ShmQuery::Id(id) => table.find(id)?,
                ShmQuery::Place(at) | ShmQuery::PlaceOfAny(at) => {
                    table.find_at(at).ok_or(Error::NoSegment)?
                }
            };
            if !matches!(query, ShmQuery::PlaceOfAny(_)) {
                segment.check(caller, 0o444)?;
            }
            Ok(segment.status())
        })
    }

    /// Changes a segment.
    ///
    /// # Errors
    ///
    /// [`Error::NoSegment`]; [`Error::NotPermitted`]; [`Error::BadArgument`] for a user or a group of -1;
    /// [`Error::LockLimit`]. Nothing has changed then.
    pub fn change(&self, id: i32, change: ShmChange, caller: &ShmCaller<'_>) -> Result<(), Error> {
        let (removed, unlocked) = self.with_table(|table| {
            let segment = table.find(id)?;
            match change {
                ShmChange::Owner { uid, gid, mode } => {
                    segment.check_owner(caller)?;
                    if uid == u32::MAX || gid == u32::MAX {
                        return Err(Error::BadArgument);
                    }
                    segment.set_owner((uid, gid, mode), caller.now);
                }
                ShmChange::Remove => {
                    segment.check_owner(caller)?;
                    return Ok((segment.remove(), None));
                }
                ShmChange::Lock => return Ok((None, segment.keep_in_memory(true, caller)?)),
                ShmChange::Unlock => return Ok((None, segment.keep_in_memory(false, caller)?)),
            }
            Ok((None, None))
        })?;
        if let Some(file) = &unlocked {
            self.spaces.page_cache().shmem().rescue(file);
        }
        drop(unlocked);
        // Its memory goes with it if nothing has it attached.
        drop(removed);
        while let Some(gone) = self.take_gone() {
            drop(gone);
        }
        Ok(())
    }

    /// The segments that there are.
    pub fn totals(&self) -> ShmTotals {
        let counted = self.with_table(|table| {
            Ok(ShmTotals { segments: table.used(), highest: table.highest(), ..ShmTotals::default() })
        });
        let mut totals = counted.unwrap_or_default();
        if totals.segments == 0 {
            return totals;
        }
        for at in 0..=totals.highest {
            let found = self.with_table(|table| {
                Ok(table.find_at(at).and_then(|segment| Some((segment.hold()?, segment.size()))))
            });
            let Ok(Some((file, size))) = found else { continue };
            let figures = file.figures(self.spaces.frames());
            totals.pages += size.div_ceil(PAGE_SIZE);
            totals.resident += figures.cached;
            totals.swapped += figures.swapped;
        }
        totals
    }
}
