//! Moves that find no memory once they have unmapped something, and what another thread maps meanwhile.

use crate::common::*;
use crate::short_pins::machine::{Machine, at_the_next_wait, run_on};
use crate::shortage_looks::{USER_END, spaces_of};
use quire_space::Space;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

const PAGES: u64 = 8;
const OTHERS: u64 = 4;
const FROM: VirtAddr = VirtAddr(1 << 30);
/// Where no table is.
const FAR: VirtAddr = VirtAddr(1 << 40);

/// Moves the mapping at `FROM` to `FAR`, of which `pages` pages are kept, on a machine without a free frame.
/// While it looks for memory another thread maps some pages, at `hint` if nothing is there, and both then have
/// theirs. `before` is done first.
fn move_beside_a_mapping(pages: u64, hint: VirtAddr, before: impl FnOnce(&Space<'static, Machine>)) {
    let (spaces, looks) = spaces_of(2);
    let space = Space::create(spaces, Layout::standard(USER_END), Limits::default()).unwrap();
    let space: &'static Space<'static, Machine> = Box::leak(Box::new(space));
    space.mmap(&MapRequest::anonymous(PAGES * PAGE, RW).at(FROM, MapFlags::FIXED)).unwrap();
    space.fault(FROM, Access::Write).unwrap();
    before(space);
    let other: &'static Mutex<Option<JoinHandle<VirtAddr>>> = Box::leak(Box::default());
    let look = move |_| {
        let freed = looks.give_back(spaces);
        let mut other = other.lock().unwrap();
        if other.is_none() {
            let through: &'static AtomicBool = Box::leak(Box::default());
            let maps = thread::spawn(move || {
                run_on(1);
                at_the_next_wait(|| through.store(true, Ordering::Relaxed));
                let request = MapRequest::anonymous(OTHERS * PAGE, RW).at(hint, MapFlags::empty());
                let area = space.mmap(&request).unwrap();
                through.store(true, Ordering::Relaxed);
                area
            });
            // It has mapped them, or waits for the lock.
            within_reason(|| through.load(Ordering::Relaxed));
            *other = Some(maps);
        }
        freed
    };
    assert!(looks.look.set(Box::new(look)).is_ok());
    looks.take_all(spaces);
    assert_eq!(space.mremap(FROM, PAGES * PAGE, pages * PAGE, MOVE, FAR), Ok(FAR));
    let area = other.lock().unwrap().take().expect("memory was looked for").join().unwrap();
    assert_eq!(space.figures().mapped, (pages + OTHERS) * PAGE, "a mapping is lost");
    for mapped in [FAR, page(FAR, pages - 1), area, page(area, OTHERS - 1)] {
        assert_eq!(space.fault(mapped, Access::Write), Ok(()), "{mapped:?}");
    }
}

/// Hazard: a move that unmaps its target, finds no memory and is made again after a reclaim unmaps what
/// another thread has mapped there in between.
#[test]
fn what_another_thread_maps_at_the_target_of_a_move_stays() {
    move_beside_a_mapping(PAGES, FAR, |space| {
        let reserved = MapRequest::anonymous(PAGES * PAGE, NONE).at(FAR, MapFlags::FIXED);
        space.mmap(&reserved).unwrap();
    });
}

/// Hazard: the same where a move cuts off the end of the mapping.
#[test]
fn what_another_thread_maps_where_a_move_has_cut_a_mapping_stays() {
    move_beside_a_mapping(PAGES - OTHERS, page(FROM, PAGES - OTHERS), |_| ());
}
