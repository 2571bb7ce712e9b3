//! Every allocation of this crate fails once: nothing is left half done.

use crate::common::Machine;
use crate::support::{assert_sound, memcgs};
use quire_arch::Platform;
use quire_frame::{AllocError, FailPlan, PcpTechnique};
use quire_memcg::{MemcgError, MemcgId, Memcgs};

#[test]
fn the_room_fails_to_be_made_at_every_allocation() {
    let make = |plan| {
        let frames = crate::common::frames_of(Machine::new(&[(0, 2048)], 2), PcpTechnique::All);
        frames.fail_points().set(plan);
        Memcgs::new(frames)
    };
    let total = make(FailPlan::COUNT).unwrap().frames().fail_points().seen();
    assert!(total >= 6);
    for nth in 1..=total {
        assert_eq!(make(FailPlan::nth(nth)).err(), Some(AllocError::Injected), "allocation {nth}");
    }
    assert!(make(FailPlan::nth(total + 1)).is_ok());
}

#[test]
fn a_memcg_fails_to_be_made_at_every_allocation() {
    // So many that each kind of allocation is among them: the table's second page comes with memcg 512.
    let many = |memcgs: &Memcgs<Machine>| {
        (0..520).try_for_each(|nth| memcgs.lifecycle().create(MemcgId::ROOT, &format!("g{nth}")).map(|_| ()))
    };
    let counting = memcgs(1);
    counting.frames().fail_points().set(FailPlan::COUNT);
    many(&counting).unwrap();
    let total = counting.frames().fail_points().seen();
    assert!(total > 3 * 520);
    for nth in (1..=total).filter(|nth| nth % 97 == 1 || *nth < 8 || (1500..1560).contains(nth)) {
        let memcgs = memcgs(1);
        memcgs.frames().fail_points().set(FailPlan::nth(nth));
        assert_eq!(many(&memcgs), Err(MemcgError::NoMemory(AllocError::Injected)), "allocation {nth}");
        memcgs.frames().fail_points().set(FailPlan::OFF);
        let mut made = Vec::new();
        memcgs.tree().for_each_in_subtree(MemcgId::ROOT, |id| made.push(id));
        let next = format!("g{}", made.len() - 1);
        assert_eq!(memcgs.tree().find(&next), None, "what failed is not there");
        let id = memcgs.lifecycle().create(MemcgId::ROOT, &next).unwrap();
        assert_eq!(usize::from(id.get()), made.len(), "no number is lost");
        assert_sound(&memcgs);
        crate::common::assert_sound(memcgs.frames());
    }
}

/// Memcgs that come and go use the memory of those that went.
#[test]
fn memory_does_not_grow_with_memcgs_that_come_and_go() {
    let memcgs = memcgs(1);
    let free = || {
        let pin = memcgs.frames().platform().pin();
        memcgs.frames().limbo().reap(&pin);
        memcgs.frames().reports().free_frames()
    };
    let id = memcgs.lifecycle().create(MemcgId::ROOT, "first").unwrap();
    memcgs.lifecycle().remove(id).unwrap();
    let before = free();
    for nth in 0..2000 {
        let id = memcgs.lifecycle().create(MemcgId::ROOT, &format!("g{nth}")).unwrap();
        memcgs.lifecycle().remove(id).unwrap();
    }
    assert_eq!(free(), before);
}
