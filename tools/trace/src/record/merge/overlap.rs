//! Calls whose order is not known.

use super::{Record, SpaceId};
use crate::event::EventKind;
use std::collections::HashMap;

/// For each record whether it is a call that overlaps with a call of another thread in the same address
/// space.
pub(super) fn find(records: &[Record]) -> Vec<bool> {
    let is_call = |record: &Record| matches!(record.kinds.first(), Some(EventKind::Call(_)));
    let mut order: Vec<usize> = (0..records.len()).filter(|&place| is_call(&records[place])).collect();
    order.sort_by_key(|&place| records[place].start);
    let mut found = vec![false; records.len()];
    // Of each address space the calls that have not ended.
    let mut open: HashMap<SpaceId, Vec<usize>> = HashMap::new();
    for place in order {
        let record = &records[place];
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
