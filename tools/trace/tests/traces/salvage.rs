//! What a salvaging reader reads of a damaged file.

use crate::format::{header, write_with};
use quire_trace::event::{Event, EventKind, ExecImage, Mapping, TaskId};
use quire_trace::format::TraceReader;
use std::cell::Cell;
use std::io::{self, Read};

/// Counts the bytes that are read from it.
struct Counted<'c> {
    rest: &'c [u8],
    read: &'c Cell<usize>,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.rest.read(buffer)?;
        self.read.set(self.read.get() + count);
        Ok(count)
    }
}

#[test]
fn salvage_reads_each_byte_once() {
    let mapping = Mapping { start: 0x10_0000, end: 0x7f00_0000_0000, read: true, ..Mapping::default() };
    let image = ExecImage { pid: 1, mappings: vec![mapping], ..ExecImage::default() };
    let kind = EventKind::Exec(Box::new(image));
    let events: Vec<Event> =
        (0..2000).map(|time_ns| Event { time_ns, task: TaskId(0), cpu: 0, kind: kind.clone() }).collect();
    let mut bytes = write_with(&header(), &events, usize::MAX);
    // Another wrong byte in each block.
    let blocks: Vec<usize> =
        bytes.windows(4).enumerate().filter(|(_, four)| four == b"QBLK").map(|(at, _)| at).collect();
    for at in &blocks {
        bytes[at + 40] ^= 1;
    }
    let read = Cell::new(0);
    let mut reader = TraceReader::new(Counted { rest: &bytes, read: &read }).unwrap().salvaging();
    assert_eq!((&mut reader).count(), 1, "the trailer knows how many are missing");
    assert_eq!(read.get(), bytes.len());
    assert!(blocks.len() > 1);
    assert_eq!(reader.damage().unwrap().places(), blocks.len() as u64);
}
