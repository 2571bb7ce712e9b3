//! What the zones' watermarks ask of background reclaim (kswapd).

use super::Frames;
use quire_arch::Platform;

quire_arch::part_of! {
    /// The watermarks of a machine's zones, for background reclaim.
    pub struct FrameWatermarks { pub(super) frames: Frames }
}

impl<P: Platform> FrameWatermarks<'_, P> {
    /// Frames that background reclaim should still free in the zones of the machine: none while a zone is
    /// above its `low` watermark, boost included, since a request that finds nothing in one goes on to the
    /// next. Once all are below, what the one lacks to reach `high` that lacks least. Neither what a zone
    /// keeps for requests that can only use such zones nor what is free in the high-order atomic reserve
    /// counts: ordinary requests do not get it.
    pub fn background_target(self) -> u64 {
        let mut least = None;
        for zone in self.frames.zones.populated() {
            let free = zone.available() + super::reports::listed_pages(self.frames.platform(), zone);
            let free = free.saturating_sub(zone.levels.lowmem_reserve());
            let marks = zone.levels.get();
            // At the mark is not enough: a small zone has no other, and requests leave it there.
            if free > marks.low.saturating_add(marks.boost) {
                return 0;
            }
            let lacking = Some(marks.lacking(free)).filter(|&lacking| lacking > 0);
            least = lacking.into_iter().chain(least).min();
        }
        least.unwrap_or(0)
    }

    /// Whether a zone has more free than its `high` watermark, boost included, and than it reserves for
    /// requests that can only use such zones, or that cannot wait: then a request for one frame succeeds.
    pub fn is_above_high(self) -> bool {
        self.frames.zones.populated().any(|zone| {
            let marks = zone.levels.get();
            zone.available()
                > marks.high.saturating_add(marks.boost).saturating_add(zone.levels.lowmem_reserve())
        })
    }

    /// Background reclaim has finished its round: watermark boosts end.
    pub fn end_boost(self) {
        for zone in self.frames.zones.populated() {
            let _pin = self.frames.platform.pin();
            zone.lock(&self.frames.platform).clear_boost();
        }
    }
}
