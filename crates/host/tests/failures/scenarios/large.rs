//! Large folios: faults that allocate one, and their fork and moves.

use crate::common::*;
use crate::scenario::{Scenario, Undone};
use crate::scene::{Scene, access, fork_once};

/// A border of every level of tables.
const LARGE: u64 = 1 << 39;
/// Aligned alike for a PMD leaf, below other tables.
const TARGET: u64 = (1 << 40) + MIB2;

pub(crate) const SCENARIOS: &[Scenario] = &[
    // Whatever is missing for the large folio, the fault falls back to a page.
    Scenario::new("a_fault_wants_a_folio_for_a_pmd_entry", advised, |scene| access(scene.write(LARGE, 1)))
        .undone(Undone::Contents)
        .hides(|scene| assert_eq!(scene.read(LARGE), Ok(1)))
        // Where a failed attempt left a table, no leaf takes its place.
        .succeeded(|scene| assert!([MIB2, 16 * PAGE].contains(&scene.space.figures().resident))),
    Scenario::new("a_fault_wants_a_folio_of_some_pages", with_table, |scene| {
        access(scene.write(LARGE + 64 * PAGE, 1))
    })
    .undone(Undone::Contents)
    .hides(|scene| assert_eq!(scene.read(LARGE + 64 * PAGE), Ok(1)))
    .succeeded(|scene| assert_eq!(scene.space.figures().resident, 16 * PAGE)),
    Scenario::new("a_fork_with_a_large_leaf_leaves_no_child", large, fork_once)
        .refused(|scene, error| {
            crate::scenario::is_no_frames(scene, error);
            assert_eq!(scene.read(LARGE + 100 * PAGE), Ok(7));
        })
        .succeeded(|scene| {
            let children = scene.others.borrow();
            assert_eq!(scene.read_in(&children[0], LARGE + 100 * PAGE), Ok(7));
            assert_eq!(children[0].figures().resident, MIB2);
        }),
    Scenario::new("a_large_leaf_moves_or_stays", large, |scene| shift(scene, MIB2))
        .refused(stays)
        .succeeded(|scene| assert_eq!(scene.read(TARGET + 100 * PAGE), Ok(7))),
    Scenario::new("a_table_moves_or_stays", small_pages, |scene| shift(scene, MIB2))
        .refused(stays)
        .succeeded(|scene| assert_eq!(scene.read(TARGET + 100 * PAGE), Ok(7))),
    Scenario::new("a_part_of_a_large_leaf_moves_or_stays", large, |scene| shift(scene, MIB2 / 2))
        .undone(Undone::Contents)
        .refused(stays)
        .succeeded(|scene| assert_eq!(scene.read(TARGET + 100 * PAGE), Ok(7))),
    Scenario::new("a_write_to_a_shared_large_leaf_fails_and_can_be_repeated", large_and_child, |scene| {
        access(scene.write(LARGE + 100 * PAGE, 8))
    })
    .undone(Undone::Contents)
    .succeeded(|scene| {
        assert_eq!(scene.read_in(&scene.others.borrow()[0], LARGE + 100 * PAGE), Ok(7));
        assert_eq!(scene.read(LARGE + 100 * PAGE), Ok(8));
    }),
    Scenario::new("a_collapse_fails_whole", small_pages, |scene| {
        scene.space.madvise(VirtAddr(LARGE), MIB2, Advice::Collapse)
    })
    .refused(stays)
    .succeeded(|scene| {
        assert_eq!(scene.read(LARGE + 100 * PAGE), Ok(7));
        assert_eq!(scene.space.figures().resident, MIB2);
    })
    .allocations(2..=2),
    Scenario::new("khugepaged_collapses_or_leaves_the_pages", small_pages, |scene| {
        let failed = scene.machine.memory().khugepaged_step().out_of_memory;
        if failed { Err(Error::NoFrames(AllocError::Injected)) } else { Ok(()) }
    })
    .refused(stays)
    .succeeded(|scene| {
        assert_eq!(scene.read(LARGE + 100 * PAGE), Ok(7));
        assert_eq!(scene.space.figures().resident, MIB2);
    })
    .allocations(2..=2),
    // The folio, a frame for the list of those that it replaces, a table to deposit; the last is refused as
    // Linux does.
    Scenario::new("a_collapse_of_shared_memory_fails_whole", shared_pages, |scene| {
        scene.space.madvise(VirtAddr(LARGE), MIB2, Advice::Collapse)
    })
    .undone(Undone::Contents)
    .refused(|scene, error| {
        assert!(matches!(error, Error::NoFrames(_) | Error::WrongMapping), "{error:?}");
        assert_eq!(scene.read(LARGE + 100 * PAGE), Ok(7));
    })
    .succeeded(|scene| {
        assert_eq!(scene.read(LARGE + 100 * PAGE), Ok(7));
        assert_eq!(scene.space.figures().resident_shmem, MIB2);
    })
    .allocations(3..=3),
    Scenario::new("khugepaged_collapses_shared_memory_or_leaves_the_pages", shared_pages, |scene| {
        let failed = scene.machine.memory().khugepaged_step().out_of_memory;
        if failed { Err(Error::NoFrames(AllocError::Injected)) } else { Ok(()) }
    })
    .undone(Undone::Contents)
    .refused(stays)
    .succeeded(|scene| {
        assert_eq!(scene.machine.memory().file_totals().shmem_huge, 512);
        assert_eq!(scene.read(LARGE + 100 * PAGE), Ok(7));
    }),
    // As of shared memory, when what is missing is read; what cannot be is refused as Linux does.
    Scenario::new("a_collapse_of_a_file_fails_whole", only_read_file, |scene| {
        scene.space.madvise(VirtAddr(LARGE), MIB2, Advice::Collapse)
    })
    .undone(Undone::Contents)
    .refused(|scene, error| {
        assert!(matches!(error, Error::NoFrames(_) | Error::WrongMapping), "{error:?}");
        assert_eq!(scene.read(LARGE + 100 * PAGE), Ok(7));
    })
    .hides(|scene| assert_eq!(scene.read(LARGE + 100 * PAGE), Ok(7)))
    .succeeded(|scene| {
        assert_eq!(scene.read(LARGE + 100 * PAGE), Ok(7));
        assert_eq!(scene.space.figures().resident_file, MIB2);
    }),
    // Whatever is missing for the huge zero page, the fault falls back to the zero page.
    Scenario::new("a_read_wants_the_huge_zero_page", advised, |scene| access(scene.read(LARGE)))
        .undone(Undone::Contents)
        .hides(|scene| assert!(!maps_zeros(&scene.space, LARGE)))
        .succeeded(|scene| assert_eq!(scene.space.figures().resident, 0)),
    Scenario::new("a_write_to_the_huge_zero_page", zeros, |scene| access(scene.write(LARGE, 1)))
        .undone(Undone::Contents)
        .hides(|scene| {
            assert_eq!((scene.read(LARGE), scene.read(LARGE + PAGE)), (Ok(1), Ok(0)));
            assert_eq!(scene.space.figures().resident, PAGE);
        })
        .succeeded(|scene| assert_eq!(scene.read(LARGE), Ok(1))),
    Scenario::new("a_fork_with_the_huge_zero_page_leaves_no_child", zeros, fork_once)
        .succeeded(|scene| assert!(maps_zeros(&scene.others.borrow()[0], LARGE))),
    Scenario::new("the_huge_zero_page_moves_or_stays", zeros, |scene| shift(scene, MIB2))
        .refused(|scene, error| {
            crate::scenario::is_no_frames(scene, error);
            assert!(maps_zeros(&scene.space, LARGE));
        })
        .succeeded(|scene| assert!(maps_zeros(&scene.space, TARGET))),
    Scenario::new("the_huge_zero_page_is_split_without_memory", zeros, |scene| {
        scene.space.madvise(VirtAddr(LARGE + PAGE), PAGE, Advice::DontNeed)
    })
    .never(),
    // The table for the split was deposited.
    Scenario::new("a_large_leaf_is_split_without_memory", large, |scene| {
        scene.space.madvise(VirtAddr(LARGE + PAGE), PAGE, Advice::DontNeed)
    })
    .never(),
];

fn advised(scene: &Scene<'_>) {
    map_at(&scene.space, LARGE, MIB2, RW);
    scene.space.madvise(VirtAddr(LARGE), MIB2, Advice::HugePage).expect("nothing fails yet");
}

/// With a table there, no leaf takes its place.
fn with_table(scene: &Scene<'_>) {
    map_at(&scene.space, LARGE, MIB2, RW);
    scene.read(LARGE).expect("nothing fails yet");
    scene.space.madvise(VirtAddr(LARGE), MIB2, Advice::HugePage).expect("nothing fails yet");
}

/// The huge zero page.
fn zeros(scene: &Scene<'_>) {
    advised(scene);
    scene.read(LARGE).expect("nothing fails yet");
    assert!(maps_zeros(&scene.space, LARGE));
}

fn maps_zeros(space: &HostSpace<'_>, addr: u64) -> bool {
    let mut large = false;
    let range = VirtRange::new(VirtAddr(addr), VirtAddr(addr + MIB2));
    space.mappings().pagemap(range, |pages, state| large |= pages == range && state == PageState::Zero);
    large
}

fn large(scene: &Scene<'_>) {
    advised(scene);
    scene.write(LARGE + 100 * PAGE, 7).expect("nothing fails yet");
    assert_eq!(scene.space.figures().resident, MIB2);
}

/// A page of 64 KiB in a block of 2 MiB.
fn small_pages(scene: &Scene<'_>) {
    with_table(scene);
    scene.write(LARGE + 100 * PAGE, 7).expect("nothing fails yet");
}

/// A page of shared memory in a block of 2 MiB.
fn shared_pages(scene: &Scene<'_>) {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    let request = MapRequest::anonymous(MIB2, RW).at(VirtAddr(LARGE), flags);
    scene.space.mmap(&request).expect("nothing fails yet");
    scene.write(LARGE + 100 * PAGE, 7).expect("nothing fails yet");
    let enabled = HugeFile::find("shmem_enabled").expect("it is a file of Linux");
    enabled.write(scene.machine.memory(), "advise").expect("it is a word of it");
    scene.space.madvise(VirtAddr(LARGE), MIB2, Advice::HugePage).expect("nothing fails yet");
}

/// A page of a file of 2 MiB that is open for reading. What is read at once is not cached at its end.
fn only_read_file(scene: &Scene<'_>) {
    let memory = scene.machine.memory();
    let mut bytes = vec![0; MIB2 as usize];
    bytes[100 * PAGE as usize] = 7;
    let writer = memory.create_file(MemoryFile::new(bytes).0, MIB2).expect("nothing fails yet");
    let file = writer.open(Access::Read).expect("nothing fails yet");
    drop(writer);
    let request = file_request(0, 512, READ, MapFlags::empty()).at(VirtAddr(LARGE), MapFlags::FIXED);
    scene.space.mmap_file(&request, &file).expect("nothing fails yet");
    read_file(&file, 0, (MIB2 - 16 * PAGE) as usize);
    scene.read(LARGE + 100 * PAGE).expect("nothing fails yet");
    scene.files.borrow_mut().push(file);
}

fn large_and_child(scene: &Scene<'_>) {
    large(scene);
    let child = scene.space.fork().expect("nothing fails yet");
    scene.others.borrow_mut().push(child);
}

fn shift(scene: &Scene<'_>, len: u64) -> Result<(), Error> {
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    scene.space.mremap(VirtAddr(LARGE), len, len, flags, VirtAddr(TARGET)).map(drop)
}

fn stays(scene: &Scene<'_>, error: Error) {
    crate::scenario::is_no_frames(scene, error);
    assert_eq!(scene.read(LARGE + 100 * PAGE), Ok(7));
}
