//! Paranoid mode: each kind of planted fault is found, and nothing else is.
use crate::toy::{READ, READ_WRITE, Space, Toy, window};
use quire_arch::paging::X86_64Level4;
use quire_arch::{Entry, Leaf, LeafFlags, PAGE_SIZE, Platform, TlbFlush, VirtAddr};
use quire_host::{HostConfig, StaleHit, Staleness, Vcpu};
use std::panic::{AssertUnwindSafe, catch_unwind};

const BASE: u64 = 0x4000_0000;
const ADDR: VirtAddr = VirtAddr(BASE);

/// Calls `scene` with a space whose first page the vCPU's TLB holds, written.
fn with_cached_page<R>(scene: impl FnOnce(&Toy<X86_64Level4>, &Space<'_, X86_64Level4>, &Vcpu) -> R) -> R {
    let toy = Toy::new(&HostConfig::with_ram(1 << 20).cpus(2).paranoid());
    let space = Space::new(&toy, 1, window(BASE, 8));
    let vcpu = toy.platform.vcpu(0).unwrap();
    vcpu.program(&space).write_u64(ADDR, 1).unwrap();
    scene(&toy, &space, &vcpu)
}

fn only(suspects: Vec<StaleHit>) -> StaleHit {
    assert_eq!(suspects.len(), 1, "{suspects:?}");
    suspects.into_iter().next().unwrap()
}

#[test]
fn a_missing_flush_is_found() {
    with_cached_page(|toy, space, vcpu| {
        space.exchange(ADDR, Entry::None);
        assert_eq!(toy.platform.check_suspects(), [], "no access used it yet");
        assert_eq!(vcpu.program(space).read_u64(ADDR), Ok(1));
        let hit = only(toy.platform.check_suspects());
        assert_eq!((hit.staleness, hit.addr, hit.table), (Staleness::NotMapped, ADDR, Entry::None));
        assert!(hit.to_string().contains("the tables map nothing here"));
        assert_eq!(toy.platform.check_suspects(), [], "reported once");
    });
}

type WrongFlush = fn(&Toy<X86_64Level4>, &Space<'_, X86_64Level4>);

#[test]
fn a_flush_of_the_wrong_range_or_space_or_cpu_is_found() {
    let wrong: [WrongFlush; 3] = [
        |_, space| space.flush(VirtAddr(BASE + PAGE_SIZE), 7),
        |toy, _| {
            let pin = toy.platform.pin();
            let flush = TlbFlush::Space { asid: quire_arch::Asid(2) };
            toy.platform.shootdown(&pin, &quire_arch::CpuMask::first(2), flush);
        },
        |toy, space| {
            // By a thread that is no vCPU, on the other CPU.
            let pin = toy.platform.pin();
            assert_ne!(pin.cpu().index(), 0);
            toy.platform.flush_local(&pin, TlbFlush::Space { asid: space.asid });
        },
    ];
    for flush in wrong {
        with_cached_page(|toy, space, vcpu| {
            let other = toy.alloc();
            space.exchange(ADDR, Entry::Leaf(Leaf { pfn: other, flags: READ_WRITE }));
            assert_eq!(vcpu.program(space).read_u64(ADDR), Ok(1));
            flush(toy, space);
            assert_eq!(only(toy.platform.check_suspects()).staleness, Staleness::OtherFrame);
        });
    }
}

#[test]
fn a_flush_before_the_change_is_found() {
    with_cached_page(|toy, space, vcpu| {
        let program = vcpu.program(space);
        space.flush(ADDR, 1);
        assert_eq!(program.read_u64(ADDR), Ok(1));
        space.exchange(ADDR, Entry::None);
        assert_eq!(program.read_u64(ADDR), Ok(1));
        let hit = only(toy.platform.check_suspects());
        assert_eq!(hit.staleness, Staleness::NotMapped);
        assert!(matches!(hit.recent[..], [.., TlbFlush::Range { .. }]), "{hit}");
    });
}

#[test]
fn a_frame_freed_before_its_flush_is_found_at_once() {
    with_cached_page(|toy, space, vcpu| {
        let leaf = space.exchange(ADDR, Entry::None).unwrap();
        toy.free(leaf.pfn);
        let program = vcpu.program(space);
        let outcome = catch_unwind(AssertUnwindSafe(|| program.read_u64(ADDR)));
        let report = *outcome.unwrap_err().downcast::<String>().unwrap();
        for part in ["stale TLB entry", "the frame is free", "0x40000000", "cpu 0", "Asid(1)", "pending"] {
            assert!(report.contains(part), "{part:?} is not in {report}");
        }
        // The vCPU left guest mode on its way out: others can flush it, and it continues.
        std::thread::scope(|scope| {
            scope.spawn(|| space.flush(ADDR, 1));
        });
        assert!(program.write_u64(ADDR, 2).is_ok());
    });
}

#[test]
fn a_mapping_of_a_free_frame_is_found_at_once() {
    with_cached_page(|toy, space, vcpu| {
        let next = VirtAddr(BASE + PAGE_SIZE);
        let program = vcpu.program(space);
        program.read_u64(next).unwrap();
        let pfn = space.leaf(next).unwrap().pfn;
        space.flush(next, 1);
        toy.free(pfn);
        let outcome = catch_unwind(AssertUnwindSafe(|| program.read_u64(next)));
        let report = *outcome.unwrap_err().downcast::<String>().unwrap();
        assert!(report.contains("the tables map a free frame"), "{report}");
    });
}

#[test]
fn permissions_taken_away_without_a_flush_are_found() {
    with_cached_page(|toy, space, vcpu| {
        let pfn = space.leaf(ADDR).unwrap().pfn;
        space.exchange(ADDR, Entry::Leaf(Leaf { pfn, flags: READ | LeafFlags::ACCESSED }));
        assert_eq!(vcpu.program(space).write_u64(ADDR, 2), Ok(()));
        assert_eq!(only(toy.platform.check_suspects()).staleness, Staleness::MorePermission);
    });
}

#[test]
fn a_dirty_bit_cleared_without_a_flush_is_found_by_a_write() {
    with_cached_page(|toy, space, vcpu| {
        let pfn = space.leaf(ADDR).unwrap().pfn;
        space.exchange(ADDR, Entry::Leaf(Leaf { pfn, flags: READ_WRITE }));
        assert_eq!(vcpu.program(space).read_u64(ADDR), Ok(1));
        assert_eq!(toy.platform.check_suspects(), [], "the accessed bit may go, and reads lose nothing");
        assert_eq!(vcpu.program(space).write_u64(ADDR, 2), Ok(()));
        assert_eq!(only(toy.platform.check_suspects()).staleness, Staleness::LostDirty);
    });
}

/// The legal window: between the change and the flush a program continues to use the old translation.
#[test]
fn a_hit_between_the_change_and_its_flush_is_legal() {
    with_cached_page(|toy, space, vcpu| {
        let leaf = vcpu.program(space).inside(|guest| {
            let leaf = space.exchange(ADDR, Entry::None).unwrap();
            assert_eq!(guest.read_u64(ADDR), Ok(1));
            assert_eq!(guest.write_u64(ADDR, 3), Ok(()));
            space.flush(ADDR, 1);
            leaf
        });
        assert_eq!(toy.platform.check_suspects(), []);
        toy.free(leaf.pfn);
        assert_eq!(vcpu.program(space).read_u64(ADDR), Ok(BASE / PAGE_SIZE));
    });
}

/// A CPU that switched to another space may get its flush when it returns; then the suspect counts again.
#[test]
fn a_flush_may_wait_until_the_cpu_is_back_in_the_space() {
    for flushed in [true, false] {
        with_cached_page(|toy, space, vcpu| {
            let other = Space::new(toy, 2, window(BASE, 8));
            space.exchange(ADDR, Entry::None);
            assert_eq!(vcpu.program(space).read_u64(ADDR), Ok(1));
            vcpu.program(&other).read_u64(ADDR).unwrap();
            assert_eq!(toy.platform.check_suspects(), []);
            vcpu.program(space).read_u64(VirtAddr(BASE + PAGE_SIZE)).unwrap();
            if flushed {
                space.flush(ADDR, 1);
            }
            assert_eq!(toy.platform.check_suspects().len(), usize::from(!flushed));
        });
    }
}

#[test]
fn what_upgrades_an_entry_needs_no_flush() {
    with_cached_page(|toy, space, vcpu| {
        let next = VirtAddr(BASE + PAGE_SIZE);
        let pfn = toy.alloc();
        space.map(next, quire_arch::Level::PTE, pfn, READ);
        let program = vcpu.program(space);
        assert_eq!(program.read_u64(next), Ok(0));
        space.exchange(next, Entry::Leaf(Leaf { pfn, flags: READ_WRITE }));
        assert_eq!(program.read_u64(next), Ok(0));
        assert_eq!(program.write_u64(next, 4), Ok(()));
        assert_eq!(toy.platform.check_suspects(), []);
    });
}
