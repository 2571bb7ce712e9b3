//! A program is told to run where its space cannot be, or is not: on a vCPU of another machine, or below
//! another vCPU. The vCPU has tables of a space that is gone by then, and its TLB has their translations.

use crate::common::*;

const AT: VirtAddr = VirtAddr(GIB);

/// A space with one page, which holds `value`.
fn written<'m>(machine: &'m Machine, cpu: &Vcpu, value: u64) -> HostSpace<'m> {
    let space = create_space(machine);
    map_at(&space, AT.0, PAGE, RW);
    write(cpu, &space, AT, value);
    space
}

/// Hazard: a program of another machine is let go on with the tables of a space that has exited, and writes
/// to frames that are free.
#[test]
fn a_vcpu_runs_no_program_of_another_machine() {
    let (here, there) = (machine(16, 2), machine(16, 2));
    let [cpu, own] = [&here, &there].map(|machine| machine.vcpu(0).unwrap());
    drop(written(&here, &cpu, 1));
    let space = written(&there, &own, 2);
    let program = cpu.program(&space);
    assert!(program.read_u64(AT).is_err());
    assert!(program.write_u64(AT, 3).is_err());
    assert_eq!(read(&own, &space, AT), 2);
}

/// Hazard: a guest is used on top of another vCPU, which then becomes the one with the guest's space. The
/// guest's own goes on with the tables of a space that has exited.
#[test]
#[should_panic(expected = "below another vCPU")]
fn a_guest_is_not_used_below_another_vcpu() {
    let machine = machine(16, 2);
    let [cpu, other] = [0, 1].map(|number| machine.vcpu(number).unwrap());
    let space = written(&machine, &other, 2);
    drop(written(&machine, &cpu, 1));
    let found = cpu.program(&space).inside(|guest| other.run(|| guest.read_u64(AT)));
    assert_eq!(found, Ok(2), "of its own space");
}

/// Hazard: a program runs while its thread is in a pinned section, and the thread waits for ever for itself
/// to serve a flush.
#[test]
#[should_panic(expected = "in a pinned section")]
fn a_guest_is_not_used_in_a_pinned_section() {
    let machine = machine(16, 2);
    let cpu = machine.vcpu(0).unwrap();
    let space = written(&machine, &cpu, 2);
    let _ = cpu.program(&space).inside(|guest| {
        let _pin = machine.memory().platform().pin();
        guest.read_u64(AT)
    });
}

/// Hazard: a thread waits for ever for the vCPU of a program that it runs itself, to serve a flush that it
/// sent from another vCPU.
#[test]
fn a_thread_flushes_the_vcpu_of_its_own_guest() {
    let machine = machine(16, 2);
    let [cpu, other] = [0, 1].map(|number| machine.vcpu(number).unwrap());
    let space = written(&machine, &cpu, 2);
    cpu.program(&space).inside(|guest| {
        assert_eq!(guest.read_u64(AT), Ok(2));
        other.run(|| space.munmap(AT, PAGE)).unwrap();
        assert_eq!(guest.read_u64(AT), Err(NOT_MAPPED));
    });
}

/// Hazard: a space has the root of one that is gone, whose programs were the last on a vCPU. It is taken for
/// the one that the vCPU runs, and flushes of it do not reach the vCPU.
#[test]
fn a_vcpu_does_not_run_a_space_for_having_the_root_of_one_that_is_gone() {
    let machine = machine(16, 2);
    let [cpu, other] = [0, 1].map(|number| machine.vcpu(number).unwrap());
    let mut same = 0;
    for value in 0..8 {
        let before = written(&machine, &cpu, 1);
        let root = before.root();
        drop(before);
        let space = written(&machine, &cpu, value);
        same += u32::from(space.root() == root);
        assert_eq!(read(&cpu, &space, AT), value);
        other.run(|| space.munmap(AT, PAGE)).unwrap();
        assert_eq!(cpu.program(&*space).read_u64(AT), Err(NOT_MAPPED));
    }
    assert!(same > 0, "each had another root");
}

/// Programs of two spaces make an access each in turns, and each is of its own space.
#[test]
fn programs_that_take_turns_on_a_vcpu_see_their_own_spaces() {
    let machine = machine(16, 1);
    let cpu = machine.vcpu(0).unwrap();
    let spaces = [1, 2].map(|value| written(&machine, &cpu, value));
    for round in 0..6 {
        for (space, value) in spaces.iter().zip(1..) {
            // Once, and again when it is the current one.
            for _ in 0..=round % 2 {
                assert_eq!(read(&cpu, space, AT), value);
            }
        }
    }
}
