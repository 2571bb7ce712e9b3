//! Shootdowns: flushes against CPUs that switch their address space.

use crate::harness::*;
use shuttle::thread;

const ADDR: VirtAddr = VirtAddr(1 << 30);

/// CPU 0 goes back and forth between two spaces; CPU 1 unmaps a page of the first.
fn switching_against_a_flush(asids: u32) {
    with_spaces(&Setup::mib(1).cpus(2).asids(asids), |machine, spaces: &[_; 2]| {
        spaces.iter().for_each(|space| map(space, ADDR, 1));
        let unmapped = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                let cpu = machine.vcpu(0).expect("each CPU has one thread");
                let programs = [cpu.program(&spaces[0]), cpu.program(&spaces[1])];
                for value in 1..4 {
                    let late = unmapped.is_told();
                    match programs[0].write_u64(ADDR, value) {
                        Ok(()) => assert!(!late, "a write after munmap had returned"),
                        Err(error) => assert_eq!(error, NOT_MAPPED),
                    }
                    programs[1].write_u64(ADDR, 100 + value).expect("mapped all the time");
                    assert_eq!(programs[1].read_u64(ADDR), Ok(100 + value), "the page of another space");
                }
            });
            scope.spawn(|| {
                on_cpu(machine, 1, &spaces[0], |program| {
                    let seen = program.read_u64(ADDR).expect("mapped");
                    assert!(seen < 100, "the page of another space");
                    spaces[0].munmap(ADDR, PAGE).expect("the end of a mapping can go");
                    unmapped.tell();
                    assert_eq!(program.read_u64(ADDR), Err(NOT_MAPPED));
                });
            });
        });
        assert_eq!(spaces[0].figures().resident, 0);
    });
}

#[test]
fn shuttle_a_flush_reaches_a_cpu_that_changes_its_space() {
    check(|| switching_against_a_flush(8));
}

/// With one tag for all spaces, a switch flushes what another space left.
#[test]
fn shuttle_a_flush_reaches_a_cpu_that_changes_its_space_under_one_tag() {
    check(|| switching_against_a_flush(1));
}

/// Both CPUs run the space and change it: each flushes the other, in guest mode and out of it.
#[test]
fn shuttle_two_cpus_that_flush_each_other_make_progress() {
    check_space(2, |machine, space| {
        map(space, ADDR, 2);
        thread::scope(|scope| {
            for cpu in 0..2u64 {
                scope.spawn(move || {
                    let mine = page(ADDR, cpu);
                    on_cpu(machine, cpu as usize, space, |program| {
                        program.write_u64(mine, 1).expect("mapped until it is unmapped here");
                        let _ = program.read_u64(page(ADDR, 1 - cpu));
                        space.munmap(mine, PAGE).expect("the end of a mapping can go");
                        assert_eq!(program.read_u64(mine), Err(NOT_MAPPED));
                    });
                });
            }
        });
        assert_eq!(space.figures().page_tables, 0);
    });
}

/// A read maps the shared zero page; the first write elsewhere replaces it. This flush runs under the table's
/// lock.
#[test]
fn shuttle_no_cpu_reads_zeros_after_another_cpu_wrote() {
    check_space(2, |machine, space| {
        map(space, ADDR, 1);
        let written = Fact::default();
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for _ in 0..4 {
                    let late = written.is_told();
                    let seen = program.read_u64(ADDR).expect("mapped");
                    assert!(seen == 9 || !late, "zeros after another CPU wrote");
                }
            });
            scope.spawn(|| {
                on_cpu(machine, 1, space, |program| program.write_u64(ADDR, 9)).expect("mapped");
                written.tell();
            });
        });
    });
}

/// The thread with the handle of CPU 0 comes and goes; a thread without one borrows a CPU for each pinned
/// section.
#[test]
fn shuttle_a_flush_by_a_thread_that_borrows_a_cpu() {
    check_space(2, |machine, space| {
        map(space, ADDR, 1);
        let unmapped = Fact::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                for value in 1..3 {
                    on_cpu(machine, 0, space, |program| {
                        let late = unmapped.is_told();
                        match program.write_u64(ADDR, value) {
                            Ok(()) => assert!(!late, "a write after munmap had returned"),
                            Err(error) => assert_eq!(error, NOT_MAPPED),
                        }
                    });
                }
            });
            scope.spawn(|| {
                space.munmap(ADDR, PAGE).expect("the end of a mapping can go");
                unmapped.tell();
            });
        });
    });
}

/// CPU 0 switches away and back while two others flush at once, each a page of its own: what both flushes
/// left on CPU 0 must be gone when it is back.
#[test]
fn shuttle_two_flushes_pass_by_a_cpu_that_comes_back() {
    check(|| {
        with_spaces(&Setup::mib(1).cpus(3), |machine, [one, other]| {
            map(one, ADDR, 2);
            map(other, ADDR, 1);
            let unmapped = [Fact::default(), Fact::default()];
            thread::scope(|scope| {
                scope.spawn(|| {
                    let cpu = machine.vcpu(0).expect("each CPU has one thread");
                    let programs = [cpu.program(one), cpu.program(other)];
                    for value in 1..4 {
                        for (at, unmapped) in (0..).zip(&unmapped) {
                            let late = unmapped.is_told();
                            match programs[0].write_u64(page(ADDR, at), value) {
                                Ok(()) => assert!(!late, "a write after munmap had returned"),
                                Err(error) => assert_eq!(error, NOT_MAPPED),
                            }
                        }
                        programs[1].write_u64(ADDR, value).expect("mapped all the time");
                    }
                });
                for (at, unmapped) in (0..).zip(&unmapped) {
                    scope.spawn(move || {
                        let cpu = machine.vcpu(1 + at as usize).expect("each CPU has one thread");
                        cpu.run(|| one.munmap(page(ADDR, at), PAGE)).expect("the end of a mapping can go");
                        unmapped.tell();
                    });
                }
            });
            assert_eq!(one.figures().resident, 0);
        });
    });
}

/// A space exits while a CPU that ran it switches to another one. The next space gets its tag, its root and
/// its core, and must see nothing of it on either CPU.
#[test]
fn shuttle_an_exit_against_a_cpu_that_switches_spaces() {
    check(|| {
        // As many tags of their own as spaces, so that the next one gets that of the one before.
        with_spaces(&Setup::mib(1).cpus(2).asids(3), |machine, [space]| {
            map(space, ADDR, 1);
            let gone = create_space(&machine);
            map(&gone, ADDR, 1);
            let asid = gone.asid();
            let handle = gone.clone();
            let next = thread::scope(|scope| {
                scope.spawn(move || {
                    let cpu = machine.vcpu(0).expect("each CPU has one thread");
                    cpu.program(&handle).write_u64(ADDR, 1).expect("mapped");
                    // The last handle to be dropped exits the space.
                    drop(handle);
                    cpu.program(space).write_u64(ADDR, 2).expect("mapped");
                });
                let heir = scope.spawn(move || {
                    let cpu = machine.vcpu(1).expect("each CPU has one thread");
                    cpu.run(|| {
                        cpu.program(&gone).write_u64(ADDR, 3).expect("mapped");
                        drop(gone);
                        let next = create_space(&machine);
                        map(&next, page(ADDR, 1), 1);
                        assert_eq!(cpu.program(&next).read_u64(ADDR), Err(NOT_MAPPED), "of the last space");
                        next
                    })
                });
                heir.join().expect("no access was wrong")
            });
            let seen = on_cpu(machine, 0, &next, |program| program.read_u64(ADDR));
            assert_eq!(seen, Err(NOT_MAPPED), "what the last space left, {asid:?}");
            assert_eq!(on_cpu(machine, 0, space, |program| program.read_u64(ADDR)), Ok(2));
        });
    });
}
