//! Calls whose order is not known.

use super::{Record, SpaceId};
use crate::sys::Tid;
use quire_trace::event::EventKind;
use std::collections::HashMap;

/// A call that has not ended. Its record comes when what it overlaps with has its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnderWay {
    pub(super) tid: Tid,
    pub(super) space: SpaceId,
    /// Its window, as far as it is known.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// For each record whether it is a call that overlaps with a call of another thread in the same address
/// space, or a `long` one: what overlaps with that has its place already.
pub(super) fn find(records: &[Record], long: &[bool], under_way: &[UnderWay]) -> Vec<bool> {
    let is_call = |record: &Record| matches!(record.kinds.first(), Some(EventKind::Call(_)));
    let mut order: Vec<usize> = (0..records.len()).filter(|&place| is_call(&records[place])).collect();
    order.sort_by_key(|&place| records[place].start);
    let mut found = vec![false; records.len()];
    let mut later: HashMap<SpaceId, Vec<UnderWay>> = HashMap::new();
    for call in under_way {
        later.entry(call.space).or_default().push(*call);
    }
    // Of each address space the calls that have not ended.
    let mut open: HashMap<SpaceId, Vec<usize>> = HashMap::new();
    for place in order {
        let record = &records[place];
        let mut later = later.get(&record.space).into_iter().flatten();
        found[place] |= long[place]
            || later
                .any(|call| call.tid != record.tid && call.start <= record.end && record.start <= call.end);
        let open = open.entry(record.space).or_default();
        open.retain(|&other| records[other].end >= record.start);
        for &other in open.iter().filter(|&&other| records[other].tid != record.tid) {
            found[other] = true;
            found[place] = true;
        }
        open.push(place);
    }
    found
}
