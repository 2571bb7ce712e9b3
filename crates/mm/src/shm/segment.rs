//! A segment: its memory, whose it is, and who used it last.

use super::caller::ShmCaller;
use crate::file::File;
use crate::space::Error;
use core::fmt;
use quire_arch::Platform;
use quire_file::{HeldFile, KnownFile};
use quire_vma::Vma;

/// It is removed, and goes with its last attachment (`SHM_DEST`).
const DEST: u32 = 0o1000;
/// It is kept in memory (`SHM_LOCKED`).
const LOCKED: u32 = 0o2000;
/// The permissions of a mode.
pub(super) const ALL_MODES: u32 = 0o777;

/// A file that a thread holds while it attaches it.
pub(super) type Attaching<'m, P> = HeldFile<'m, P, Vma>;

/// What is known of a segment (`struct shmid_ds`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShmStatus {
    /// Its number.
    pub id: i32,
    /// Its key; 0 if it has none, or was removed.
    pub key: i32,
    /// Its permissions, with `SHM_DEST` (01000) once it was removed and `SHM_LOCKED` (02000) while it is kept
    /// in memory.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// Who made it.
    pub creator_uid: u32,
    /// The group of who made it.
    pub creator_gid: u32,
    /// Its size in bytes.
    pub size: u64,
    /// When it was last attached, in seconds; 0 for never.
    pub attached_at: i64,
    /// When it was last detached, in seconds; 0 for never.
    pub detached_at: i64,
    /// When it was made, or its owner or mode changed.
    pub changed_at: i64,
    /// The process that made it.
    pub creator_pid: u32,
    /// The process that attached or detached it last; 0 for none.
    pub last_pid: u32,
    /// How often it is attached: the VMAs that map it, of all processes.
    pub attachments: u64,
    /// The number of its file, as mappings have it ([`Mapping::file`](crate::space::Mapping::file)).
    pub file: u64,
}

/// A segment in a table.
pub(super) struct Segment<'m, P: Platform> {
    status: ShmStatus,
    /// Gone once it is removed: then its attachments alone keep the file.
    file: Option<File<'m, P>>,
    known: KnownFile<'m, P, Vma>,
    /// Threads that are about to attach it.
    attaching: u64,
    /// How many VMAs had left it when that was last noted.
    departures: usize,
}

impl<'m, P: Platform> Segment<'m, P> {
    pub(super) fn new(file: File<'m, P>, (key, size, mode): (i32, u64, u32), caller: &ShmCaller<'_>) -> Self {
        let status = ShmStatus {
            id: 0,
            key,
            mode,
            uid: caller.uid,
            gid: caller.gid,
            creator_uid: caller.uid,
            creator_gid: caller.gid,
            size,
            attached_at: 0,
            detached_at: 0,
            changed_at: caller.now,
            creator_pid: caller.pid,
            last_pid: 0,
            attachments: 0,
            file: file.number(),
        };
        let known = file.know();
        Self { status, file: Some(file), known, attaching: 0, departures: 0 }
    }

    /// The memory of one that came to no table.
    pub(super) fn into_file(self) -> Option<File<'m, P>> {
        self.file
    }

    pub(super) fn id(&self) -> i32 {
        self.status.id
    }

    pub(super) fn set_id(&mut self, id: i32) {
        self.status.id = id;
    }

    pub(super) fn key(&self) -> i32 {
        self.status.key
    }

    pub(super) fn size(&self) -> u64 {
        self.status.size
    }

    pub(super) fn status(&self) -> ShmStatus {
        ShmStatus { attachments: self.attachments(), ..self.status }
    }

    fn attachments(&self) -> u64 {
        self.known.mapped() as u64 + self.attaching
    }

    /// Whether it was removed and has lost its last attachment.
    pub(super) fn is_gone(&self) -> bool {
        self.status.mode & DEST != 0 && self.attachments() == 0
    }

    /// Its memory, to be looked at, if it is still there.
    pub(super) fn hold(&self) -> Option<Attaching<'m, P>> {
        self.known.hold()
    }

    /// Refuses a caller that does not have the permissions `asked`, of all three kinds of users.
    ///
    /// # Errors
    ///
    /// [`Error::AccessDenied`].
    pub(super) fn check(&self, caller: &ShmCaller<'_>, asked: u32) -> Result<(), Error> {
        let ShmStatus { mode, uid, gid, creator_uid, creator_gid, .. } = self.status;
        let asked = (asked >> 6 | asked >> 3 | asked) & 0o7;
        let granted = if caller.uid == uid || caller.uid == creator_uid {
            mode >> 6
        } else if (caller.is_in_group)(gid) || (caller.is_in_group)(creator_gid) {
            mode >> 3
        } else {
            mode
        };
        if asked & !granted == 0 || caller.passes_modes { Ok(()) } else { Err(Error::AccessDenied) }
    }

    /// Refuses a caller that is neither owner nor creator.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`].
    pub(super) fn check_owner(&self, caller: &ShmCaller<'_>) -> Result<(), Error> {
        if self.is_of(caller) || caller.is_admin { Ok(()) } else { Err(Error::NotPermitted) }
    }

    fn is_of(&self, caller: &ShmCaller<'_>) -> bool {
        caller.uid == self.status.uid || caller.uid == self.status.creator_uid
    }

    /// Counts an attachment that is about to come, and holds the memory for it.
    ///
    /// # Errors
    ///
    /// [`Error::NoSegment`].
    pub(super) fn begin_to_attach(&mut self) -> Result<Attaching<'m, P>, Error> {
        let held = self.known.hold().ok_or(Error::NoSegment)?;
        self.attaching += 1;
        Ok(held)
    }

    /// The attachment has come, if there is a caller, or has failed.
    pub(super) fn end_attaching(&mut self, attached_by: Option<&ShmCaller<'_>>) {
        self.attaching -= 1;
        if let Some(caller) = attached_by {
            self.status.attached_at = caller.now;
            self.status.last_pid = caller.pid;
        }
    }

    /// Notes that attachments have gone, if some have.
    pub(super) fn settle(&mut self, caller: &ShmCaller<'_>) {
        let departures = self.known.departures();
        if departures != self.departures {
            self.departures = departures;
            self.status.detached_at = caller.now;
            self.status.last_pid = caller.pid;
        }
    }

    /// Removes it. Its memory is the caller's, to be dropped with nothing locked.
    pub(super) fn remove(&mut self) -> Option<File<'m, P>> {
        self.status.key = 0;
        self.status.mode |= DEST;
        self.file.take()
    }

    /// Gives it other owners and permissions.
    pub(super) fn set_owner(&mut self, (uid, gid, mode): (u32, u32, u32), now: i64) {
        self.status.uid = uid;
        self.status.gid = gid;
        self.status.mode = self.status.mode & !ALL_MODES | mode & ALL_MODES;
        self.status.changed_at = now;
    }

    /// Keeps what of it is in memory there, or does no more: then its file is returned, which the caller
    /// rescues with nothing locked.
    ///
    /// # Errors
    ///
    /// [`Error::NotPermitted`]; [`Error::LockLimit`] for more than the caller may lock.
    pub(super) fn keep_in_memory(
        &mut self,
        stays: bool,
        caller: &ShmCaller<'_>,
    ) -> Result<Option<Attaching<'m, P>>, Error> {
        if !caller.may_lock {
            if !self.is_of(caller) || stays && caller.lock_limit == 0 {
                return Err(Error::NotPermitted);
            }
            if stays && self.status.mode & LOCKED == 0 && self.status.size > caller.lock_limit {
                return Err(Error::LockLimit);
            }
        }
        let was_kept = self.status.mode & LOCKED != 0;
        self.known.keep_in_memory(stays);
        self.status.mode = self.status.mode & !LOCKED | if stays { LOCKED } else { 0 };
        Ok(if was_kept && !stays { self.hold() } else { None })
    }
}

impl<P: Platform> fmt::Debug for Segment<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Segment").field(&self.status).finish()
    }
}
