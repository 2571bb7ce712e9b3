//! How much is done under one pin, which keeps interrupts off.

use crate::common::machine::{TEST, most_holds_under_a_pin, most_under_a_pin, run_on};
use crate::common::{Machine, TestDevice, folio, swap};
use crate::pages::submit;
use quire_arch::{Order, Platform};
use quire_frame::AllocRequest;
use quire_swap::{
    CompressedCache, CompressedRam, DeviceId, Direction, Lz4, PageIo, RamDisk, Submitted, Swap, SwapDevice,
    SwapOnOptions, SwapTechnique,
};

/// Frames of words that a device may have for its slots; there is a cluster for each.
const CHUNKS: u64 = 4096;
const SLOTS_OF_CHUNK: u64 = 512;
const SLOTS: u64 = CHUNKS * SLOTS_OF_CHUNK;
/// Frames that may be looked at under one pin.
const MOST: u64 = 64;
/// Clusters that may be looked at under one pin.
const CLUSTERS_AT_ONCE: u64 = 256;

/// Takes the device into use, with a page in every eighth chunk.
fn on(swap: &Swap<Machine>, device: impl SwapDevice<Machine>) -> DeviceId {
    let frames = swap.frames();
    let one = AllocRequest::new(Order::ZERO, TEST);
    let page = frames.allocate(&swap.platform().pin(), one).unwrap();
    for chunk in (0..CHUNKS).step_by(8) {
        let io = PageIo { direction: Direction::Write, slot: chunk * SLOTS_OF_CHUNK, pfn: page, pages: 1 };
        assert_eq!(submit(frames, &device, io), Submitted::Done(Ok(())));
    }
    frames.free(&swap.platform().pin(), page, Order::ZERO).unwrap();
    swap.devices().swapon(device, SwapOnOptions::default()).unwrap()
}

/// Hazard: all frames of a device are made, or freed, with interrupts off.
#[test]
fn a_large_device_comes_and_goes_under_short_pins() {
    run_on(0);
    let kinds: [fn(&Swap<Machine>) -> DeviceId; 3] = [
        |swap| on(swap, RamDisk::new(swap.frames(), SLOTS).unwrap()),
        |swap| on(swap, CompressedRam::new(swap.frames(), SLOTS, Lz4).unwrap()),
        |swap| {
            let disk = RamDisk::new(swap.frames(), SLOTS).unwrap();
            on(swap, CompressedCache::new(swap.frames(), disk, u64::MAX).unwrap())
        },
    ];
    for (nth, swapon) in kinds.into_iter().enumerate() {
        let swap = swap(1 << 14, 1, SwapTechnique::All);
        let free = swap.frames().reports().totals().free;
        let (id, coming) = most_under_a_pin(|| swapon(&swap));
        let ((), going) = most_under_a_pin(|| {
            assert!(swap.swapoff().begin_swapoff(id));
            swap.swapoff().finish_swapoff(id).unwrap();
        });
        assert!(coming <= MOST && going <= MOST, "{coming} and {going} frames for device {nth}");
        assert_eq!(swap.frames().reports().totals().free, free, "all are free again");
    }
}

/// Hazard: a program reads a report, and the locks of all clusters of a large device are taken with
/// interrupts off.
#[test]
fn the_pages_in_the_cache_are_counted_under_short_pins() {
    run_on(0);
    let swap = swap(1 << 14, 1, SwapTechnique::All);
    swap.devices().swapon(TestDevice::new(SLOTS), SwapOnOptions::default()).unwrap();
    let order = Order::new(3).unwrap();
    assert!(swap.allocator().add_folio(folio(&swap, order), 0).is_ok());
    let (cached, holds) = most_holds_under_a_pin(|| swap.devices().cached_pages());
    assert_eq!(cached, order.pages());
    assert!((1..=CLUSTERS_AT_ONCE).contains(&holds), "{holds} locks");
}
