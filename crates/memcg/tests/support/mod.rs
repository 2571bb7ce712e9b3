//! memcgs for tests.

use crate::common::{self, Machine};
use quire_arch::{Order, Pfn, Platform};
use quire_frame::{AllocRequest, Frames, Kind, PcpTechnique};
use quire_memcg::{MemcgId, Memcgs};

/// Memcgs on a machine of two nodes.
pub(crate) fn memcgs(cpus: usize) -> Memcgs<Machine> {
    let machine = Machine::new(&[(0, 2048), (2048, 4096)], cpus).nodes(2);
    Memcgs::new(common::frames_of(machine, PcpTechnique::All)).unwrap()
}

#[track_caller]
pub(crate) fn assert_sound(memcgs: &Memcgs<Machine>) {
    let mut found = Vec::new();
    memcgs.audit().validate(&mut |violation| found.push(violation.to_string()));
    assert!(found.is_empty(), "the auditor found {} violations: {found:#?}", found.len());
}

/// A memcg and two below it: "a", "a/b", "a/c".
pub(crate) fn family(memcgs: &Memcgs<Machine>) -> [MemcgId; 3] {
    let create = |parent, name| memcgs.lifecycle().create(parent, name).unwrap();
    let a = create(MemcgId::ROOT, "a");
    [a, create(a, "b"), create(a, "c")]
}

/// A folio that is charged to the memcg.
pub(crate) fn folio(memcgs: &Memcgs<Machine>, order: Order, id: MemcgId) -> Pfn {
    folio_of(memcgs, order, id, Kind::Anonymous)
}

/// The same of a kind.
pub(crate) fn folio_of(memcgs: &Memcgs<Machine>, order: Order, id: MemcgId, kind: Kind) -> Pfn {
    let frames: &Frames<Machine> = memcgs.frames();
    let pin = frames.platform().pin();
    memcgs.charges().charge_anyway(&pin, id, order.pages());
    let request = AllocRequest::new(order, common::TEST).kind(kind);
    let head = frames.allocate(&pin, request).expect("memory is free");
    frames.known(head).as_folio().set_memcg(id.get());
    head
}

/// Gives back a folio with the only reference.
pub(crate) fn give_back(memcgs: &Memcgs<Machine>, head: Pfn) {
    let frames = memcgs.frames();
    let pin = frames.platform().pin();
    let order = frames.known(head).word().order();
    let charged = frames.known(head).as_folio();
    let id = MemcgId::from_bits(charged.memcg());
    charged.set_memcg(0);
    frames.free(&pin, head, order).expect("no other reference is left");
    memcgs.charges().uncharge(&pin, id, order.pages());
}
