//! Folios that a file may have only while none writes to it.

use crate::backings::Disk;
use crate::support::*;
use quire_arch::{Access, Order};
use quire_file::{BlockRefusal, FileBlock, FileError, IndexRange, MissingPage, NoUsers, OnlyRead, PageError};
use std::sync::Arc;

const PAGES: u64 = 512;
const BYTES: u64 = PAGES * PAGE;

/// A file of a block, open for reading, that has these bytes.
fn only_read<'m>(fixture: &'m Fixture, bytes: &[u8]) -> (Handle<'m>, Arc<Disk>) {
    let disk = Disk::new(bytes);
    let writer = fixture.create(disk.file(), BYTES);
    (fixture.cache().open_again(&writer, Access::Read, &NoUsers).unwrap(), disk)
}

/// Makes one folio of the first block, and reads what is missing first.
fn collapse(fixture: &Fixture, file: &Core) -> Result<(), BlockRefusal> {
    let block = FileBlock::of(fixture.cache(), file, (at(0), Order::PMD)).unwrap();
    let mut new = block.allocate(&fixture.program, |_| false).unwrap();
    while let Some(missing) = block.next_missing()? {
        let MissingPage::Unread(index) = missing else { panic!("{missing:?}") };
        let around = IndexRange::block(at(0), Order::PMD);
        let read = fixture.cache().page_in(file, page(index.get()), around, &fixture.program);
        read.map(drop).expect("it can be read");
    }
    block.replace(&mut new, &NoUsers)
}

fn huge(fixture: &Fixture) -> u64 {
    fixture.files.totals().huge
}

#[test]
fn what_the_file_has_is_in_one_folio_until_it_is_opened_for_writing() {
    let fixture = Fixture::new();
    let bytes = pattern(3, BYTES as usize);
    let (file, disk) = only_read(&fixture, &bytes);
    assert_eq!(collapse(&fixture, file.file()), Ok(()));
    assert_eq!((huge(&fixture), file.file().figures(fixture.frames()).cached), (PAGES, PAGES));
    assert_eq!(file.file().largest_order(), Order::PMD);
    fixture.check();
    assert!(fixture.must_read(file.file(), 0, BYTES as usize) == bytes);
    let cache = fixture.cache();
    for access in [Access::Read, Access::Execute] {
        let _other = cache.open_again(&file, access, &NoUsers).unwrap();
        assert_eq!(huge(&fixture), PAGES);
    }
    let writer = cache.open_again(&file, Access::Write, &NoUsers).unwrap();
    assert_eq!((huge(&fixture), file.file().largest_order()), (0, Order::ZERO));
    assert_eq!(file.file().figures(fixture.frames()).cached, 0);
    fixture.must_write(file.file(), 9 * PAGE, &[1; 20]);
    fixture.flush(file.file());
    drop(writer);
    assert_eq!(disk.bytes()[9 * PAGE as usize], 1);
    assert_eq!(collapse(&fixture, file.file()), Ok(()));
}

#[test]
fn a_file_that_is_open_for_writing_gets_none() {
    let fixture = Fixture::new();
    let (file, _) = only_read(&fixture, &[1; 100]);
    let first = fixture.cache().open_again(&file, Access::Write, &NoUsers).unwrap();
    let second = fixture.cache().open_again(&file, Access::Write, &NoUsers).unwrap();
    for writer in [first, second] {
        assert_eq!(collapse(&fixture, file.file()), Err(BlockRefusal::Written));
        fixture.check();
        drop(writer);
    }
    assert_eq!(collapse(&fixture, file.file()), Ok(()));
}

/// Also one that is read beside them, and one that is dirty from before.
#[test]
fn what_is_dirty_stays_and_refuses_its_block() {
    let fixture = Fixture::new();
    let (file, disk) = only_read(&fixture, &[1; 100]);
    let writer = fixture.cache().open_again(&file, Access::Write, &NoUsers).unwrap();
    fixture.must_write(file.file(), 7 * PAGE, &[7; 10]);
    drop(writer);
    assert_eq!(collapse(&fixture, file.file()), Err(BlockRefusal::Dirty));
    assert_eq!(fixture.files.totals().dirty, 1);
    fixture.flush(file.file());
    assert_eq!(collapse(&fixture, file.file()), Ok(()));
    // Behind the block, and dirty when the file is opened for writing again.
    let writer = fixture.cache().open_again(&file, Access::Write, &NoUsers).unwrap();
    fixture.must_write(file.file(), BYTES, &[9; 10]);
    drop(writer);
    assert_eq!(collapse(&fixture, file.file()), Ok(()));
    let writer = fixture.cache().open_again(&file, Access::Write, &NoUsers).unwrap();
    assert_eq!((huge(&fixture), fixture.files.totals().dirty), (0, 1));
    fixture.flush(file.file());
    drop(writer);
    assert_eq!(disk.bytes()[BYTES as usize], 9);
}

#[test]
fn a_file_that_ends_in_the_block_gets_none() {
    let fixture = Fixture::new();
    let (file, _) = only_read(&fixture, &[1; 100]);
    for (size, result) in
        [(BYTES - PAGE, Err(BlockRefusal::PastEnd)), (BYTES - PAGE + 1, Ok(())), (BYTES + 1, Ok(()))]
    {
        let writer = fixture.cache().open_again(&file, Access::Write, &NoUsers).unwrap();
        fixture.cache().set_size(file.file(), size, &NoUsers).unwrap();
        drop(writer);
        assert_eq!(collapse(&fixture, file.file()), result, "{size} bytes");
        fixture.check();
    }
}

#[test]
fn openings_are_counted_also_where_one_fails() {
    let fixture = Fixture::new();
    let (file, disk) = only_read(&fixture, &[1; 100]);
    let cache = fixture.cache();
    let program = cache.open_again(&file, Access::Execute, &NoUsers).unwrap();
    let is_open_for_writing = || OnlyRead::of(file.file()).is_open_for_writing();
    let busy = |access| cache.open_again(&file, access, &NoUsers).map(drop);
    assert_eq!(busy(Access::Write), Err(PageError::TextBusy));
    drop(program);
    let openings = file.file().openings();
    fixture.frames().fail_points().set(quire_frame::FailPlan::every(1));
    let mut refused = 0;
    // Those that need a frame for the slab fail.
    let mut kept = Vec::new();
    for _ in 0..400 {
        match cache.open_again(&file, Access::Write, &NoUsers) {
            Ok(one) => kept.push(one),
            Err(error) => {
                assert!(matches!(error, PageError::NoMemory(_)), "{error:?}");
                refused += 1;
                break;
            }
        }
    }
    fixture.frames().fail_points().set(quire_frame::FailPlan::OFF);
    assert_eq!((refused, file.file().openings()), (1, openings + kept.len()));
    assert_eq!(is_open_for_writing(), !kept.is_empty());
    kept.clear();
    assert!(!is_open_for_writing());
    assert_eq!(busy(Access::Execute), Ok(()));
    *disk.fail_reads.lock().unwrap() = Some(FileError::Io);
    let block = FileBlock::of(cache, file.file(), (at(0), Order::PMD)).unwrap();
    assert_eq!(block.next_missing(), Ok(Some(MissingPage::Unread(at(0)))));
}
