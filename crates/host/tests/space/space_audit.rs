//! Planted faults: the auditor must find each kind, and find nothing before.

use crate::common::*;
use quire_frame::OwnerWord;
use quire_frame::{AllocRequest, FailSite, FrameChain, FrameFlags, FrameViolation, Kind};
use std::sync::atomic::{AtomicU64, Ordering};

type Format = X86_64Level4;
const BASE: u64 = 1 << 39;

/// A machine with a space in which two pages are mapped and written to.
fn scene<R>(plant: impl FnOnce(&Machine, &Vcpu, &HostSpace<'_>) -> R) -> R {
    // What is planted is found here, not at the machine's end.
    let machine = Setup::mib(16).unaudited().build();
    let (cpu, space, _) = mapped(&machine, BASE, 4 * PAGE);
    for at in 0..2 {
        cpu.program(&space).write_u64(VirtAddr(BASE + at * PAGE), 7).unwrap();
    }
    assert_audit(&machine);
    let result = plant(&machine, &cpu, &space);
    // The planted fault must not be used when the machine is dropped.
    std::mem::forget(space);
    result
}

fn violations(machine: &Machine) -> Vec<SpaceViolation> {
    let findings = machine.audit().into_iter();
    findings
        .filter_map(|finding| match finding {
            Finding::Memory(Violation::Space(violation)) => Some(violation),
            _ => None,
        })
        .collect()
}

#[track_caller]
fn finds(machine: &Machine, wanted: impl Fn(&SpaceViolation) -> bool) {
    let found = violations(machine);
    assert!(found.iter().any(wanted), "only {found:?}");
}

/// The entry at `level` on the way to `addr`, in the machine's memory.
fn slot<'m>(machine: &'m Machine, space: &HostSpace<'_>, addr: u64, level: Level) -> &'m AtomicU64 {
    let mut table = space.root();
    let mut at = Format::root_level();
    loop {
        let index = Format::index(VirtAddr(addr), at);
        let entries = machine.memory().platform().direct_map(table).cast::<AtomicU64>();
        // SAFETY: a table is a frame of 512 words, which are only changed atomically; the machine outlives
        // the borrow.
        let slot = unsafe { entries.add(index).as_ref() };
        if at == level {
            return slot;
        }
        let Entry::Table(below) = Format::decode(slot.load(Ordering::Relaxed), at) else {
            panic!("no table below {at:?}");
        };
        table = below;
        at = at.down().unwrap();
    }
}

fn leaf(machine: &Machine, space: &HostSpace<'_>, addr: u64) -> Leaf {
    match Format::decode(slot(machine, space, addr, Level::PTE).load(Ordering::Relaxed), Level::PTE) {
        Entry::Leaf(leaf) => leaf,
        other => panic!("{other:?} is no page"),
    }
}

fn set(machine: &Machine, space: &HostSpace<'_>, addr: u64, entry: Entry) {
    slot(machine, space, addr, Level::PTE).store(Format::encode(entry, Level::PTE), Ordering::Relaxed);
}

/// Drops what the CPU has cached of everything.
fn flush(machine: &Machine) {
    let platform = machine.memory().platform();
    platform.flush_local(&platform.pin(), TlbFlush::All);
}

fn table_of(machine: &Machine, space: &HostSpace<'_>, addr: u64) -> Pfn {
    match Format::decode(slot(machine, space, addr, Level::PMD).load(Ordering::Relaxed), Level::PMD) {
        Entry::Table(table) => table,
        other => panic!("{other:?} is no table"),
    }
}

#[test]
fn a_frame_that_was_allocated_and_forgotten() {
    scene(|machine, _, _| {
        let frames = machine.memory().frames();
        let request = AllocRequest::new(Order::ZERO, FailSite::new("forgotten"));
        let pfn = frames.allocate(&machine.memory().platform().pin(), request).unwrap();
        finds(machine, |v| *v == SpaceViolation::Leaked { pfn, kind: Kind::Allocated });
        frames.free(&machine.memory().platform().pin(), pfn, Order::ZERO).unwrap();
        assert_audit(machine);
    });
}

#[test]
fn charges_of_memcgs_are_recounted() {
    scene(|machine, cpu, space| {
        let memcgs = machine.memory().memcgs();
        let [one, other] =
            ["one", "other"].map(|name| memcgs.lifecycle().create(MemcgId::ROOT, name).unwrap());
        let none = MemcgId::new(77).unwrap();
        space.set_memcg(one).unwrap();
        swap_on_ram(machine, 64);
        (2..4).for_each(|at| cpu.program(space).write_u64(VirtAddr(BASE + at * PAGE), 7).unwrap());
        space.madvise(VirtAddr(BASE + 3 * PAGE), PAGE, Advice::PageOut).unwrap();
        assert_audit(machine);

        let counts = |memcg, what, kept, found| {
            let wrong = MemcgViolation::Count { memcg, what, kept, found };
            finds(machine, |v| *v == SpaceViolation::Memcg(wrong));
        };
        let is_orphan = |what| {
            let wrong = MemcgViolation::Orphan { memcg: none, what };
            finds(machine, |v| *v == SpaceViolation::Memcg(wrong));
        };
        // A page that names another memcg than the one that is charged for it, or none.
        let page = leaf(machine, space, BASE + 2 * PAGE).pfn;
        let folio = machine.memory().frames().known(page).as_folio();
        folio.set_memcg(other.get());
        counts(one, Belonging::Pages, 1, 0);
        counts(other, Belonging::Pages, 0, 1);
        folio.set_memcg(none.get());
        is_orphan(Belonging::Pages);
        folio.set_memcg(one.get());
        assert_audit(machine);
        // Pages and slots without a user are charged, to a memcg or to an ancestor.
        let pin = machine.memory().platform().pin();
        memcgs.charges().try_charge(&pin, other, 3).unwrap();
        counts(other, Belonging::Pages, 3, 0);
        memcgs.charges().uncharge(&pin, other, 3);
        memcgs.charges().charge_swap(one, 2).unwrap();
        counts(one, Belonging::Slots, 3, 1);
        memcgs.charges().uncharge_swap(one, 2);
        assert_audit(machine);
        // A space is recorded that does not exist, and one that exists is missing.
        memcgs.tree().hold(other).unwrap();
        counts(other, Belonging::Spaces, 1, 0);
        memcgs.tree().release(other);
        memcgs.tree().release(one);
        counts(one, Belonging::Spaces, 0, 1);
        // So is a killed program that is elsewhere, and one that is missing.
        memcgs.tree().count_killed(other, true);
        counts(other, Belonging::KilledSpaces, 1, 0);
        memcgs.tree().count_killed(other, false);
        space.oom().kill();
        memcgs.tree().count_killed(one, false);
        counts(one, Belonging::KilledSpaces, 0, 1);
        memcgs.tree().count_killed(one, true);
        // So the memcg could be removed, though a space is in it: it stays for its charges.
        memcgs.lifecycle().remove(one).unwrap();
        counts(one, Belonging::Spaces, 0, 1);
        assert!(violations(machine).len() == 1, "what is charged to a removed memcg is right");
    });
}

#[test]
fn a_page_without_a_mapping() {
    scene(|machine, _, space| {
        let pfn = leaf(machine, space, BASE).pfn;
        set(machine, space, BASE, Entry::None);
        flush(machine);
        finds(machine, |v| *v == SpaceViolation::Leaked { pfn, kind: Kind::Anonymous });
        // The table counts one entry too many, and the space one page too many.
        finds(machine, |v| matches!(v, SpaceViolation::TableLive { expected: 1, found: 2, .. }));
        finds(machine, |v| {
            matches!(
                v,
                SpaceViolation::Count { what: "bytes of anonymous pages", expected: PAGE, found: 8192, .. }
            )
        });
    });
}

#[test]
fn a_wrong_reference_count() {
    scene(|machine, _, space| {
        let pfn = leaf(machine, space, BASE).pfn;
        let frame = machine.memory().frames().known(pfn);
        frame.get(1);
        finds(machine, |v| *v == SpaceViolation::Refs { pfn, expected: 1, refs: 2, maps: 1 });
        assert!(!frame.put(1));
        assert_audit(machine);
    });
}

#[test]
fn a_wrong_map_count() {
    scene(|machine, _, space| {
        let pfn = leaf(machine, space, BASE).pfn;
        let frame = machine.memory().frames().known(pfn);
        frame.as_folio().set_maps(3);
        finds(machine, |v| *v == SpaceViolation::Refs { pfn, expected: 1, refs: 1, maps: 3 });
        frame.as_folio().set_maps(1);
        assert_audit(machine);
    });
}

#[test]
fn a_page_that_is_mapped_twice() {
    scene(|machine, _, space| {
        let page = leaf(machine, space, BASE);
        set(machine, space, BASE + 2 * PAGE, Entry::Leaf(page));
        finds(machine, |v| matches!(v, SpaceViolation::Refs { pfn, expected: 2, .. } if *pfn == page.pfn));
    });
}

#[test]
fn a_wrong_live_count_of_a_table() {
    scene(|machine, _, space| {
        let table = table_of(machine, space, BASE);
        let frame = machine.memory().frames().known(table).as_table();
        for found in [1, 3] {
            frame.set_live(found);
            let wanted = SpaceViolation::TableLive { table, expected: 2, found: u64::from(found) };
            finds(machine, |v| *v == wanted);
        }
        frame.set_live(2);
        assert_audit(machine);
    });
}

#[test]
fn a_lost_table() {
    scene(|machine, _, space| {
        let table = table_of(machine, space, BASE);
        let above = slot(machine, space, BASE, Level::PMD);
        let raw = above.swap(0, Ordering::Relaxed);
        flush(machine);
        finds(machine, |v| *v == SpaceViolation::Leaked { pfn: table, kind: Kind::Table });
        finds(machine, |v| matches!(v, SpaceViolation::Count { what: "bytes of page tables", .. }));
        above.store(raw, Ordering::Relaxed);
        assert_audit(machine);
    });
}

#[test]
fn a_wrong_table_frame_and_a_table_of_another_space() {
    scene(|machine, cpu, space| {
        let other = create_space(machine);
        map_at(&other, BASE, PAGE, RW);
        cpu.program(&other).write_u64(VirtAddr(BASE), 1).unwrap();
        flush(machine);
        assert_audit(machine);
        let above = slot(machine, space, BASE, Level::PMD);
        let page = leaf(machine, space, BASE).pfn;
        let foreign = table_of(machine, &other, BASE);
        let raw = above.load(Ordering::Relaxed);
        for (table, kind) in [(page, Kind::Anonymous), (foreign, Kind::Table)] {
            above.store(Format::encode(Entry::Table(table), Level::PMD), Ordering::Relaxed);
            let space = space.id();
            finds(machine, |v| *v == SpaceViolation::BadTable { space, table, kind });
        }
        above.store(raw, Ordering::Relaxed);
        assert_audit(machine);
    });
}

#[test]
fn a_stale_translation() {
    scene(|machine, cpu, space| {
        let page = leaf(machine, space, BASE);
        // Less permission in the table than in the TLB, and no flush.
        let less = Leaf { flags: page.flags - LeafFlags::WRITE, ..page };
        cpu.program(space).touch(VirtAddr(BASE), Access::Write).unwrap();
        set(machine, space, BASE, Entry::Leaf(less));
        finds(machine, |v| {
            matches!(v, SpaceViolation::StaleTranslation(cached)
                if cached.addr == VirtAddr(BASE) && cached.asid == space.asid() && cached.asid != Asid::NONE)
        });
        flush(machine);
        assert_audit(machine);
    });
}

/// A CPU that switched away may return without a flush, as long as no flush left it out: until then what its
/// TLB holds must agree with the tables.
#[test]
fn a_stale_translation_of_a_cpu_in_another_space() {
    scene(|machine, cpu, space| {
        let page = leaf(machine, space, BASE);
        cpu.program(space).touch(VirtAddr(BASE), Access::Write).unwrap();
        let memory = machine.memory();
        cpu.run(|| memory.spaces().deactivate(&memory.platform().pin()));
        assert_audit(machine);
        set(machine, space, BASE, Entry::Leaf(Leaf { flags: page.flags - LeafFlags::WRITE, ..page }));
        finds(
            machine,
            |v| matches!(v, SpaceViolation::StaleTranslation(cached) if cached.addr == VirtAddr(BASE)),
        );
        // A flush leaves the CPU out. What it holds stays there and cannot be used.
        space.madvise(VirtAddr(BASE + PAGE), PAGE, Advice::DontNeed).unwrap();
        assert_audit(machine);
        assert_eq!(cpu.program(space).write_u64(VirtAddr(BASE), 1), Ok(()), "a fault permits it again");
        assert_audit(machine);
    });
}

#[test]
fn a_stale_translation_that_was_used() {
    scene(|machine, cpu, space| {
        let page = leaf(machine, space, BASE);
        let less = Leaf { flags: page.flags - LeafFlags::WRITE, ..page };
        set(machine, space, BASE, Entry::Leaf(less));
        cpu.program(space).write_u64(VirtAddr(BASE), 1).unwrap();
        let findings = machine.audit();
        assert!(findings.iter().any(|finding| matches!(finding, Finding::StaleHit(_))), "only {findings:?}");
    });
}

#[test]
fn a_page_with_more_rights_than_its_mapping_or_without_one() {
    scene(|machine, _, space| {
        let page = leaf(machine, space, BASE);
        let more = Leaf { flags: page.flags | LeafFlags::EXECUTE, ..page };
        set(machine, space, BASE, Entry::Leaf(more));
        let bad = |addr: u64| move |v: &SpaceViolation| matches!(v, SpaceViolation::BadPage { addr: at, .. } if at.0 == addr);
        finds(machine, bad(BASE));
        set(machine, space, BASE, Entry::Leaf(page));
        assert_audit(machine);
        set(machine, space, BASE + 8 * PAGE, Entry::Leaf(page));
        finds(machine, bad(BASE + 8 * PAGE));
    });
}

#[test]
fn a_zero_page_that_can_be_written_to() {
    scene(|machine, _, space| {
        let zero = machine.memory().spaces().zero_page();
        let flags = LeafFlags::READ | LeafFlags::WRITE | LeafFlags::SPECIAL;
        set(machine, space, BASE + 2 * PAGE, Entry::Leaf(Leaf { pfn: zero, flags }));
        finds(machine, |v| matches!(v, SpaceViolation::BadPage { pfn, .. } if *pfn == zero));
    });
}

#[test]
fn a_page_of_no_anon_vma_and_one_of_a_foreign_anon_vma() {
    scene(|machine, cpu, space| {
        let other = create_space(machine);
        map_at(&other, BASE, PAGE, RW);
        cpu.program(&other).write_u64(VirtAddr(BASE), 1).unwrap();
        assert_audit(machine);
        let frames = machine.memory().frames();
        let folio = |space: &HostSpace<'_>| frames.known(leaf(machine, space, BASE).pfn).as_folio();
        let named = |address: Option<usize>| match address {
            // SAFETY: all anon_vmas of this test live to its end.
            Some(address) => unsafe { OwnerWord::of_anon_vma(address) },
            None => OwnerWord::NONE,
        };
        let (right, strange) = (named(folio(space).anon_vma()), named(folio(&other).anon_vma()));
        let wanted = SpaceViolation::PageOwner {
            space: space.id(),
            addr: VirtAddr(BASE),
            pfn: leaf(machine, space, BASE).pfn,
        };
        for wrong in [OwnerWord::NONE, strange] {
            folio(space).set_owner(wrong);
            finds(machine, |v| *v == wanted);
        }
        folio(space).set_owner(right);
        assert_audit(machine);
        // A child's page may be owned by the parent's anon_vma, not the other way round.
        let child = space.fork().unwrap();
        cpu.program(&child).write_u64(VirtAddr(BASE), 2).unwrap();
        let below = named(folio(&child).anon_vma());
        folio(&child).set_owner(right);
        assert_audit(machine);
        folio(space).set_owner(below);
        finds(machine, |v| *v == wanted);
        folio(space).set_owner(right);
        folio(&child).set_owner(below);
        assert_audit(machine);
    });
}

#[test]
fn a_private_page_that_one_of_two_can_write_to() {
    scene(|machine, _, space| {
        let child = space.fork().unwrap();
        assert_audit(machine);
        for (owner, other) in [(space, &child), (&child, space)] {
            let page = leaf(machine, owner, BASE);
            set(machine, owner, BASE, Entry::Leaf(Leaf { flags: page.flags | LeafFlags::WRITE, ..page }));
            // Found where the walk comes to the page again, in whichever order.
            finds(machine, |v| {
                let expected = |space: &HostSpace<'_>| SpaceViolation::NotExclusive {
                    space: space.id(),
                    addr: VirtAddr(BASE),
                    pfn: page.pfn,
                    marked: false,
                };
                *v == expected(owner) || *v == expected(other)
            });
            set(machine, owner, BASE, Entry::Leaf(page));
            assert_audit(machine);
        }
        // What only one process maps may be writable.
        child.madvise(VirtAddr(BASE), PAGE, Advice::DontNeed).unwrap();
        let page = leaf(machine, space, BASE);
        set(machine, space, BASE, Entry::Leaf(Leaf { flags: page.flags | LeafFlags::WRITE, ..page }));
        assert_audit(machine);
    });
}

/// By PTEs and by one leaf for all; whether both map the same pages or each some of them.
#[test]
fn a_folio_of_two_spaces_that_is_marked_as_exclusive() {
    for order in [4, 9].map(|order| Order::new(order).unwrap()) {
        scene(|machine, cpu, space| {
            let memory = machine.memory();
            memory.huge().change(|policy| policy.with_sizes(OrderSet::of(order), SizeEnabled::Always));
            let area = BASE + (1 << 30);
            map_at(space, area, order.bytes(), RW);
            cpu.program(space).write_u64(VirtAddr(area), 1).unwrap();
            let level = if order == Order::PMD { Level::PMD } else { Level::PTE };
            let raw = slot(machine, space, area, level).load(Ordering::Relaxed);
            let Entry::Leaf(Leaf { pfn, .. }) = Format::decode(raw, level) else { panic!("no page") };
            let head = memory.frames().known(pfn);
            assert!(head.word().flags().contains(FrameFlags::ANONYMOUS_EXCLUSIVE));
            assert_audit(machine);

            let child = space.fork().unwrap();
            assert_audit(machine);
            let plant = || {
                head.set_flags(FrameFlags::ANONYMOUS_EXCLUSIVE);
                finds(machine, |v| matches!(v, SpaceViolation::NotExclusive { marked: true, .. }));
                head.clear_flags(FrameFlags::ANONYMOUS_EXCLUSIVE);
                assert_audit(machine);
            };
            plant();
            let half = order.bytes() / 2;
            space.munmap(VirtAddr(area), half).unwrap();
            child.munmap(VirtAddr(area + half), half).unwrap();
            plant();
            drop(child);
            head.set_flags(FrameFlags::ANONYMOUS_EXCLUSIVE);
            assert_audit(machine);
        });
    }
}

#[test]
fn a_frame_that_was_taken_from_its_user_and_never_freed() {
    scene(|machine, _, _| {
        let frames = machine.memory().frames();
        let pin = machine.memory().platform().pin();
        let pfn = frames.allocate(&pin, AllocRequest::anonymous()).unwrap();
        let mut chain = FrameChain::new();
        frames.gather(&mut chain, pfn, Order::ZERO).unwrap();
        drop(pin);
        let findings = machine.audit();
        let lost = Finding::Memory(Violation::Frame(FrameViolation::Lost { pfn, kind: Kind::Gathered }));
        assert!(findings.contains(&lost), "only {findings:?}");
        frames.free_chain(&machine.memory().platform().pin(), chain);
        assert_audit(machine);
    });
}

/// A free frame that is still in use: the free list is wrong.
#[test]
fn a_free_frame_with_users() {
    scene(|machine, _, _| {
        let mut free = None;
        machine.memory().frames().audit().for_each_frame(|pfn, frame| {
            if matches!(frame.kind(), Kind::Free | Kind::Pcp) {
                free = Some(pfn);
            }
        });
        let pfn = free.unwrap();
        let frame = machine.memory().frames().known(pfn);
        frame.as_folio().set_maps(1);
        let findings = machine.audit();
        assert!(
            findings.iter().any(|finding| {
                matches!(finding, Finding::Memory(Violation::Frame(FrameViolation::FreeButInUse { pfn: at, .. }))
                    if *at == pfn)
            }),
            "only {findings:?}"
        );
        frame.as_folio().set_maps(0);
        assert_audit(machine);
    });
}

#[test]
fn a_folio_that_stayed_marked_as_locked() {
    scene(|machine, _, space| {
        let pfn = leaf(machine, space, BASE).pfn;
        machine.memory().frames().known(pfn).set_flags(FrameFlags::MLOCKED);
        finds(machine, |v| matches!(v, SpaceViolation::StrayLock { pfn: found } if *found == pfn));
        space.mlock(VirtAddr(BASE), PAGE, false).unwrap();
        assert_eq!(violations(machine), []);
        machine.memory().frames().known(pfn).change_flags(FrameFlags::UNEVICTABLE, FrameFlags::MLOCKED);
        finds(machine, |v| matches!(v, SpaceViolation::StrayLock { pfn: found } if *found == pfn));
    });
}
