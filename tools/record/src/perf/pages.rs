//! Pages that enter the page cache and leave it, of files that are told.
//!
//! The events are of all processes: any may read a file, and the kernel itself takes pages away. A filter in
//! the kernel, which an event has once, lets those of the inodes pass. So more files need more events.

use super::tracepoint::{Offsets, PAGES, Tracepoint};
use super::{PerfSession, Root, SampleKind, Source, Wanted, on_tracepoint, word};
use crate::files::FileKey;
use quire_trace::event::IndexRun;
use std::ffi::CString;
use std::io;

/// A filter holds so many inodes: its text is at most a page long.
const AT_ONCE: usize = 128;
/// With more sets of events, one set takes the place of all.
const MOST_SETS: usize = 8;
/// At most so many files are told.
const MOST_FILES: usize = 2048;

/// Where the fields of such an event are.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageFields {
    added: bool,
    place: Offsets,
    origin: Offsets,
}

/// The files whose pages are told.
#[derive(Debug, Default)]
pub(super) struct WatchedFiles {
    inodes: Vec<u64>,
    /// The sets of events that are open.
    sets: Vec<Root>,
    /// Those that are closed, and of which samples may be in the rings.
    closed: Vec<Root>,
    /// The last one that was opened.
    last: u32,
    /// Once they were found, which takes a mount where tracefs is not mounted.
    tracepoints: Option<[Tracepoint; 4]>,
}

impl PerfSession {
    /// Also tells which pages of these files enter or leave the page cache. Needs `CAP_PERFMON`.
    pub(crate) fn watch_files(&mut self, files: &[FileKey]) -> io::Result<()> {
        let new = files.iter().map(|key| key.inode).filter(|inode| !self.files.inodes.contains(inode));
        let new: Vec<u64> = new.collect();
        if new.is_empty() {
            return Ok(());
        }
        if self.files.inodes.len() + new.len() > MOST_FILES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.files.inodes.extend(&new);
        let sets = self.files.sets.len() + new.len().div_ceil(AT_ONCE);
        if sets <= MOST_SETS.max(self.files.inodes.len().div_ceil(AT_ONCE) + 1) {
            return self.open_sets(&new);
        }
        let old = std::mem::take(&mut self.files.sets);
        self.open_sets(&self.files.inodes.clone())?;
        self.close_sets(&old);
        Ok(())
    }

    /// Tells nothing of files any more.
    pub(crate) fn forget_files(&mut self) {
        let old = std::mem::take(&mut self.files.sets);
        self.files.inodes.clear();
        self.close_sets(&old);
    }

    /// All samples of closed sets were taken out of the rings. Those that come later, an open set tells, too.
    pub(super) fn forget_closed_sets(&mut self) {
        let closed = std::mem::take(&mut self.files.closed);
        if !closed.is_empty() {
            self.sources.retain(|_, (root, _)| !closed.contains(root));
        }
    }

    fn open_sets(&mut self, inodes: &[u64]) -> io::Result<()> {
        let found = self.files.tracepoints.map_or_else(|| Tracepoint::find(PAGES), Ok)?;
        self.files.tracepoints = Some(found);
        for some in inodes.chunks(AT_ONCE) {
            self.files.last += 1;
            let root = Root::of_files(self.files.last);
            self.files.sets.push(root);
            for Wanted { source, builder, filter } in &mut self.how.on_pages(found, some) {
                for ring in &mut self.rings {
                    let event = builder.any_pid().one_cpu(ring.cpu()).build()?;
                    let id = ring.add(root, event, filter.as_ref())?;
                    self.sources.insert(id, (root, *source));
                }
            }
        }
        Ok(())
    }

    /// To close an event takes as long as another CPU needs to let it go: a thread of its own does that.
    fn close_sets(&mut self, sets: &[Root]) {
        let mut events = Vec::new();
        for ring in &mut self.rings {
            events.extend(ring.take(|root| sets.contains(&root)));
        }
        self.files.closed.extend(sets);
        // Without the thread only time is lost.
        drop(std::thread::Builder::new().spawn(move || drop(events)));
    }
}

impl super::How {
    fn on_pages(self, tracepoints: [Tracepoint; 4], inodes: &[u64]) -> [Wanted; 2] {
        let [added, added_from, removed, removed_from] = tracepoints;
        let of = |added, tracepoint: Tracepoint, from: Tracepoint| {
            let fields = PageFields { added, place: tracepoint.offsets, origin: from.offsets };
            let mut wanted = on_tracepoint(Source::Page(fields), tracepoint);
            wanted.builder.inherit(false).enable_on_exec(false).enabled(true).read_format(self.read);
            Wanted { filter: Some(filter(inodes)), ..wanted }
        };
        [of(true, added, added_from), of(false, removed, removed_from)]
    }
}

fn filter(inodes: &[u64]) -> CString {
    let inodes: Vec<String> = inodes.iter().map(|inode| format!("i_ino=={inode}")).collect();
    CString::new(inodes.join("||")).unwrap_or_default()
}

/// What such a sample tells.
pub(super) fn change(fields: &[u8], of: PageFields) -> Option<SampleKind> {
    let PageFields { added, place: [inode, index], origin: [device, order] } = of;
    let (inode, first) = (word(fields, inode)?, word(fields, index)?);
    let device = u32::from_ne_bytes(*fields.get(device..device + 4)?.first_chunk()?);
    let order = u32::from(*fields.get(order)?);
    // The kernel's own number of a device: 20 bits are the minor one.
    let device = libc::makedev(device >> 20, device & ((1 << 20) - 1));
    let run = IndexRun { first, pages: 1_u64.checked_shl(order)? };
    Some(SampleKind::Page { added, device, inode, run })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_fits_into_a_page() {
        let inodes: Vec<u64> = (0..AT_ONCE as u64).map(|number| u64::MAX - number).collect();
        assert!(filter(&inodes).as_bytes_with_nul().len() <= 4096);
        assert_eq!(filter(&[5, 7]).as_c_str(), c"i_ino==5||i_ino==7");
    }

    #[test]
    fn a_sample_names_the_file_and_its_pages() {
        let mut fields = [0_u64; 4].map(u64::to_ne_bytes).concat();
        fields[8..16].copy_from_slice(&77_u64.to_ne_bytes());
        fields[16..24].copy_from_slice(&32_u64.to_ne_bytes());
        fields[24..28].copy_from_slice(&(254_u32 << 20 | 3).to_ne_bytes());
        fields[28] = 4;
        let of = PageFields { added: true, place: [8, 16], origin: [24, 28] };
        let run = IndexRun { first: 32, pages: 16 };
        let device = libc::makedev(254, 3);
        assert_eq!(change(&fields, of), Some(SampleKind::Page { added: true, device, inode: 77, run }));
        assert_eq!(change(&fields[..20], of), None);
    }
}
