//! The name space of Linux's tmpfs: directories, links, `rename` with its flags, limits of pages and inodes,
//! times, extended attributes, with Linux's results. The bytes of regular files are the page cache's.
//!
//! It uses neither std nor a global allocator. docs/tmpfs.md says what fails, and how it is undone.
//!
//! # Modules, lowest first
//!
//! - `error`: why a call fails.
//! - `space`: the limits of a file system.
//! - `sleeping`: a value behind a sleeping lock.
//! - `backend`: what a file system needs from around it.
//! - `shmem`: files as shared memory of a machine.
//! - `attributes`: what `stat` tells, and the rules of times.
//! - `entry`: an entry of a directory.
//! - `directory`: the entries of a directory, by name and by place.
//! - `xattr`: extended attributes.
//! - `inode`: an inode.
//! - `instance`: what all inodes of a file system share.
//! - `node`: handles of inodes, and the calls on them.
//! - `tmpfs`: a file system.
//! - `walk`: paths.
//! - `audit`: counts and links, recounted.

#![no_std]

#[cfg(test)]
extern crate std;

mod attributes;
mod audit;
mod backend;
mod directory;
mod entry;
mod error;
mod inode;
mod instance;
mod node;
mod shmem;
mod sleeping;
mod space;
mod tmpfs;
mod walk;
mod xattr;

pub use attributes::{AccessTimes, Kind, Owner, SetAttributes, SetTime, Stat};
pub use audit::{Finding, audit};
pub use backend::{Backend, FileData, Seek, Time};
pub use error::Error;
pub use instance::{New, Options};
pub use node::{Allocate, DirectoryEntry, END, FIRST, Node, RenameOptions};
#[doc(inline)]
pub use quire_mm::file::ShmemEnabled;
pub use shmem::{Shmem, ShmemFile};
pub use space::{Account, Limits};
pub use tmpfs::{FileSystemStat, Tmpfs, Usage};
pub use walk::{Last, Parent, Walk};
pub use xattr::SetMode;
