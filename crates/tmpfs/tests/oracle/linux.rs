//! Calls on the host's tmpfs.

use crate::op::{Op, SLOTS};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Stat, XattrFlags,
};
use rustix::io::Errno;
use std::error::Error;
use std::fmt::Write as _;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// The limits of the file system that is compared.
pub(crate) const PAGES: u64 = 64;
pub(crate) const INODES: u64 = 60;

/// Mounts a tmpfs that only this process sees, and makes it the root. The process has one thread.
pub(crate) fn enter_own_tmpfs() -> std::result::Result<(), Box<dyn Error>> {
    use rustix::mount::{MountFlags, MountPropagationFlags};
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let flags = if uid.is_root() { UnshareFlags::NEWNS } else { UnshareFlags::NEWNS | UnshareFlags::NEWUSER };
    // SAFETY: the process has one thread, and files are not unshared.
    unsafe { unshare_unsafe(flags)? };
    if !uid.is_root() {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {} 1", uid.as_raw()))?;
        std::fs::write("/proc/self/gid_map", format!("0 {} 1", gid.as_raw()))?;
    }
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let options = format!("size={},nr_inodes={INODES}\0", PAGES * 4096);
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes())?;
    rustix::mount::mount("tmpfs", "/dev/shm", "tmpfs", MountFlags::empty(), options)?;
    rustix::process::chroot("/dev/shm")?;
    rustix::process::chdir("/")?;
    rustix::process::umask(Mode::empty());
    Ok(())
}

/// What is open.
#[derive(Default)]
pub(crate) struct Linux {
    pub(crate) slots: [Option<OwnedFd>; SLOTS],
}

pub(crate) type Result<T = String> = std::result::Result<T, i32>;

pub(crate) fn stat_text(stat: &Stat) -> String {
    format!(
        "mode {:o} links {} size {} blocks {} owner {}:{} device {:x}",
        stat.st_mode, stat.st_nlink, stat.st_size, stat.st_blocks, stat.st_uid, stat.st_gid, stat.st_rdev
    )
}

fn done<T>(result: rustix::io::Result<T>) -> Result {
    result.map(|_| String::new()).map_err(Errno::raw_os_error)
}

fn mode(bits: u16) -> Mode {
    Mode::from_raw_mode(bits.into())
}

/// A file that a call here works on: regular, so that nothing waits for the other end of a pipe.
fn keep_regular(file: OwnedFd) -> Result<Option<OwnedFd>> {
    let stat = rustix::fs::fstat(&file).map_err(Errno::raw_os_error)?;
    Ok(Some(file).filter(|_| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile))
}

impl Linux {
    pub(crate) fn call(&mut self, op: &Op) -> Result {
        use rustix::fs;
        match op {
            Op::Mkdir(path) => done(fs::mkdir(path.as_str(), mode(0o755))),
            Op::Mknod(path) => done(fs::mknodat(CWD, path.as_str(), FileType::Fifo, mode(0o640), 0)),
            Op::Symlink { target, path } => done(fs::symlink(target.as_str(), path.as_str())),
            Op::Link(old, new) => done(fs::link(old.as_str(), new.as_str())),
            Op::Unlink(path) => done(fs::unlink(path.as_str())),
            Op::Rmdir(path) => done(fs::rmdir(path.as_str())),
            Op::Rename { old, new, flags } => {
                let flags = RenameFlags::from_bits_retain(*flags);
                done(fs::renameat_with(CWD, old.as_str(), CWD, new.as_str(), flags))
            }
            Op::Stat { path, follow } => {
                let result = if *follow { fs::stat(path.as_str()) } else { fs::lstat(path.as_str()) };
                result.map(|stat| stat_text(&stat)).map_err(Errno::raw_os_error)
            }
            Op::Chmod(path, bits) => done(fs::chmod(path.as_str(), mode(*bits))),
            Op::ReadLink(path) => match fs::readlink(path.as_str(), Vec::new()) {
                Ok(target) => Ok(target.into_string().unwrap()),
                Err(error) => Err(error.raw_os_error()),
            },
            Op::SetXattr { path, name, bytes, flags } => {
                let flags = XattrFlags::from_bits_retain(*flags);
                done(fs::lsetxattr(path.as_str(), name.as_str(), &vec![7; *bytes], flags))
            }
            Op::GetXattr(path, name) => {
                let mut value = vec![0; 70_000];
                let got = fs::lgetxattr(path.as_str(), name.as_str(), &mut value[..]);
                got.map(|bytes| format!("{bytes} bytes")).map_err(Errno::raw_os_error)
            }
            Op::RemoveXattr(path, name) => done(fs::lremovexattr(path.as_str(), name.as_str())),
            Op::ListXattr(path) => {
                let mut names = vec![0; 70_000];
                let got = fs::llistxattr(path.as_str(), &mut names[..]);
                let got = got.map_err(Errno::raw_os_error)?;
                Ok(String::from_utf8_lossy(&names[..got]).into_owned())
            }
            Op::Open { slot, path, create, exclusive } => {
                let mut flags = OFlags::RDWR | OFlags::NONBLOCK;
                if *create {
                    flags |= OFlags::CREATE;
                    flags.set(OFlags::EXCL, *exclusive);
                }
                let file = fs::open(path.as_str(), flags, mode(0o644)).map_err(Errno::raw_os_error)?;
                self.slots[*slot] = keep_regular(file)?;
                Ok(format!("regular {}", self.slots[*slot].is_some()))
            }
            Op::Unnamed(slot) => {
                let file = fs::open(".", OFlags::RDWR | OFlags::TMPFILE, mode(0o600));
                self.slots[*slot] = Some(file.map_err(Errno::raw_os_error)?);
                Ok(String::new())
            }
            Op::LinkSlot(slot, path) => {
                let Some(file) = &self.slots[*slot] else { return Ok("closed".into()) };
                done(fs::linkat(file, "", CWD, path.as_str(), AtFlags::EMPTY_PATH))
            }
            Op::Close(slot) => {
                self.slots[*slot] = None;
                Ok(String::new())
            }
            Op::StatFs => {
                let figures = fs::statfs("/").map_err(Errno::raw_os_error)?;
                Ok(format!(
                    "{:x} {} {} {} {} {} {}",
                    figures.f_type,
                    figures.f_bsize,
                    figures.f_blocks,
                    figures.f_bfree,
                    figures.f_files,
                    figures.f_ffree,
                    figures.f_namelen
                ))
            }
            Op::Write { slot, .. }
            | Op::Read { slot, .. }
            | Op::Truncate(slot, _)
            | Op::Allocate { slot, .. }
            | Op::Seek { slot, .. }
            | Op::StatSlot(slot) => match &self.slots[*slot] {
                Some(file) => Self::call_on(file, op),
                None => Ok("closed".into()),
            },
        }
    }

    fn call_on(file: &OwnedFd, op: &Op) -> Result {
        use rustix::fs;
        match op {
            Op::Write { at, bytes, byte, .. } => rustix::io::pwrite(file, &vec![*byte; *bytes], *at)
                .map(|bytes| format!("{bytes}"))
                .map_err(Errno::raw_os_error),
            Op::Read { at, bytes, .. } => {
                let mut read = vec![0; *bytes];
                let got = rustix::io::pread(file, &mut read[..], *at).map_err(Errno::raw_os_error)?;
                Ok(runs(&read[..got]))
            }
            Op::Truncate(_, size) => done(fs::ftruncate(file, *size)),
            Op::Allocate { mode, at, bytes, .. } => {
                done(fs::fallocate(file, FallocateFlags::from_bits_retain(*mode), *at, *bytes))
            }
            Op::Seek { at, hole, .. } => {
                let from = if *hole { SeekFrom::Hole(*at) } else { SeekFrom::Data(*at) };
                fs::seek(file, from).map(|place| format!("{place}")).map_err(Errno::raw_os_error)
            }
            _ => fs::fstat(file).map(|stat| stat_text(&stat)).map_err(Errno::raw_os_error),
        }
    }
}

/// Bytes as runs, so that differences can be read.
pub(crate) fn runs(bytes: &[u8]) -> String {
    let mut text = String::new();
    for run in bytes.chunk_by(|one, next| one == next) {
        write!(text, "{}x{} ", run.len(), run[0]).unwrap();
    }
    text
}

/// The names in a directory, in the order of a listing, with their positions, read with a buffer of so many
/// bytes.
pub(crate) fn list(path: &str, buffer: usize) -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = rustix::fs::open(path, flags, Mode::empty()).unwrap();
    let mut buffer = vec![MaybeUninit::uninit(); buffer];
    let mut names = Vec::new();
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        names.push(entry.unwrap().file_name().to_str().unwrap().to_owned());
    }
    names
}
