//! A store that refuses: nothing is half done.

use super::super::InsertError;
use super::support::{REFUSED, TestTree, contents, pages, value};
use std::vec::Vec;

/// A sequence that looks random and is the same each time.
fn scattered(step: u64) -> u64 {
    step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52
}

/// A hazard of docs/hazards.md, "Every part": an error path that undoes only half.
#[test]
fn an_insertion_without_memory_changes_nothing() {
    for every in 1..6 {
        let mut stored = TestTree::default();
        let (tree, store, mut writer) = stored.parts();
        store.fail_every.set(every);
        let mut failures = 0;
        let mut expected: Vec<(u64, u64)> = Vec::new();
        for step in 0..1500 {
            let page = scattered(step);
            let place = expected.binary_search(&(page, 1));
            if step % 3 == 2 {
                let removed = writer.remove(pages(page, 1).start());
                assert_eq!(removed.is_some(), place.is_ok());
                place.map(|index| expected.remove(index)).ok();
            }
            let (out, spares) = (store.nodes_out(), tree.spare_nodes());
            match (writer.insert(pages(page, 1), value(step as usize)), place) {
                (Ok(()), Ok(index)) if step % 3 == 2 => expected.insert(index, (page, 1)),
                (Ok(()), Err(index)) => expected.insert(index, (page, 1)),
                (Err(InsertError::Overlap), Ok(_)) => {}
                (Err(InsertError::OutOfNodes(REFUSED)), _) => {
                    failures += 1;
                    assert_eq!((store.nodes_out(), tree.spare_nodes()), (out, spares));
                }
                other => panic!("step {step}: {other:?}"),
            }
            writer.validate().unwrap();
            assert_eq!(contents(&writer), expected);
        }
        assert!(failures > 0);
        writer.clear();
    }
}

#[test]
fn a_reservation_that_fails_leaves_the_spares_as_they_were() {
    let mut stored = TestTree::default();
    let (tree, store, mut writer) = stored.parts();
    writer.reserve(1).unwrap();
    assert_eq!(tree.spare_nodes(), 1);
    store.budget.set(Some(7));
    assert_eq!(writer.reserve(1000), Err(REFUSED));
    assert_eq!((tree.spare_nodes(), store.nodes_out()), (1, 1));
    store.budget.set(Some(0));
    writer.insert(pages(1, 1), value(0)).unwrap();
    assert_eq!((tree.spare_nodes(), store.nodes_out()), (0, 1));
    writer.clear();
}

#[test]
fn a_large_reservation_is_trimmed_when_the_writer_is_dropped() {
    let mut stored = TestTree::default();
    let (tree, _, mut writer) = stored.parts();
    for page in 0..20 {
        writer.insert(pages(page * 2, 1), value(0)).unwrap();
    }
    writer.reserve(100).unwrap();
    assert!(tree.spare_nodes() >= 100);
    drop(writer);
    assert_eq!(tree.spare_nodes(), 4);
    stored.writer().clear();
    assert_eq!(stored.store().nodes_out(), 0);
}
