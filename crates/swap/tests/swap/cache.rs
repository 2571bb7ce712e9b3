//! The way of single folios: out, in, past each other.

use crate::common::{TestDevice, assert_sound, fill, folio, order, order_to_insert, put, swap, value};
use quire_arch::{NodeId, Order, Pfn, Platform};
use quire_frame::{FailAim, FailClass, FailPlan, FrameFlags};
use quire_swap::{
    DeviceError, DeviceFlags, DeviceId, Inserted, IoState, NoSlots, Shadow, SlotId, StillUsed, SwapOnError,
    SwapOnOptions, SwapTechnique,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn with_device(slots: u64) -> (quire_swap::Swap<crate::common::Machine>, Arc<crate::common::Watch>) {
    let swap = swap(8192, 2, SwapTechnique::All);
    let device = TestDevice::new(slots);
    let watch = Arc::clone(&device.watch);
    swap.devices().swapon(device, SwapOnOptions::default()).unwrap();
    (swap, watch)
}

fn shadow(age: u64) -> Shadow {
    Shadow::new(NodeId::FIRST, 0, true, age)
}

/// A folio whose slots are named once, and the first of these.
fn named(swap: &quire_swap::Swap<crate::common::Machine>, order: Order) -> (Pfn, SlotId) {
    let head = folio(swap, order);
    let slot = swap.allocator().add_folio(head, 0).unwrap();
    assert!(swap.counts().add_counts(slot, order.pages() as u32), "nothing named it");
    (head, slot)
}

/// Such a folio goes out.
fn page_out(swap: &quire_swap::Swap<crate::common::Machine>, order: Order) -> SlotId {
    let (head, slot) = named(swap, order);
    assert_eq!(swap.io().write_folio(head), IoState::Done(Ok(())));
    assert!(swap.cache().evict(head, 2, Some(shadow(7))));
    swap.frames().free(&swap.platform().pin(), head, order).unwrap();
    slot
}

#[test]
fn folios_of_every_order_go_out_and_come_back() {
    for technique in SwapTechnique::ALL {
        let swap = swap(8192, 2, technique);
        swap.devices().swapon(TestDevice::new(4096), SwapOnOptions::default()).unwrap();
        for order in Order::ALL.into_iter().take(10) {
            let slot = page_out(&swap, order);
            assert_sound(&swap);
            assert_eq!(swap.cache().lookup(slot), None);
            assert_eq!((swap.counts().count(slot), order_to_insert(&swap, slot)), (1, Some(order)));
            let back = folio(&swap, order);
            for nth in 0..order.pages() {
                fill(&swap, back.offset(nth), 99);
            }
            let won = Inserted::Won { shadow: Some(shadow(7)), zero: false, memcg: 0 };
            assert_eq!(swap.cache().insert(slot, back), won);
            assert_eq!(swap.cache().insert(slot, folio(&swap, order)), Inserted::Found(back));
            put(&swap, back);
            assert_eq!(swap.io().read_folio(back), IoState::Done(Ok(())));
            for nth in 0..order.pages() {
                assert_eq!(value(&swap, back.offset(nth)), 1 + nth);
                assert_eq!(swap.cache().lookup(slot.plus(nth)), Some(back.offset(nth)));
                put(&swap, back);
            }
            assert!(!swap.cache().remove_unnamed(back));
            let pages = order.pages() as u32;
            let named =
                || (0..order.pages()).filter(|&nth| swap.counts().count(slot.plus(nth)) > 0).count() as u32;
            assert_eq!(named(), pages);
            assert!(swap.counts().drop_counts(slot, pages).cached_only && named() == 0);
            assert_sound(&swap);
            assert!(swap.cache().remove_unnamed(back));
            assert_eq!(swap.frames().known(back).refs(), 2);
            put(&swap, back);
            assert_eq!(swap.devices().free_slots(), 4096);
            assert_sound(&swap);
        }
    }
}

#[test]
fn pages_of_zeros_never_reach_the_device() {
    let (swap, watch) = with_device(512);
    let (head, slot) = named(&swap, order(2));
    assert_eq!(swap.io().write_folio(head), IoState::Done(Ok(())));
    assert_eq!(watch.written.load(Ordering::Relaxed), 4);
    for nth in 0..4 {
        fill(&swap, head.offset(nth), 0);
    }
    assert_eq!(swap.io().write_folio(head), IoState::Done(Ok(())));
    let counts = (watch.written.load(Ordering::Relaxed), watch.freed.load(Ordering::Relaxed));
    assert_eq!(counts, (4, 4), "what was written before is needed no more");
    assert!(swap.cache().evict(head, 2, None));
    let back = folio(&swap, order(2));
    assert_eq!(swap.cache().insert(slot, back), Inserted::Won { shadow: None, zero: true, memcg: 0 });
    assert_eq!(swap.io().read_folio(back), IoState::Done(Ok(())));
    assert_eq!([0, 1, 2, 3].map(|nth| value(&swap, back.offset(nth))), [0; 4]);
    swap.counts().drop_counts(slot, 4);
    assert!(swap.cache().remove_unnamed(back));
    assert_eq!(watch.freed.load(Ordering::Relaxed), 4, "the device never saw these");
}

#[test]
fn zeros_go_to_the_device_as_anything_else_before() {
    for technique in SwapTechnique::ALL {
        let swap = swap(8192, 2, technique);
        let device = TestDevice::new(512);
        let watch = Arc::clone(&device.watch);
        swap.devices().swapon(device, SwapOnOptions::default()).unwrap();
        let slot = page_of_zeros_out(&swap, Order::ZERO);
        let known = technique == SwapTechnique::All;
        assert_eq!(watch.written.load(Ordering::Relaxed), u64::from(!known), "{technique:?}");
        assert_eq!(zeros(&swap, slot), known.then_some(0), "{technique:?}");
        assert_eq!(take_zeros(&swap, slot, 0).is_some(), known, "{technique:?}");
    }
}

fn zeros(swap: &quire_swap::Swap<crate::common::Machine>, slot: SlotId) -> Option<u16> {
    swap.cache().zeros(&swap.platform().pin(), slot)
}

fn take_zeros(
    swap: &quire_swap::Swap<crate::common::Machine>,
    slot: SlotId,
    memcg: u16,
) -> Option<Option<Shadow>> {
    swap.cache().take_zeros(&swap.platform().pin(), slot, memcg)
}

/// Hazard: a page of zeros that another thread holds when it is paged out stays clean in the cache. Evicted
/// later it comes back as what the device has of it.
#[test]
fn zeros_that_stay_in_the_cache_are_zeros_when_they_are_evicted_later() {
    let (swap, watch) = with_device(512);
    let (head, slot) = named(&swap, Order::ZERO);
    assert_eq!(swap.io().write_folio(head), IoState::Done(Ok(())));
    swap.frames().known(head).set_flags(FrameFlags::DIRTY);
    fill(&swap, head, 0);
    assert_eq!(swap.cache().lookup(slot), Some(head));
    assert_eq!(swap.io().page_out(head, 2, || shadow(7)), Ok(false), "it is held");
    assert!(!swap.frames().known(head).word().flags().contains(FrameFlags::DIRTY));
    put(&swap, head);
    assert_eq!(swap.io().page_out(head, 2, || shadow(7)), Ok(true));
    assert_eq!((watch.written.load(Ordering::Relaxed), zeros(&swap, slot)), (1, Some(0)));
    assert_sound(&swap);
}

/// Hazard: what is in the cache for the first time counts as zeros, for the device has nothing of it. If that
/// is not taken back when it is written, the page comes back as zeros.
#[test]
fn a_page_goes_out_in_one_step_and_comes_back_as_it_was() {
    for technique in SwapTechnique::ALL {
        let swap = swap(8192, 2, technique);
        swap.devices().swapon(TestDevice::new(512), SwapOnOptions::default()).unwrap();
        for order in [Order::ZERO, order(3), Order::PMD] {
            let (head, slot) = named(&swap, order);
            assert_eq!(swap.io().page_out(head, 2, || shadow(7)), Ok(true));
            swap.frames().free(&swap.platform().pin(), head, order).unwrap();
            let back = folio(&swap, order);
            let won = Inserted::Won { shadow: Some(shadow(7)), zero: false, memcg: 0 };
            assert_eq!(swap.cache().insert(slot, back), won, "{technique:?}");
            assert_eq!(swap.io().read_folio(back), IoState::Done(Ok(())));
            for nth in 0..order.pages() {
                assert_eq!(value(&swap, back.offset(nth)), 1 + nth);
            }
            swap.counts().drop_counts(slot, order.pages() as u32);
            assert!(swap.cache().remove_unnamed(back));
            put(&swap, back);
        }
        assert_sound(&swap);
    }
}

/// A folio of zeros goes out.
fn page_of_zeros_out(swap: &quire_swap::Swap<crate::common::Machine>, order: Order) -> SlotId {
    let (head, slot) = named(swap, order);
    (0..order.pages()).for_each(|nth| fill(swap, head.offset(nth), 0));
    assert_eq!(swap.io().write_folio(head), IoState::Done(Ok(())));
    assert!(swap.cache().evict(head, 2, Some(shadow(7))));
    swap.frames().free(&swap.platform().pin(), head, order).unwrap();
    slot
}

#[test]
fn a_page_of_zeros_that_one_entry_names_is_taken_in_one_step() {
    let (swap, _) = with_device(1024);
    for order in [Order::ZERO, order(2), Order::PMD] {
        let (slot, free) = (page_of_zeros_out(&swap, order), swap.devices().free_slots());
        assert_eq!((zeros(&swap, slot), take_zeros(&swap, slot, 3)), (Some(0), None), "another memcg has it");
        assert!(!swap.counts().add_counts(slot, 1), "it is named already");
        assert_eq!((zeros(&swap, slot), take_zeros(&swap, slot, 0)), (None, None), "shared");
        assert!(!swap.counts().drop_counts(slot, 1).cached_only);
        let back = folio(&swap, Order::ZERO);
        assert!(matches!(swap.cache().insert(slot, back), Inserted::Won { zero: true, .. }));
        assert_eq!((zeros(&swap, slot), take_zeros(&swap, slot, 0)), (None, None), "cached");
        assert!(swap.counts().drop_counts(slot, 1).cached_only && swap.cache().remove_unnamed(back));
        for nth in 1..order.pages() {
            assert_eq!(take_zeros(&swap, slot.plus(nth), 0), Some(Some(shadow(7))), "page {nth}");
            assert_eq!(take_zeros(&swap, slot.plus(nth), 0), None, "it is free");
        }
        assert_eq!(swap.devices().free_slots(), free + order.pages());
        assert_sound(&swap);
    }
    let other = page_out(&swap, Order::ZERO);
    assert_eq!((zeros(&swap, other), take_zeros(&swap, other, 0)), (None, None), "no zeros");
}

#[test]
fn a_folio_that_is_referenced_or_dirty_is_not_evicted() {
    let (swap, _) = with_device(512);
    let (head, slot) = named(&swap, Order::ZERO);
    assert!(!swap.cache().evict(head, 2, None), "dirty");
    assert_eq!(swap.io().write_folio(head), IoState::Done(Ok(())));
    assert_eq!(swap.cache().lookup(slot), Some(head));
    assert!(!swap.cache().evict(head, 2, None), "held");
    put(&swap, head);
    assert!(swap.cache().evict(head, 2, None));
    assert_eq!((swap.frames().known(head).refs(), swap.cache().lookup(slot)), (0, None));
    assert!(!swap.counts().drop_counts(slot, 1).cached_only);
    assert_eq!(swap.cache().insert(slot, folio(&swap, Order::ZERO)), Inserted::Gone);
}

#[test]
fn a_part_comes_back_alone_and_every_slot_keeps_its_shadow() {
    for large in [order(2), Order::PMD] {
        let (swap, _) = with_device(1024);
        let slot = page_out(&swap, large);
        let small = folio(&swap, Order::ZERO);
        let won = Inserted::Won { shadow: Some(shadow(7)), zero: false, memcg: 0 };
        assert_eq!(swap.cache().insert(slot.plus(1), small), won);
        assert_eq!(swap.cache().insert(slot, folio(&swap, large)), Inserted::Conflict);
        assert_eq!(
            (order_to_insert(&swap, slot), order_to_insert(&swap, slot.plus(1))),
            (Some(Order::ZERO), None)
        );
        assert_eq!(order_to_insert(&swap, slot.plus(2)), Some(order(1)));
        assert_eq!(swap.io().read_folio(small), IoState::Done(Ok(())));
        assert_eq!(value(&swap, small), 2);
        let pair = folio(&swap, order(1));
        assert_eq!(swap.cache().insert(slot.plus(2), pair), won);
        assert_eq!(swap.cache().insert(slot.plus(3), pair), Inserted::Conflict, "not aligned");
        assert_sound(&swap);
    }
}

#[test]
fn a_folio_in_the_cache_is_split() {
    for large in [order(3), Order::PMD] {
        let (swap, _) = with_device(1024);
        let (head, slot) = named(&swap, large);
        let frame = |nth: u64| swap.frames().known(head.offset(nth));
        frame(0).as_folio().set_memcg(5);
        assert_eq!(swap.cache().split_folio(head, large, order(1)), Ok(()));
        // The split may not happen: then it would be an inner frame that is charged.
        assert_eq!(frame(2).as_folio().memcg(), 0);
        frame(0).as_folio().set_memcg(0);
        assert_eq!(frame(2).as_folio().slot(), slot.plus(2).raw());
        assert_eq!(swap.cache().lookup(slot.plus(5)), Some(head.offset(5)));
        put(&swap, head);
        assert_sound(&swap);
    }
}

#[test]
fn a_failed_read_leaves_the_slot_as_it_was() {
    let (swap, _) = with_device(512);
    let slot = page_out(&swap, order(1));
    let back = folio(&swap, order(1));
    swap.frames().fail_points().set(FailPlan::every(1).at(FailAim::Class(FailClass::DeviceRead)));
    assert!(matches!(swap.cache().insert(slot, back), Inserted::Won { .. }));
    assert_eq!(swap.io().read_folio(back), IoState::Done(Err(DeviceError::Io)));
    assert!(swap.frames().known(back).word().flags().contains(FrameFlags::READ_FAILED));
    assert!(swap.cache().discard_failed(back) && !swap.cache().discard_failed(back));
    put(&swap, back);
    put(&swap, back);
    swap.frames().fail_points().set(FailPlan::OFF);
    assert_sound(&swap);
    let back = folio(&swap, order(1));
    assert_eq!(swap.cache().insert(slot, back), Inserted::Won { shadow: None, zero: false, memcg: 0 });
    assert_eq!(swap.io().read_folio(back), IoState::Done(Ok(())));
    assert_eq!(value(&swap, back.offset(1)), 2);
}

#[test]
fn a_failed_write_leaves_the_folio_dirty() {
    let (swap, _) = with_device(512);
    let (head, _) = named(&swap, Order::ZERO);
    swap.frames().fail_points().set(FailPlan::nth(1).at(FailAim::Class(FailClass::DeviceWrite)));
    assert_eq!(swap.io().write_folio(head), IoState::Done(Err(DeviceError::Io)));
    assert!(!swap.cache().evict(head, 2, None));
    assert_eq!(swap.io().write_folio(head), IoState::Done(Ok(())));
    assert!(swap.cache().evict(head, 2, None));
}

#[test]
fn a_device_that_takes_its_time_is_waited_for() {
    let swap = swap(4096, 1, SwapTechnique::All);
    let mut device = TestDevice::new(512);
    device.flags = DeviceFlags::empty();
    device.queue = 2;
    swap.devices().swapon(device, SwapOnOptions::default()).unwrap();
    let folios: Vec<_> = (0..5).map(|_| named(&swap, order(1))).collect();
    for &(head, _) in &folios {
        // The third finds the queue full.
        assert_eq!(swap.io().write_folio(head), IoState::Begun);
    }
    let (last, slot) = folios[4];
    assert!(!swap.cache().evict(last, 2, None) && !swap.cache().remove_unnamed(last));
    swap.io().wait_writeback(last);
    assert!(swap.cache().evict(last, 2, None));
    let back = folio(&swap, order(1));
    assert!(matches!(swap.cache().insert(slot, back), Inserted::Won { .. }));
    fill(&swap, back, 5);
    assert_eq!(swap.io().read_folio(back), IoState::Begun);
    assert!(!swap.cache().discard_failed(back));
    assert_eq!(swap.io().wait_read(back), Ok(()));
    assert_eq!(value(&swap, back), 1);
    assert_sound(&swap);
}

#[test]
fn one_reads_past_the_cache_and_the_slot_waits_for_it() {
    let (swap, _) = with_device(512);
    let slot = page_out(&swap, order(1));
    assert!(swap.cache().try_begin_bypass(slot) && !swap.cache().try_begin_bypass(slot));
    let small = folio(&swap, Order::ZERO);
    assert_eq!((swap.cache().lookup(slot), swap.cache().insert(slot, small)), (None, Inserted::Conflict));
    // SAFETY: a page of this test's, which nothing else knows.
    assert_eq!(unsafe { swap.io().read_past_cache(slot, small) }, Ok(()));
    swap.counts().drop_counts(slot, 1);
    assert_eq!(swap.devices().free_slots(), 510);
    swap.cache().end_bypass(slot);
    assert_eq!(swap.devices().free_slots(), 511);
    assert!(!swap.cache().try_begin_bypass(slot), "nothing names it");
    assert_sound(&swap);
}

/// No frame for words: a folio of a whole cluster is torn, and nothing is lost.
#[test]
fn a_torn_word_counts_all_its_slots_in_one_sum() {
    let (swap, _) = with_device(512);
    let slot = page_out(&swap, Order::PMD);
    let table = quire_frame::FailSite::new("swap_table");
    swap.frames().fail_points().set(FailPlan::every(1).at(FailAim::Site(table)));
    swap.counts().add_counts(slot.plus(3), 2);
    swap.counts().drop_counts(slot, 500);
    assert_sound(&swap);
    assert_eq!((swap.audit().is_torn(slot), swap.devices().free_slots()), (true, 0));
    let small = folio(&swap, Order::ZERO);
    assert_eq!(swap.cache().insert(slot.plus(511), small), Inserted::NoMemory);
    swap.frames().fail_points().set(FailPlan::OFF);
    assert_eq!(order_to_insert(&swap, slot.plus(511)), Some(Order::ZERO));
    assert!(matches!(swap.cache().insert(slot.plus(511), small), Inserted::Won { .. }));
    assert_eq!(swap.io().read_folio(small), IoState::Done(Ok(())));
    assert_eq!(value(&swap, small), 512);
    assert_sound(&swap);
    assert!(!swap.cache().remove_unnamed(small));
    assert!(!swap.counts().drop_counts(slot.plus(499), 13).cached_only);
    assert_eq!(swap.devices().free_slots(), 0);
    assert!(swap.counts().drop_counts(slot.plus(4), 1).cached_only);
    assert_eq!(swap.devices().free_slots(), 511);
    assert!(swap.cache().remove_unnamed(small) && swap.devices().free_slots() == 512);
    assert_sound(&swap);
}

#[test]
fn slots_that_only_the_cache_holds_are_taken_back_when_all_are_gone() {
    let (swap, _) = with_device(512);
    let heads: Vec<_> = (0..512).map(|_| named(&swap, Order::ZERO).0).collect();
    let another = folio(&swap, Order::ZERO);
    assert_eq!(swap.allocator().add_folio(another, 0), Err(NoSlots::Full));
    let slot = SlotId::new(DeviceId::new(0).unwrap(), 77);
    let (&head, locked) = (&heads[77], swap.frames().folios().lock_folio(heads[77]));
    swap.counts().drop_counts(slot, 1);
    assert_eq!(swap.allocator().add_folio(another, 0), Err(NoSlots::Full), "its lock is held");
    drop(locked);
    assert_eq!(swap.allocator().add_folio(another, 0), Ok(slot));
    assert_eq!((swap.frames().known(head).refs(), swap.cache().lookup(slot)), (1, Some(another)));
    put(&swap, another);
    swap.counts().add_counts(slot, 1);
    assert_eq!(swap.allocator().add_folio(folio(&swap, order(2)), 0), Err(NoSlots::Full));
    assert_sound(&swap);
}

#[test]
fn devices_are_filled_by_priority_and_equals_take_turns() {
    let swap = swap(16384, 1, SwapTechnique::All);
    assert!(!swap.devices().is_any_on());
    assert_eq!(swap.allocator().add_folio(folio(&swap, Order::ZERO), 0), Err(NoSlots::Full));
    let on = |priority| {
        let options = SwapOnOptions { priority, discard: false };
        swap.devices().swapon(TestDevice::new(512), options).unwrap()
    };
    let ids = [on(None), on(None), on(Some(5)), on(Some(5))];
    let priorities: Vec<_> = swap.devices().reports().map(|device| device.priority).collect();
    assert_eq!(priorities, [-2, -3, 5, 5]);
    let used = || ids.map(|id| swap.devices().reports().find(|device| device.id == id).unwrap().used);
    let fill = |count: u64| {
        for _ in 0..count {
            let _ = swap.allocator().add_folio(folio(&swap, Order::ZERO), 0).unwrap();
        }
    };
    fill(200);
    assert_eq!(used(), [0, 0, 100, 100]);
    fill(1000);
    assert_eq!(used(), [176, 0, 512, 512]);
    assert_eq!((swap.devices().total_slots(), swap.devices().free_slots()), (2048, 848));
    assert_sound(&swap);
}

#[test]
fn a_device_goes_when_its_last_slot_is_free() {
    let swap = swap(8192, 1, SwapTechnique::All);
    let device = TestDevice::new(1000);
    let watch = Arc::clone(&device.watch);
    let id = swap.devices().swapon(device, SwapOnOptions::default()).unwrap();
    let other = swap.devices().swapon(TestDevice::new(512), SwapOnOptions::default()).unwrap();
    let slots: Vec<_> = (0..3).map(|_| page_out(&swap, order(1))).collect();
    assert!(swap.swapoff().begin_swapoff(id) && !swap.swapoff().begin_swapoff(id));
    assert_eq!(page_out(&swap, Order::ZERO).device(), other);
    swap.swapoff().cancel_swapoff(id);
    assert_eq!(page_out(&swap, Order::ZERO).device(), id);
    assert!(swap.swapoff().begin_swapoff(id));
    assert_eq!(swap.swapoff().finish_swapoff(id), Err(StillUsed { slots: 7 }));
    let mut at = 0;
    while let Some(number) = swap.swapoff().next_used(id, at) {
        swap.counts().drop_counts(SlotId::new(id, number), 1);
        at = number + 1;
    }
    assert!(!watch.closed.load(Ordering::Relaxed));
    assert_eq!(swap.swapoff().finish_swapoff(id), Ok(()));
    assert!(watch.closed.load(Ordering::Relaxed) && watch.dropped.load(Ordering::Relaxed));
    assert_eq!(swap.devices().reports().map(|device| device.priority).collect::<Vec<_>>(), [-2], "moved up");
    assert_eq!(
        (swap.cache().lookup(slots[0]), swap.cache().insert(slots[0], folio(&swap, Order::ZERO))),
        (None, Inserted::Gone)
    );
    assert_sound(&swap);
}

#[test]
fn a_device_is_told_of_free_clusters_if_it_was_asked_for() {
    for discard in [false, true] {
        let swap = swap(8192, 1, SwapTechnique::All);
        let mut device = TestDevice::new(1024);
        device.flags |= DeviceFlags::DISCARD;
        let watch = Arc::clone(&device.watch);
        swap.devices().swapon(device, SwapOnOptions { discard, ..SwapOnOptions::default() }).unwrap();
        let slots = [page_out(&swap, Order::PMD), page_out(&swap, Order::PMD)];
        for slot in slots {
            swap.counts().drop_counts(slot, 512);
        }
        assert_sound(&swap);
        assert_eq!(watch.discarded.load(Ordering::Relaxed), 0, "not where locks are held");
        page_out(&swap, Order::PMD);
        assert_eq!(watch.discarded.load(Ordering::Relaxed), if discard { 512 } else { 0 }, "one is enough");
        assert_sound(&swap);
    }
}

/// A device takes milliseconds for each discard, and the thread that needs a slot waits.
#[test]
fn a_folio_that_needs_a_slot_waits_for_one_discard_only() {
    let swap = swap(8192, 1, SwapTechnique::All);
    let on = |priority| {
        let mut device = TestDevice::new(50 * 512);
        device.flags |= DeviceFlags::DISCARD;
        let watch = Arc::clone(&device.watch);
        swap.devices().swapon(device, SwapOnOptions { priority: Some(priority), discard: true }).unwrap();
        watch
    };
    let (slow, fast) = (on(1), on(2));
    let discards = || [&fast, &slow].map(|watch| watch.discarded.load(Ordering::Relaxed) / 512);
    let slots: Vec<_> = (0..100).map(|_| page_out(&swap, Order::PMD)).collect();
    for slot in slots {
        swap.counts().drop_counts(slot, 512);
    }
    assert_eq!(discards(), [0, 0]);
    page_out(&swap, Order::PMD);
    assert_eq!(discards(), [1, 0], "of the device that is filled first");
    page_out(&swap, Order::ZERO);
    assert_eq!(discards(), [2, 0]);
    for _ in 1..512 {
        page_out(&swap, Order::ZERO);
    }
    assert_eq!(discards(), [2, 0], "the cluster has 512 slots");
    assert_eq!((swap.discard().discard_free_clusters(0), swap.discard().discard_free_clusters(16)), (0, 16));
    assert_eq!(discards(), [18, 0]);
    assert_eq!(swap.discard().discard_free_clusters(40), 40);
    assert_eq!(discards(), [50, 8]);
    assert_sound(&swap);
}

#[test]
fn an_unused_device_costs_less_than_a_tenth_of_a_mebibyte_a_gibibyte() {
    let swap = swap(8192, 2, SwapTechnique::All);
    for gibibytes in [1u64, 16] {
        let id = swap.devices().swapon(TestDevice::new(gibibytes << 18), SwapOnOptions::default()).unwrap();
        let bytes = swap.devices().reports().find(|device| device.id == id).unwrap().metadata_bytes;
        assert!(bytes <= gibibytes * (1 << 20) / 10, "{bytes} bytes for {gibibytes} GiB");
    }
}

#[test]
fn a_device_that_cannot_be_taken_costs_nothing() {
    let swap = swap(4096, 1, SwapTechnique::All);
    let on = |slots| {
        let device = TestDevice::new(slots);
        let watch = device.watch.clone();
        let result = swap.devices().swapon(device, SwapOnOptions::default());
        // A device may have frames of the machine before it is in use.
        assert_eq!(watch.closed.load(Ordering::Relaxed), result.is_err());
        result
    };
    assert_eq!(on(0), Err(SwapOnError::TooSmall));
    assert_eq!(on(1 << 42), Err(SwapOnError::TooLarge));
    let site = FailAim::Site(quire_frame::FailSite::new("swap_device"));
    let free = swap.frames().reports().totals().free;
    let mut failures = 0;
    for nth in 1.. {
        swap.frames().fail_points().set(FailPlan::nth(nth).at(site));
        match on(1 << 18) {
            Err(SwapOnError::NoMemory(_)) => failures += 1,
            result => {
                assert!(result.is_ok());
                break;
            }
        }
        assert_eq!(swap.frames().reports().totals().free, free);
    }
    assert_eq!(failures, 3 + 8, "the device, the hints, the directory and each frame of clusters");
    swap.frames().fail_points().set(FailPlan::OFF);
    (1..32).for_each(|_| _ = on(512).unwrap());
    assert_eq!(on(512), Err(SwapOnError::TooManyDevices));
    assert_sound(&swap);
}
