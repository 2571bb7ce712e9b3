//! The software MMU: translation, checks, accessed and dirty bits, faults, tags, in every paging format.
use crate::toy::{READ, READ_WRITE, Random, Segv, Space, Toy, page_number, window};
use quire_arch::paging::invented::Invented3;
use quire_arch::paging::{X86_64Level4, X86_64Level5};
use quire_arch::{
    Access, Asid, CachedTranslation, Entry, LeafFlags, Level, PAGE_SIZE, PagingFormat, Pfn, PfnRange,
    Platform, VirtAddr,
};
use quire_host::{AccessError, HostConfig, HostPlatform, Translation};
use std::sync::atomic::Ordering;

const BASE: u64 = 0x4000_0000;

/// Random reads and writes of random lengths give the same as an array, faults and page crossings included.
fn memory_behaves_like_an_array<F: PagingFormat>(config: &HostConfig) {
    const PAGES: u64 = 300;
    let toy = Toy::<F>::new(config);
    let space = Space::new(&toy, u32::from(config.asids > 1), window(BASE, PAGES));
    let vcpu = toy.platform.vcpu(0).unwrap();
    let program = vcpu.program(&space);
    let mut model = vec![0u8; (PAGES * PAGE_SIZE) as usize];
    for page in 0..PAGES {
        let start = (page * PAGE_SIZE) as usize;
        model[start..start + 8].copy_from_slice(&(BASE / PAGE_SIZE + page).to_ne_bytes());
    }
    let mut random = Random::new(11);
    for _ in 0..4000 {
        let longest = if random.below(8) == 0 { 3 * PAGE_SIZE } else { 40 };
        let len = random.below(longest);
        let start = random.below(PAGES * PAGE_SIZE - len);
        let (addr, range) = (VirtAddr(BASE + start), start as usize..(start + len) as usize);
        if random.below(2) == 0 {
            let data: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            program.write(addr, &data).unwrap();
            model[range].copy_from_slice(&data);
        } else {
            let mut back = vec![0; len as usize];
            program.read(addr, &mut back).unwrap();
            assert!(back == model[range], "wrong data at {addr:?}, {len} bytes");
        }
        if len >= 8 {
            let word = u64::from_ne_bytes(model[start as usize..start as usize + 8].try_into().unwrap());
            assert_eq!(program.read_u64(addr), Ok(word));
        }
    }
    let counters = toy.platform.counters();
    assert!(counters.faults >= PAGES && counters.tlb_hits > 0 && counters.tlb_misses > counters.faults);
    assert!(toy.platform.check_suspects().is_empty());
}

#[test]
fn memory_behaves_like_an_array_in_every_format() {
    let config = HostConfig::with_ram(4 << 20);
    memory_behaves_like_an_array::<X86_64Level4>(&config);
    memory_behaves_like_an_array::<X86_64Level5>(&config.clone().paranoid());
    memory_behaves_like_an_array::<Invented3>(&HostConfig { asids: 1, ..config });
}

fn bits_are_set_as_used<F: PagingFormat>() {
    let toy = Toy::<F>::new(&HostConfig::with_ram(1 << 20));
    let space = Space::new(&toy, 1, window(BASE, 4));
    let vcpu = toy.platform.vcpu(0).unwrap();
    let program = vcpu.program(&space);
    let addr = VirtAddr(BASE);
    let flags = || space.leaf(addr).unwrap().flags;
    assert_eq!(program.read_u64(addr), Ok(page_number(addr)));
    assert_eq!(flags(), READ_WRITE | LeafFlags::ACCESSED);
    // The cached translation permits the write, but the dirty bit has to reach the tables.
    program.write_u64(addr, 5).unwrap();
    assert_eq!(flags(), READ_WRITE | LeafFlags::ACCESSED | LeafFlags::DIRTY);
    let misses = toy.platform.counters().tlb_misses;
    program.write_u64(addr, 6).unwrap();
    assert_eq!(program.read_u64(addr), Ok(6));
    assert_eq!(toy.platform.counters().tlb_misses, misses);
    // A touch is an access, too.
    let next = VirtAddr(BASE + PAGE_SIZE);
    program.touch(next, Access::Write).unwrap();
    assert!(space.leaf(next).unwrap().flags.contains(LeafFlags::DIRTY));
    assert_eq!(program.read_u64(next), Ok(page_number(next)));
    // And it says how its page was found: it was read just now, the first write walks, the third page was not
    // there.
    let third = VirtAddr(BASE + 2 * PAGE_SIZE);
    assert_eq!(program.translate_for(addr, Access::Write), Ok(Translation::Tlb));
    assert_eq!(program.translate_for(third, Access::Read), Ok(Translation::Fault));
    assert_eq!(program.translate_for(third, Access::Write), Ok(Translation::Tables));
    assert_eq!(program.translate_for(third, Access::Write), Ok(Translation::Tlb));
}

fn permissions_are_checked<F: PagingFormat>() {
    let toy = Toy::<F>::new(&HostConfig::with_ram(1 << 20));
    let space = Space::new(&toy, 1, window(BASE, 8));
    let vcpu = toy.platform.vcpu(0).unwrap();
    let program = vcpu.program(&space);
    let page = |n: u64| VirtAddr(BASE + n * PAGE_SIZE);
    space.map(page(0), Level::PTE, toy.alloc(), READ);
    space.map(page(1), Level::PTE, toy.alloc(), READ | LeafFlags::EXECUTE);
    space.map(page(2), Level::PTE, toy.alloc(), LeafFlags::WRITE);
    let denied = Err(AccessError::Fault(Segv));
    assert_eq!(program.touch(page(0), Access::Read), Ok(()));
    assert_eq!(program.touch(page(0), Access::Write), denied);
    assert_eq!(program.touch(page(0), Access::Execute), denied);
    assert_eq!(program.touch(page(1), Access::Execute), Ok(()));
    assert_eq!(program.touch(page(2), Access::Read), denied);
    assert_eq!(program.touch(VirtAddr(BASE - 1), Access::Read), denied);
    assert_eq!(program.touch(VirtAddr(u64::MAX), Access::Read), denied);
    assert_eq!(program.read_u64(VirtAddr(u64::MAX - 3)), Err(AccessError::Fault(Segv)));
    assert!(!space.leaf(page(0)).unwrap().flags.contains(LeafFlags::DIRTY));
    // A permission that is added later is seen without a flush: the MMU walks again before it faults.
    let pfn = space.leaf(page(0)).unwrap().pfn;
    space.map(page(0), Level::PTE, pfn, READ_WRITE);
    assert_eq!(program.touch(page(0), Access::Write), Ok(()));
    // A write that crosses into a page that denies it has written what came before.
    let edge = VirtAddr(page(1).0 - 3);
    assert_eq!(program.write(edge, b"abcdef"), denied);
    let mut back = [0; 3];
    assert_eq!(program.read(edge, &mut back), Ok(()));
    assert_eq!(&back, b"abc");
}

fn large_pages_translate<F: PagingFormat>() {
    let bytes = F::entry_bytes(Level::PMD);
    let toy = Toy::<F>::new(&HostConfig::with_ram(3 * bytes + (1 << 20)));
    let space = Space::new(&toy, 1, window(0, 0));
    let vcpu = toy.platform.vcpu(0).unwrap();
    let program = vcpu.program(&space);
    let block = toy.alloc_block(bytes / PAGE_SIZE);
    space.map(VirtAddr(BASE), Level::PMD, block, READ_WRITE);
    for frame in 0..bytes / PAGE_SIZE {
        let addr = VirtAddr(BASE + frame * PAGE_SIZE);
        program.write_u64(addr, frame).unwrap();
        assert_eq!(toy.word(block.offset(frame)).load(Ordering::Relaxed), frame);
    }
    assert_eq!(toy.platform.counters().tlb_misses, 1);
    let mut cached = Vec::new();
    toy.platform.for_each_cached_translation(&mut |translation| cached.push(translation));
    let flags = READ_WRITE | LeafFlags::ACCESSED | LeafFlags::DIRTY;
    let leaf = quire_arch::Leaf { pfn: block, flags };
    let (cpu, asid, addr) = (vcpu.id(), Asid(1), VirtAddr(BASE));
    assert_eq!(cached, [CachedTranslation { cpu, asid, addr, level: Level::PMD, leaf }]);
    // One page of the range is enough to drop the whole translation.
    space.cpus.insert(vcpu.id());
    space.flush(VirtAddr(BASE + bytes / 2), 1);
    toy.platform.for_each_cached_translation(&mut |translation| panic!("{translation:?} was flushed"));
}

#[test]
fn accessed_and_dirty_bits_are_set_as_used() {
    bits_are_set_as_used::<X86_64Level4>();
    bits_are_set_as_used::<X86_64Level5>();
    bits_are_set_as_used::<Invented3>();
}

#[test]
fn permissions_are_checked_in_every_format() {
    permissions_are_checked::<X86_64Level4>();
    permissions_are_checked::<X86_64Level5>();
    permissions_are_checked::<Invented3>();
}

#[test]
fn large_pages_translate_in_every_format() {
    large_pages_translate::<X86_64Level4>();
    large_pages_translate::<X86_64Level5>();
    large_pages_translate::<Invented3>();
}

/// Two spaces take turns on one vCPU at the same address, with tags of their own and with the shared one.
#[test]
fn spaces_do_not_see_each_other() {
    for asids in [[1, 2], [0, 0]] {
        let toy = Toy::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20).paranoid());
        let spaces = asids.map(|asid| Space::new(&toy, asid, window(BASE, 4)));
        let vcpu = toy.platform.vcpu(0).unwrap();
        let programs = [vcpu.program(&spaces[0]), vcpu.program(&spaces[1])];
        for round in 0..10 {
            for (space, program) in programs.iter().enumerate() {
                if round > 0 {
                    assert_eq!(program.read_u64(VirtAddr(BASE)), Ok(100 * space as u64 + round - 1));
                }
                program.write_u64(VirtAddr(BASE), 100 * space as u64 + round).unwrap();
            }
        }
        let misses = toy.platform.counters().tlb_misses;
        if asids[0] == 0 { assert!(misses >= 20) } else { assert!(misses <= 8) }
    }
}

#[test]
fn a_handler_that_only_claims_success_is_reported() {
    let toy = Toy::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20));
    let space = Space::new(&toy, 1, window(BASE, 1));
    space.idle_handler.store(true, Ordering::Relaxed);
    let vcpu = toy.platform.vcpu(0).unwrap();
    let program = vcpu.program(&space);
    let (addr, access) = (VirtAddr(BASE), Access::Write);
    assert_eq!(program.write_u64(addr, 1), Err(AccessError::Stuck { addr, access }));
    space.idle_handler.store(false, Ordering::Relaxed);
    assert_eq!(program.write_u64(addr, 1), Ok(()));
}

#[test]
fn absent_entries_of_every_kind_fault() {
    let toy = Toy::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20));
    let space = Space::new(&toy, 1, window(0, 0));
    let vcpu = toy.platform.vcpu(0).unwrap();
    let program = vcpu.program(&space);
    for raw in [0, 2, 0x7fff_ffff_ffff_fffe, u64::MAX << 1] {
        space.entry(VirtAddr(BASE), Level::PTE).store(raw, Ordering::Release);
        assert_eq!(program.read_u64(VirtAddr(BASE)), Err(AccessError::Fault(Segv)));
        assert_eq!(space.entry(VirtAddr(BASE), Level::PTE).load(Ordering::Relaxed), raw);
    }
}

/// A machine whose RAM has a hole uses what is beyond it; an access outside RAM panics.
#[test]
fn ram_with_a_hole() {
    let ram = vec![PfnRange::new(Pfn(0x1000), Pfn(0x1200)), PfnRange::new(Pfn(0x100), Pfn(0x110))];
    let toy = Toy::<X86_64Level4>::new(&HostConfig { ram, ..HostConfig::with_ram(0) });
    let mut ranges = Vec::new();
    toy.platform.for_each_ram(&mut |range| ranges.push(range));
    assert_eq!(ranges.iter().map(|range| range.len()).collect::<Vec<_>>(), [0x10, 0x200]);
    let space = Space::new(&toy, 1, window(BASE, 0x180));
    let vcpu = toy.platform.vcpu(0).unwrap();
    let program = vcpu.program(&space);
    for page in 0..0x180 {
        program.write_u64(VirtAddr(BASE + page * PAGE_SIZE), page).unwrap();
    }
    let hole = VirtAddr(BASE + 0x200 * PAGE_SIZE);
    space.map(hole, Level::PTE, Pfn(0x800), READ);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| program.read_u64(hole)));
    assert!(outcome.is_err());
    assert_eq!(program.read_u64(VirtAddr(BASE)), Ok(0));
}

#[test]
fn impossible_machines_are_refused() {
    let good = HostConfig::with_ram(1 << 20);
    let overlapping = vec![PfnRange::new(Pfn(1), Pfn(9)), PfnRange::new(Pfn(8), Pfn(12))];
    for bad in [
        HostConfig { ram: Vec::new(), ..good.clone() },
        HostConfig { ram: overlapping, ..good.clone() },
        HostConfig { cpus: 0, ..good.clone() },
        HostConfig { cpus: 1000, ..good.clone() },
        HostConfig { asids: 0, ..good.clone() },
        HostConfig::with_ram(u64::MAX),
    ] {
        let error = HostPlatform::<X86_64Level4>::new(&bad).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
}

/// Overwriting the tables while the MMU sets bits in them: the MMU's compare-exchange never brings back a
/// value that was exchanged away.
#[test]
fn the_mmu_never_overwrites_a_changed_entry() {
    let toy = Toy::<X86_64Level4>::new(&HostConfig::with_ram(1 << 20).cpus(2));
    let space = Space::new(&toy, 1, window(BASE, 1));
    let addr = VirtAddr(BASE);
    std::thread::scope(|scope| {
        let vcpu = toy.platform.vcpu(0).unwrap();
        let program = scope.spawn(|| {
            let vcpu = vcpu;
            let mut written = 0;
            while written < 2000 {
                match vcpu.program(&space).write_u64(addr, 1) {
                    Ok(()) => written += 1,
                    // The other thread was faster after each fault.
                    Err(AccessError::Stuck { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
        let mut gone = 0;
        while !program.is_finished() {
            let _guard = space.lock();
            if let Some(leaf) = space.exchange(addr, Entry::None) {
                // The handler is excluded by the lock, so the current value of the entry was stored by the
                // MMU.
                space.flush(addr, 1);
                assert_eq!(space.leaf(addr), None);
                toy.free(leaf.pfn);
                gone += 1;
            }
        }
        println!("taken away {gone} times");
    });
}
