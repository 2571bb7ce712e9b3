//! Planted faults in the mappings of files: the auditor must find each kind, and find nothing before.

use crate::common::*;
use quire_file::IndexRange;
use quire_vma::Vma;
use std::ops::ControlFlow;
use std::ptr::NonNull;

/// A machine with a space that maps two files and memory of its own.
fn scene(plant: impl FnOnce(&Machine, &[TestFile<'_>; 2], &HostSpace<'_>)) {
    // What is planted is found here, not at the machine's end.
    let machine = Setup::mib(16).unaudited().build();
    let files = [0; 2].map(|_| TestFile::opened(machine.memory(), 1));
    let space = create_space(&machine);
    let range = |at: u64| VirtRange::from_len(VirtAddr(GIB + at * MIB2), 4 * PAGE).unwrap();
    for (at, flags) in [(0, MapFlags::SHARED), (1, MapFlags::empty())] {
        files[0].map(&space, (0, 10 * at), range(at), (RW, flags)).unwrap();
    }
    files[1].map(&space, (0, 0), range(2), (RW, MapFlags::SHARED)).unwrap();
    map_at(&space, range(3).start().0, PAGE, RW);
    assert_audit(&machine);
    plant(&machine, &files, &space);
    // The planted fault must not be used when the machine is dropped.
    std::mem::forget((space, files));
}

/// The VMA that maps a page of the file.
fn vma_at(machine: &Machine, file: &TestFile<'_>, index: u64) -> NonNull<Vma> {
    let held = file.mappings().read(machine.memory().platform());
    held.holding(index, index).map(NonNull::from).next().expect("it is mapped")
}

/// The VMA of the memory that is no file's.
fn anonymous_vma(machine: &Machine, file: &TestFile<'_>) -> NonNull<Vma> {
    let mut found = None;
    let held = machine.memory().spaces().rmap().hold_file(file.mappings());
    let _ = held.walk(IndexRange::ALL, |mapped| {
        let mappings = mapped.space.vmas.len();
        assert_eq!(mappings, 4);
        found = Some(NonNull::from(mapped.space));
        ControlFlow::Break(())
    });
    drop(held);
    // SAFETY: the space lives as long as the scene, and the machine is quiet.
    let core = unsafe { found.expect("it has mappings").as_ref() };
    let mappings = core.read_mappings(machine.memory().platform());
    mappings.iter().map(NonNull::from).last().expect("it is the last one")
}

#[track_caller]
fn finds(machine: &Machine, wanted: FileRmapViolation) {
    let found: Vec<_> = machine
        .audit()
        .into_iter()
        .filter_map(|finding| match finding {
            Finding::Memory(Violation::Space(SpaceViolation::FileRmap { violation, .. })) => Some(violation),
            _ => None,
        })
        .collect();
    assert!(found.contains(&wanted), "only {found:?}");
}

#[test]
fn a_mapping_that_its_file_does_not_have() {
    scene(|machine, files, _| {
        let vma = vma_at(machine, &files[0], 0);
        // SAFETY: it is one of the file.
        unsafe { files[0].mappings().write(machine.memory().platform()).remove(vma, true) };
        finds(machine, FileRmapViolation::Place);
        finds(machine, FileRmapViolation::Members { expected: 2, found: 1 });
    });
}

#[test]
fn a_mapping_at_other_pages_than_its_file_says() {
    scene(|machine, files, _| {
        let vma = vma_at(machine, &files[0], 0);
        // SAFETY: it is one of the file.
        unsafe { files[0].mappings().write(machine.memory().platform()).change(vma, (1, 4)) };
        finds(machine, FileRmapViolation::Place);
    });
}

#[test]
fn a_mapping_that_another_file_has() {
    scene(|machine, files, _| {
        let (vma, platform) = (vma_at(machine, &files[0], 0), machine.memory().platform());
        // SAFETY: it is one of the first file, and then of none.
        unsafe {
            files[0].mappings().write(platform).remove(vma, true);
            files[1].mappings().write(platform).insert(vma, (0, 3), true);
        }
        finds(machine, FileRmapViolation::Member);
        finds(machine, FileRmapViolation::Members { expected: 1, found: 2 });
    });
}

#[test]
fn memory_that_a_file_has() {
    scene(|machine, files, _| {
        let vma = anonymous_vma(machine, &files[0]);
        // SAFETY: it is in no file.
        unsafe { files[0].mappings().write(machine.memory().platform()).insert(vma, (0, 0), false) };
        finds(machine, FileRmapViolation::Stray);
        finds(machine, FileRmapViolation::Member);
    });
}

#[test]
fn a_wrong_number_of_shared_writers() {
    scene(|machine, files, _| {
        let (vma, platform) = (vma_at(machine, &files[0], 0), machine.memory().platform());
        // SAFETY: it is one of the file, and then of none.
        unsafe {
            files[0].mappings().write(platform).remove(vma, true);
            files[0].mappings().write(platform).insert(vma, (0, 3), false);
        }
        finds(machine, FileRmapViolation::Writers { expected: 1, found: 0 });
    });
}

#[test]
fn an_opening_with_too_few_holders() {
    scene(|machine, files, _| {
        files[0].let_go(0);
        assert_audit(machine);
        // SAFETY: two mappings hold it, and neither is used after this.
        assert!(!unsafe { files[0].place(0).as_ref().let_go() }, "one is left");
        finds(machine, FileRmapViolation::Holders { expected: 2, found: 1 });
    });
}
