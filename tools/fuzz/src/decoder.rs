//! The raw arguments of calls, decoded as the recorder does with a program's.

use crate::bytes::Bytes;
use quire_record::{PageRange, pages_after_call, pages_before_call};

const PAGE: u64 = 4096;

/// Decodes calls until the bytes end.
pub(crate) fn run(bytes: &[u8], show: bool) {
    let mut bytes = Bytes::new(bytes);
    while let Some(what) = bytes.next() {
        // The numbers of calls that are recorded are below 480.
        let number = if what & 1 == 0 { u64::from(bytes.short() % 480) } else { bytes.number() };
        let args: [u64; 6] = core::array::from_fn(|_| bytes.number());
        let (result, brk) = (bytes.number() as i64, bytes.number());
        let before = pages_before_call(number, &args, brk);
        let after = pages_after_call(number, &args, result, brk);
        if show {
            eprintln!("call {number} {args:x?} = {result:#x}, break {brk:#x}: {before:x?}, {after:x?}");
        }
        check(before);
        after.into_iter().for_each(check);
        if (-4095..0).contains(&result) {
            assert_eq!(after, [PageRange::NONE; 2], "a call that failed made nothing present");
        }
    }
}

fn check(range: PageRange) {
    assert!(range.start() <= range.end(), "{range:x?}");
    assert!(range.start().is_multiple_of(PAGE) && range.end().is_multiple_of(PAGE), "{range:x?}");
    assert_eq!(range.is_empty(), range.start() == range.end());
}
