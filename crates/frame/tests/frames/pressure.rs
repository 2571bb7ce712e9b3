//! What changes when a zone gets short: budgets, the reserve, what background reclaim is asked for.

use crate::support::*;

/// 128 MiB, of which 8 MiB are kept back.
fn machine() -> Audited {
    frames_with_watermarks(Machine::new(&[(0, 1 << 15)], 1), 8 << 10)
}

/// A budget that has grown shrinks with what is free; in a short zone it is at its least, and a miss does not
/// raise the next fetch.
#[test]
fn a_miss_in_a_short_zone_gives_up_the_budget() {
    let frames = machine();
    let pin = frames.platform().pin();
    let (least, most) = lists(&frames, 0).high_bounds;
    let part: Vec<Pfn> = (0..6000).map(|_| frames.allocate(&pin, ONE).unwrap()).collect();
    put_all(&frames, part, Order::ZERO);
    assert!(
        least < lists(&frames, 0).high && lists(&frames, 0).high <= most,
        "{:?}: it has grown",
        lists(&frames, 0)
    );
    while zone(&frames).free >= zone(&frames).watermarks.high {
        frames.allocate(&pin, ONE).unwrap();
    }
    while lists(&frames, 0).count > 0 {
        frames.allocate(&pin, ONE).unwrap();
    }
    frames.allocate(&pin, ONE).unwrap();
    let now = lists(&frames, 0);
    assert_eq!((now.high, now.count), (least, now.batch - 1));
}

/// As long as there is enough memory no page block is set aside for requests that cannot wait; when the zone
/// is low, one is.
#[test]
fn page_blocks_are_reserved_in_a_low_zone_only() {
    for pcp in PcpTechnique::ALL {
        let config = FrameConfig { pcp, min_free_kib: Some(8 << 10), ..FrameConfig::default() };
        let frames = frames_by(Machine::new(&[(0, 1 << 15)], 1), config);
        let pin = frames.platform().pin();
        let atomic = AllocRequest::new(order(3), TEST).atomic();
        let reserved = || zone(&frames).pageblocks[Migratetype::HighAtomic.index()];
        while zone(&frames).free >= zone(&frames).watermarks.low + 2 * Order::MAX.pages() {
            frames.allocate(&pin, atomic).unwrap();
            assert_eq!(reserved(), 0, "{pcp:?}, {} frames are free", zone(&frames).free);
        }
        while reserved() == 0 {
            frames.allocate(&pin, atomic.without_drain()).unwrap();
        }
        assert!(zone(&frames).free < zone(&frames).watermarks.low);
        frames.pcp().drain_all(&pin);
    }
}

/// Hazard: a request for one frame drains the lists of all CPUs, with interrupts off.
#[test]
fn a_request_drains_no_more_than_it_needs() {
    const CPUS: usize = 8;
    let frames = frames(&[(0, 1 << 15)], CPUS, PcpTechnique::All);
    // A request searches all lists for its own type before it takes memory of another one.
    let movable = ONE.movability(Migratetype::Movable);
    let get = |_| frames.allocate(&frames.platform().pin(), movable).unwrap();
    let all: Vec<_> = (0..CPUS * 200).map(get).collect();
    for (cpu, some) in all.chunks(200).enumerate() {
        run_on(cpu);
        put_all(&frames, some, Order::ZERO);
    }
    run_on(0);
    exhaust(&frames, ONE.without_drain());
    let kept = || (1..CPUS).map(|cpu| lists(&frames, cpu).count).collect::<Vec<_>>();
    let before = kept();
    assert!(zone(&frames).free == 0 && before.iter().all(|&pages| pages > 0), "{before:?}");
    let (found, holds) = most_holds_under_a_pin(|| frames.allocate(&frames.platform().pin(), ONE));
    assert!(found.is_ok());
    assert!((1..=16).contains(&holds), "{holds} locks");
    assert_eq!(kept()[1..], before[1..], "one is drained");
    assert!(exhaust(&frames, ONE).len() as u64 + 1 >= before.iter().sum(), "all is found at last");
}

/// Nothing as long as a zone is above `low`, then as much as it lacks of `high`.
#[test]
fn background_reclaim_is_asked_for_what_the_zone_lacks() {
    let frames = machine();
    let pin = frames.platform().pin();
    let marks = zone(&frames).watermarks;
    for free in [marks.high, marks.low, marks.low - 1, marks.min + 7] {
        while frames.reports().free_frames() > free {
            frames.allocate(&pin, ONE).unwrap();
        }
        let lacking = if free < marks.low { marks.high - free } else { 0 };
        assert_eq!(frames.watermarks().background_target(), lacking, "{free} frames are free");
    }
}

/// The same while mixed page blocks have raised both levels, on either side of the plain `high`.
#[test]
fn background_reclaim_is_asked_for_the_boost_as_well() {
    for one_of in [11, 8] {
        let frames = machine();
        let pin = frames.platform().pin();
        let movable = ONE.movability(Migratetype::Movable).below_min();
        let all = exhaust(&frames, movable);
        put_all(&frames, all.iter().step_by(one_of), Order::ZERO);
        frames.pcp().drain_all(&pin);
        let plain = zone(&frames).watermarks;
        assert_eq!(frames.reports().free_frames() > plain.high, one_of == 8);
        for _ in 0..6 {
            frames.allocate(&pin, ONE).unwrap();
            let (marks, free) = (zone(&frames).watermarks, frames.reports().free_frames());
            let asked = if free < marks.low + marks.boost { marks.high + marks.boost - free } else { 0 };
            assert_eq!(frames.watermarks().background_target(), asked, "{free} frames are free, {marks:?}");
        }
        assert!(frames.watermarks().background_target() > 0);
    }
}

/// Hazard: what is free in the reserve counts for background reclaim, and for no ordinary request. Where the
/// reserve has more than the watermark, that sleeps while each request drains all CPUs.
#[test]
fn the_reserve_does_not_keep_background_reclaim_asleep() {
    let frames = frames_with_watermarks(Machine::new(&[(0, 1 << 18)], 1), 64);
    let pin = frames.platform().pin();
    let high = zone(&frames).watermarks.high;
    let all = exhaust(&frames, ONE.movability(Migratetype::Movable).below_min());
    let mut blocks = std::collections::BTreeMap::<Pfn, Vec<Pfn>>::new();
    all.iter().for_each(|&pfn| blocks.entry(pfn.block_start(order(9))).or_default().push(pfn));
    for pages in blocks.into_values().filter(|pages| pages.len() == 512).take(5) {
        // A request that cannot wait finds some pages and reserves their block, in which the others are
        // freed.
        put_all(&frames, &pages[..32], Order::ZERO);
        frames.pcp().drain_all(&pin);
        frames.allocate(&pin, ONE.order(order(1)).atomic()).unwrap();
        put_all(&frames, &pages[32..], Order::ZERO);
        frames.pcp().drain_all(&pin);
    }
    let now = zone(&frames);
    assert!(now.free_reserved > high && now.free - now.free_reserved < now.watermarks.low, "{now:?}");
    assert!(frames.watermarks().background_target() > 0, "background reclaim sleeps");
    assert!(!frames.watermarks().is_above_high());
}

/// Hazard: one zone is below its watermark, and background reclaim pages programs out, though requests go on
/// to another zone, which has much free. Where the first is full of what cannot be reclaimed it never ends.
#[test]
fn background_reclaim_sleeps_while_another_zone_has_room() {
    const BORDER: u64 = 1 << 20;
    let frames = frames(&[(BORDER - 16384, BORDER + 16384)], 1, PcpTechnique::None);
    let pin = frames.platform().pin();
    let normal = || frames.reports().zone_report(ZoneKind::Normal);
    let low_zone = || zone(&frames);
    // All that requests get of the upper zone.
    while normal().free > normal().watermarks.min {
        assert!(frames.known(frames.allocate(&pin, ONE).unwrap()).zone().kind() == ZoneKind::Normal);
    }
    assert!(normal().free < normal().watermarks.low && frames.watermarks().is_above_high());
    assert_eq!(
        frames.watermarks().background_target(),
        0,
        "it pages out beside {} free frames",
        low_zone().free
    );
    let marks = low_zone().watermarks;
    let reserve = low_zone().lowmem_reserve;
    assert!(reserve > 0);
    while low_zone().free > marks.low + marks.boost + reserve {
        assert_eq!(frames.watermarks().background_target(), 0);
        frames.allocate(&pin, ONE).unwrap();
    }
    frames.allocate(&pin, ONE).unwrap();
    // Both are short: it is woken before requests fail for the lower zone's reserve.
    let (normal, low) = (normal(), low_zone());
    let lacks =
        |zone: &ZoneReport| zone.watermarks.high + zone.watermarks.boost + zone.lowmem_reserve - zone.free;
    assert_eq!(frames.watermarks().background_target(), lacks(&normal).min(lacks(&low)));
    assert!(frames.allocate(&pin, ONE).is_ok());
}

/// A zone whose frames are all boot memory has no mark to be below, and no room either.
#[test]
fn a_zone_without_free_frames_does_not_keep_background_reclaim_asleep() {
    const BORDER: u64 = 1 << 20;
    let frames = frames(&[(BORDER - 16384, BORDER + 64)], 1, PcpTechnique::All);
    assert_eq!(frames.reports().zone_report(ZoneKind::Normal).managed, 0);
    exhaust(&frames, ONE);
    assert!(frames.watermarks().background_target() > 0);
}

/// The same where the marks of a small zone are all one: ordinary requests leave it as much as its `low`.
#[test]
fn a_zone_whose_marks_are_one_does_not_keep_background_reclaim_asleep() {
    let banks = [((1 << 20) - 8192, 1 << 20), ((1 << 20) + 512, (1 << 20) + 512 + 700)];
    let frames = frames_with_watermarks(Machine::new(&banks, 1), 128);
    let marks = frames.reports().zone_report(ZoneKind::Normal).watermarks;
    assert!(marks.min > 0 && marks.min == marks.high, "{marks:?}");
    exhaust(&frames, ONE);
    frames.watermarks().end_boost();
    assert!(frames.watermarks().background_target() > 0, "background reclaim sleeps");
}
