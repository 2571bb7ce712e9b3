//! One program from start to end: map, touch, protect, move, unmap, fork, exit.

use crate::common::*;

#[test]
fn memory_is_mapped_zeroed_written_and_freed() {
    let machine: Machine = Setup::mib(32).reserve().build();
    let free = machine.memory().frames().reports().free_frames();
    let cpu = machine.vcpu(0).unwrap();
    {
        let space = create_space(&machine).audited(&machine);
        let addr = space.mmap(&MapRequest::anonymous(1 << 20, RW)).unwrap();
        let program = cpu.program(&space);
        assert_eq!(program.read_u64(addr).unwrap(), 0);
        program.write_u64(VirtAddr(addr.0 + 0x5000), 7).unwrap();
        assert_eq!(program.read_u64(VirtAddr(addr.0 + 0x5000)).unwrap(), 7);
        assert_eq!(space.figures().resident, 4096);
        assert_audit(&machine);
        space.mprotect(addr, 1 << 20, Protection::READ, false).unwrap();
        assert_eq!(program.write_u64(VirtAddr(addr.0 + 0x5000), 8), Err(DENIED));
        assert_eq!(program.read_u64(VirtAddr(addr.0 + 0x5000)).unwrap(), 7);
        space.munmap(addr, 1 << 20).unwrap();
        assert_eq!(program.touch(VirtAddr(addr.0 + 0x5000), Access::Read), Err(NOT_MAPPED));
        assert_eq!(space.figures().page_tables, 0);
    }
    assert_audit(&machine);
    in_use(&machine);
    // Slab frames may stay with their caches.
    assert!(free - machine.memory().frames().reports().free_frames() <= 16);
}

#[test]
fn contents_move_with_mremap_and_fork_copies_them() {
    let machine: Machine = Setup::mib(32).cpus(2).reserve().build();
    let cpu = machine.vcpu(0).unwrap();
    let space = create_space(&machine).audited(&machine);
    let len = 5 << 20;
    let addr = space.mmap(&MapRequest::anonymous(len, RW)).unwrap();
    let guard = MapRequest::anonymous(4096, Protection::empty())
        .at(VirtAddr(addr.0 + len), MapFlags::FIXED_NOREPLACE);
    // Growth in place is blocked, whatever is above already.
    let _ = space.mmap(&guard);
    let program = cpu.program(&space);
    fill(&cpu, &space, addr, 0..len / PAGE, 1);
    assert!(space.mremap(addr, len, 2 * len, RemapFlags::empty(), None).is_err());
    let moved = space.mremap(addr, len, 2 * len, RemapFlags::MAYMOVE, None).unwrap();
    assert_ne!(moved, addr);
    let child = space.fork().unwrap();
    assert_filled(&cpu, &space, moved, 0..len / PAGE, 1);
    assert_eq!(program.read_u64(VirtAddr(moved.0 + len)).unwrap(), 0);
    program.write_u64(moved, 99).unwrap();
    assert_audit(&machine);
    let other = machine.vcpu(1).unwrap();
    let child_program = other.program(&child);
    assert_eq!(child_program.read_u64(moved).unwrap(), 1);
    assert_eq!(child.figures().resident, space.figures().resident);
    drop(child);
}
