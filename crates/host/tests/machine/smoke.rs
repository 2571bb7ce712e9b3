//! One program from start to end: map, touch, protect, move, unmap, fork, exit.

use quire_arch::{Access, VirtAddr};
use quire_host::{AccessError, HostConfig, Machine};
use quire_mm::{
    MemoryConfig,
    space::{FaultError, MapFlags, MapRequest, Protection, RemapFlags},
};

const RW: Protection = Protection::READ.union(Protection::WRITE);

fn machine(cpus: usize) -> Machine {
    let host = HostConfig::with_ram(32 << 20).cpus(cpus).paranoid();
    Machine::new(&host, MemoryConfig::default()).expect("a machine")
}

fn assert_audit(machine: &Machine) {
    let findings = machine.audit();
    assert!(findings.is_empty(), "{}", findings.iter().map(|f| format!("{f}\n")).collect::<String>());
}

#[test]
fn memory_is_mapped_zeroed_written_and_freed() {
    let machine = machine(1);
    let free = machine.memory().frames().reports().free_frames();
    let cpu = machine.vcpu(0).unwrap();
    {
        let space = machine.memory().create_space().unwrap();
        let addr = space.mmap(&MapRequest::anonymous(1 << 20, RW)).unwrap();
        let program = cpu.program(&space);
        assert_eq!(program.read_u64(addr).unwrap(), 0);
        program.write_u64(VirtAddr(addr.0 + 0x5000), 7).unwrap();
        assert_eq!(program.read_u64(VirtAddr(addr.0 + 0x5000)).unwrap(), 7);
        assert_eq!(space.figures().resident, 4096);
        assert_audit(&machine);
        space.mprotect(addr, 1 << 20, Protection::READ, false).unwrap();
        assert_eq!(
            program.write_u64(VirtAddr(addr.0 + 0x5000), 8),
            Err(AccessError::Fault(FaultError::AccessDenied))
        );
        assert_eq!(program.read_u64(VirtAddr(addr.0 + 0x5000)).unwrap(), 7);
        space.munmap(addr, 1 << 20).unwrap();
        assert_eq!(
            program.touch(VirtAddr(addr.0 + 0x5000), Access::Read),
            Err(AccessError::Fault(FaultError::NotMapped))
        );
        assert_eq!(space.figures().page_tables, 0);
        assert_audit(&machine);
    }
    assert_audit(&machine);
    let pin = quire_arch::Platform::pin(machine.memory().platform());
    machine.memory().frames().limbo().reap_all(&pin);
    drop(pin);
    // Slab frames may stay with their caches.
    assert!(free - machine.memory().frames().reports().free_frames() <= 16);
}

#[test]
fn contents_move_with_mremap_and_fork_copies_them() {
    let machine = machine(2);
    let cpu = machine.vcpu(0).unwrap();
    let space = machine.memory().create_space().unwrap();
    let len = 5 << 20;
    let addr = space.mmap(&MapRequest::anonymous(len, RW)).unwrap();
    let guard = MapRequest::anonymous(4096, Protection::empty())
        .at(VirtAddr(addr.0 + len), MapFlags::FIXED_NOREPLACE);
    // Growth in place is blocked, whatever is above already.
    let _ = space.mmap(&guard);
    let program = cpu.program(&space);
    for page in 0..len / 4096 {
        program.write_u64(VirtAddr(addr.0 + page * 4096), page + 1).unwrap();
    }
    assert!(space.mremap(addr, len, 2 * len, RemapFlags::empty(), None).is_err());
    let moved = space.mremap(addr, len, 2 * len, RemapFlags::MAYMOVE, None).unwrap();
    assert_ne!(moved, addr);
    let child = space.fork().unwrap();
    for page in 0..len / 4096 {
        assert_eq!(program.read_u64(VirtAddr(moved.0 + page * 4096)).unwrap(), page + 1);
    }
    assert_eq!(program.read_u64(VirtAddr(moved.0 + len)).unwrap(), 0);
    program.write_u64(moved, 99).unwrap();
    assert_audit(&machine);
    let other = machine.vcpu(1).unwrap();
    let child_program = other.program(&child);
    assert_eq!(child_program.read_u64(moved).unwrap(), 1);
    assert_eq!(child.figures().resident, space.figures().resident);
    drop(child);
    assert_audit(&machine);
}
