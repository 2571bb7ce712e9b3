//! The same calls on Quire's.

use crate::common::*;
use crate::linux::{Result, runs};
use crate::op::{Op, SLOTS};
use quire_tmpfs::{Allocate, Error, Kind, New, Owner, RenameOptions, Seek, SetAttributes, SetMode, Stat};

/// What is open.
pub(crate) struct Quire<'t, 'm> {
    pub(crate) fs: &'t TestFs<'m>,
    pub(crate) root: TestNode<'t, 'm>,
    pub(crate) slots: [Option<TestNode<'t, 'm>>; SLOTS],
}

pub(crate) fn stat_text(stat: &Stat) -> String {
    format!(
        "mode {:o} links {} size {} blocks {} owner {}:{} device {:x}",
        stat.mode(),
        stat.links,
        stat.size,
        stat.blocks,
        stat.uid,
        stat.gid,
        stat.kind.device()
    )
}

fn done<T>(result: std::result::Result<T, Error>) -> Result {
    result.map(|_| String::new()).map_err(Error::errno)
}

fn owner(permissions: u16) -> Owner {
    Owner { permissions, uid: 0, gid: 0 }
}

impl<'t, 'm> Quire<'t, 'm> {
    pub(crate) fn new(fs: &'t TestFs<'m>) -> Self {
        Self { fs, root: fs.root(), slots: [const { None }; SLOTS] }
    }

    pub(crate) fn lookup(&self, path: &str, follow: bool) -> Result<TestNode<'t, 'm>> {
        paths(&self.root).lookup(path.as_bytes(), follow).map_err(Error::errno)
    }

    pub(crate) fn call(&mut self, op: &Op) -> Result {
        let walk = paths(&self.root);
        match op {
            Op::Mkdir(path) => done(walk.create(path.as_bytes(), New::Directory, &owner(0o755))),
            Op::Mknod(path) => done(walk.create(path.as_bytes(), New::Fifo, &owner(0o640))),
            Op::Symlink { target, path } => {
                done(walk.create(path.as_bytes(), New::Symlink(target.as_bytes()), &owner(0o777)))
            }
            Op::Link(old, new) => {
                let target = self.lookup(old, false)?;
                done(walk.link(&target, new.as_bytes()))
            }
            Op::Unlink(path) => done(walk.unlink(path.as_bytes())),
            Op::Rmdir(path) => done(walk.remove_directory(path.as_bytes())),
            Op::Rename { old, new, flags } => {
                let options = RenameOptions::of_flags(*flags, &owner(0)).map_err(Error::errno)?;
                done(walk.rename(old.as_bytes(), new.as_bytes(), &options))
            }
            Op::Stat { path, follow } => Ok(stat_text(&self.lookup(path, *follow)?.stat())),
            Op::Chmod(path, bits) => {
                let node = self.lookup(path, true)?;
                node.set_attributes(&SetAttributes { permissions: Some(*bits), ..SetAttributes::default() });
                Ok(String::new())
            }
            Op::ReadLink(path) => {
                let node = self.lookup(path, false)?;
                let mut to = [0; 4096];
                let bytes = node.read_link(&mut to).map_err(Error::errno)?;
                Ok(String::from_utf8(to[..bytes].to_vec()).unwrap())
            }
            Op::SetXattr { path, name, bytes, flags } => {
                // As the call does: what is too long is refused before the path is looked at.
                if name.len() > 255 {
                    return Err(Error::Range.errno());
                }
                if *bytes > 65536 {
                    return Err(Error::ValueTooLarge.errno());
                }
                let mode = [SetMode::Any, SetMode::Create, SetMode::Replace][*flags as usize];
                let node = self.lookup(path, false)?;
                done(node.set_xattr(name.as_bytes(), &vec![7; *bytes], mode))
            }
            Op::GetXattr(path, name) => {
                if name.len() > 255 {
                    return Err(Error::Range.errno());
                }
                let node = self.lookup(path, false)?;
                let got = node.xattr(name.as_bytes(), <[u8]>::len);
                got.map(|bytes| format!("{bytes} bytes")).map_err(Error::errno)
            }
            Op::RemoveXattr(path, name) => {
                if name.len() > 255 {
                    return Err(Error::Range.errno());
                }
                done(self.lookup(path, false)?.remove_xattr(name.as_bytes()))
            }
            Op::ListXattr(path) => {
                let mut names = String::new();
                self.lookup(path, false)?.for_each_xattr(&mut |name| {
                    names += std::str::from_utf8(name).unwrap();
                    names.push('\0');
                });
                Ok(names)
            }
            Op::Open { slot, path, create, exclusive } => {
                let node = if *create {
                    walk.open_or_create(path.as_bytes(), &owner(0o644), *exclusive).map_err(Error::errno)?
                } else {
                    self.lookup(path, true)?
                };
                let kind = node.stat().kind;
                match kind {
                    Kind::Directory => return Err(Error::IsDirectory.errno()),
                    // No driver has this number, and a whiteout no device.
                    Kind::Character(0) => return Err(Error::PastEnd.errno()),
                    _ => {}
                }
                self.slots[*slot] = Some(node).filter(|_| kind == Kind::Regular);
                Ok(format!("regular {}", self.slots[*slot].is_some()))
            }
            Op::Unnamed(slot) => {
                let file = self.root.create_unnamed(&owner(0o600)).map_err(Error::errno)?;
                self.slots[*slot] = Some(file);
                Ok(String::new())
            }
            Op::LinkSlot(slot, path) => match &self.slots[*slot] {
                Some(file) => done(walk.link(file, path.as_bytes())),
                None => Ok("closed".into()),
            },
            Op::Close(slot) => {
                self.slots[*slot] = None;
                Ok(String::new())
            }
            Op::StatFs => {
                let figures = self.fs.stat();
                Ok(format!(
                    "{:x} {} {} {} {} {} {}",
                    figures.magic,
                    figures.block_size,
                    figures.blocks,
                    figures.free_blocks,
                    figures.inodes,
                    figures.free_inodes,
                    figures.longest_name
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

    fn call_on(file: &TestNode<'_, '_>, op: &Op) -> Result {
        match op {
            Op::Write { bytes: 0, .. } => Ok("0".into()),
            Op::Write { at, bytes, byte, .. } => file
                .write(|data| data.write(*at, &vec![*byte; *bytes]))
                .and_then(|written| written)
                .map(|bytes| format!("{bytes}"))
                .map_err(Error::errno),
            Op::Read { at, bytes, .. } => {
                let mut read = vec![0; *bytes];
                let got = file.read(|data| data.read(*at, &mut read)).map_err(Error::errno)?;
                Ok(runs(&read[..got]))
            }
            Op::Truncate(_, size) => done(file.set_size(*size)),
            Op::Allocate { mode, at, bytes, .. } => {
                // As the call does: no bytes are refused first.
                if *bytes == 0 {
                    return Err(Error::Invalid.errno());
                }
                done(Allocate::of_mode(*mode).and_then(|mode| file.allocate(mode, (*at, *bytes), None)))
            }
            Op::Seek { at, hole, .. } => {
                let what = if *hole { Seek::Hole } else { Seek::Data };
                file.seek(*at, what).map(|place| format!("{place}")).map_err(Error::errno)
            }
            _ => Ok(stat_text(&file.stat())),
        }
    }
}
