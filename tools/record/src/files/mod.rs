//! The files that programs have mapped: how long each is, and what of it is in the page cache.
//!
//! - `runs`: a set of pages.
//! - `cached`: finding out what is cached.
//! - `table`: what is known of each file.

mod cached;
mod runs;
mod table;

pub(crate) use cached::{cached_pages, cached_within};
pub(crate) use runs::PageSet;
pub(crate) use table::{FileKey, FileTable, MappedFile, PageChange};
