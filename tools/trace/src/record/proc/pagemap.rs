//! Which pages are present: `/proc/PID/pagemap`.

use crate::event::PageRun;
use crate::record::sys::Tid;
use std::fs::File;
use std::os::unix::fs::FileExt;

const PAGE: u64 = 4096;
const PRESENT: u64 = 1 << 63;
const FILE: u64 = 1 << 61;
/// Pages read at once.
const PIECE: usize = 8192;
/// Larger mappings are read up to here: a reservation of terabytes would take seconds.
const LIMIT_PAGES: u64 = 1 << 24;

/// The pages of one process.
#[derive(Debug)]
pub(crate) struct Pagemap(File);

impl Pagemap {
    /// Opens the file; `None` if the process is gone.
    pub(crate) fn open(tid: Tid) -> Option<Self> {
        File::open(format!("/proc/{tid}/pagemap")).ok().map(Self)
    }

    /// The runs of present pages between two addresses.
    pub(crate) fn present(&self, start: u64, end: u64) -> Vec<PageRun> {
        let mut runs: Vec<PageRun> = Vec::new();
        let mut page = start / PAGE;
        let last = end.div_ceil(PAGE).min(page.saturating_add(LIMIT_PAGES));
        let mut bytes = vec![0; 8 * PIECE.min((last - page.min(last)) as usize)];
        while page < last {
            let want = bytes.len().min(8 * (last - page) as usize);
            let read = self.0.read_at(&mut bytes[..want], page * 8).unwrap_or(0);
            if read < 8 {
                break;
            }
            for entry in bytes[..read].chunks_exact(8) {
                let entry = u64::from_le_bytes([
                    entry[0], entry[1], entry[2], entry[3], entry[4], entry[5], entry[6], entry[7],
                ]);
                if entry & PRESENT != 0 {
                    add(&mut runs, page * PAGE, entry & FILE != 0);
                }
                page += 1;
            }
        }
        runs
    }
}

/// Whether the kernel has soft-dirty bits: with them, new pages count as written. `true` if that cannot be
/// determined.
pub(crate) fn notes_writes() -> bool {
    const SOFT_DIRTY: u64 = 1 << 55;
    let local = std::hint::black_box(7_u64);
    let page = std::ptr::from_ref(&local).addr() as u64 / PAGE;
    let mut entry = [0; 8];
    let read = File::open("/proc/self/pagemap").and_then(|file| file.read_exact_at(&mut entry, page * 8));
    read.is_err() || u64::from_le_bytes(entry) & SOFT_DIRTY != 0
}

fn add(runs: &mut Vec<PageRun>, addr: u64, file: bool) {
    match runs.last_mut() {
        Some(run) if run.file == file && run.start + run.pages * PAGE == addr => run.pages += 1,
        _ => runs.push(PageRun { start: addr, pages: 1, file }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_ours_is_present() {
        let local = 7_u64;
        let addr = std::ptr::from_ref(&local).addr() as u64 & !(PAGE - 1);
        let pagemap = Pagemap::open(std::process::id() as Tid).expect("our own pagemap can be read");
        let runs = pagemap.present(addr, addr + PAGE);
        assert_eq!(runs, [PageRun { start: addr, pages: 1, file: false }]);
        assert!(pagemap.present(0, PAGE).is_empty());
    }
}
