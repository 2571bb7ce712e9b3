//! What is done under one pin, which keeps interrupts off, and what may come between two locks: on a machine
//! that counts the frames that are looked at, and calls the test when a lock is dropped.

#[allow(dead_code, reason = "the tests of quire-frame use more of it")]
#[path = "../../../frame/tests/common/mod.rs"]
mod machine;

use crate::common::*;
use machine::{Machine, after_each_hold, most_under_a_pin, run_on};
use quire_mm::{Memory, MemoryConfig};

/// Hazard: a split looks for zeros in the pages of all mappings of a folio with interrupts off. Under one pin
/// it looks at those of one mapping, twice.
#[test]
fn a_folio_of_many_processes_is_split_under_short_pins() {
    const CHILDREN: usize = 12;
    const MOST: u64 = 4 * 512;
    run_on(0);
    let policy = HugePolicy::default().with_enabled(HugeEnabled::Always);
    let config = MemoryConfig {
        overcommit: Overcommit::Always,
        min_free_kib: Some(0),
        huge: HugeConfig { policy, ..HugeConfig::default() },
        ..MemoryConfig::default()
    };
    let memory = Memory::new(Machine::new(&[(0, 1 << 14)], 1), config).unwrap();
    let parent = memory.create_space().unwrap();
    let request = MapRequest::anonymous(MIB2, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = parent.mmap(&request).unwrap();
    parent.fault(area, Access::Write).unwrap();
    let children: Vec<_> = (0..CHILDREN).map(|_| parent.fork().unwrap()).collect();
    assert_eq!(memory.frames().events().pmd_mapped(), 1);
    let (split, looked) = most_under_a_pin(|| parent.split_folio(area, Order::ZERO));
    split.unwrap();
    assert_eq!(parent.figures().resident_anonymous, 0, "the folio was all zeros");
    assert!(looked <= MOST, "{looked} frames for {} mappings", children.len() + 1);
}

/// Hazard: a program is moved to another memcg while its pages are copied for a child, and the child stays in
/// the old one, or comes to none.
#[test]
fn a_child_comes_to_the_memcg_where_its_parent_is_in_the_end() {
    run_on(0);
    let config = MemoryConfig { min_free_kib: Some(0), ..MemoryConfig::default() };
    let memory: &'static _ = Box::leak(Box::new(Memory::new(Machine::new(&[(0, 2048)], 1), config).unwrap()));
    let [old, next] = ["old", "next"].map(|name| memory.create_memcg(MemcgId::ROOT, name).unwrap());
    let parent: &'static _ = Box::leak(Box::new(memory.create_space().unwrap()));
    parent.set_memcg(old).unwrap();
    let request = MapRequest::anonymous(MIB2, RW).at(VirtAddr(1 << 30), MapFlags::FIXED);
    let area = parent.mmap(&request).unwrap();
    parent.fault(area, Access::Write).unwrap();
    let step = move || parent.set_memcg(next).unwrap();
    let child = after_each_hold(LockClass::PteTable, step, || parent.fork()).unwrap();
    assert_eq!((parent.memcg(), child.memcg()), (next, next));
    memory.remove_memcg(old).unwrap();
}
