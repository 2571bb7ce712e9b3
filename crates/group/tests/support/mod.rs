//! A room of groups for tests.

use crate::common::{self, Machine};
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocRequest, Frames, Kind, PcpTechnique};
use quire_group::{GroupId, Groups};
use std::sync::atomic::Ordering;

/// Groups on a machine of two nodes.
pub(crate) fn groups(cpus: usize) -> Groups<Machine> {
    let machine = Machine::new(&[(0, 2048), (2048, 4096)], cpus).nodes(2);
    Groups::new(common::frames_of(machine, PcpTechnique::All)).unwrap()
}

#[track_caller]
pub(crate) fn assert_sound(groups: &Groups<Machine>) {
    let mut found = Vec::new();
    groups.audit(&mut |violation| found.push(violation.to_string()));
    assert!(found.is_empty(), "the auditor found {} violations: {found:#?}", found.len());
}

/// A folio that is charged to the group.
pub(crate) fn folio(groups: &Groups<Machine>, order: Order, id: GroupId) -> Pfn {
    let frames: &Frames<Machine> = groups.frames();
    let pin = frames.platform().pin();
    groups.charge_anyway(&pin, id, order.pages());
    let request = AllocRequest::new(order, common::TEST).kind(Kind::Anonymous);
    let head = frames.allocate(&pin, request).expect("memory is free");
    frames.known(head).memory_group().store(id.get(), Ordering::Relaxed);
    head
}

/// Gives back a folio with the only reference.
pub(crate) fn give_back(groups: &Groups<Machine>, head: Pfn) {
    let frames = groups.frames();
    let pin = frames.platform().pin();
    let order = frames.known(head).word().order();
    let id = GroupId::from_bits(frames.known(head).memory_group().swap(0, Ordering::Relaxed));
    frames.free(&pin, head, order).expect("nobody else holds it");
    groups.uncharge(&pin, id, order.pages());
}
