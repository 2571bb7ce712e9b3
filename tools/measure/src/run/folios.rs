//! The sizes of the folios that a process's anonymous memory is in, from the descriptors that Linux shows to
//! root.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

/// Entries read at once.
const BATCH: usize = 512;
const PRESENT: u64 = 1 << 63;
/// Of a file, or shared memory.
const FILE: u64 = 1 << 61;
const FRAME: u64 = (1 << 55) - 1;
const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;
/// Larger than any folio of anonymous memory.
const LONGEST: u64 = 2048;

/// Adds the bytes that process `pid` has mapped of folios of each size. Nothing without root.
pub(crate) fn add(pid: i32, page: u64, sizes: &mut BTreeMap<u64, u64>) {
    let open = |name: &str| File::open(format!("/proc/{pid}/{name}"));
    let (Ok(pagemap), Ok(flags)) = (open("pagemap"), File::open("/proc/kpageflags")) else { return };
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut flags = Flags { file: flags, folio: 0..0 };
    for (start, end) in maps.lines().filter_map(range) {
        let (mut at, last) = (start / page, end / page);
        while at < last {
            let entries = (last - at).min(BATCH as u64);
            let mut bytes = [0; BATCH * 8];
            let Ok(length) = pagemap.read_at(&mut bytes[..entries as usize * 8], at * 8) else { break };
            for entry in bytes[..length].chunks_exact(8).map(word) {
                let frame = entry & FRAME;
                if entry & PRESENT != 0 && entry & FILE == 0 && frame != 0 {
                    *sizes.entry(flags.folio_pages(frame) * page).or_default() += page;
                }
            }
            if length < 8 {
                break;
            }
            at += entries;
        }
    }
}

/// The descriptors' flags, and the folio that was looked up last.
struct Flags {
    file: File,
    folio: std::ops::Range<u64>,
}

impl Flags {
    /// The pages of the folio that holds `frame`.
    fn folio_pages(&mut self, frame: u64) -> u64 {
        if !self.folio.contains(&frame) {
            self.folio = self.find(frame);
        }
        self.folio.end - self.folio.start
    }

    fn find(&self, frame: u64) -> std::ops::Range<u64> {
        let of_one = self.read(frame, 1).first().copied().unwrap_or(0);
        if of_one & (COMPOUND_HEAD | COMPOUND_TAIL) == 0 {
            return frame..frame + 1;
        }
        let mut start = frame;
        while start > 0 && self.read(start, 1).first().is_some_and(|flags| flags & COMPOUND_TAIL != 0) {
            // A folio is aligned to its size: its head is at a rounder number than any of its tails.
            start &= start - 1;
        }
        let tails = self.read(start + 1, LONGEST);
        let tails = tails.iter().take_while(|flags| *flags & COMPOUND_TAIL != 0).count() as u64;
        start..start + 1 + tails
    }

    fn read(&self, frame: u64, count: u64) -> Vec<u64> {
        let mut bytes = vec![0; count as usize * 8];
        let length = self.file.read_at(&mut bytes, frame * 8).unwrap_or(0);
        bytes[..length].chunks_exact(8).map(word).collect()
    }
}

/// The addresses of a line of `maps`.
fn range(line: &str) -> Option<(u64, u64)> {
    let (range, name) = line.split_once(' ')?;
    // It has no page table of the process's own.
    if name.ends_with("[vsyscall]") {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}
