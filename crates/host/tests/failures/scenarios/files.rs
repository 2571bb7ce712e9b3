//! Files: made, opened, mapped, read and written.

use crate::common::*;
use crate::scenario::{Scenario, Undone};
use crate::scene::{BASE, Scene, access, empty};
use quire_mm::shm::{ShmCaller, ShmQuery};

/// Pages of the file, and what is mapped of it at [`BASE`].
const PAGES: u64 = 1 << 12;
const MAPPED: u64 = 8;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("creating_a_file_fails_whole", empty, |scene| {
        let (backing, store) = MemoryFile::new(Vec::new());
        let made = scene.machine.memory().create_file(backing, PAGE).map_err(call_error);
        let left = store.files.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(left, u64::from(made.is_ok()), "a backing without a file is dropped");
        scene.files.borrow_mut().push(made?);
        Ok(())
    }),
    Scenario::new("creating_shared_memory_fails_whole", empty, |scene| {
        let made = scene.machine.memory().create_shmem((), 4 * PAGE).map_err(call_error)?;
        scene.files.borrow_mut().push(made);
        Ok(())
    }),
    Scenario::new("allocating_shared_memory_ahead_fails_whole", empty, |scene| {
        let file = scene.machine.memory().create_shmem((), PAGE).map_err(call_error)?;
        let allocated = file.allocate(PAGE..80 * PAGE, false).map_err(call_error);
        let figures = (file.size(), file.figures().cached);
        assert_eq!(figures, if allocated.is_ok() { (80 * PAGE, 79) } else { (PAGE, 0) });
        scene.files.borrow_mut().push(file);
        allocated
    })
    .undone(Undone::AsChecked),
    Scenario::new("a_segment_is_made_and_attached_or_nothing_is", empty, |scene| {
        let caller = ShmCaller {
            uid: 1,
            gid: 1,
            is_in_group: &|_| false,
            pid: 1,
            now: 1,
            passes_modes: false,
            is_admin: false,
            may_lock: false,
            lock_limit: 0,
        };
        let shm = scene.machine.memory().create_shm()?;
        let id = shm.get(1, 4 * PAGE, 0o1600, &caller)?;
        let attached = shm.attach(&scene.space, id, VirtAddr(BASE), 0, &caller);
        let status = shm.status(ShmQuery::Id(id), &caller)?;
        assert_eq!(status.attachments, u64::from(attached.is_ok()));
        attached.map(drop)
    }),
    Scenario::new("opening_a_file_again_fails_whole", private, |scene| {
        let again = scene.files.borrow()[0].open(Access::Write).map_err(call_error)?;
        scene.files.borrow_mut().push(again);
        Ok(())
    }),
    Scenario::new("a_read_of_a_page_of_a_file_fails_or_brings_it", shared, |scene| access(scene.read(BASE)))
        .undone(Undone::Contents)
        .refused(is_short_or_io)
        .hides(has_less_around)
        .succeeded(|scene| assert_eq!(scene.read(BASE), Ok(0))),
    Scenario::new("a_write_to_a_page_of_a_file_fails_or_marks_it", shared, |scene| {
        access(scene.write(BASE + PAGE, 5))
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io)
    .hides(has_less_around)
    .succeeded(|scene| {
        assert_eq!(read_file(&scene.files.borrow()[0], PAGE, 8), 5_u64.to_le_bytes());
        assert_eq!(scene.files.borrow()[0].figures().dirty, 1);
    }),
    Scenario::new("a_page_of_a_file_that_is_read_alone_fails_or_comes", alone, |scene| {
        access(scene.read(BASE + 2 * PAGE))?;
        access(scene.write(BASE + PAGE, 5))?;
        let mut bytes = [1; 16];
        let read = scene.files.borrow()[0].read(PAGES / 2 * PAGE, &mut Buffer::new(&mut bytes));
        read.stopped.map_or(Ok(()), Err).map_err(call_error)
    })
    .undone(Undone::AsChecked)
    .refused(is_short_or_io)
    .succeeded(|scene| assert_eq!(scene.files.borrow()[0].figures().cached, 3)),
    Scenario::new("a_write_to_a_page_of_a_file_that_is_read_alone_fails_or_marks_it", alone, |scene| {
        access(scene.write(BASE + PAGE, 5))
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io)
    .succeeded(|scene| assert_eq!(scene.files.borrow()[0].figures().dirty, 1)),
    Scenario::new("a_copy_of_a_page_of_a_file_fails_or_is_made", private, |scene| {
        access(scene.write(BASE + PAGE, 6))
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io)
    .hides(has_less_around)
    .succeeded(|scene| assert_eq!(read_file(&scene.files.borrow()[0], PAGE, 8), 0_u64.to_le_bytes())),
    Scenario::new("reading_a_file_by_a_call_stops_where_memory_ends", private, |scene| {
        let mut bytes = [1; 16];
        let ends = [0, PAGES / 2, PAGES - 1].map(|at| {
            scene.files.borrow()[0]
                .read(at * PAGE + 8, &mut Buffer::new(&mut bytes))
                .stopped
                .map_or(Ok(()), Err)
        });
        ends.into_iter().collect::<Result<(), _>>().map_err(call_error)
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io)
    .hides(has_less_around),
    Scenario::new("writing_a_file_by_a_call_stops_where_memory_ends", private, |scene| {
        let mut bytes = [1; PAGE as usize];
        let ends = [0, PAGES / 4, PAGES + 70].map(|at| {
            scene.files.borrow()[0]
                .write(at * PAGE + 8, &mut Buffer::new(&mut bytes))
                .stopped
                .map_or(Ok(()), Err)
        });
        ends.into_iter().collect::<Result<(), _>>().map_err(call_error)
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io)
    .succeeded(|scene| assert_eq!(scene.files.borrow()[0].size(), (PAGES + 71) * PAGE + 8)),
    Scenario::new("a_hole_whose_edges_are_not_to_be_had_is_none", private, |scene| {
        scene.files.borrow()[0].punch(8..4 * PAGE + 8, |_| Ok(())).map_err(call_error)
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io),
    Scenario::new("a_file_whose_end_cannot_be_written_does_not_move", written, |scene| {
        scene.files.borrow()[0].replace_from(PAGE, PAGES * PAGE, || Ok(())).map_err(call_error)
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io)
    .succeeded(|scene| assert_eq!(scene.files.borrow()[0].figures().cached, 0)),
    Scenario::new("pages_of_a_file_that_will_be_needed_come_or_not", private, |scene| {
        scene.space.madvise(VirtAddr(BASE), MAPPED * PAGE, Advice::WillNeed)
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io)
    .hides(|scene| assert!(scene.files.borrow()[0].figures().cached <= MAPPED))
    .succeeded(|scene| assert_eq!(scene.files.borrow()[0].figures().cached, MAPPED)),
    Scenario::new("a_large_folio_of_a_file_is_mapped_by_pages_without_a_table_for_it", large, |scene| {
        // All of it was read before.
        scene.space.madvise(VirtAddr(HUGE_AT), HUGE_BYTES, Advice::DontNeed)?;
        access(scene.read(HUGE_AT))
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io)
    .hides(|scene| assert_eq!(scene.read(HUGE_AT), Ok(u64::from_le_bytes([7; 8]))))
    .succeeded(|scene| assert_eq!(scene.machine.memory().frames().events().file_pmd_mapped(), 2)),
    Scenario::new("a_pin_of_a_page_that_a_pmd_entry_maps_fails_or_copies_it", large_private, |scene| {
        scene.space.madvise(VirtAddr(HUGE_AT), HUGE_BYTES, Advice::DontNeed)?;
        access(scene.read(HUGE_AT))?;
        let pinned = scene.space.pin_page(VirtAddr(HUGE_AT + PAGE), Access::Read);
        access(pinned.map_err(AccessError::Fault))
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io)
    .hides(|_| {})
    .succeeded(|scene| assert_eq!(scene.space.figures().resident_anonymous, PAGE)),
    Scenario::new("a_hole_in_a_large_folio_fails_whole", large, |scene| {
        scene.files.borrow()[0].punch(8 * PAGE..9 * PAGE, |_| Ok(())).map_err(call_error)
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io)
    .succeeded(|scene| assert_eq!(scene.files.borrow()[0].figures().cached, 2 * HUGE_BYTES / PAGE - 1)),
    Scenario::new("a_file_that_ends_in_a_large_folio_keeps_it_without_memory_to_cut_it", large, |scene| {
        scene.files.borrow()[0].set_size(9 * PAGE).map_err(call_error)
    })
    .undone(Undone::Contents)
    .hides(|scene| {
        let file = &scene.files.borrow()[0];
        assert_eq!((file.size(), file.figures().cached), (9 * PAGE, HUGE_BYTES / PAGE));
    })
    .succeeded(|scene| assert_eq!(scene.files.borrow()[0].figures().cached, 9)),
    Scenario::new("a_large_folio_is_written_in_smaller_ones_where_memory_ends", large, |scene| {
        let mut bytes = vec![1; HUGE_BYTES as usize];
        let written = scene.files.borrow()[0].write(2 * HUGE_BYTES, &mut Buffer::new(&mut bytes));
        written.stopped.map_or(Ok(()), Err).map_err(call_error)
    })
    .undone(Undone::Contents)
    .refused(is_short_or_io)
    .hides(|scene| assert_eq!(scene.files.borrow()[0].size(), 3 * HUGE_BYTES))
    .succeeded(|scene| assert_eq!(scene.files.borrow()[0].size(), 3 * HUGE_BYTES)),
];

/// Where a mapping of large folios begins.
const HUGE_AT: u64 = 1 << 39;
/// Bytes of a folio of the PMD's order.
const HUGE_BYTES: u64 = 2 << 20;

fn large(scene: &Scene<'_>) {
    map_large(scene, MapFlags::SHARED);
}

fn large_private(scene: &Scene<'_>) {
    map_large(scene, MapFlags::empty());
}

/// Two large folios of a file, mapped.
fn map_large(scene: &Scene<'_>, flags: MapFlags) {
    let (backing, _) = MemoryFile::huge(Vec::new());
    let file = scene.machine.memory().create_file(backing, 0).expect("there is memory");
    write_file(&file, 0, &vec![7; 2 * HUGE_BYTES as usize]);
    let pages = 2 * HUGE_BYTES / PAGE;
    let request = file_request(0, pages, RW, flags);
    let request = request.at(VirtAddr(HUGE_AT), MapFlags::FIXED | flags);
    scene.space.mmap_file(&request, &file).expect("there is memory");
    scene.files.borrow_mut().push(file);
}

fn shared(scene: &Scene<'_>) {
    mapped(scene, MapFlags::SHARED);
}

fn private(scene: &Scene<'_>) {
    mapped(scene, MapFlags::empty());
}

/// The same, where nothing comes with a page.
fn alone(scene: &Scene<'_>) {
    map_of(scene, MapFlags::SHARED, MemoryFile::alone(Vec::new()).0);
}

fn written(scene: &Scene<'_>) {
    mapped(scene, MapFlags::SHARED);
    write_file(&scene.files.borrow()[0], 2 * PAGE, &[1; 8]);
}

fn mapped(scene: &Scene<'_>, flags: MapFlags) {
    map_of(scene, flags, MemoryFile::new(Vec::new()).0);
}

fn map_of(scene: &Scene<'_>, flags: MapFlags, backing: MemoryFile) {
    let file = scene.machine.memory().create_file(backing, PAGES * PAGE).expect("there is memory");
    let request = file_request(0, MAPPED, RW, flags).at(VirtAddr(BASE), MapFlags::FIXED | flags);
    scene.space.mmap_file(&request, &file).expect("there is memory");
    scene.files.borrow_mut().push(file);
}

/// The failure of a call on a file as that of a call on memory.
fn call_error(error: PageError) -> Error {
    match error {
        PageError::NoMemory(cause) => Error::NoFrames(cause),
        PageError::File(error) => Error::File(error),
        other => panic!("{other}"),
    }
}

/// What was asked for is there, and less of what is around it than the file may have cached.
fn has_less_around(scene: &Scene<'_>) {
    let cached = scene.files.borrow()[0].figures().cached;
    assert!((1..3 * 16).contains(&cached), "{cached} pages");
}

/// ENOMEM with its cause, or the error of a transfer that was made to fail.
fn is_short_or_io(_: &Scene<'_>, error: Error) {
    let allowed = [Error::NoFrames(AllocError::Injected), Error::BadAddress, Error::File(FileError::Io)];
    assert!(allowed.contains(&error), "{error}");
}
