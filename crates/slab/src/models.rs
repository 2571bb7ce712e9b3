//! Loom models of the global heap's state. `scripts/models.sh loom` runs them.

use crate::once::{SetOnce, Taken};
use loom::sync::Arc;
use loom::thread;
use quire_sync::Watched;
use std::vec::Vec;

/// Sets what `make` makes, or leaves the place empty.
fn set_with<T, E>(place: &SetOnce<T>, make: impl FnOnce() -> Result<T, E>) -> Result<Result<(), E>, Taken> {
    let turn = place.claim()?;
    Ok(make().map(|value| turn.set(value)))
}

/// Two CPUs attach the heap while a third one allocates: one of them gets an error, and a thread that finds a
/// value sees all of it.
#[test]
fn loom_a_heap_is_attached_once_and_seen_whole() {
    loom::model(|| {
        let place = Arc::new(SetOnce::new());
        let others: Vec<_> = [[1, 1], [2, 2]]
            .into_iter()
            .map(|value| {
                let place = Arc::clone(&place);
                thread::spawn(move || set_with(&place, || Ok::<_, ()>(value)))
            })
            .collect();
        if let Some(seen) = place.get() {
            assert_eq!(seen[0], seen[1]);
        }
        let mut results: Vec<_> = others.into_iter().map(|other| other.join().unwrap()).collect();
        results.sort_by_key(Result::is_err);
        assert_eq!(results, [Ok(Ok(())), Err(Taken)]);
        assert!(place.get().is_some());
    });
}

/// One attach fails for lack of memory while another CPU tries: after that the place is set or free to be
/// set, never stuck in between, and what the first one did before it failed is over.
#[test]
fn loom_an_attach_that_fails_leaves_the_place_to_the_next() {
    loom::model(|| {
        let place = Arc::new(SetOnce::new());
        let scratch = Arc::new(Watched::new(0));
        let other = {
            let (place, scratch) = (Arc::clone(&place), Arc::clone(&scratch));
            thread::spawn(move || set_with(&place, || Err(scratch.set(1))))
        };
        let mine = set_with(&place, || Ok::<_, ()>(scratch.set(1)));
        match (mine, other.join().unwrap()) {
            (Ok(Ok(())), Err(Taken) | Ok(Err(()))) => assert!(place.get().is_some()),
            (Err(Taken), Ok(Err(()))) => assert_eq!(set_with(&place, || Ok::<_, ()>(())), Ok(Ok(()))),
            ended => panic!("{ended:?}"),
        }
    });
}
