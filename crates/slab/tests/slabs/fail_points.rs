//! Failures on purpose, at every site: nothing is left half done.

use crate::support::*;

/// A little of everything; every failure is passed on after what was done is undone.
fn life(frames: &Frames<Machine>, cache: &SlabCache<[u64; 100], Machine>) -> Result<(), AllocError> {
    let pin = frames.platform().pin();
    let table = frames.allocate(&pin, AllocRequest::table())?;
    frames.known(table).classify(Kind::Table).unwrap();
    let mut objects = Vec::new();
    let mut chain = FrameChain::new();
    let mut work = || {
        for round in 0..30u64 {
            objects.push(cache.allocate(frames, &pin, [round; 100])?);
            let order = order((round % 4) as u8);
            let pfn = frames.allocate(&pin, AllocRequest::anonymous().order(order))?;
            frames.gather(&mut chain, pfn, order).unwrap();
        }
        Ok(())
    };
    let result = work();
    for object in objects {
        // SAFETY: allocated above.
        unsafe { cache.free(frames, &pin, object) };
    }
    frames.free_chain(&pin, chain);
    frames.limbo().retire(&pin, table, Order::ZERO).unwrap();
    result
}

/// How a life ends while the allocations of `plan` fail, and how many it asked for and how many failed. It
/// leaves nothing behind.
fn live(
    frames: &Frames<Machine>,
    cache: &SlabCache<[u64; 100], Machine>,
    plan: FailPlan,
) -> (Result<(), AllocError>, u64, u64) {
    let before = frames.reports().free_frames();
    frames.fail_points().set(plan);
    let result = life(frames, cache);
    frames.fail_points().set(FailPlan::OFF);
    assert_sound(frames);
    let pin = frames.platform().pin();
    frames.limbo().reap(&pin);
    cache.shrink(frames, &pin);
    assert_eq!(frames.reports().free_frames(), before, "{plan:?} left something behind");
    (result, frames.fail_points().seen(), frames.fail_points().failed())
}

#[test]
fn every_allocation_of_a_life_can_fail() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::OrderZero);
    let cache = cache(&frames, "object");
    let (result, total, _) = live(&frames, &cache, FailPlan::COUNT);
    assert!(result.is_ok() && total > 60);
    for nth in 1..=total + 1 {
        let (result, _, failed) = live(&frames, &cache, FailPlan::nth(nth));
        assert_eq!(result, if failed == 1 { Err(AllocError::Injected) } else { Ok(()) });
    }
}

#[test]
fn plans_aim_at_sites() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::OrderZero);
    let cache = cache::<[u64; 100]>(&frames, "object");
    for site in ["table", "anonymous", "slab", "object"] {
        frames.fail_points().set(FailPlan::every(1).at(FailAim::Site(FailSite::new(site))));
        cache.shrink(&frames, &frames.platform().pin());
        assert_eq!(life(&frames, &cache), Err(AllocError::Injected), "{site}");
        assert!(frames.fail_points().failed() > 0);
        assert_sound(&frames);
    }
    frames.fail_points().set(FailPlan::every(1).at(FailAim::Site(TEST)));
    assert_eq!(life(&frames, &cache), Ok(()));
    assert_eq!(frames.fail_points().seen(), 0);
}

/// What a life leaves when some of its allocations fail by chance is nothing, and the seed alone decides
/// which fail.
#[test]
fn lives_under_a_seed_end_alike_again() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::OrderZero);
    let cache = cache(&frames, "object");
    let live = |seed| live(&frames, &cache, FailPlan::seeded(seed, 20));
    let ends: Vec<_> = (0..20).map(live).collect();
    assert_eq!(ends, (0..20).map(live).collect::<Vec<_>>());
    assert!(
        ends.iter().any(|(result, ..)| result.is_ok()) && ends.iter().any(|(result, ..)| result.is_err())
    );
}

#[test]
fn classes_and_callers_are_known() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::OrderZero);
    let cache = cache(&frames, "object");
    frames.fail_points().set(FailPlan::COUNT.at(FailAim::Class(FailClass::Object)));
    life(&frames, &cache).unwrap();
    assert_eq!(frames.fail_points().seen(), 30);
    if !cfg!(debug_assertions) {
        assert_eq!(frames.fail_points().callers().count(), 0);
        return;
    }
    cache.shrink(&frames, &frames.platform().pin());
    frames.fail_points().set(FailPlan::COUNT);
    life(&frames, &cache).unwrap();
    let callers: Vec<_> = frames.fail_points().callers().collect();
    assert_eq!(callers.iter().map(|caller| caller.seen).sum::<u64>(), frames.fail_points().seen());
    let here = callers.iter().filter(|caller| caller.location.file() == file!());
    let mut sites: Vec<_> = here.map(|caller| (caller.site, caller.seen)).collect();
    sites.sort_unstable();
    assert_eq!(sites, [("anonymous", 30), ("object", 30), ("table", 1)]);
    let slab = callers.iter().find(|caller| caller.site == "slab").expect("a cold cache asks for frames");
    assert!(slab.location.file().ends_with("untyped/stock.rs"), "{}", slab.location);

    let anonymous = callers.iter().find(|caller| caller.site == "anonymous").expect("as seen").location;
    let line = FailAim::Line { file: anonymous.file(), line: anonymous.line() };
    frames.fail_points().set(FailPlan::nth(7).at(line));
    assert_eq!(life(&frames, &cache), Err(AllocError::Injected));
    assert_eq!((frames.fail_points().seen(), frames.fail_points().failed()), (7, 1));
}

#[test]
fn a_cache_that_cannot_be_made_leaves_nothing() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::OrderZero);
    let before = frames.reports().free_frames();
    frames.fail_points().set(FailPlan::nth(1));
    let made = SlabCache::<u64, Machine>::new(&frames, &frames.platform().pin(), "never");
    assert_eq!(made.map(|_| ()), Err(AllocError::Injected));
    assert_eq!(frames.reports().free_frames(), before);
    assert_eq!(cache_reports(&frames).count(), 0);
}
