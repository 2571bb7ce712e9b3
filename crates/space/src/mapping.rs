//! One mapping, as it is shown and installed.

use core::ptr::NonNull;
use quire_arch::{Platform, VirtRange};
use quire_file::OpenFile;
use quire_vma::{VmFlags, Vma, VmaSnapshot};

/// One mapping, as `/proc/PID/maps` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses.
    pub range: VirtRange,
    /// Its flags.
    pub flags: VmFlags,
    /// Offset in pages into what it maps.
    pub page_offset: u64,
    /// The number of the file, if it maps one: the embedder's, or that of a [`File`](crate::File).
    pub file: Option<u64>,
}

impl Mapping {
    /// The mapping that a VMA stands for.
    ///
    /// # Safety
    ///
    /// The VMA is one of a machine of this platform, and in its tree since the snapshot was made.
    pub(crate) unsafe fn of<P: Platform>(snapshot: &VmaSnapshot) -> Self {
        // SAFETY: the VMA holds its opening (caller).
        let opening = unsafe { snapshot.backing.opening() };
        let file = opening.map(|opening| {
            // SAFETY: VMAs name openings of their machine's files only.
            unsafe { OpenFile::<P, Vma>::of(NonNull::from(opening)) }.file().number()
        });
        // What mmap made has no name.
        let file = file.filter(|&number| number != 0);
        Self {
            range: snapshot.range,
            flags: snapshot.flags,
            page_offset: snapshot.page_offset,
            file: file.or(snapshot.backing.file_id()),
        }
    }
}
