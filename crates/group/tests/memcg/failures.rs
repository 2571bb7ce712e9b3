//! Every allocation of this room fails once: nothing is left half done.

use crate::common::Machine;
use crate::support::{assert_sound, groups};
use quire_arch::Platform;
use quire_frame::{AllocError, FaultPlan, PcpTechnique};
use quire_group::{GroupError, GroupId, Groups};

#[test]
fn the_room_fails_to_be_made_at_every_allocation() {
    let make = |plan| {
        let frames = crate::common::frames_of(Machine::new(&[(0, 2048)], 2), PcpTechnique::All);
        frames.faults().set(plan);
        Groups::new(frames)
    };
    let total = make(FaultPlan::COUNT).unwrap().frames().faults().seen();
    assert!(total >= 6);
    for nth in 1..=total {
        assert_eq!(make(FaultPlan::nth(nth)).err(), Some(AllocError::Injected), "allocation {nth}");
    }
    assert!(make(FaultPlan::nth(total + 1)).is_ok());
}

#[test]
fn a_group_fails_to_be_made_at_every_allocation() {
    // So many that each kind of allocation is among them: the table's second page comes with group 512.
    let many = |groups: &Groups<Machine>| {
        (0..520).try_for_each(|nth| groups.create(GroupId::ROOT, &format!("g{nth}")).map(|_| ()))
    };
    let counting = groups(1);
    counting.frames().faults().set(FaultPlan::COUNT);
    many(&counting).unwrap();
    let total = counting.frames().faults().seen();
    assert!(total > 3 * 520);
    for nth in (1..=total).filter(|nth| nth % 97 == 1 || *nth < 8 || (1500..1560).contains(nth)) {
        let groups = groups(1);
        groups.frames().faults().set(FaultPlan::nth(nth));
        assert_eq!(many(&groups), Err(GroupError::NoMemory(AllocError::Injected)), "allocation {nth}");
        groups.frames().faults().set(FaultPlan::OFF);
        let mut made = Vec::new();
        groups.for_each_in_subtree(GroupId::ROOT, |id| made.push(id));
        let next = format!("g{}", made.len() - 1);
        assert_eq!(groups.find(&next), None, "what failed is not there");
        let id = groups.create(GroupId::ROOT, &next).unwrap();
        assert_eq!(usize::from(id.get()), made.len(), "no number is lost");
        assert_sound(&groups);
        crate::common::assert_sound(groups.frames());
    }
}

/// Groups that come and go use the memory of those that went.
#[test]
fn memory_does_not_grow_with_groups_that_come_and_go() {
    let groups = groups(1);
    let free = || {
        let pin = groups.frames().platform().pin();
        groups.frames().reap(&pin);
        groups.frames().free_frames()
    };
    let id = groups.create(GroupId::ROOT, "first").unwrap();
    groups.remove(id).unwrap();
    let before = free();
    for nth in 0..2000 {
        let id = groups.create(GroupId::ROOT, &format!("g{nth}")).unwrap();
        groups.remove(id).unwrap();
    }
    assert_eq!(free(), before);
}
