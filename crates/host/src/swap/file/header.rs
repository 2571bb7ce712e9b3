//! The first page of a swap file, as Linux's mkswap writes it.

use super::{Cause, FileDeviceError};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(super) const PAGE: usize = 4096;
/// At the end of the page.
const SIGNATURE: &[u8; 10] = b"SWAPSPACE2";
const VERSION: u32 = 1;
/// Where the version, the number of the last page and the number of bad pages are: boot loaders may use what
/// precedes.
const VERSION_AT: usize = 1024;
const LAST_PAGE_AT: usize = 1028;
const BAD_PAGES_AT: usize = 1032;

/// A page suitable for direct I/O.
#[repr(align(4096))]
struct Page([u8; PAGE]);

impl Page {
    fn number(&self, at: usize) -> u32 {
        self.0[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }
}

/// The contents of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// The number of the last page. The header's own is 0.
    pub(super) last_page: u32,
}

impl Header {
    pub(super) fn read(file: &File) -> Result<Self, Cause> {
        let has = pages(file).map_err(Cause::Host)?;
        if has < 2 {
            return Err(Cause::TooSmall);
        }
        let mut page = Page([0; PAGE]);
        file.read_exact_at(&mut page.0, 0).map_err(Cause::Host)?;
        if !page.0.ends_with(SIGNATURE) {
            return Err(Cause::NoSignature);
        }
        let (version, last_page, bad) =
            (page.number(VERSION_AT), page.number(LAST_PAGE_AT), page.number(BAD_PAGES_AT));
        if version != VERSION {
            return Err(Cause::Version(version));
        }
        if bad != 0 {
            return Err(Cause::BadPages(bad));
        }
        if last_page == 0 {
            return Err(Cause::TooSmall);
        }
        let told = u64::from(last_page) + 1;
        if told > has { Err(Cause::Short { pages: told, has }) } else { Ok(Self { last_page }) }
    }
}

/// Whole pages of a file or a block device.
fn pages(mut file: &File) -> io::Result<u64> {
    // The metadata of a block device has no length.
    Ok(file.seek(SeekFrom::End(0))? / PAGE as u64)
}

/// Makes swap space for `slots` pages: a new file. What is at `path` is left as it is, a link too.
///
/// # Errors
///
/// [`FileDeviceError`]: there is something, or the file cannot be made or written, or it would be too small
/// or too large.
pub fn make_swap(path: &Path, slots: u64) -> Result<(), FileDeviceError> {
    let wrong = |cause| FileDeviceError { path: path.to_path_buf(), cause };
    // O_EXCL: a link is not followed.
    let file = File::options().read(true).write(true).create_new(true).open(path);
    let file = file.map_err(|error| wrong(Cause::Host(error)))?;
    format(&file, slots).map_err(|cause| {
        // What has no header is of no use.
        let _ = std::fs::remove_file(path);
        wrong(cause)
    })
}

/// Makes a file swap space for `slots` pages.
pub(super) fn format(file: &File, slots: u64) -> Result<(), Cause> {
    if slots == 0 {
        return Err(Cause::TooSmall);
    }
    let last_page = u32::try_from(slots).map_err(|_| Cause::Host(io::ErrorKind::FileTooLarge.into()))?;
    file.set_len((slots + 1) * PAGE as u64).map_err(Cause::Host)?;
    // Without an alignment: it is no direct I/O. (rustc 1.95 puts the prologue of this function behind the
    // probes of an aligned page on the stack.)
    let mut page = vec![0; PAGE];
    for (at, number) in [(VERSION_AT, VERSION), (LAST_PAGE_AT, last_page)] {
        page[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    page[PAGE - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    file.write_all_at(&page, 0).map_err(Cause::Host)?;
    file.sync_all().map_err(Cause::Host)
}
