//! File systems of the kernel that need not be mounted to be read.
//!
//! A detached mount has no place in the file system, no other process sees it, and it is removed with its
//! descriptor.

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// Mounts a file system of this type. Needs `CAP_SYS_ADMIN`.
pub(crate) fn detached(kind: &CStr) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// The text of a file in a mount.
pub(crate) fn read_in(mount: &OwnedFd, path: &str) -> io::Result<String> {
    let file = openat(mount, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::read_to_string(File::from(file))
}
