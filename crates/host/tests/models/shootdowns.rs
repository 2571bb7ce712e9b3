//! Shootdowns: flushes against CPUs that come, go and change their address space.

use crate::common::{NOT_MAPPED, PAGE, page};
use crate::harness::{Fact, check, map, on_cpu, with_space, with_spaces};
use quire_arch::VirtAddr;
use quire_host::HostConfig;
use shuttle::thread;

const ADDR: VirtAddr = VirtAddr(1 << 30);

/// CPU 0 goes back and forth between two spaces; CPU 1 unmaps a page of the first.
fn switching_against_a_flush(asids: u32) {
    let host = HostConfig { asids, ..HostConfig::with_ram(1 << 20).cpus(2) };
    with_spaces(host, |machine, spaces: &[_; 2]| {
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
    check(301, || switching_against_a_flush(8));
}

/// With one tag for all spaces, coming back flushes what another space left.
#[test]
fn shuttle_a_flush_reaches_a_cpu_that_changes_its_space_under_one_tag() {
    check(302, || switching_against_a_flush(1));
}

/// Both CPUs run the space and change it: each shoots at the other, in guest mode and out of it.
#[test]
fn shuttle_two_cpus_that_shoot_at_each_other_get_through() {
    check(303, || {
        with_space(2, |machine, space| {
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
    });
}

/// A read maps the shared zero page; the first write elsewhere replaces it. This flush runs under the table's lock.
#[test]
fn shuttle_nobody_reads_zeros_after_another_cpu_wrote() {
    check(304, || {
        with_space(2, |machine, space| {
            map(space, ADDR, 1);
            let written = Fact::default();
            thread::scope(|scope| {
                scope.spawn(|| {
                    on_cpu(machine, 0, space, |program| {
                        for _ in 0..4 {
                            let late = written.is_told();
                            let seen = program.read_u64(ADDR).expect("mapped");
                            assert!(seen == 9 || !late, "zeros after another CPU wrote");
                        }
                    });
                });
                scope.spawn(|| {
                    on_cpu(machine, 1, space, |program| program.write_u64(ADDR, 9)).expect("mapped");
                    written.tell();
                });
            });
        });
    });
}

/// The thread with the handle of CPU 0 comes and goes; a thread without one borrows a CPU for each pinned section.
#[test]
fn shuttle_a_flush_by_a_thread_that_borrows_a_cpu() {
    check(305, || {
        with_space(2, |machine, space| {
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
    });
}
