//! A file against its bytes.

use crate::backings::Disk;
use crate::machine::Random;
use crate::support::{Fixture, From, Handle, PAGE, pattern, up_to};
use proptest::prelude::*;
use quire_arch::{Order, Pfn};
use quire_file::{FileError, IndexRange, IoLimits, Lookup, NoUsers, PageError, PageIndex, Transfer, Wait};
use std::sync::Arc;

/// The largest size that is set.
const MOST: u64 = 70 * PAGE;

#[derive(Clone, Debug)]
enum Op {
    Read {
        at: u64,
        bytes: u64,
    },
    Write {
        at: u64,
        bytes: u64,
        seed: u64,
        shorts: bool,
    },
    SetSize(u64),
    Punch {
        at: u64,
        bytes: u64,
    },
    Sync,
    WriteBack(bool),
    Invalidate,
    /// Brings a page in, in a folio as large as can be.
    PageIn(u64),
    /// Holds the folio that has a byte, so that it cannot be cut, until the next.
    Hold(u64),
    Reopen,
    FailReads(bool),
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![0..3 * PAGE, 0..MOST, (0..MOST / PAGE).prop_map(|page| page * PAGE)]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![1..20u64, Just(PAGE), 1..5 * PAGE, Just(2 * PAGE), 1..40 * PAGE, Just(32 * PAGE)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (offset(), length()).prop_map(|(at, bytes)| Op::Read { at, bytes }),
        6 => (offset(), length(), any::<u64>(), any::<bool>())
            .prop_map(|(at, bytes, seed, shorts)| Op::Write { at, bytes, seed, shorts }),
        2 => offset().prop_map(Op::SetSize),
        2 => (offset(), length()).prop_map(|(at, bytes)| Op::Punch { at, bytes }),
        1 => Just(Op::Sync),
        1 => any::<bool>().prop_map(Op::WriteBack),
        1 => Just(Op::Invalidate),
        1 => (0..MOST / PAGE).prop_map(Op::PageIn),
        1 => offset().prop_map(Op::Hold),
        1 => Just(Op::Reopen),
        1 => any::<bool>().prop_map(Op::FailReads),
    ]
}

/// A file, and what it must have.
struct Both<'m> {
    fixture: &'m Fixture,
    disk: Arc<Disk>,
    file: Option<Handle<'m>>,
    bytes: Vec<u8>,
    queued: bool,
    failing: bool,
    held: Option<Pfn>,
}

impl Both<'_> {
    fn open(&mut self) {
        let size = self.bytes.len() as u64;
        self.file = None;
        self.file = Some(if self.queued {
            self.fixture.create(self.disk.queued(2), size)
        } else {
            self.fixture.create(self.disk.file(), size)
        });
    }

    /// A call that came so far, though it wanted more: only because a read failed.
    fn came(&self, transfer: Transfer, wanted: u64) {
        if transfer.bytes != wanted {
            assert_eq!(transfer.stopped, Some(FileError::Io.into()));
            assert!(self.failing);
        }
    }

    fn apply(&mut self, op: &Op) {
        let (fixture, cache) = (self.fixture, self.fixture.cache());
        let file = self.file.as_ref().unwrap();
        match *op {
            Op::Read { at, bytes } => {
                let (read, transfer) = fixture.read(file.file(), at, bytes as usize);
                let start = self.bytes.len().min(at as usize);
                let wanted = &self.bytes[start..self.bytes.len().min((at + bytes) as usize)];
                assert_eq!(read, wanted[..read.len()]);
                self.came(transfer, wanted.len() as u64);
            }
            Op::Write { at, bytes, seed, shorts } => {
                let new = pattern(seed, bytes as usize);
                let mut from = From { shorts: shorts.then_some(Random(seed)), ..From::new(&new) };
                let transfer = cache.write(file.file(), at, &mut from, &fixture.program, &NoUsers);
                self.came(transfer, bytes);
                let end = (at + transfer.bytes) as usize;
                if transfer.bytes > 0 {
                    self.bytes.resize(self.bytes.len().max(end), 0);
                    self.bytes[at as usize..end].copy_from_slice(&new[..transfer.bytes as usize]);
                }
            }
            Op::SetSize(size) => {
                cache.set_size(file.file(), size, &NoUsers).unwrap();
                self.bytes.resize(size as usize, 0);
                self.disk.bytes().truncate(size as usize);
            }
            Op::Punch { at, bytes } => {
                let size = self.bytes.len() as u64;
                let free = &mut |bytes| {
                    self.disk.free(&bytes);
                    Ok(())
                };
                match cache.punch(file.file(), at..at + bytes, &fixture.program, &NoUsers, free) {
                    Ok(()) => {
                        let (start, end) = (at.min(size), (at + bytes).min(size));
                        self.bytes[start as usize..end as usize].fill(0);
                    }
                    Err(error) => assert!(self.failing && error == FileError::Io.into(), "{error}"),
                }
            }
            Op::Sync => {
                assert_eq!(cache.sync(file, 0..u64::MAX, false, &NoUsers), Ok(()));
                self.is_stored();
            }
            Op::WriteBack(wait) => {
                let wait = if wait { Wait::Yes } else { Wait::No };
                assert_eq!(cache.write_back(file.file(), IndexRange::ALL, wait, &NoUsers), Ok(()));
            }
            Op::Invalidate => {
                // What is dirty stays.
                let _ = cache.invalidate(file.file(), IndexRange::ALL);
            }
            Op::PageIn(index) => {
                let wanted = up_to(PageIndex::new(index).unwrap(), Order::PMD);
                let failing = self.failing;
                let ended = index * PAGE >= self.bytes.len() as u64;
                match cache.page_in(file.file(), wanted, IndexRange::ALL, &fixture.program) {
                    Ok(_) => assert!(!ended),
                    Err(PageError::PastEnd) => assert!(ended),
                    Err(error) => assert!(failing, "{error}"),
                }
            }
            Op::Hold(at) => {
                self.let_go();
                let index = PageIndex::new(at / PAGE).unwrap();
                let file = self.file.as_ref().unwrap().file();
                if let Lookup::Folio(folio) = file.find(fixture.memcgs(), index) {
                    self.held = Some(folio.unlock_and_keep());
                }
            }
            Op::Reopen => {
                self.let_go();
                self.open();
                self.is_stored();
            }
            Op::FailReads(fails) => {
                self.failing = fails;
                *self.disk.fail_reads.lock().unwrap() = fails.then_some(FileError::Io);
            }
        }
        assert_eq!(self.file.as_ref().unwrap().file().size(), self.bytes.len() as u64);
    }

    fn let_go(&mut self) {
        if let Some(head) = self.held.take() {
            self.fixture.memcgs().folios().release_folio(head);
        }
    }

    /// Nothing is dirty: all that was written is stored.
    fn is_stored(&self) {
        let mut stored = self.disk.bytes().clone();
        stored.resize(self.bytes.len(), 0);
        assert!(stored == self.bytes, "something is not stored");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_agree_with_a_vector_of_bytes(
        ops in proptest::collection::vec(op(), 1..60),
        queued in any::<bool>(),
        stored in 0..10 * PAGE,
        largest in 0..8_u8,
        readahead in 0..20_u32,
    ) {
        let fixture = Fixture::new();
        let bytes = pattern(stored, stored as usize);
        let disk = Disk::new(&bytes);
        let largest_order = Order::new(largest).unwrap();
        let pages = IoLimits::MOST_PAGES;
        *disk.limits.lock().unwrap() = Some(IoLimits { pages, largest_order, readahead, ..IoLimits::default() });
        let (file, held) = (None, None);
        let mut both = Both { fixture: &fixture, disk, file, bytes, queued, failing: false, held };
        both.open();
        for op in &ops {
            both.apply(op);
            fixture.check();
        }
        both.apply(&Op::FailReads(false));
        both.apply(&Op::Read { at: 0, bytes: MOST * 2 });
        both.apply(&Op::Reopen);
        both.file = None;
        assert_eq!(fixture.frames_in_use(), 0);
    }
}
