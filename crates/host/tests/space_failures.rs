//! Every allocation of every call fails once: nothing is left half done.
//!
//! Each scenario is repeated with its first allocation failing, then its second, and so on until it passes untouched.
//! A failure must be the error that Linux would give, leave the mappings and contents as they were (unless Linux's
//! semantics say otherwise) and the machine in order; the same call must then succeed.

mod common;

use common::{
    AccessResult, HostSpace, NONE, PAGE, READ, RW, assert_audit, in_use, machine, map_at, mappings, page,
};
use quire_arch::{Access, VirtAddr};
use quire_frame::FaultPlan;
use quire_host::{AccessError, Machine, Vcpu};
use quire_mm::{Advice, Errno, Error, FaultError, MapFlags, MapRequest, RemapFlags};

const BASE: u64 = (1 << 39) - 4 * PAGE;

/// What a scenario works on: a space whose mapping straddles the border of every level of tables.
struct Scene<'m> {
    machine: &'m Machine,
    cpu: &'m Vcpu,
    space: HostSpace<'m>,
}

impl<'m> Scene<'m> {
    fn new(machine: &'m Machine, cpu: &'m Vcpu) -> Self {
        let space = machine.memory().create_space().expect("no failure is planned yet");
        Self { machine, cpu, space }
    }

    fn write(&self, addr: u64, value: u64) -> AccessResult<()> {
        self.cpu.program(&self.space).write_u64(VirtAddr(addr), value)
    }

    fn read(&self, addr: u64) -> AccessResult<u64> {
        self.cpu.program(&self.space).read_u64(VirtAddr(addr))
    }

    /// Panics unless the pages hold what [`filled`] wrote.
    fn assert_filled(&self, pages: impl IntoIterator<Item = u64>) {
        for at in pages {
            assert_eq!(self.read(BASE + at * PAGE), Ok(100 + at), "page {at}");
        }
    }
}

/// Maps 16 pages around [`BASE`] and writes to each.
fn filled(scene: &Scene<'_>) {
    map_at(&scene.space, BASE, 16 * PAGE, RW);
    for at in 0..16 {
        scene.write(BASE + at * PAGE, 100 + at).expect("there is memory");
    }
}

/// Maps 8 untouched pages at [`BASE`].
fn small(scene: &Scene<'_>) {
    map_at(&scene.space, BASE, 8 * PAGE, RW);
}

/// What becomes of the mappings in a call that failed.
#[derive(Clone, Copy, PartialEq)]
enum Undone {
    /// They are as before.
    All,
    /// What the scenario itself checks.
    Some,
}

/// Runs `attempt` with the 1st, 2nd, 3rd... allocation failing. `refused` checks each error.
fn each_failure<T>(
    undone: Undone,
    prepare: impl Fn(&Scene<'_>),
    attempt: impl Fn(&Scene<'_>) -> Result<T, Error>,
    refused: impl Fn(&Scene<'_>, Error),
    succeeded: impl Fn(&Scene<'_>, T),
) -> u64 {
    let machine = machine(16, 1);
    let cpu = machine.vcpu(0).expect("the CPU is free");
    let before_all = in_use(&machine);
    for nth in 1.. {
        assert!(nth < 1000, "the scenario never passes");
        let scene = Scene::new(&machine, &cpu);
        prepare(&scene);
        let faults = scene.machine.memory().frames().faults();
        let before = mappings(&scene.space);
        let figures = scene.space.figures();
        faults.set(FaultPlan::Nth { site: None, nth });
        let result = attempt(&scene);
        let struck = faults.failed() > 0;
        faults.set(FaultPlan::Off);
        assert_audit(&machine);
        match result {
            Ok(value) if !struck => {
                succeeded(&scene, value);
                drop(scene);
                assert_eq!(in_use(&machine), before_all, "frames are lost");
                return nth - 1;
            }
            // Populating is not part of a call's result, and a table may be found on another way.
            Ok(_) => {}
            Err(error) => {
                assert!(struck, "failure {nth}: {error} without a cause");
                if undone == Undone::All {
                    assert_eq!(mappings(&scene.space), before, "failure {nth} left mappings changed");
                    let now = scene.space.figures();
                    assert_eq!((now.mapped, now.data), (figures.mapped, figures.data));
                    assert_eq!(now.resident, figures.resident, "failure {nth}");
                    assert_eq!(now.page_tables, figures.page_tables, "failure {nth} left tables behind");
                }
                refused(&scene, error);
                assert!(attempt(&scene).is_ok(), "after failure {nth} the call does not work any more");
            }
        }
        assert_audit(&machine);
        drop(scene);
        assert_audit(&machine);
        assert_eq!(in_use(&machine), before_all, "failure {nth} lost frames");
    }
    unreachable!("the loop ends by itself")
}

fn is_enomem(_: &Scene<'_>, error: Error) {
    assert_eq!(error.errno(), Errno::ENOMEM, "{error}");
}

#[test]
fn creating_a_space_fails_whole() {
    let failures = each_failure(
        Undone::All,
        |_| (),
        |scene| scene.machine.memory().create_space().map(drop),
        is_enomem,
        |_, ()| (),
    );
    assert!(failures >= 1);
}

#[test]
fn a_new_mapping_fails_whole() {
    let failures = each_failure(
        Undone::All,
        |_| (),
        |scene| scene.space.mmap(&MapRequest::anonymous(PAGE, RW)),
        is_enomem,
        |scene, addr| assert_eq!(scene.read(addr.0), Ok(0)),
    );
    // A VMA and a node of the tree, if their caches are empty.
    assert!(failures <= 4);
}

#[test]
fn a_fixed_mapping_over_a_middle_fails_whole() {
    let failures = each_failure(
        Undone::All,
        filled,
        |scene| {
            let request =
                MapRequest::anonymous(2 * PAGE, READ).at(VirtAddr(BASE + 3 * PAGE), MapFlags::FIXED);
            scene.space.mmap(&request)
        },
        |scene, error| {
            is_enomem(scene, error);
            scene.assert_filled(0..16);
        },
        |scene, _| scene.assert_filled((0..3).chain(5..16)),
    );
    assert!(failures > 0, "nothing could fail");
}

#[test]
fn an_access_fails_and_can_be_repeated() {
    for write in [false, true] {
        let failures = each_failure(
            Undone::Some,
            small,
            |scene| {
                let access = if write { Access::Write } else { Access::Read };
                scene.space.fault(VirtAddr(BASE), access).map_err(|error| match error {
                    FaultError::OutOfMemory(cause) => Error::NoFrames(cause),
                    other => panic!("{other}"),
                })
            },
            is_enomem,
            |_, ()| (),
        );
        // Three tables below the root, and the page.
        assert_eq!(failures, if write { 4 } else { 3 });
    }
}

#[test]
fn unmapping_a_middle_fails_whole() {
    let failures = each_failure(
        Undone::All,
        filled,
        |scene| scene.space.munmap(VirtAddr(BASE + 2 * PAGE), 4 * PAGE),
        |scene, error| {
            is_enomem(scene, error);
            scene.assert_filled(0..16);
        },
        |scene, ()| scene.assert_filled((0..2).chain(6..16)),
    );
    assert!(failures > 0, "nothing could fail");
}

#[test]
fn unmapping_an_end_allocates_nothing() {
    let failures = each_failure(
        Undone::All,
        filled,
        |scene| scene.space.munmap(VirtAddr(BASE + 2 * PAGE), 14 * PAGE),
        |_, error| panic!("{error}"),
        |scene, ()| scene.assert_filled(0..2),
    );
    assert_eq!(failures, 0);
}

#[test]
fn a_change_of_protection_fails_whole() {
    let failures = each_failure(
        Undone::All,
        filled,
        |scene| scene.space.mprotect(VirtAddr(BASE + 2 * PAGE), 4 * PAGE, READ, false),
        |scene, error| {
            is_enomem(scene, error);
            assert_eq!(scene.write(BASE + 2 * PAGE, 102), Ok(()));
            scene.assert_filled(0..16);
        },
        |scene, ()| {
            assert_eq!(scene.write(BASE + 2 * PAGE, 0), Err(common::DENIED));
            scene.assert_filled(0..16);
        },
    );
    assert!(failures > 0, "nothing could fail");
}

#[test]
fn advice_that_splits_asks_to_try_again() {
    let failures = each_failure(
        Undone::All,
        filled,
        |scene| scene.space.madvise(VirtAddr(BASE + 2 * PAGE), 4 * PAGE, Advice::DontFork),
        |scene, error| {
            assert_eq!(error.errno(), Errno::EAGAIN);
            scene.assert_filled(0..16);
        },
        |scene, ()| scene.assert_filled(0..16),
    );
    assert!(failures > 0, "nothing could fail");
}

/// races.md, E: failure half way: everything moves back, no page is lost and no page is mapped twice.
#[test]
fn a_move_fails_whole() {
    for len in [16, 9] {
        let failures = each_failure(
            Undone::All,
            filled,
            |scene| {
                // Not congruent to the source, and across a border of tables.
                let target = VirtAddr((1 << 40) - 7 * PAGE);
                scene.space.mremap(
                    VirtAddr(BASE + 2 * PAGE),
                    (len - 2) * PAGE,
                    (len - 2) * PAGE,
                    RemapFlags::MAYMOVE | RemapFlags::FIXED,
                    target,
                )
            },
            |scene, error| {
                is_enomem(scene, error);
                scene.assert_filled(0..16);
            },
            |scene, addr| {
                for at in 2..len {
                    assert_eq!(scene.read(page(addr, at - 2).0), Ok(100 + at));
                }
                assert_eq!(scene.read(BASE + 2 * PAGE), Err(common::NOT_MAPPED));
                scene.assert_filled((0..2).chain(len..16));
            },
        );
        assert!(failures > 3, "tables are made for the target");
    }
}

#[test]
fn a_move_that_keeps_its_source_fails_whole() {
    let failures = each_failure(
        Undone::All,
        filled,
        |scene| {
            let flags = RemapFlags::MAYMOVE | RemapFlags::DONTUNMAP;
            scene.space.mremap(VirtAddr(BASE), 16 * PAGE, 16 * PAGE, flags, VirtAddr(0))
        },
        |scene, error| {
            is_enomem(scene, error);
            scene.assert_filled(0..16);
        },
        |scene, addr| {
            assert_eq!(scene.read(addr.0), Ok(100));
            assert_eq!(scene.read(BASE), Ok(0));
        },
    );
    assert!(failures > 0, "nothing could fail");
}

#[test]
fn growing_elsewhere_fails_whole() {
    let failures = each_failure(
        Undone::All,
        |scene| {
            filled(scene);
            map_at(&scene.space, BASE + 16 * PAGE, PAGE, NONE);
        },
        |scene| scene.space.mremap(VirtAddr(BASE), 16 * PAGE, 64 * PAGE, RemapFlags::MAYMOVE, VirtAddr(0)),
        |scene, error| {
            is_enomem(scene, error);
            scene.assert_filled(0..16);
        },
        |scene, addr| assert_eq!(scene.read(page(addr, 15).0), Ok(115)),
    );
    assert!(failures > 0, "nothing could fail");
}

#[test]
fn a_fork_fails_and_leaves_no_child() {
    let failures = each_failure(
        Undone::All,
        filled,
        |scene| scene.space.fork().map(|child| child.figures().resident),
        |scene, error| {
            is_enomem(scene, error);
            scene.assert_filled(0..16);
            assert_eq!(scene.machine.memory().spaces().count(), 1);
        },
        |scene, resident| assert_eq!(resident, scene.space.figures().resident),
    );
    // At least each page, and the tables of both sides of the border.
    assert!(failures >= 16 + 5);
}

#[test]
fn brk_answers_the_old_break() {
    let failures = each_failure(
        Undone::All,
        |_| (),
        |scene| {
            let old = scene.space.program_break();
            let wanted = VirtAddr(old.0 + 10 * PAGE + 5);
            let now = scene.space.brk(wanted);
            if now == wanted {
                Ok(())
            } else {
                assert_eq!(now, old);
                Err(Error::NoRoom)
            }
        },
        is_enomem,
        |scene, ()| assert_eq!(scene.read(scene.space.program_break().0 - 8), Ok(0)),
    );
    assert!(failures > 0, "nothing could fail");
}

#[test]
fn shrinking_the_heap_allocates_nothing() {
    let failures = each_failure(
        Undone::All,
        |scene| {
            scene.space.brk(VirtAddr(scene.space.program_break().0 + 64 * PAGE));
        },
        |scene| {
            let wanted = VirtAddr(scene.space.layout().brk.0 + PAGE);
            if scene.space.brk(wanted) == wanted { Ok(()) } else { Err(Error::NoRoom) }
        },
        |_, error| panic!("{error}"),
        |_, ()| (),
    );
    assert_eq!(failures, 0);
}

#[test]
fn populating_stops_without_an_error_at_mmap() {
    let failures = each_failure(
        Undone::All,
        |_| (),
        |scene| {
            let request = MapRequest::anonymous(8 * PAGE, RW).at(VirtAddr(BASE), MapFlags::POPULATE);
            scene.space.mmap(&request)
        },
        is_enomem,
        |scene, _| assert_eq!(scene.space.figures().resident, 8 * PAGE),
    );
    assert!(failures > 0, "nothing could fail");
}

#[test]
fn populating_by_advice_tells() {
    let failures = each_failure(
        Undone::Some,
        small,
        |scene| scene.space.madvise(VirtAddr(BASE), 8 * PAGE, Advice::PopulateWrite),
        is_enomem,
        |scene, ()| assert_eq!(scene.space.figures().resident, 8 * PAGE),
    );
    assert!(failures > 0, "nothing could fail");
}

#[test]
fn locking_tells_by_which_step_it_failed() {
    let failures = each_failure(
        Undone::Some,
        small,
        |scene| scene.space.mlock(VirtAddr(BASE + PAGE), 4 * PAGE, false),
        |scene, error| {
            // The split: ENOMEM and nothing is locked. The pages: EAGAIN, and the mapping is.
            let locked = scene.space.figures().locked;
            match error.errno() {
                Errno::ENOMEM => assert_eq!(locked, 0),
                Errno::EAGAIN => assert_eq!(locked, 4 * PAGE),
                other => panic!("{other}"),
            }
        },
        |scene, ()| assert_eq!(scene.space.figures().locked, 4 * PAGE),
    );
    assert!(failures > 0, "nothing could fail");
}

#[test]
fn memory_that_is_full_can_be_emptied_and_used_again() {
    let machine = machine(4, 1);
    let cpu = machine.vcpu(0).expect("the CPU is free");
    let before = in_use(&machine);
    let scene = Scene::new(&machine, &cpu);
    let len = 8 << 20;
    // More than there is, so promised without being counted.
    let request = MapRequest::anonymous(len, RW).at(VirtAddr(BASE), MapFlags::FIXED | MapFlags::NORESERVE);
    let addr = scene.space.mmap(&request).expect("nothing is promised");
    let mut written = 0;
    let full = loop {
        match scene.write(page(addr, written).0, written) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, AccessError::Fault(FaultError::OutOfMemory(_))), "{full}");
    assert!(written > 512, "only {written} pages");
    assert_audit(&machine);
    for at in 0..written {
        assert_eq!(scene.read(page(addr, at).0), Ok(at));
    }
    assert!(scene.space.fork().is_err());
    assert_audit(&machine);
    scene.space.madvise(addr, len / 4, Advice::DontNeed).expect("dropping pages allocates nothing");
    assert_eq!(scene.write(page(addr, written).0, 7), Ok(()));
    assert_eq!(scene.read(addr.0), Ok(0));
    scene.space.munmap(addr, len).expect("unmapping allocates nothing");
    map_at(&scene.space, BASE, PAGE, RW);
    assert_eq!(scene.write(BASE, 1), Ok(()));
    drop(scene);
    assert_audit(&machine);
    assert_eq!(in_use(&machine), before);
}
