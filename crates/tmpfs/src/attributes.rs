//! What `stat` tells of an inode, and the rules by which its times change.

use crate::backend::Time;

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe. What it does is the embedder's, as of the next three.
    Fifo,
    /// A socket.
    Socket,
    /// A character device with this number.
    Character(u64),
    /// A block device with this number.
    Block(u64),
}

impl Kind {
    /// The bits of `st_mode` that say so (`S_IFMT`).
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::Character(_) => 0o020_000,
            Self::Directory => 0o040_000,
            Self::Block(_) => 0o060_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// `d_type` of an entry.
    pub const fn entry_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }

    /// The number of a device; 0 of all else.
    pub const fn device(self) -> u64 {
        match self {
            Self::Character(device) | Self::Block(device) => device,
            _ => 0,
        }
    }

    /// Whether it is a directory.
    pub const fn is_directory(self) -> bool {
        matches!(self, Self::Directory)
    }
}

/// The set-group-ID bit.
pub(crate) const SET_GROUP_ID: u16 = 0o2000;
/// Permission bits, with set-user-ID, set-group-ID and sticky.
pub(crate) const PERMISSIONS: u16 = 0o7777;

/// The owner and the permissions of a new inode. The embedder has applied the umask, and checked that the
/// program may make it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    /// Permission bits, with set-user-ID, set-group-ID and sticky.
    pub permissions: u16,
    /// The user.
    pub uid: u32,
    /// The group: that of the directory instead, if this has set-group-ID.
    pub gid: u32,
}

/// What `stat` tells of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Its number, by which no other inode of the file system goes.
    pub inode: u64,
    /// What it is.
    pub kind: Kind,
    /// Permission bits, with set-user-ID, set-group-ID and sticky.
    pub permissions: u16,
    /// Names of it; of a directory 2 and its subdirectories.
    pub links: u32,
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Bytes of a file, or of the target of a symbolic link; of a directory 20 for each entry, and 40.
    pub size: u64,
    /// Blocks of 512 bytes in use, in RAM or in swap.
    pub blocks: u64,
    /// When it was read.
    pub accessed: Time,
    /// When its contents changed.
    pub modified: Time,
    /// When its contents or attributes changed.
    pub changed: Time,
    /// When it was made.
    pub born: Time,
}

impl Stat {
    /// `st_mode`.
    pub const fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.permissions as u32
    }
}

/// A time that a program sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This one.
    To(Time),
}

/// What `chmod`, `chown` and `utimensat` change. Who may, and what else follows (a `chown` clears
/// set-user-ID), is the embedder's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttributes {
    /// Permission bits, with set-user-ID, set-group-ID and sticky.
    pub permissions: Option<u16>,
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// When it was read.
    pub accessed: Option<SetTime>,
    /// When its contents changed.
    pub modified: Option<SetTime>,
}

/// When a read sets the access time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// As Linux's `relatime`: if the inode changed since, or a day has passed.
    #[default]
    Relative,
    /// Always (`strictatime`).
    Always,
    /// Never (`noatime`).
    Never,
}

const DAY: i64 = 24 * 60 * 60;

/// The attributes that change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) permissions: u16,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Entries of a directory. Changes under its lock.
    pub(crate) entries: u64,
    /// May get a first link although it has none: it was made without a name.
    pub(crate) linkable: bool,
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    pub(crate) changed: Time,
    pub(crate) born: Time,
}

impl Attributes {
    pub(crate) const fn new(owner: &Owner, links: u32, now: Time) -> Self {
        Self {
            permissions: owner.permissions & PERMISSIONS,
            links,
            uid: owner.uid,
            gid: owner.gid,
            entries: 0,
            linkable: links == 0,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
        }
    }

    /// Its contents have changed: bytes, or entries.
    pub(crate) const fn modify(&mut self, now: Time) {
        self.modified = now;
        self.changed = now;
    }

    /// It was read.
    pub(crate) fn access(&mut self, now: Time, rule: AccessTimes) {
        let due = match rule {
            AccessTimes::Never => false,
            AccessTimes::Always => true,
            AccessTimes::Relative => {
                self.accessed <= self.modified
                    || self.accessed <= self.changed
                    || now.seconds.saturating_sub(self.accessed.seconds) >= DAY
            }
        };
        if due {
            self.accessed = now;
        }
    }

    pub(crate) fn set(&mut self, new: &SetAttributes, now: Time) {
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        if let Some(permissions) = new.permissions {
            self.permissions = permissions & PERMISSIONS;
        }
        self.uid = new.uid.unwrap_or(self.uid);
        self.gid = new.gid.unwrap_or(self.gid);
        self.accessed = new.accessed.map_or(self.accessed, time);
        self.modified = new.modified.map_or(self.modified, time);
        self.changed = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time { seconds, nanoseconds: 0 }
    }

    #[test]
    fn relative_access_times_follow_changes_and_days() {
        let mut inode = Attributes::new(&Owner::default(), 1, at(10));
        inode.access(at(20), AccessTimes::Relative);
        assert_eq!(inode.accessed, at(20), "read for the first time");
        inode.access(at(30), AccessTimes::Relative);
        assert_eq!(inode.accessed, at(20), "nothing has changed since");
        inode.modify(at(40));
        inode.access(at(50), AccessTimes::Relative);
        assert_eq!(inode.accessed, at(50));
        inode.access(at(50 + DAY - 1), AccessTimes::Relative);
        assert_eq!(inode.accessed, at(50));
        inode.access(at(50 + DAY), AccessTimes::Relative);
        assert_eq!(inode.accessed, at(50 + DAY));
        inode.access(at(100 + DAY), AccessTimes::Never);
        assert_eq!(inode.accessed, at(50 + DAY));
        inode.access(at(100 + DAY), AccessTimes::Always);
        assert_eq!(inode.accessed, at(100 + DAY));
    }
}
