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

wire!(ContentSample { start, bytes, sizes, compressed });

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
