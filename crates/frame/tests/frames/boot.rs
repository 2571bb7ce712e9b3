//! Taking memory into use: holes, borders, too little room.

use crate::support::*;

fn boot(banks: &[(u64, u64)], cpus: usize) -> Result<Frames<Machine>, BootError> {
    Frames::new(Machine::new(banks, cpus), FrameConfig::default())
}

#[test]
fn a_machine_without_ram_or_cpus_or_room_does_not_start() {
    assert!(matches!(boot(&[], 1), Err(BootError::NoRam)));
    assert!(matches!(boot(&[(16, 1040)], 0), Err(BootError::CpuCount(0))));
    assert!(matches!(boot(&[(16, 1040)], 257), Err(BootError::CpuCount(257))));
    // Two small banks far apart: the map of what lies between them fits into neither.
    assert!(matches!(boot(&[(0, 64), (1 << 20, (1 << 20) + 64)], 1), Err(BootError::NoRoom { .. })));
    assert!(matches!(boot(&[(0, 64), (1 << 40, (1 << 40) + 64)], 1), Err(BootError::SpanTooLarge { .. })));
    // Up to the border of 16 TiB, from 1 MiB on: the descriptors could be numbered, the slots that they lie
    // in not.
    let border = 1 << 32;
    let below_16_tib = boot(&[(256, 320), (border - 64, border)], 1);
    assert!(matches!(below_16_tib, Err(BootError::SpanTooLarge { .. })), "{below_16_tib:?}");
    let most = boot(&[(513, 577), (border - 64, border)], 1);
    assert!(matches!(most, Err(BootError::NoRoom { .. })), "{most:?}");
}

/// Hazard: blocks grow over the border of two ranges of RAM that touch, and who zeroes one, or has a table in
/// it, takes it to be in one piece. A machine that keeps the two apart in memory does not start.
#[test]
fn a_machine_whose_ranges_touch_but_lie_apart_in_memory_does_not_start() {
    let torn = boot(&[(0, 4096), (8192, 8704), (4096, 5000)], 1).map(drop);
    assert_eq!(torn, Err(BootError::TornDirectMap(Pfn(4096))));
    // Also where the border lies inside a page block.
    assert_eq!(boot(&[(0, 4000), (4000, 8192)], 1).map(drop), Err(BootError::TornDirectMap(Pfn(4000))));
    // No block has frames of two nodes.
    let nodes = Machine::new(&[(0, 4096), (4096, 8192)], 1).nodes(2);
    assert!(Frames::new(nodes, FrameConfig::default()).is_ok());
}

#[test]
fn blocks_over_the_border_of_two_ranges_are_in_one_piece() {
    let frames = frames_of(Machine::in_one_piece(&[512, 1024 + 100, 4096], 1), PcpTechnique::None);
    let largest = exhaust(&frames, ONE.order(Order::MAX));
    let address = |pfn| frames.platform().direct_map(pfn).addr().get();
    for &head in &largest {
        assert_eq!(address(Pfn(head.0 + 1023)), address(head) + 1023 * 4096, "{head:?}");
    }
    assert!(
        largest.contains(&Pfn(0)) && largest.contains(&Pfn(1024)),
        "no block lies over a border: {largest:?}"
    );
}

#[test]
fn holes_are_described_but_never_given_out() {
    // Odd borders, so that blocks of every order occur.
    let banks = [(3, 700), (1025, 1026), (1501, 4099)];
    let frames = frames(&banks, 2, PcpTechnique::OrderZero);
    assert_sound(&frames);
    let totals = frames.reports().totals();
    assert_eq!(totals.present, 697 + 1 + 2598);
    assert_eq!(totals.managed, totals.present - frames.reserved().len());
    assert_eq!(totals.free, totals.managed);
    let in_bank = |pfn: u64| banks.iter().any(|&(start, end)| (start..end).contains(&pfn));
    for pfn in 0..5000 {
        assert_eq!(frames.frame(Pfn(pfn)).is_some(), in_bank(pfn), "{pfn}");
    }
    assert_eq!(frames.known(Pfn(900)).kind(), Kind::Hole);
    assert_eq!(frames.known(Pfn(u64::MAX)).kind(), Kind::Hole);

    let pin = frames.platform().pin();
    let mut got = Vec::new();
    while let Ok(pfn) = frames.allocate(&pin, ONE) {
        assert!(in_bank(pfn.0) && !frames.reserved().contains(pfn));
        got.push(pfn);
    }
    assert_eq!(got.len() as u64, totals.managed);
    got.sort();
    got.dedup();
    assert_eq!(got.len() as u64, totals.managed, "a frame was given out twice");
    assert_sound(&frames);
    put_all(&frames, got, Order::ZERO);
    frames.pcp().drain_all(&pin);
    assert_sound(&frames);
    assert_eq!(frames.reports().free_frames(), totals.managed);
}

#[test]
fn a_frame_has_one_descriptor() {
    let frames = frames(&[(100, 1100)], 1, PcpTechnique::None);
    for (pfn, frame) in frames.map().iter() {
        assert!(core::ptr::eq(frames.known(pfn), frame), "{pfn:?}");
    }
}

#[test]
fn reserved_and_absent_frames_cannot_be_freed() {
    let frames = frames(&[(16, 1040)], 1, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    let reserved = frames.reserved().start();
    assert_eq!(frames.free(&pin, reserved, Order::ZERO), Err(FreeError::Reserved));
    assert_eq!(frames.free(&pin, Pfn(5), Order::ZERO), Err(FreeError::OutOfRange));
    assert_eq!(frames.free(&pin, Pfn(1 << 50), order(3)), Err(FreeError::OutOfRange));
    assert_eq!(frames.free(&pin, Pfn(1039), order(3)), Err(FreeError::Reserved));
}

/// Blocks do not grow across the border at 4 GiB, and each zone has its own.
#[test]
fn zones_end_at_four_gib() {
    let border = 1 << 20;
    let frames = frames(&[(border - 1024, border + 2048)], 1, PcpTechnique::None);
    let (low, high) = (zone(&frames), frames.reports().zone_report(ZoneKind::Normal));
    assert_eq!(low.managed, 1024);
    assert_eq!(high.managed + frames.reserved().len(), 2048);
    assert_eq!(low.lowmem_reserve, high.managed / 256);
    let pin = frames.platform().pin();
    let request = AllocRequest::new(Order::MAX, TEST);
    let below = frames.allocate(&pin, request.from_zone(ZoneKind::Dma32)).unwrap();
    assert_eq!(below, Pfn(border - 1024));
    assert_eq!(
        frames.allocate(&pin, request.from_zone(ZoneKind::Dma32)),
        Err(AllocError::OutOfMemory),
        "a request for low memory was served from above"
    );
    assert_eq!(frames.allocate(&pin, request), Ok(Pfn(border)));
    assert_sound(&frames);
    assert_eq!(frames.events().sum(VmEvent::PgallocDma32), 1024);
    assert_eq!(frames.events().sum(VmEvent::PgallocNormal), 1024);
    frames.free(&pin, below, Order::MAX).unwrap();
    frames.free(&pin, Pfn(border), Order::MAX).unwrap();
    assert_sound(&frames);
    assert_eq!(zone(&frames).blocks[10], [1, 0, 0, 0, 0], "the request had taken the page blocks over");
}

/// An ordinary request for any zone leaves the lower zone's reserve alone.
#[test]
fn the_lower_zone_keeps_its_reserve() {
    let border = 1 << 20;
    let frames = frames(&[(border - 64, border + 4096)], 1, PcpTechnique::None);
    let pin = frames.platform().pin();
    let request = ONE;
    exhaust(&frames, request);
    let low = zone(&frames);
    assert!(low.lowmem_reserve > 0);
    assert_eq!(low.free, low.lowmem_reserve);
    assert!(frames.allocate(&pin, request.from_zone(ZoneKind::Dma32)).is_ok());
}

#[test]
fn an_ordinary_request_stops_at_the_watermark() {
    let frames = boot(&[(0, 8192)], 1).unwrap();
    let pin = frames.platform().pin();
    let request = ONE;
    exhaust(&frames, request);
    let zone = zone(&frames);
    assert!(zone.watermarks.min > 0);
    assert_eq!(zone.free, zone.watermarks.min);
    assert!(frames.allocate(&pin, request.below_min()).is_ok());
    assert_sound(&frames);
}
