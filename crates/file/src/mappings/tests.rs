//! The mappings of a file against a plain list.

use super::*;
use crate::store::tests::support::Cpu;
use fastrand::Rng;
use quire_vma_tree::intervals::IntervalLink;
use std::boxed::Box;
use std::vec::Vec;

struct Mapping {
    place: IntervalLink<Self, OfFile>,
    id: usize,
}

// SAFETY: the place is a field.
unsafe impl Member<OfFile> for Mapping {
    fn place(&self) -> &IntervalLink<Self, OfFile> {
        &self.place
    }
}

/// A mapping that is in the file, its offsets, and whether it writes.
type Entry = (Box<Mapping>, (u64, u64), bool);

fn check(mappings: &FileMappings<Mapping>, list: &[Entry], (first, last): (u64, u64)) {
    let held = mappings.read(&Cpu(0));
    assert!(held.is_sound());
    let mut found: Vec<_> = held.holding(first, last).map(|mapping| mapping.id).collect();
    let holds = |entry: &&Entry| entry.1.0 <= last && first <= entry.1.1;
    let mut wanted: Vec<_> = list.iter().filter(holds).map(|entry| entry.0.id).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "pages {first} to {last}");
    assert_eq!(mappings.is_empty(), list.is_empty());
    assert_eq!(mappings.writers(), list.iter().filter(|entry| entry.2).count());
}

#[test]
fn any_sequence_of_changes_agrees_with_a_list() {
    for seed in 0..20 {
        let mut random = Rng::with_seed(seed);
        let (mappings, mut list) = (FileMappings::new(), Vec::<Entry>::new());
        for id in 0..300 {
            let start = random.u64(0..100);
            let (offsets, writes) = ((start, start + random.u64(0..20)), random.bool());
            let file = mappings.write(&Cpu(0));
            match random.u8(0..4) {
                0..=1 => {
                    let mapping = Box::new(Mapping { place: IntervalLink::new(), id });
                    // SAFETY: it is new, and on the list until it is removed or the mappings end.
                    unsafe { file.insert(NonNull::from(&*mapping), offsets, writes) };
                    list.push((mapping, offsets, writes));
                }
                _ if list.is_empty() => {}
                2 => {
                    let (mapping, _, writes) = list.swap_remove(random.usize(0..list.len()));
                    // SAFETY: it is one of the file.
                    unsafe { file.remove(NonNull::from(&*mapping), writes) };
                }
                _ => {
                    let at = random.usize(0..list.len());
                    list[at].1 = offsets;
                    // SAFETY: it is one of the file.
                    unsafe { file.change(NonNull::from(&*list[at].0), offsets) };
                }
            }
            drop(file);
            check(&mappings, &list, (start, start + random.u64(0..5)));
        }
    }
}

#[test]
fn a_writer_keeps_out_those_that_only_try() {
    let mappings = FileMappings::<Mapping>::new();
    let file = mappings.write(&Cpu(0));
    assert!(mappings.try_read(&Cpu(1)).is_none());
    assert!(file.is_of(&mappings) && !file.is_of(&FileMappings::new()));
    drop(file);
    let held = mappings.try_read(&Cpu(1)).unwrap();
    assert_eq!(held.holding(0, u64::MAX).count(), 0);
}
