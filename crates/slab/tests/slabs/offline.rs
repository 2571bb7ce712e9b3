//! Ranges that are taken out of use while a cache keeps frames of them.

use crate::support::*;

/// Frames of the range that wait on another CPU's list, in a slab without objects or in the limbo are no
/// obstacle.
#[test]
fn what_is_only_kept_back_is_fetched() {
    let frames = frames(&[(0, 8192)], 2, PcpTechnique::All);
    run_on(1);
    let pin = frames.platform().pin();
    let cache = cache::<[u64; 32]>(&frames, "leaving");
    let objects: Vec<_> = (0..100).map(|_| cache.allocate(&frames, &pin, [7; 32]).unwrap()).collect();
    let mut slab = None;
    cache.for_each_frame(&frames, |pfn, _| slab = Some(pfn));
    let block = slab.unwrap().block_start(Order::PMD);
    let leaving = PfnRange::new(block, block.offset(512));
    let retired = frames.allocate(&pin, ONE).unwrap();
    frames.limbo().retire(&pin, retired, Order::ZERO).unwrap();
    drop(pin);
    run_on(0);
    let pin = frames.platform().pin();
    assert!(matches!(frames.hotplug().take_offline(&pin, leaving), Err(HotplugError::Busy(_))));
    free_all(&frames, &cache, objects);
    let area = frames.hotplug().take_offline(&pin, leaving);
    // The cache itself may lie there; it lives as long as the machine.
    if let Err(HotplugError::Busy(pfn)) = area {
        assert_eq!(frames.known(pfn).kind(), Kind::CacheArea);
    } else {
        assert_eq!(area, Ok(512));
    }
}
