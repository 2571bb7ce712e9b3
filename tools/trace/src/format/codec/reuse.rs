//! Uses of pages, and how well they compress.

use crate::event::{Compressibility, ContentSample, Reuse, ReuseRun};
use crate::format::varint::{Cursor, Malformed, difference, put_u64};
use crate::format::wire::{Wire, get_list, put_list, wire};

impl Wire for Reuse {
    fn put(&self, out: &mut Vec<u8>) {
        self.source.put(out);
        let mut end = 0;
        put_list(out, &self.runs, |run, out| {
            put_u64(out, difference(run.start, end));
            run.pages.put(out);
            run.access.put(out);
            end = end_of(run);
        });
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let source = Wire::get(cursor)?;
        let mut end = 0;
        let runs = get_list(cursor, 3, |cursor| {
            let start = cursor.restore(end)?;
            let run = ReuseRun { start, pages: cursor.u64()?, access: Wire::get(cursor)? };
            end = end_of(&run);
            Ok(run)
        });
        let reuse = Self { source, runs: runs? };
        if reuse.pages() > Self::MOST_PAGES {
            return Err(Malformed("a sample names more pages than one event may"));
        }
        Ok(reuse)
    }
}

wire!(ContentSample {
    start,
    bytes,
    sizes,
    compressed,
    lz4_of_both (since SIX, before 0),
    zstd (since SIX, before 0),
});

/// Where the next run most likely starts.
fn end_of(run: &ReuseRun) -> u64 {
    run.start.wrapping_add(run.pages << 12)
}

impl Wire for Compressibility {
    fn put(&self, out: &mut Vec<u8>) {
        for count in [self.zero, self.same].iter().chain(&self.sizes) {
            count.put(out);
        }
    }

    fn get(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let mut sample = Self { zero: cursor.u32()?, same: cursor.u32()?, ..Self::default() };
        for count in &mut sample.sizes {
            *count = cursor.u32()?;
        }
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Version;

    #[test]
    fn samples_of_version_5_compare_nothing_with_zstd() {
        let sizes = Compressibility { zero: 3, ..Compressibility::default() };
        let sample = ContentSample { start: 7, bytes: 9, sizes, compressed: 77, lz4_of_both: 50, zstd: 40 };
        let mut bytes = Vec::new();
        sample.put(&mut bytes);
        let read = |bytes: &[u8], version| {
            let mut cursor = Cursor::new(bytes, 0, version);
            (ContentSample::get(&mut cursor).ok(), cursor.is_at_end())
        };
        assert_eq!(read(&bytes, Version::SIX), (Some(sample), true));
        bytes.truncate(bytes.len() - 2);
        let old = ContentSample { lz4_of_both: 0, zstd: 0, ..sample };
        assert_eq!(read(&bytes, Version::FIVE), (Some(old), true));
        assert_eq!(read(&bytes, Version::SIX), (None, true));
    }
}
