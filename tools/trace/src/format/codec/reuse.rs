//! Uses of pages, and how well they compress.

use super::codes::Code;
use super::{difference, restore};
use crate::event::{Compressibility, EventKind, Reuse, ReuseRun};
use crate::format::varint::{Cursor, Malformed, put_u64};

pub(super) fn put(out: &mut Vec<u8>, reuse: &Reuse) {
    out.push(reuse.source.code());
    put_u64(out, reuse.runs.len() as u64);
    let mut end = 0;
    for run in &reuse.runs {
        put_u64(out, difference(run.start, end));
        put_u64(out, run.pages);
        out.push(run.access.code());
        end = end_of(run);
    }
}

pub(super) fn get(cursor: &mut Cursor<'_>) -> Result<EventKind, Malformed> {
    let source = Code::from_code(cursor.u8()?)?;
    let mut end = 0;
    let runs = (0..cursor.count(3)?).map(|_| {
        let start = restore(cursor.i64()?, end);
        let run = ReuseRun { start, pages: cursor.u64()?, access: Code::from_code(cursor.u8()?)? };
        end = end_of(&run);
        Ok(run)
    });
    let reuse = Reuse { source, runs: runs.collect::<Result<_, Malformed>>()? };
    if reuse.pages() > Reuse::MOST_PAGES {
        return Err(Malformed("a sample names more pages than one event may"));
    }
    Ok(EventKind::Reuse(reuse))
}

/// Where the next run most likely starts.
fn end_of(run: &ReuseRun) -> u64 {
    run.start.wrapping_add(run.pages << 12)
}

pub(super) fn put_compressibility(out: &mut Vec<u8>, sample: &Compressibility) {
    for count in [sample.zero, sample.same].into_iter().chain(sample.sizes) {
        put_u64(out, u64::from(count));
    }
}

pub(super) fn get_compressibility(cursor: &mut Cursor<'_>) -> Result<EventKind, Malformed> {
    let mut sample = Compressibility { zero: cursor.u32()?, same: cursor.u32()?, ..Default::default() };
    for count in &mut sample.sizes {
        *count = cursor.u32()?;
    }
    Ok(EventKind::Compressibility(sample))
}
