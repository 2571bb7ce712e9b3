//! What is behind a descriptor: `/proc/PID/fd` and `/proc/PID/fdinfo`.

use super::mounts::{FileSystem, Mounts, Opened, Served};
use super::trial::{self, Asked};
use crate::sys::Tid;
use quire_trace::event::{FileFacts, FileKind, HeldInMemory};
use rustix::fs::{AtFlags, CWD, StatVfsMountFlags, StatxFlags, statx};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest name that is kept.
const NAME_LIMIT: usize = 4096;
/// The clock of files is behind by up to a tick of the kernel's timer.
const TICK: Duration = Duration::from_millis(10);
/// Files have so many bytes in a block.
const BLOCK: u64 = 512;

/// A file that was about to be mapped.
#[derive(Debug)]
pub(crate) struct KnownFile {
    facts: Arc<FileFacts>,
    /// `None` where too little can be seen.
    seen: Option<Seen>,
    asked: Asked,
}

/// What can be seen of a descriptor at little cost: which file it is of, and how that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    device: (u32, u32),
    inode: u64,
    size: u64,
    /// When its inode changed last: with its length, its names, what may be done with it.
    changed: (i64, u32),
    names: u32,
    mount: u64,
    /// Opened to be read, and to be written.
    modes: (bool, bool),
}

/// The facts of an open descriptor of a thread that is about to map it, and whether its file was asked for
/// them. `last` is the file that was mapped last: what cannot have changed of it is not asked again, which
/// takes five times as long. The recording began at `began`.
pub(crate) fn facts(
    tid: Tid,
    fd: i32,
    asked: Asked,
    (last, mounts): (&mut Option<KnownFile>, &mut Mounts),
    began: SystemTime,
) -> (Arc<FileFacts>, bool) {
    if let Some(known) = last.as_ref().filter(|known| known.is_behind(&format!("/proc/{tid}/fd/{fd}"), asked))
    {
        return (Arc::clone(&known.facts), true);
    }
    let Some(opened) = Opened::of(tid, fd) else { return (Arc::default(), true) };
    match mounts.of(tid, fd, opened) {
        Served::Here => (of_open_file(tid, (fd, opened), asked, (last, mounts), began), true),
        Served::Elsewhere(system) => (Arc::new(unasked(tid, (fd, opened), asked, system)), false),
    }
}

/// Of a file that is not asked: `/proc` tells the rest. It is as long as what is mapped of it.
fn unasked(tid: Tid, (fd, opened): (i32, Opened), asked: Asked, system: FileSystem) -> FileFacts {
    let FileSystem { device, kind: file_system, no_exec } = system;
    let name = fs::read_link(format!("/proc/{tid}/fd/{fd}")).unwrap_or_default();
    let name = name.as_os_str().as_bytes();
    FileFacts {
        kind: FileKind::Regular,
        device,
        inode: opened.inode,
        size: asked.end(),
        file_system,
        readable: opened.may_read(),
        writable: opened.may_write(),
        no_exec,
        name: name[..name.len().min(NAME_LIMIT)].into(),
        ..FileFacts::default()
    }
}

fn of_open_file(
    tid: Tid,
    (fd, opened): (i32, Opened),
    asked: Asked,
    (last, mounts): (&mut Option<KnownFile>, &mut Mounts),
    began: SystemTime,
) -> Arc<FileFacts> {
    let mut facts = FileFacts::default();
    let path = format!("/proc/{tid}/fd/{fd}");
    let seen = Seen::of(&path);
    let known = last.as_ref().filter(|known| seen.is_some_and(|seen| known.is_as_before(seen, asked)));
    let Ok(link) = fs::read_link(&path) else {
        return Arc::new(facts);
    };
    let name = link.as_os_str().as_bytes();
    facts.name = name[..name.len().min(NAME_LIMIT)].into();
    if let Some(known) = known.filter(|known| known.facts.name == facts.name) {
        return Arc::clone(&known.facts);
    }
    let Ok(metadata) = fs::metadata(&path) else {
        facts.kind = FileKind::Unknown;
        return Arc::new(facts);
    };
    (facts.device, facts.inode, facts.size) = (metadata.dev(), metadata.ino(), metadata.size());
    examine(&mut facts, &metadata, (tid, fd, opened), asked);
    if facts.kind == FileKind::Memory {
        let bytes = metadata.blocks().saturating_mul(BLOCK);
        facts.held = Some(HeldInMemory { bytes, changed: changed_since(&metadata, began) });
        facts.mount_huge = mounts.huge(tid, facts.device);
    }
    // Equal ones are one: a trace has each once.
    let facts = match last {
        Some(known) if *known.facts == facts => Arc::clone(&known.facts),
        _ => Arc::new(facts),
    };
    *last = Some(KnownFile { facts: Arc::clone(&facts), seen, asked });
    facts
}

impl KnownFile {
    /// Whether the file behind a link in `/proc/PID/fd` is certainly this one. That is on a mount that the
    /// kernel serves, and so is one on the same mount; no other is waited for. One that has several names may
    /// have been opened under another.
    fn is_behind(&self, path: &str, asked: Asked) -> bool {
        Seen::of(path).is_some_and(|seen| seen.names == 1 && self.is_as_before(seen, asked))
    }

    /// Whether a descriptor can be mapped as this one could be: it is of the same regular file, of which the
    /// way in which it was opened decides that.
    fn is_as_before(&self, seen: Seen, asked: Asked) -> bool {
        self.facts.kind == FileKind::Regular && self.seen == Some(seen) && self.asked.is_like(asked)
    }
}

impl Seen {
    /// Of a link in `/proc/PID/fd`. `None` where the kernel does not tell all of it. FUSE and network file
    /// systems are not asked: they tell what the kernel has of them.
    fn of(path: &str) -> Option<Self> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let file = statx(CWD, path, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, wanted).ok()?;
        // The permissions of the link are what the file was opened for.
        let link = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MODE).ok()?;
        let may = |permission| u32::from(link.stx_mode) & permission != 0;
        let told = StatxFlags::from_bits_retain(file.stx_mask).contains(wanted);
        told.then_some(Self {
            device: (file.stx_dev_major, file.stx_dev_minor),
            inode: file.stx_ino,
            size: file.stx_size,
            changed: (file.stx_ctime.tv_sec, file.stx_ctime.tv_nsec),
            names: file.stx_nlink,
            mount: file.stx_mnt_id,
            modes: (may(libc::S_IRUSR), may(libc::S_IWUSR)),
        })
    }
}

/// Finds out the rest.
fn examine(
    facts: &mut FileFacts,
    metadata: &fs::Metadata,
    (tid, fd, opened): (Tid, i32, Opened),
    asked: Asked,
) {
    let (system, no_exec) = file_system(&format!("/proc/{tid}/fd/{fd}"));
    facts.file_system = system as u64;
    facts.no_exec = no_exec;
    let kind = metadata.file_type();
    facts.kind = if kind.is_file() {
        match system {
            libc::HUGETLBFS_MAGIC => FileKind::HugePages,
            libc::TMPFS_MAGIC => FileKind::Memory,
            // Of an overlay it may be one. That has no device of its own.
            _ if libc::major(facts.device) == 0 && trial::is_in_memory(tid, fd) == Some(true) => {
                FileKind::Memory
            }
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
    (facts.readable, facts.writable) = (opened.may_read(), opened.may_write());
    // Mapping huge pages reserves some, which the program then lacks.
    if facts.kind != FileKind::HugePages {
        facts.trial = trial::attempt(tid, fd, asked);
    }
}

/// Whether a file was written, made or given a name since then.
fn changed_since(metadata: &fs::Metadata, then: SystemTime) -> bool {
    let then = then.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(TICK);
    let seconds = u64::try_from(metadata.ctime()).unwrap_or(0);
    Duration::new(seconds, u32::try_from(metadata.ctime_nsec()).unwrap_or(0)) >= then
}

/// The type of the file system, and whether it forbids execution.
fn file_system(path: &str) -> (i64, bool) {
    let system = rustix::fs::statfs(path).map_or(0, |system| system.f_type);
    let no_exec =
        rustix::fs::statvfs(path).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOEXEC));
    (system, no_exec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::cached_pages;
    use quire_trace::event::IndexRun;
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    use std::ffi::{CStr, CString};
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::path::Path;

    /// The facts of a file that is about to be mapped, of a recording that began then.
    fn asked_of(file: &fs::File, began: SystemTime) -> Arc<FileFacts> {
        let asked = Asked::from_args(&[0, 4096, 1, libc::MAP_PRIVATE as u64, 0, 0]);
        let tid = rustix::thread::gettid().as_raw_pid();
        facts(tid, file.as_raw_fd(), asked, (&mut None, &mut Mounts::default()), began).0
    }

    /// Mounts a file system of this type, in a namespace of this thread alone.
    fn mount_here(kind: &CStr, at: &Path, options: &str) -> rustix::io::Result<()> {
        // SAFETY: the table of descriptors is not unshared.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
        mount_change(c"/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
        mount(kind, at, kind, MountFlags::empty(), CString::new(options).unwrap().as_c_str())
    }

    /// From now on this thread gets no userfaultfd, as in containers. `false` if it cannot be so.
    fn forbid_userfaultfd() -> bool {
        let code = |code: u32, jf, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let mut filter = [
            code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_userfaultfd as u32),
            code(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            code(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the kernel reads `program` and the filter that it points to, both of which live.
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0 }
    }

    /// Linux counts the pages of what lies in an overlay over tmpfs as shared memory, too. It is known with a
    /// userfaultfd, and without.
    #[test]
    fn a_file_of_an_overlay_is_in_memory_where_its_pages_are() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["disk", "memory", "both"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("disk/below"), [1; 8192]).unwrap();
        let test = || {
            if let Err(error) = mount_here(c"tmpfs", &at("memory"), "") {
                return eprintln!("skipped: nothing can be mounted: {error}");
            }
            fs::create_dir(at("memory/above")).unwrap();
            fs::create_dir(at("memory/work")).unwrap();
            let [lower, upper, work] =
                ["disk", "memory/above", "memory/work"].map(|name| at(name).display().to_string());
            let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
            if let Err(error) = mount_here(c"overlay", &at("both"), &options) {
                return eprintln!("skipped: there is no overlay: {error}");
            }
            fs::write(at("both/above"), [1; 8192]).unwrap();
            fs::write(at("both/empty"), []).unwrap();
            let open = |name| fs::File::open(at(name)).unwrap();
            if asked_of(&open("disk/below"), UNIX_EPOCH).kind != FileKind::Regular {
                return eprintln!("skipped: temporary files are in memory");
            }
            for userfaultfd in [true, false] {
                if !userfaultfd && !forbid_userfaultfd() {
                    return eprintln!("skipped: nothing can be forbidden");
                }
                let above = asked_of(&open("both/above"), UNIX_EPOCH);
                let tid = rustix::thread::gettid().as_raw_pid();
                if trial::is_in_memory(tid, open("both/above").as_raw_fd()).is_none() {
                    return eprintln!("skipped: Linux before 5.14, without a userfaultfd");
                }
                assert_eq!((above.kind, above.file_system), (FileKind::Memory, 0x794c_7630), "{userfaultfd}");
                assert_eq!(above.held, Some(HeldInMemory { bytes: 8192, changed: true }));
                let below = asked_of(&open("both/below"), UNIX_EPOCH);
                assert_eq!((below.kind, below.held), (FileKind::Regular, None), "{userfaultfd}");
                // Its pages are those of the file below, which was written just now.
                let pages = cached_pages(&open("both/below"), 8192, below.file_system);
                assert_eq!(pages, Some(vec![IndexRun { first: 0, pages: 2 }]));
                let empty = trial::is_in_memory(tid, open("both/empty").as_raw_fd());
                assert_eq!(empty, userfaultfd.then_some(true), "it has no page that could be counted");
            }
        };
        std::thread::scope(|scope| scope.spawn(test).join()).unwrap();
    }

    #[test]
    fn what_a_file_in_memory_has_is_known() {
        let memfd = rustix::fs::memfd_create(c"x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = fs::File::from(memfd);
        file.set_len(1 << 20).unwrap();
        file.write_all(&[1; 8192]).unwrap();
        let held = |began| asked_of(&file, began).held;
        let now = SystemTime::now();
        assert_eq!(held(now - Duration::from_secs(9)), Some(HeldInMemory { bytes: 8192, changed: true }));
        assert_eq!(held(now + Duration::from_secs(9)), Some(HeldInMemory { bytes: 8192, changed: false }));
    }

    /// Container images and package stores have files with several names.
    #[test]
    fn a_file_is_asked_again_only_if_it_has_changed_or_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["one", "other"].map(|name| folder.path().join(name));
        let mut made = fs::File::create(&names[0]).unwrap();
        made.write_all(&[1; 4096]).unwrap();
        fs::hard_link(&names[0], &names[1]).unwrap();
        let [one, other] = names.map(|name| fs::File::open(name).unwrap());
        let asked = Asked::from_args(&[0, 4096, 1, libc::MAP_PRIVATE as u64, 0, 0]);
        let tid = rustix::thread::gettid().as_raw_pid();
        let mut last = None;
        let mut mounts = Mounts::default();
        let mut ask =
            |file: &fs::File| facts(tid, file.as_raw_fd(), asked, (&mut last, &mut mounts), UNIX_EPOCH).0;
        let first = ask(&one);
        if first.kind != FileKind::Regular {
            return eprintln!("skipped: temporary files are in memory");
        }
        assert!(Arc::ptr_eq(&first, &ask(&one)));
        let second = ask(&other);
        assert!(!Arc::ptr_eq(&first, &second) && first.name != second.name);
        assert!(!ask(&one).writable && ask(&made).writable, "it may be written through one of them");
        ask(&one);
        made.set_len(8192).unwrap();
        assert_eq!((first.size, ask(&one).size), (4096, 8192));
    }
}
