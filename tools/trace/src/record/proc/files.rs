//! What is behind a descriptor: `/proc/PID/fd` and `/proc/PID/fdinfo`.

use super::trial::{self, Asked};
use super::{Keyed, text};
use crate::event::{FileFacts, FileKind};
use crate::record::sys::Tid;
use rustix::fs::StatVfsMountFlags;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Longest name that is kept.
const NAME_LIMIT: usize = 4096;

/// The facts of an open descriptor of a thread that is about to map it.
pub(crate) fn facts(tid: Tid, fd: i32, asked: Asked) -> FileFacts {
    let mut facts = FileFacts::default();
    let path = format!("/proc/{tid}/fd/{fd}");
    if fd < 0 {
        return facts;
    }
    let Ok(link) = fs::read_link(&path) else {
        return facts;
    };
    let name = link.as_os_str().as_bytes();
    facts.name = name[..name.len().min(NAME_LIMIT)].into();
    let Ok(metadata) = fs::metadata(&path) else {
        facts.kind = FileKind::Unknown;
        return facts;
    };
    (facts.device, facts.inode, facts.size) = (metadata.dev(), metadata.ino(), metadata.size());
    let (system, no_exec) = file_system(&path);
    facts.file_system = system as u64;
    facts.no_exec = no_exec;
    let kind = metadata.file_type();
    facts.kind = if kind.is_file() {
        match system {
            libc::HUGETLBFS_MAGIC => FileKind::HugePages,
            libc::TMPFS_MAGIC => FileKind::Memory,
            _ => FileKind::Regular,
        }
    } else if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_char_device() {
        let zero = libc::makedev(1, 5);
        if metadata.rdev() == zero { FileKind::Zero } else { FileKind::CharDevice }
    } else if kind.is_block_device() {
        FileKind::BlockDevice
    } else {
        FileKind::Other
    };
    let mode = open_mode(tid, fd);
    facts.readable = mode == libc::O_RDONLY || mode == libc::O_RDWR;
    facts.writable = mode == libc::O_WRONLY || mode == libc::O_RDWR;
    // Mapping huge pages reserves some, which the program then lacks.
    if facts.kind != FileKind::HugePages {
        facts.trial = trial::attempt(tid, fd, asked);
    }
    facts
}

/// How the descriptor was opened: one of the `O_ACCMODE` values; -1 for `O_PATH` and if it is not known.
fn open_mode(tid: Tid, fd: i32) -> i32 {
    let info = Keyed(text(tid, &format!("fdinfo/{fd}")));
    match info.word("flags").and_then(|octal| i32::from_str_radix(octal, 8).ok()) {
        Some(flags) if flags & libc::O_PATH == 0 => flags & libc::O_ACCMODE,
        _ => -1,
    }
}

/// The type of the file system, and whether it forbids execution.
fn file_system(path: &str) -> (i64, bool) {
    let system = rustix::fs::statfs(path).map_or(0, |system| system.f_type);
    let no_exec =
        rustix::fs::statvfs(path).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOEXEC));
    (system, no_exec)
}
