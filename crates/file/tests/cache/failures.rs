//! Every allocation and every transfer is made to fail, and all is undone.

use crate::backings::Disk;
use crate::support::{ALONE, Fixture, PAGE, page, pattern};
use quire_file::{FileError, IoLimits, NoUsers, PageError};
use quire_frame::{AllocError, FailAim, FailClass, FailPlan, FailSite};

/// What a program does with a file, until something fails. `check` is called after that.
fn life(fixture: &Fixture, disk: &std::sync::Arc<Disk>) -> Result<(), PageError> {
    let cache = fixture.cache();
    let stopped = |transfer: quire_file::Transfer| transfer.stopped.map_or(Ok(()), Err);
    let file = cache.create(disk.file(), 3 * PAGE)?;
    let _again = cache.open_again(&file, quire_arch::Access::Write, &NoUsers)?;
    let _ = cache.page_in(file.file(), page(0), ALONE, &fixture.program)?;
    for page in [1, 2, 70, 600, 5000] {
        stopped(fixture.write(file.file(), page * PAGE, &[1, 2, 3]))?;
        fixture.check();
    }
    stopped(fixture.read(file.file(), 0, 5 * PAGE as usize).1)?;
    cache.punch(file.file(), 10..2 * PAGE + 10, &fixture.program, &NoUsers, &mut |_| Ok(()))?;
    cache.set_size(file.file(), PAGE << 9, &NoUsers)?;
    cache.sync(&file, 0..u64::MAX, false, &NoUsers)?;
    Ok(())
}

fn is_of(error: PageError, class: FailClass) -> bool {
    match class {
        FailClass::DeviceRead | FailClass::DeviceWrite => error == PageError::File(FileError::Io),
        _ => error == PageError::NoMemory(AllocError::Injected),
    }
}

#[test]
fn every_failure_is_undone() {
    let classes = [FailClass::Frames, FailClass::Object, FailClass::DeviceRead, FailClass::DeviceWrite];
    for class in classes {
        for readahead in [0, 16] {
            fail_each(class, readahead);
        }
    }
}

fn fail_each(class: FailClass, readahead: u32) {
    let mut failed = 0;
    for nth in 1.. {
        let fixture = Fixture::new();
        fixture.limit(1000);
        let disk = Disk::new(&pattern(1, 3 * PAGE as usize));
        *disk.limits.lock().unwrap() = Some(IoLimits { readahead, ..IoLimits::default() });
        let points = fixture.frames().fail_points();
        points.set(FailPlan::nth(nth).at(FailAim::Class(class)));
        let result = life(&fixture, &disk);
        let struck = points.failed() > 0;
        points.set(FailPlan::OFF);
        fixture.check();
        assert_eq!((fixture.files.count(fixture.frames()), fixture.frames_in_use()), (0, 0));
        if !struck {
            assert_eq!(result, Ok(()));
            break;
        }
        failed += 1;
        // The last close has no opening to report to: it counts. What comes with a page may fail.
        match result {
            Err(error) => assert!(is_of(error, class), "{class:?} {nth}: {error:?}"),
            Ok(()) if readahead > 0 && class != FailClass::DeviceWrite => {}
            Ok(()) => assert!(fixture.files.totals().lost_errors > 0, "{class:?} {nth}"),
        }
        assert_eq!(life(&fixture, &disk), Ok(()), "made again after {class:?} {nth}");
    }
    assert!(failed >= 1, "nothing of {class:?} failed");
}

#[test]
fn a_page_is_not_kept_when_there_are_no_nodes_for_it() {
    let fixture = Fixture::new();
    let file = fixture.create(Disk::new(&[]).file(), 100 * PAGE);
    let nodes = FailAim::Site(FailSite::new("folio_store_node"));
    fixture.frames().fail_points().set(FailPlan::every(1).at(nodes));
    let failed = fixture.cache().page_in(file.file(), page(70), ALONE, &fixture.program);
    assert_eq!(failed.unwrap_err(), PageError::NoMemory(AllocError::Injected));
    assert_eq!(fixture.frames_in_use(), 0);
    // The only page of a file, and its first one, needs none.
    let _ = fixture.cache().page_in(file.file(), page(0), ALONE, &fixture.program).unwrap();
    fixture.frames().fail_points().set(FailPlan::OFF);
}

#[test]
fn files_that_cannot_be_made_leave_nothing() {
    let fixture = Fixture::new();
    for site in ["address_space", "open_file", "file"] {
        let disk = Disk::new(&[]);
        let plan = FailPlan::every(1).at(FailAim::Site(FailSite::new(site)));
        fixture.frames().fail_points().set(plan);
        let failed = fixture.cache().create(disk.file(), 0).map(drop);
        fixture.frames().fail_points().set(FailPlan::OFF);
        assert_eq!(failed, Err(PageError::NoMemory(AllocError::Injected)), "{site}");
        assert!(disk.dropped.load(std::sync::atomic::Ordering::Relaxed), "{site}");
        assert_eq!(fixture.files.count(fixture.frames()), 0);
    }
}
