//! A kernel's half of each root: it is in every root from the start, and nothing of the memory management
//! looks at it.

use crate::common::*;
use quire_arch::{Entry, Leaf, LeafFlags};
use quire_host::HostError;

type Format = X86_64Level4;
const BASE: u64 = 1 << 39;
/// The first address of the kernel's half.
const KERNEL: u64 = 0xffff_8000_0000_0000;

/// An entry that leads to a table out of RAM, one that leads to a frame which holds no table, a leaf, and
/// bits that no other entry of a root has.
fn entries() -> Vec<(usize, u64)> {
    let root = Format::root_level();
    let flags = LeafFlags::READ | LeafFlags::WRITE | LeafFlags::ACCESSED | LeafFlags::DIRTY;
    let leaf = Leaf { pfn: HostConfig::FIRST_FRAME, flags };
    vec![
        (256, Format::encode(Entry::Table(Pfn(1 << 30)), root)),
        (300, Format::encode(Entry::Table(HostConfig::FIRST_FRAME), root)),
        (510, Format::encode(Entry::Leaf(leaf), root)),
        (511, u64::MAX - 1),
    ]
}

fn host() -> HostConfig {
    HostConfig { kernel_half: entries(), ..HostConfig::with_ram(16 << 20).paranoid() }
}

/// The kernel's half of the root of `space` is the machine's.
#[track_caller]
fn assert_kernel_half(machine: &Machine, space: &HostSpace<'_>) {
    let first = machine.memory().platform().direct_map(space.root()).cast::<u64>();
    for index in 256..512 {
        let wanted = entries().iter().find(|entry| entry.0 == index).map_or(0, |entry| entry.1);
        // SAFETY: an entry of a table, and no other thread runs on this machine.
        assert_eq!(unsafe { first.add(index).read() }, wanted, "entry {index}");
    }
}

#[test]
fn every_root_has_the_kernels_half_from_its_start_to_its_end() {
    let machine = Setup::of(host()).build();
    let (cpu, space) = cpu_and_space(&machine);
    assert_kernel_half(&machine, &space);
    map_at(&space, BASE, 600 * PAGE, RW);
    for at in 0..600 {
        cpu.program(&space).write_u64(VirtAddr(BASE + at * PAGE), at).unwrap();
    }
    assert_audit(&machine);

    // A child has it, and keeps it after its parent is gone. An exec is a new space in place of the old one.
    let child = space.fork().unwrap();
    assert_kernel_half(&machine, &child);
    assert_audit(&machine);
    space.mremap(VirtAddr(BASE), 600 * PAGE, 900 * PAGE, RemapFlags::MAYMOVE, None).unwrap();
    assert_kernel_half(&machine, &space);
    drop(space);
    assert_kernel_half(&machine, &child);
    assert_eq!(cpu.program(&child).read_u64(VirtAddr(BASE + 599 * PAGE)), Ok(599));
    let after_exec = create_space(&machine);
    drop(child);
    assert_kernel_half(&machine, &after_exec);
    assert_audit(&machine);

    // The last table of a program's half may be taken down without a look at the entries beside it.
    let top = Format::USER_END.0 - 4 * PAGE;
    map_at(&after_exec, top, 4 * PAGE, RW);
    cpu.program(&after_exec).write_u64(VirtAddr(top + 3 * PAGE), 1).unwrap();
    after_exec.munmap(VirtAddr(top), 4 * PAGE).unwrap();
    assert_kernel_half(&machine, &after_exec);
    assert_audit(&machine);
}

#[test]
fn no_call_of_a_program_walks_the_kernels_half() {
    let machine = Setup::of(host()).build();
    let (_cpu, space) = cpu_and_space(&machine);
    for addr in [KERNEL, 0xffff_9600_0000_0000, 0xffff_ff00_0000_0000, Format::USER_END.0] {
        let addr = VirtAddr(addr);
        assert!(space.pin_page_fast(addr, Access::Read).is_none());
        assert!(space.pin_page(addr, Access::Read).is_err());
        assert!(space.fault(addr, Access::Read).is_err());
        assert_eq!(space.split_folio(addr, Order::ZERO), Err(SplitError::NotAnonymous));
        let fixed = MapRequest::anonymous(PAGE, RW).at(addr, MapFlags::FIXED);
        assert!(space.mmap(&fixed).is_err());
        assert!(space.munmap(addr, PAGE).is_err());
        assert!(space.mincore(addr, PAGE, |_| ()).is_err());
    }
    assert_kernel_half(&machine, &space);
}

#[test]
fn a_fixed_place_needs_an_address() {
    let machine: Machine = Setup::mib(16).build();
    let (_cpu, space) = cpu_and_space(&machine);
    let request = MapRequest { flags: MapFlags::FIXED, ..MapRequest::anonymous(PAGE, RW) };
    assert_eq!(space.mmap(&request), Err(Error::BadFlags));
    map_at(&space, BASE, PAGE, RW);
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    assert_eq!(space.mremap(VirtAddr(BASE), PAGE, PAGE, flags, None), Err(Error::BadFlags));
}

#[test]
fn an_entry_of_the_programs_half_is_refused() {
    let host = HostConfig { kernel_half: vec![(255, 0)], ..HostConfig::with_ram(1 << 20) };
    let refused = HostPlatform::<Format>::new(&host).err();
    assert!(
        matches!(refused, Some(HostError::KernelHalf { index: 255, kernel_half }) if kernel_half == (256..512))
    );
}

/// Hazard: a program reaches what the kernel's half leads to, since the machine walks any address for it.
#[test]
fn a_program_does_not_reach_the_kernels_half() {
    let machine = Setup::of(host()).build();
    let (cpu, space) = cpu_and_space(&machine);
    for index in [256, 300, 510, 511] {
        let place = index << Format::shift(Format::root_level());
        for addr in [VirtAddr(place), VirtAddr(place | KERNEL)] {
            for access in [Access::Read, Access::Write] {
                assert_eq!(cpu.program(&space).touch(addr, access), Err(NOT_MAPPED), "{addr:?}");
            }
        }
    }
    assert_kernel_half(&machine, &space);
}
